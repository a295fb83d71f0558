"""Fetches on their way to brokers: connections to their data ports that belong to one thread, which reads them itself.

No other thread touches an answer: it is received straight into the ``bytes`` that the records are read from.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.proto import frames
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import ClientClosed, OutcomeUnknown, PenstockError, from_bytes
from penstock.proto.handshakes import NEVER_CONNECTED
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply
from penstock.runtime.data.link import PING_S, SILENCE_S, DataLink, broken

from .retry import NEVER

OpenLink = Callable[[str], DataLink]
"""Connects to the broker at an address, which may take a while. Raises a PenstockError."""

READ_S: Final = 0.1
"""The rest of an answer is waited for so long before others have their turn."""
NOTHING: Final = frames.pack(FetchReply())


@dataclass(eq=False, slots=True)
class FetchCall:
    """One fetch under way."""

    address: str
    number: int
    deadline: float
    about: Any = None
    """The caller's own."""
    outcome: bytes | PenstockError | None = None
    is_hurried: bool = False

    def message(self) -> bytes:
        """The framed reply: ``FetchReply`` and the records of all its results, end to end. Raises its error."""
        if isinstance(self.outcome, bytes):
            return self.outcome
        assert self.outcome is not None, "not answered yet"
        raise self.outcome


@dataclass(eq=False, slots=True)
class _Line:
    """The connection to one broker until it breaks; ``link`` is None while it is opened."""

    address: str
    link: DataLink | None = None
    descriptor: int = -1
    under_way: dict[int, FetchCall] = field(default_factory=dict)  # by number
    early: dict[int, bytes] = field(default_factory=dict)  # what is to be sent as soon as there is a connection
    number: int = 0
    owes_since: float = 0.0  # when the first of what is under way was sent
    pinged_at: float = 0.0


class FetchLinks:
    """The connections of one thread. Only :meth:`wake` and :meth:`end` may be called by others."""

    def __init__(self, open_link: OpenLink) -> None:
        self._open_link = open_link
        self._lines: dict[str, _Line] = {}  # by address
        self._by_descriptor: dict[int, _Line] = {}
        self._poll = select.poll()
        self._woken: socket.socket | None = None  # made by the thread itself: who never fetches has nothing to close
        self._waker: socket.socket | None = None
        self._is_woken = False  # set before the waker is looked at, and looked at when it is made
        self._opened: queue.SimpleQueue[tuple[_Line, DataLink | PenstockError]] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards whether it is closed against what comes from opening threads
        self.is_ended = self._is_closed = False
        self._left_at = time.monotonic()  # when the thread waited here last
        self._landed: list[FetchCall] = []

    def fetch(self, address: str, header: FetchHeader, timeout_s: float, about: Any = None) -> FetchCall:
        """Begin a fetch; :meth:`landed` gives it back. Time counts while the thread waits there.

        Raises:
            ClientClosed: after :meth:`end`.
        """
        if self.is_ended:
            raise ClientClosed("the client is closed: make a new one")
        self._make_waker()
        line = self._lines.get(address)
        if line is not None and line.link is not None and not line.under_way and line.link.has_unread():
            self._receive(line)  # the end, perhaps, of a connection that was idle
            line = self._lines.get(address)
        now = time.monotonic()
        if line is None:
            line = self._lines[address] = _Line(address)
            threading.Thread(target=self._open, args=(line,), name="penstock-fetch-open", daemon=True).start()
        if not line.under_way:
            line.owes_since = now
        line.number = line.number % 0xFFFFFFFF + 1
        call = line.under_way[line.number] = FetchCall(address, line.number, now + timeout_s, about)
        content = frames.pack(header)
        if line.link is None:
            line.early[call.number] = content
        else:
            line.link.send(call.number, Method.FETCH, content)
        return call

    def hurry(self, call: FetchCall) -> None:
        """Have a fetch that waits for messages answered now, with what there is."""
        line = self._lines.get(call.address)
        if call.is_hurried or line is None or call.number not in line.under_way:
            return
        call.is_hurried = True
        if line.link is None:
            line.early.pop(call.number, None)
            self._settle(line, call.number, NOTHING)
        else:
            line.link.send(call.number, Method.FETCH)

    def leave(self, address: str) -> None:
        """Give up everything that is under way to the broker at ``address``."""
        line = self._lines.get(address)
        if line is not None:
            self._break(line, broken(address, "cancelled here", "CANCELLED"))

    def landed(self, timeout_s: float | None) -> list[FetchCall]:
        """The fetches that have ended, waiting for the first of them, :meth:`wake`, or the time's end."""
        if self._is_closed:
            return []
        self._make_waker()
        now = time.monotonic()
        if now - self._left_at > PING_S:
            self._forgive(now - self._left_at, now)
        until = None if timeout_s is None else now + timeout_s
        while True:
            self._take_opened()
            due = self._look(now)
            if self._landed or self._is_woken or self.is_ended or (until is not None and now >= until):
                break
            wait_until = due if until is None else min(due, until)
            self._take_what_comes(None if wait_until == NEVER else max(wait_until - now, 0.0))
            now = time.monotonic()
        if not self._landed:  # nothing keeps what has come from being found the next time
            self._take_what_comes(0.0)
        self._is_woken = False
        if self.is_ended:
            self._close()
        self._left_at = now
        landed, self._landed = self._landed, []
        return landed

    def wake(self) -> None:
        """Let :meth:`landed` return. For any thread, under any lock."""
        if not self._is_woken:
            self._is_woken = True
            self._send(b"x")

    def end(self) -> None:
        """Give up everything, by the thread itself when it waits the next time. For any thread."""
        self.is_ended = True
        self._is_woken = False
        self.wake()

    def close(self) -> None:
        """Give up everything and close the connections. For the thread itself, or when it is gone."""
        self.is_ended = True
        self._close()
        self._landed.clear()

    # Inside.

    def _make_waker(self) -> None:
        if self._waker is None:
            woken, waker = socket.socketpair()
            woken.setblocking(False)
            waker.setblocking(False)
            self._poll.register(woken, select.POLLIN)
            self._woken, self._waker = woken, waker

    def _send(self, why: bytes) -> None:
        if (waker := self._waker) is not None:
            with contextlib.suppress(OSError):  # full, or closed
                waker.send(why)

    def _close(self) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        while not self._opened.empty():
            opened = self._opened.get_nowait()[1]
            if isinstance(opened, DataLink):
                opened.close()
        for line in list(self._lines.values()):
            self._break(line, broken(line.address, "cancelled here", "CANCELLED"))
        for end in (self._woken, self._waker):
            if end is not None:
                end.close()

    def _open(self, line: _Line) -> None:
        """In a thread of its own."""
        opened: DataLink | PenstockError
        try:
            opened = self._open_link(line.address)
        except PenstockError as error:
            opened = error
        with self._lock:
            if not self._is_closed:
                self._opened.put((line, opened))
                self._send(b"o")
                return
        if isinstance(opened, DataLink):
            opened.close()

    def _take_opened(self) -> None:
        while not self._opened.empty():
            line, opened = self._opened.get_nowait()
            if isinstance(opened, PenstockError):
                self._break(line, opened)
            elif self._lines.get(line.address) is not line:
                opened.close()  # given up meanwhile
            else:
                opened.begin_to_receive(READ_S)
                line.link = opened
                line.owes_since = time.monotonic()
                line.descriptor = opened.fileno()
                self._by_descriptor[line.descriptor] = line
                self._poll.register(line.descriptor, select.POLLIN)
                for number, content in line.early.items():
                    opened.send(number, Method.FETCH, content)
                line.early.clear()

    def _take_what_comes(self, timeout_s: float | None) -> None:
        """Wait for anything, and take it."""
        found = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        for descriptor, _ in found:
            if self._woken is not None and descriptor == self._woken.fileno():
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(4096)
            else:
                self._receive(self._by_descriptor[descriptor])

    def _receive(self, line: _Line) -> None:
        assert line.link is not None
        try:
            for frame in line.link.receive():
                if frame.method == Method.FETCH:
                    is_answer = frame.kind == Kind.ANSWER
                    self._settle(line, frame.number, frame.content if is_answer else from_bytes(frame.content))
        except PenstockError as error:
            self._break(line, error)

    def _settle(self, line: _Line, number: int, outcome: bytes | PenstockError) -> None:
        call = line.under_way.pop(number, None)
        if call is not None:  # else it came too late
            call.outcome = outcome
            self._landed.append(call)

    def _look(self, now: float) -> float:
        """Fail what is not answered in time, ping who is silent, break with who is frozen; when to look again."""
        due = NEVER
        for line in list(self._lines.values()):
            if not line.under_way:
                continue
            for call in [each for each in line.under_way.values() if each.deadline <= now]:
                line.early.pop(call.number, None)
                self._settle(line, call.number, self._late(line))
            if line.link is not None and line.under_way:
                heard = max(line.owes_since, line.link.heard_at)
                if now - heard >= SILENCE_S:
                    error = broken(line.address, f"silent for {now - heard:.1f} s")
                    self._break(line, error)
                    continue
                if now - max(heard, line.pinged_at) >= PING_S:
                    line.pinged_at = now
                    line.link.send(line.number, Method.PING)
                due = min(due, max(heard, line.pinged_at) + PING_S, heard + SILENCE_S)
            due = min(due, min((each.deadline for each in line.under_way.values()), default=due))
        return due

    def _forgive(self, gap_s: float, now: float) -> None:
        """The thread was elsewhere: nobody else is late because of that."""
        for line in self._lines.values():
            line.owes_since = now
            for call in line.under_way.values():
                call.deadline += gap_s

    def _break(self, line: _Line, error: PenstockError) -> None:
        if self._lines.get(line.address) is line:
            del self._lines[line.address]
        if line.link is not None:
            self._poll.unregister(line.descriptor)
            del self._by_descriptor[line.descriptor]
            line.link.leave()
            line.link = None
        for number in list(line.under_way):
            self._settle(line, number, error)

    def _late(self, line: _Line) -> PenstockError:
        if line.link is None:
            return broken(line.address, f"{NEVER_CONNECTED}, in time")
        return OutcomeUnknown(f"broker {line.address}: no answer within the time-out")
