"""Connections between a client and a data port of one process, on one event loop: bytes change hands without a socket.

What a client sends, what a port answers and what the client reads of it are one round of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..turns import runs_here

log = logging.getLogger(__name__)

UNREAD_BYTES_MAX: Final = 4 << 20
"""Of answers, about what the system keeps of a TCP connection within a machine; the server waits with others."""

MakeProtocol = Callable[[], asyncio.BufferedProtocol]

_ports: Final[dict[str, tuple[asyncio.AbstractEventLoop, MakeProtocol]]] = {}  # by address


def serve(address: str, make: MakeProtocol) -> None:
    """Have clients whose reading the running loop does reach the port of the broker at ``address`` by a pipe."""
    _ports[address] = asyncio.get_running_loop(), make


def end_serving(address: str, make: MakeProtocol) -> None:
    """Make no more connections there, unless another serves it since."""
    if _ports.get(address, (None, None))[1] == make:
        del _ports[address]


def connect(address: str, loop: asyncio.AbstractEventLoop | None) -> Pipe | None:
    """A connection to the broker at ``address``; None: it is not served by this loop, and has to be connected to."""
    served_by, make = _ports.get(address, (None, None))
    return None if make is None or loop is None or served_by is not loop else Pipe(loop, make)


class Pipe:
    """The client's end, which a :class:`.link.DataLink` uses as its socket. For any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, make: MakeProtocol) -> None:
        self._loop = loop
        self._make = make
        self._protocol: asyncio.BufferedProtocol | None = None  # once the loop has begun; its alone
        self._sent: deque[memoryview] = deque()  # to the server
        self._came: deque[memoryview] = deque()  # from it
        self._has_come = threading.Condition()  # guards what came, for who waits for it
        self._unread_bytes = 0  # of what came
        self._is_full = False  # the server was told to wait; the loop's alone
        self._timeout_s: float | None = None
        self._is_held = False  # the server reads nothing
        self.is_ended = False
        """True once nothing more can be sent, by either end."""
        self._is_lost = False  # the server has heard of it
        self._is_called = False  # a turn of the loop comes; false before it begins, so that it sees all before a call
        self._on_readable: Callable[[], None] | None = None
        self._call()

    # As of a socket.

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds

    def setsockopt(self, *_: Any) -> None:
        """Nothing of it is there to be set."""

    def sendmsg(self, pieces: Sequence[memoryview], *_: Any) -> int:
        """Send them; returns how many bytes, which is all."""
        if self.is_ended:
            raise BrokenPipeError
        self._sent.extend(pieces)
        self._call()
        return sum(map(len, pieces))

    def recv_into(self, room: memoryview, _: int, flags: int) -> int:
        """How many bytes were put there; 0: there will be no more. Raises BlockingIOError, TimeoutError."""
        with self._has_come:
            if not self._came and not self.is_ended:
                if flags & socket.MSG_DONTWAIT:
                    raise BlockingIOError
                if not self._has_come.wait_for(lambda: self._came or self.is_ended, self._timeout_s):
                    raise TimeoutError("no answer in time")
            count = _filled(room, self._came)
            self._unread_bytes -= count
        if self._is_full:
            self._call()
        return count

    def has_unread(self) -> bool:
        """True if a read would not wait."""
        return bool(self._came) or self.is_ended

    def shutdown(self, _: int) -> None:
        self.end()

    def close(self) -> None:
        """End it, and read no more."""
        self._on_readable = None
        self.end()

    def watch(self, on_readable: Callable[[], None] | None) -> None:
        """Have the loop call it whenever there is something to read; None: no more. By the loop."""
        self._on_readable = on_readable
        self._call()

    # What the server's end calls.

    def put(self, content: bytes | memoryview) -> None:
        """This is answered. Of nothing, which would be read as the end, nothing is taken."""
        if not len(content):
            return
        with self._has_come:
            self._came.append(memoryview(bytes(content)))
            self._unread_bytes += len(content)
            self._has_come.notify()
        if not self._is_full and self._unread_bytes > UNREAD_BYTES_MAX and self._protocol is not None:
            self._is_full = True
            self._protocol.pause_writing()
        self._call()

    def hold(self, is_held: bool) -> None:
        """Give the server nothing, or go on."""
        self._is_held = is_held
        if not is_held:
            self._call()

    def end(self) -> None:
        """Nothing more is sent, by either end; the client may read what came."""
        with self._has_come:
            self.is_ended = True
            self._has_come.notify()
        self._call()

    # Inside.

    def _call(self) -> None:
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its broker gone
                (self._loop.call_soon if runs_here(self._loop) else self._loop.call_soon_threadsafe)(self._turn)

    def _turn(self) -> None:
        self._is_called = False
        try:
            self._deliver()
        except Exception:  # asyncio would do the same
            log.exception("connection failed")
            self.end()
        if self._on_readable is not None and self.has_unread():
            is_end = not self._came
            self._on_readable()
            if self.has_unread() and not is_end:  # the end is read by itself, behind what came before it
                self._call()

    def _deliver(self) -> None:
        protocol, sent = self._protocol, self._sent
        if protocol is None:
            protocol = self._protocol = self._make()
            protocol.connection_made(_Transport(self))
        if self._is_full and self._unread_bytes <= UNREAD_BYTES_MAX // 4 and not self.is_ended:
            self._is_full = False
            protocol.resume_writing()
        while sent and not self._is_held and not self.is_ended:
            room = memoryview(protocol.get_buffer(-1))
            assert len(room), "a server that reads has room"
            protocol.buffer_updated(_filled(room, sent))
        if self.is_ended and not self._is_lost:
            self._is_lost = True
            sent.clear()
            protocol.connection_lost(None)


class _Transport(asyncio.Transport):
    """The server's end; event loop only."""

    def __init__(self, pipe: Pipe) -> None:
        super().__init__()
        self._pipe = pipe

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """How much is taken says the pipe."""

    def write(self, data: Any) -> None:
        if not self._pipe.is_ended:
            self._pipe.put(data)

    def is_closing(self) -> bool:
        return self._pipe.is_ended

    def pause_reading(self) -> None:
        self._pipe.hold(True)

    def resume_reading(self) -> None:
        self._pipe.hold(False)

    def close(self) -> None:
        self._pipe.end()

    def abort(self) -> None:
        self._pipe.end()


def _filled(room: memoryview, pieces: deque[memoryview]) -> int:
    """Move as many bytes of the pieces as there are and fit; returns how many."""
    count = 0
    while pieces and count < len(room):
        piece = pieces[0]
        part = piece[: len(room) - count]
        room[count : count + len(part)] = part
        count += len(part)
        if len(part) < len(piece):
            pieces[0] = piece[len(part) :]
        else:
            pieces.popleft()
    return count
