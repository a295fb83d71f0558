"""Batches on their way to brokers: one connection to the data port of each, and the answers.

A stream opens with the first batch after there was none, and breaks as a whole: everything under way on it is then
unknown, except when no connection was made at all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import BrokerUnavailable, ClientClosed, OutcomeUnknown, PenstockError, from_bytes
from penstock.proto.handshakes import NEVER_CONNECTED
from penstock.proto.wire.broker_pb2 import AppendReceipt
from penstock.runtime.channel import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from penstock.runtime.data_link import DataLink, Frame

from .retry import NEVER

log = logging.getLogger(__name__)

Receipts = Future[AppendReceipt]
OpenLink = Callable[[], DataLink]
"""Connects, which may take a while. Raises a PenstockError."""

PING_S = KEEPALIVE_TIME_MS / 1000
"""A broker that owes an answer, and is silent for so long, is pinged."""
SILENCE_S = (KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS) / 1000
"""One that is silent for so long is frozen, or cut off."""


class AppendStreams:
    """The append streams of one client instance, by the brokers' addresses. Thread-safe.

    A thread of its own ends what is not answered in time; it sleeps until the next time-out that is known.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}  # by address; replaced under the lock, read without it
        # When the watching thread looks again. Senders lower it, the watching thread sets it; a sender that is
        # overwritten has set the event, so the thread looks once more.
        self._watch_at = NEVER
        self._changed = threading.Event()
        self._watching: threading.Thread | None = None
        self._is_closed = False

    def append(self, address: str, open_link: OpenLink, message: bytes, timeout_s: float) -> Receipts:
        """Send a framed batch to the broker at ``address``; the future is completed by a thread of this module.

        Its errors: what the broker answered; :class:`OutcomeUnknown` after ``timeout_s``; :class:`BrokerUnavailable`
        with a ``status`` when the stream broke.

        Raises:
            ClientClosed: after :meth:`close`.
        """
        now = time.monotonic()
        deadline = now + timeout_s
        stream = self._streams.get(address)
        future = None if stream is None else stream.send(message, deadline)
        if future is None:
            future = self._on_new_stream(address, open_link, message, deadline)
        look_at = min(deadline, now + PING_S)
        if look_at < self._watch_at:
            self._watch_at = look_at
            self._changed.set()
        return future

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

    def _on_new_stream(self, address: str, open_link: OpenLink, message: bytes, deadline: float) -> Receipts:
        with self._lock:
            if self._is_closed:
                raise ClientClosed("the client is closed: make a new one")
            if self._watching is None:
                self._watching = threading.Thread(target=self._watch, name="penstock-append-times", daemon=True)
                self._watching.start()
            stream = self._streams.get(address)
            future = None if stream is None else stream.send(message, deadline)
            if future is None:
                stream = self._streams[address] = _Stream(address, open_link)
                future = stream.send(message, deadline)
                assert future is not None, "a stream that has not begun"
                stream.begin()
            return future

    def _watch(self) -> None:
        while not self._is_closed:
            self._changed.clear()
            now = time.monotonic()
            self._watch_at = NEVER  # a batch that starts meanwhile sets it lower again
            due = min((stream.look(now) for stream in list(self._streams.values())), default=NEVER)
            self._watch_at = min(self._watch_at, due)
            pause = self._watch_at - time.monotonic()
            if pause > 0:
                self._changed.wait(None if self._watch_at == NEVER else pause)


class _Stream:
    """One stream until it breaks."""

    def __init__(self, address: str, open_link: OpenLink) -> None:
        self._address = address
        self._open_link = open_link
        self._lock = threading.Lock()  # guards all of this, and the order in which is sent
        self._number = 0
        self._under_way: dict[int, tuple[float, Receipts]] = {}  # by number; a deadline each
        self._early: list[tuple[int, bytes]] = []  # what was to be sent before there was a connection
        self._link: DataLink | None = None
        self._owes_since = NEVER  # when the first of what is under way was sent, or something came last
        self._is_broken = False

    def begin(self) -> None:
        """Connect, in a thread of its own."""
        threading.Thread(target=self._run, name="penstock-append-answers", daemon=True).start()

    def send(self, message: bytes, deadline: float) -> Receipts | None:
        """The future of the batch's receipt, or None if the stream is broken and nothing was sent."""
        future: Receipts = Future()
        with self._lock:
            if self._is_broken:
                return None
            number = self._number = self._number % 0xFFFFFFFF + 1
            if not self._under_way:
                self._owes_since = time.monotonic()
            self._under_way[number] = (deadline, future)
            if self._link is None:
                self._early.append((number, message))
            else:
                self._link.send(number, Method.APPEND, message)
        return future

    def look(self, now: float) -> float:
        """Fail what is not answered in time, and break a stream whose broker is silent; when to look again.

        Late answers are nobody's.
        """
        due, late = NEVER, []
        with self._lock:
            for number, (deadline, future) in self._under_way.items():
                if future.done():
                    continue
                if deadline <= now:
                    late.append((number, future))
                else:
                    due = min(due, deadline)
            if late and self._link is None:
                numbers = {number for number, _ in late}
                self._early = [each for each in self._early if each[0] not in numbers]
            link, owes = self._link, bool(self._under_way)
            silent_s = now - max(self._owes_since, link.heard_at if link is not None else now)
            if link is not None and owes and PING_S <= silent_s < SILENCE_S:
                link.send(self._number, Method.PING)
        for _, future in late:
            _fail(future, self._not_sent() if link is None else self._unanswered())
        if silent_s >= SILENCE_S and owes:
            self._break(BrokerUnavailable(f"broker {self._address}: silent for {silent_s:.1f} s", status="UNAVAILABLE"))
        return min(due, now + PING_S) if owes else due

    def end(self) -> None:
        """Break it from here."""
        if self._link is None:
            self._break(self._not_sent())
        else:
            self._break(BrokerUnavailable(f"broker {self._address}: cancelled here", status="CANCELLED"))

    def _unanswered(self) -> PenstockError:
        return OutcomeUnknown(f"broker {self._address}: no answer within the time-out")

    def _not_sent(self) -> PenstockError:
        return BrokerUnavailable(f"broker {self._address}: {NEVER_CONNECTED}, in time", status="UNAVAILABLE")

    def _run(self) -> None:
        try:
            link = self._open_link()
        except PenstockError as error:
            self._break(error)
            return
        with contextlib.closing(link):
            with self._lock:
                for number, message in self._early:
                    link.send(number, Method.APPEND, message)
                self._early.clear()
                self._link = link
                if self._is_broken:
                    return
                self._owes_since = time.monotonic()
            try:
                for frame in link.frames():
                    self._settle(frame)
            except PenstockError as error:
                self._break(error)

    def _break(self, error: PenstockError) -> None:
        with self._lock:
            self._is_broken = True
            rest = [future for _, future in self._under_way.values()]
            self._under_way.clear()
            self._early.clear()
            link = self._link
        if link is not None:
            link.close()
        for future in rest:
            _fail(future, error)

    def _settle(self, frame: Frame) -> None:
        if frame.method != Method.APPEND:
            return  # a ping's
        with self._lock:
            _, future = self._under_way.pop(frame.number, (0.0, None))
        if future is None:
            log.debug("an answer came that nobody waits for")
        elif frame.kind == Kind.ANSWER:
            _complete(future, AppendReceipt.FromString(frame.content))
        else:
            _fail(future, from_bytes(frame.content))


def _complete(future: Receipts, receipt: AppendReceipt) -> None:
    try:
        future.set_result(receipt)
    except InvalidStateError:
        log.debug("an answer came after its time-out")


def _fail(future: Receipts, error: PenstockError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        log.debug("an error came after the time-out: %s", error)
