"""What is asked at the data ports of brokers: one connection to each, and the answers.

A stream opens with the first request after there was none, and breaks as a whole (:mod:`.data_stream`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from penstock.proto.data_frames import Method
from penstock.proto.errors import ClientClosed
from penstock.runtime.data.link import PING_S, DataLink

from .data_stream import Asked, Awaited, Stream, Take
from .retry import NEVER

T = TypeVar("T")


class DataStreams:
    """The streams of one client instance, by the brokers' addresses. Thread-safe.

    A thread of its own ends what is not answered in time; it sleeps until the next time-out that is known.
    """

    def __init__(self, open_link: Callable[[str], DataLink]) -> None:
        """``open_link`` connects to the broker at an address, which may take a while. Raises a PenstockError."""
        self.open_link = open_link
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}  # by address; replaced under the lock, read without it
        # When the watching thread looks again. Senders lower it, the watching thread sets it; a sender that is
        # overwritten has set the event, so the thread looks once more.
        self._watch_at = NEVER
        self._changed = threading.Event()
        self._watching: threading.Thread | None = None
        self._is_closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        """What reads the streams that open; None: threads."""

    def work_in(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have that event loop read the streams that open from now on, and no threads."""
        self.loop = loop

    def ask(
        self,
        address: str,
        method: Method,
        content: bytes,
        take: Take[T],
        timeout_s: float,
        *,
        is_awaited: bool = False,
        late: Take[object] | None = None,
    ) -> Future[T]:
        """Send a request to the broker at ``address``; the future is completed by whoever reads the stream.

        ``is_awaited``: the caller's next step is to wait for the future's ``result()``. ``late`` takes an answer that
        comes when the future has been cancelled, or has failed.

        Its errors: what the broker answered; :class:`OutcomeUnknown` after ``timeout_s``; :class:`BrokerUnavailable`
        with a ``status`` when the stream broke.

        Raises:
            ClientClosed: after :meth:`close`.
        """
        now = time.monotonic()
        future: Future[T] = Awaited() if is_awaited else Future()
        return self._send(address, method, content, Asked(now + timeout_s, future, take, late=late), now)

    def stand(
        self,
        address: str,
        method: Method,
        content: bytes,
        take: Callable[[bytes], object],
        is_attended: Callable[[], bool] = lambda: False,
    ) -> Future[None]:
        """Send a standing request: ``take`` gets the content of each answer, and the future the error at the end.

        The broker hears from this client every :data:`PING_S`, and this client from it, or the stream is broken. A
        future that is cancelled, or has an exception set by its owner, takes no more answers.

        ``is_attended``: True while everybody who waits for what ``take`` gets does so by :meth:`wait`, so that no
        other thread need read for them. It may not block; who makes it False sends something behind that.

        Raises:
            ClientClosed: after :meth:`close`.
        """
        asked = Asked(NEVER, Future(), take, is_attended)
        return self._send(address, method, content, asked, time.monotonic())

    def wait(self, address: str, future: Future[T], timeout_s: float) -> T:
        """As :meth:`.data_stream.Stream.wait`, of the stream to ``address``."""
        stream = self._streams.get(address)
        return future.result(timeout_s) if stream is None else stream.wait(future, timeout_s)

    def leave(self, address: str) -> None:
        """Break the stream to ``address``, if there is one: everything under way on it is unknown."""
        stream = self._streams.get(address)
        if stream is not None:
            stream.end()

    def close(self) -> None:
        """Break every stream. May be called again."""
        with self._lock:
            self._is_closed = True
            streams = list(self._streams.values())
        for stream in streams:
            stream.end()
        self._changed.set()

    def _send(self, address: str, method: Method, content: bytes, asked: Asked, now: float) -> Future[Any]:
        stream = self._streams.get(address)
        if stream is None or not stream.send(method, content, asked):
            self._on_new_stream(address, method, content, asked)
        look_at = min(asked.deadline, now + PING_S)
        if look_at < self._watch_at:
            self._watch_at = look_at
            self._changed.set()
        return asked.future

    def _on_new_stream(self, address: str, method: Method, content: bytes, asked: Asked) -> None:
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed: make a new one")
            if self._watching is None:
                self._watching = threading.Thread(target=self._watch, name="penstock-data-times", daemon=True)
                self._watching.start()
            stream = self._streams.get(address)
            if stream is None or not stream.send(method, content, asked):
                made = Stream(address, partial(self.open_link, address), self.loop)
                made.send(method, content, asked)
                self._streams[address] = made  # not before: who leaves it breaks what it has, and nothing is sent then
                made.begin()

    def _watch(self) -> None:
        while not self._is_closed:
            now = time.monotonic()
            self._watch_at = NEVER  # a request that starts meanwhile sets it lower again
            due = min((stream.look(now) for stream in list(self._streams.values())), default=NEVER)
            self._watch_at = min(self._watch_at, due)
            pause = self._watch_at - time.monotonic()
            if pause > 0:
                self._changed.wait(None if self._watch_at == NEVER else pause)
                self._changed.clear()  # before looking: what happens from here on wakes again
