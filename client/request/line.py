"""The line to one broker group on which replies come: a request that stands at its master, and then at the next one."""

from __future__ import annotations

import contextlib
import logging
import threading
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, PenstockError
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest

from ..cluster import Calls, back_off_s

if TYPE_CHECKING:
    from penstock.proto.wire.nameserver_pb2 import TopicRoute

    from .requests import Requests

log = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 3.0
LOG_EVERY: Final = 20


class Line:
    """Open from the first request on: a request that stands, a stream of replies. One that breaks is begun again while
    there is a request without a reply.

    What came while it was broken lies in the broker's topic of replies: the new stream begins at the position of the
    oldest request, so that nothing is missed.
    """

    def __init__(self, calls: Calls, client_id: str, broker_name: str, requests: Requests) -> None:
        self._calls = calls
        self._client_id = client_id
        self._broker_name = broker_name
        self._requests = requests
        self._closed = threading.Event()
        self._needed = threading.Event()
        self._lock = threading.Lock()  # guards what follows, where it is written
        self._stream: _Stream | None = None
        self._begin: int | None = None  # the stream brings replies from this position on; None: there is no stream
        self._thread = threading.Thread(target=self._run, name=f"penstock-replies-{broker_name}", daemon=True)
        self._thread.start()
        calls.directory.add_listener(self._on_route)

    def need(self, position: int) -> None:
        """Bring replies from that log position on. The request there is known to ``oldest`` already."""
        begin = self._begin
        if begin is not None and begin <= position:
            return
        with self._lock:
            if self._stream is None or self._begin is None:
                self._needed.set()
            elif position < self._begin and not self._closed.is_set():
                former = self._stream
                self._listen(former.address, position)
                former.cancel()

    def wait(self, future: Future[T], timeout_s: float) -> T:
        """The result of ``future``, which a reply completes; the thread reads for it. Raises what it raises."""
        stream = self._stream
        if stream is None:
            return future.result(timeout_s)
        return self._calls.connections.data.wait(stream.address, future, timeout_s)

    def end(self) -> None:
        """End the stream. May be called again."""
        self._calls.directory.remove_listener(self._on_route)
        self._closed.set()
        self._needed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.cancel()

    def close(self) -> None:
        """End the stream and the thread. May be called again."""
        self.end()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=TIMEOUT_S)

    def _on_route(self, _: TopicRoute | None = None) -> None:
        """Another broker may be master: one that is frozen, or cut off, would keep the stream."""
        stream, master = self._stream, self._calls.directory.master(self._broker_name)
        if stream is not None and master is not None and stream.address != master:
            stream.cancel()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._needed.wait()
            self._needed.clear()
            failures = 0
            while not self._closed.is_set() and self._requests.oldest(self._broker_name) is not None:
                was_heard, error = self._follow(fresh=failures > 0)
                failures = 1 if was_heard else failures + 1
                if self._closed.is_set():
                    return
                level = logging.WARNING if failures % LOG_EVERY == 2 else logging.INFO
                log.log(level, "line for replies broke broker=%s error=%s", self._broker_name, error.message)
                if not error.retryable:
                    self._requests.fail(self._broker_name, error)
                self._closed.wait(back_off_s(failures))

    def _follow(self, *, fresh: bool) -> tuple[bool, PenstockError]:
        """Follow a standing request, and those that take its place, to the end.

        Returns True if anything was heard, and its error.
        """
        stream: _Stream | None = None
        directory = self._calls.directory
        try:
            master = directory.master(self._broker_name)
            address = directory.address(self._broker_name, TIMEOUT_S, fresh=fresh)
            stream = self._open(address)
            if stream is None:
                return False, BrokerUnavailable(f"broker {address}: nobody waits for a reply any more")
            if directory.master(self._broker_name) != master:
                self._on_route()  # which found no stream when it was called
            while True:
                error = stream.future.exception()
                with self._lock:
                    if self._stream is stream or self._stream is None:
                        break
                    stream = self._stream
        except PenstockError as failed:
            return False, failed
        finally:
            self._leave()
        assert isinstance(error, PenstockError), "nobody sets any other"
        return stream.was_heard, error

    def _open(self, address: str) -> _Stream | None:
        with self._lock:
            # Under the lock: a request that comes later than this look finds the stream, and compares.
            position = self._requests.oldest(self._broker_name)
            if position is None or self._closed.is_set():
                return None
            return self._listen(address, position)

    def _listen(self, address: str, position: int) -> _Stream:
        """Begin at that position; the lock is held."""
        stream = _Stream(address)
        request = ListenRequest(client_id=self._client_id, position=position).SerializeToString()

        def take(content: bytes) -> None:
            stream.was_heard = True
            event, records = frames.unpack(content, ListenEvent, frames.ANSWER_FIELDS_MAX)
            if records:
                self._requests.take(self._broker_name, bytes(records), event.push_time_ms)

        stream.future = self._calls.connections.stand(address, Method.LISTEN, request, take, self._requests.is_attended)
        self._stream, self._begin = stream, position
        return stream

    def _leave(self) -> None:
        with self._lock:
            stream, self._stream, self._begin = self._stream, None, None
        if stream is not None:
            stream.cancel()


class _Stream:
    """A standing request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.was_heard = False  # written by the thread that reads answers
        self.future: Future[None] = Future()

    def cancel(self) -> None:
        """Take nothing more. May be called again."""
        with contextlib.suppress(InvalidStateError):
            self.future.set_exception(BrokerUnavailable(f"broker {self.address}: cancelled here"))
