"""A client's connection to a data port; for threads. The frames are those of :mod:`penstock.proto.data_frames`.

Whoever sends never waits: what the system does not take at once is sent by a thread of its own, in order. One thread
reads; what is large it reads straight into the ``bytes`` that it gets.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, VERSION, Kind, Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, PenstockError, from_bytes
from penstock.proto.frames import new_bytes
from penstock.proto.handshakes import NEVER_CONNECTED
from penstock.proto.wire.data_pb2 import Hello

from ..busy_poll import BusyPoll
from ..channel import CONNECT_TIMEOUT_MS, KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from ..security.credentials import PLAIN, Security
from ..security.signatures import signed
from .pipe import Pipe

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

CONNECT_S: Final = CONNECT_TIMEOUT_MS / 1000
"""How long connecting and greeting may take, each."""
BUFFER_BYTES: Final = 16 << 10
"""Of heads and small frames; so much at most of a large one is copied."""
JOINED_BYTES: Final = 1 << 10
"""A request up to here is copied behind its head: one piece is sent in less time than two."""
ENCRYPTED_BYTES: Final = 256 << 10
UNAVAILABLE: Final = "UNAVAILABLE"
PING_S: Final = KEEPALIVE_TIME_MS / 1000
"""A broker that owes an answer, and is silent for so long, is pinged."""
SILENCE_S: Final = (KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS) / 1000
"""One that is silent for so long is frozen, or cut off."""
TIMEVAL: Final = struct.Struct("ll")


def broken(address: str, why: str, status: str = UNAVAILABLE) -> BrokerUnavailable:
    """What ends everything under way over a connection."""
    return BrokerUnavailable(f"broker {address}: {why}", status=status)


def never_connected(address: str, port: int, error: Exception) -> BrokerUnavailable:
    return broken(address, f"{NEVER_CONNECTED}: data port {port}: {error}")


class Frame(NamedTuple):
    number: int
    method: int
    kind: int
    content: bytes


class DataLink:
    """One connection, greeted, until it breaks."""

    def __init__(
        self,
        address: str,
        port: int,
        security: Security = PLAIN,
        metadata: Mapping[str, str] | None = None,
        pipe: Pipe | None = None,
    ) -> None:
        """Connect to ``port`` of the host in ``address``, and greet; ``metadata`` goes with the greeting.

        ``pipe``: a connection within this process in the place of that, which is for an event loop to read.

        Raises:
            BrokerUnavailable: nobody is there, or does not answer; ``details['status']`` says that it is no answer.
            PenstockError: the broker's refusal.
        """
        self.heard_at = time.monotonic()
        """When something came last."""
        self._address = address
        self._lock = threading.Lock()  # guards what is to be sent
        self._unsent: deque[memoryview] = deque()
        self._may_send = threading.Condition(self._lock)
        self._sending: threading.Thread | None = None  # sends the rest, once there was any
        self._is_sending = False  # it is at it
        self._is_reading = self._is_closed = False
        self._flags = self._flags_of_large = 0  # of reads
        self._only_rest = False  # take what has come, wait for nothing
        self._polls = False  # look for a while before a read sleeps
        self._waits = BusyPoll()
        self._got = 0  # by the last read
        self._tls: _Tls | None = None
        self._received = memoryview(bytearray(BUFFER_BYTES))
        self._count = 0  # bytes of it
        self._large: Frame | None = None  # what is being received into its own content
        self._room = memoryview(b"")  # of that, what is missing
        self._socket: Any  # or a pipe, which takes its place
        host = address.rpartition(":")[0].strip("[]")
        try:
            self._socket = pipe or socket.create_connection((host, port), timeout=CONNECT_S)
            self._socket.settimeout(CONNECT_S)
        except (OSError, ValueError) as error:  # a name that is none is a UnicodeError
            raise never_connected(address, port, error) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if security.tls is not None and pipe is None:
                self._tls = _Tls(security.tls.context(), security.tls.server_name or host)
                self._shake_hands()
            pairs = dict(metadata or {})
            if security.credentials is not None:
                pairs.update(signed(security.credentials, int(time.time())))
            self._greet(Hello(version=VERSION, metadata=pairs).SerializeToString())
            self._socket.settimeout(None)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):  # TLS's errors among them
                raise self._broken(f"{NEVER_CONNECTED}: {error}") from error
            raise

    def send(self, number: int, method: Method, content: bytes = b"") -> None:
        """Send a request, now or as soon as the system takes it. After the connection broke nothing happens."""
        head = HEAD.pack(len(content), number, method, Kind.REQUEST)
        with self._lock:
            if self._tls is not None:
                pieces = [memoryview(self._tls.encrypted(head, content))]
            elif len(content) <= JOINED_BYTES:
                pieces = [memoryview(head + content)]
            else:
                pieces = [memoryview(head), memoryview(content)]
            self._send(pieces)

    def receive(self, *, polls: bool = False) -> list[Frame]:
        """What is complete after one more read, which waits if nothing has come; for the one thread that reads.

        ``polls``: an answer is under way that may come at once (:mod:`..busy_poll`).

        Raises:
            BrokerUnavailable: the connection broke. PenstockError: the broker has ended it, and says why.
        """
        self._polls = polls
        try:
            frames = self._more()
            if self._tls is not None:  # nobody is told of what waits behind it, decrypted or not
                self._only_rest = True
                while self._got:
                    frames += self._more()
                self._only_rest = False
        except OSError as error:
            raise self._broken("cancelled here" if self._is_closed else str(error)) from error
        for frame in frames:
            if frame.number == 0 and frame.kind == Kind.ERROR:
                raise from_bytes(frame.content)
        return frames

    def fileno(self) -> int:
        """The descriptor, to wait for what comes; -1: closed."""
        return int(self._socket.fileno())

    def watch(self, loop: asyncio.AbstractEventLoop, on_readable: Callable[[], None]) -> None:
        """Have the loop call that whenever something has come; for the loop."""
        if isinstance(self._socket, Pipe):
            self._socket.watch(on_readable)
        else:
            loop.add_reader(self._socket.fileno(), on_readable)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        """No more; for the loop."""
        if isinstance(self._socket, Pipe):
            self._socket.watch(None)
        else:
            loop.remove_reader(self._socket.fileno())

    def begin_to_receive(self, seconds: float | None) -> None:
        """Read by :meth:`receive` from now on, one thread at a time, until :meth:`leave`; may be called again.

        A read ends without anything after so many seconds (0: never), and waits for all that is missing of a large
        frame. None: no read waits at all.
        """
        self._is_reading = True
        if seconds is None:
            self._flags = self._flags_of_large = socket.MSG_DONTWAIT
            return
        timeout = TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self._flags, self._flags_of_large = 0, socket.MSG_WAITALL

    def has_unread(self) -> bool:
        """True if something has come, or the connection has ended, and nobody has read that."""
        if isinstance(self._socket, Pipe):
            return self._socket.has_unread()
        poll = select.poll()
        with contextlib.suppress(ValueError):  # it is closed
            poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def leave(self) -> None:
        """Break it; for the thread that reads by :meth:`receive`."""
        self.close()
        self._socket.close()

    def close(self) -> None:
        """Break it. May be called again, by any thread."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._unsent.clear()
            self._may_send.notify()
            if not self._is_reading:  # else it does so that reads: nobody may have the descriptor anew before
                self._socket.close()

    def _broken(self, why: str) -> BrokerUnavailable:
        return broken(self._address, why)

    # Sending; the lock is held.

    def _send(self, pieces: list[memoryview]) -> None:
        if self._is_sending or self._unsent:
            self._unsent.extend(pieces)
            return
        try:
            sent = self._socket.sendmsg(pieces, [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the reader hears of it
        for piece in pieces:
            taken = min(sent, len(piece))
            sent -= taken
            if taken < len(piece):
                self._unsent.append(piece[taken:])
        if self._unsent:
            if self._sending is None:
                self._sending = threading.Thread(target=self._send_rest, name="penstock-data-rest", daemon=True)
                self._sending.start()
            self._may_send.notify()

    def _send_rest(self) -> None:
        """Send what the system did not take at once, until the connection is closed."""
        while True:
            with self._lock:
                self._is_sending = False
                self._may_send.wait_for(lambda: self._unsent or self._is_closed)
                if self._is_closed:
                    return
                pieces = list(self._unsent)
                self._unsent.clear()
                self._is_sending = True
            try:
                for piece in pieces:
                    self._socket.sendall(piece)
            except OSError:
                self.close()
                return

    # Receiving: the constructor, then one thread.

    def _more(self) -> list[Frame]:
        if self._large is not None:
            count = self._receive(self._room, self._flags_of_large)
            self._room = self._room[count:]
            if len(self._room):
                return []
            frame, self._large = self._large, None
            return [frame]
        self._count += self._receive(self._received[self._count :], self._flags)
        return self._take_apart()

    def _take_apart(self) -> list[Frame]:
        frames: list[Frame] = []
        received, at = self._received, 0
        while self._count - at >= HEAD.size:
            size, number, method, kind = HEAD.unpack_from(received, at)
            if size > FRAME_BYTES_MAX:
                raise InvalidArgument(f"broker {self._address}: a frame of {size} bytes: is it a data port?")
            start = at + HEAD.size
            here = min(size, self._count - start)
            if here < size and HEAD.size + size > len(received):
                content, room = new_bytes(size)
                room[:here] = received[start : start + here]
                self._large, self._room = Frame(number, method, kind, content), room[here:]
                self._count = 0
                return frames
            if here < size:
                break
            frames.append(Frame(number, method, kind, bytes(received[start : start + size])))
            at = start + size
        received[: self._count - at] = received[at : self._count]
        self._count -= at
        return frames

    def _receive(self, room: memoryview, flags: int) -> int:
        """How many bytes were put into ``room``; 0: none in time."""
        try:
            self._got = 0
            if self._tls is not None:
                count = self._decrypt(self._tls, room)
            else:
                count = self._wait(partial(self._socket.recv_into, room, 0), flags)
        except BlockingIOError:
            return 0
        if not count:
            raise OSError("it ended the stream")
        self.heard_at = time.monotonic()
        self._got = count
        return count

    def _decrypt(self, tls: _Tls, room: memoryview) -> int:
        while not (count := tls.read_into(room)):
            if self._only_rest:
                raise BlockingIOError
            encrypted = self._wait(partial(self._socket.recv, ENCRYPTED_BYTES), self._flags)
            if not encrypted:
                break
            tls.take(encrypted)
        return count

    def _wait(self, read: Callable[[int], T], flags: int) -> T:
        if flags or not self._polls:
            return read(flags)

        def look() -> T | None:
            try:
                return read(socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None

        return self._waits.wait(look, partial(read, 0))

    # Beginning.

    def _shake_hands(self) -> None:
        assert self._tls is not None
        while not self._tls.shake_hands():
            self._socket.sendall(self._tls.outgoing())
            encrypted = self._socket.recv(ENCRYPTED_BYTES)
            if not encrypted:
                raise OSError("it ended the connection during the TLS handshake")
            self._tls.take(encrypted)
        self._socket.sendall(self._tls.outgoing())

    def _greet(self, hello: bytes) -> None:
        self.send(0, Method.HELLO, hello)
        frames: list[Frame] = []
        while not frames:
            frames = self._more()
        frame = frames[0]
        if frame.kind == Kind.ERROR:
            raise from_bytes(frame.content)
        if frame.method != Method.HELLO:
            raise PenstockError(f"broker {self._address}: no answer to a hello: is it a data port?")


class _Tls:
    """TLS over bytes: OpenSSL's own sockets may not be read and written by two threads at a time."""

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        import ssl

        self._wants_more: type[Exception] = ssl.SSLWantReadError
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._lock = threading.Lock()

    def shake_hands(self) -> bool:
        with contextlib.suppress(self._wants_more):
            self._object.do_handshake()
            return True
        return False

    def take(self, encrypted: bytes) -> None:
        with self._lock:
            self._incoming.write(encrypted)

    def read_into(self, room: memoryview) -> int:
        """How many bytes were put into ``room``; 0: more must come first."""
        with self._lock:
            try:
                return int(self._object.read(len(room), room))
            except self._wants_more:
                return 0

    def encrypted(self, *pieces: bytes) -> bytes:
        with self._lock:
            for piece in pieces:
                if piece:
                    self._object.write(piece)
            return self._outgoing.read()

    def outgoing(self) -> bytes:
        with self._lock:
            return self._outgoing.read()
