"""A port, its connections, and what answers their calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from penstock.runtime.listening import cannot_listen, join_address
from penstock.runtime.turns import Turns

from .call import Call
from .connection import Connection
from .frames import Status
from .method import Method
from .proxy_header import HEADER_BYTES_MAX, header_of

log = logging.getLogger(__name__)

PROTOCOLS: Final = ("h2",)
"""What a connection is told to speak, in TLS."""
CONNECTIONS_MAX: Final = 20_000
FIRST_BYTE_S: Final = 10.0
"""A connection whose client says nothing for so long ends."""
ASK_S: Final = 10.0
"""A connection that is silent for so long is asked whether it lives: clients send a heartbeat as often. Every second,
as brokers ask, it would cost the gateway of a thousand idle clients a twelfth of a core."""
ANSWER_S: Final = 20.0
"""A connection whose client answers no ping for so long is over: gRPC's own default. Clients are other people's
programs, and pause for their collector of garbage, or for a loop at work."""
LOOK_S: Final = 1.0
HELD_BYTES_MAX: Final = 1 << 30
"""The same of all connections as :data:`.connection.HELD_BYTES_MAX` of one."""
_BACKLOG: Final = 4096
_ACCEPTED_AT_ONCE: Final = 64
_CANCELLED_AT_ONCE: Final = 100
_ROUNDS: Final = 4
"""Of the loop, in which the first answer of a handshake is made: it is signed, which takes milliseconds."""
_REST_S: Final = 1.0
_TLS: Final = 0x16
"""The type of a TLS record that begins a handshake; plain HTTP/2 begins with ``PRI``."""
_RECORD_HEAD: Final = 5
"""Type, version, and the length of what follows in two bytes."""


class Server:
    """Event loop only."""

    def __init__(self) -> None:
        self.methods: Mapping[str, Method] = {}
        self.unknown = Method(_unknown, is_streaming=True)
        self.connections: dict[Connection, None] = {}
        self.held = 0  # bytes that are kept for calls
        self.held_max = HELD_BYTES_MAX
        self.loop = asyncio.get_running_loop()
        self.turns = Turns()
        """Of all connections."""
        self._cancelling: deque[asyncio.Task[None]] = deque()
        self._handshake = asyncio.Lock()  # of who begins one
        self._socket: socket.socket | None = None
        self._context: ssl.SSLContext | None = None
        self._is_plain = True
        self._tasks: set[asyncio.Task[Any]] = set()  # connections whose first bytes are awaited
        self._looking: asyncio.Task[None] | None = None

    def listen(self, host: str, port: int, key: str, tls: ssl.SSLContext | None = None, is_plain: bool = True) -> int:
        """Take ``host:port``, and return the port: the system's choice when ``port`` is 0.

        ``is_plain``: True if it takes plain connections; with ``tls``, too, it takes both. Connections wait until
        :meth:`start`.

        Raises:
            ConfigError: the address is taken, or not this machine's; names ``key``, the setting.
        """
        assert is_plain or tls is not None, "nothing to take"
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections have it from here: asyncio sees to it only of sockets that it makes itself.
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            made.setblocking(False)
            made.bind((host, port))
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            raise cannot_listen(key, host, port, error) from error
        self._socket, self._context, self._is_plain = made, tls, is_plain
        number: int = made.getsockname()[1]
        return number

    def start(self, methods: Mapping[str, Method]) -> None:
        """Serve; ``methods``: what answers calls, by path, as ``/package.Service/Method``."""
        self.methods = methods
        self._accept_on()
        self._looking = self.loop.create_task(self._look_forever())

    async def stop(self, grace_s: float) -> None:
        """Take no more connections and calls, and end those that are open after so long."""
        if self._socket is not None:
            self.loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        for task in [*self._tasks, *([self._looking] if self._looking is not None else [])]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.say_goodbye()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(each.calls or each.unconfirmed.is_waiting for each in self.connections):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)  # they have no event
            for connection in list(self.connections):
                connection.close()
            async with asyncio.timeout(grace_s):
                while self.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.unconfirmed.forget()
            connection.abort("the gateway stops")
        while self._cancelling:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def shed(self) -> None:
        """End what takes most, since all together take too much: whoever comes meanwhile has taken nothing."""
        max(self.connections, key=lambda connection: connection.held).shed()

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task soon, of thousands some in each round of the loop."""
        self._cancelling.append(task)
        if len(self._cancelling) == 1:
            self.loop.call_soon(self._cancel_some)

    def _cancel_some(self) -> None:
        for _ in range(min(len(self._cancelling), _CANCELLED_AT_ONCE)):
            self._cancelling.popleft().cancel()
        if self._cancelling:
            self.loop.call_soon(self._cancel_some)

    async def _look_forever(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now = self.loop.time()
            for connection in [each for each in self.connections if each.due <= now]:
                connection.look(now, ASK_S, ANSWER_S)

    # Connections that come.

    def _accept_on(self) -> None:
        if self._socket is not None:
            self.loop.add_reader(self._socket, self._accept, self._socket)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                made, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more files: others must end first
                log.warning("no connection accepted for %g s error=%s", _REST_S, error)
                self.loop.remove_reader(listening)
                self.loop.call_later(_REST_S, self._accept_on)
                return
            if len(self.connections) + len(self._tasks) >= CONNECTIONS_MAX:
                log.warning("connection refused reason=there are %d", CONNECTIONS_MAX)
                made.close()
                continue
            made.setblocking(False)
            host = join_address(address[0].removeprefix("::ffff:"), address[1])  # of IPv4, at a port for both
            task = self.loop.create_task(self._begin(made, host))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _begin(self, made: socket.socket, host: str) -> None:
        """Serve a connection once its first bytes tell what it is."""
        try:
            async with asyncio.timeout(FIRST_BYTE_S):
                source, is_tls = await self._first_of(made)
                async with self._handshake if is_tls else contextlib.nullcontext():
                    connecting = self.loop.create_task(
                        self.loop.connect_accepted_socket(
                            lambda: Connection(self, source or host), made, ssl=self._context if is_tls else None
                        )
                    )
                    for _ in range(_ROUNDS if is_tls else 0):
                        await asyncio.sleep(0)
                await connecting
        except (OSError, TimeoutError, ValueError) as error:
            log.info("connection ended client=%s error=%s", host, str(error) or "it says nothing")
            made.close()
        except asyncio.CancelledError:
            made.close()
            raise

    async def _first_of(self, made: socket.socket) -> tuple[str, bool]:
        """Who a PROXY header, which is taken off, says is behind the connection; True if TLS begins then."""
        source, is_told, wanted = "", False, 1
        while True:
            first = await self._peeked(made, wanted)
            header = None if is_told else header_of(first)
            if header is None and not is_told:
                wanted = len(first) + 1
            elif header is not None and header.length:
                made.recv(header.length)
                source, is_told, wanted = header.source, True, 1
            elif self._context is None or (first[0] != _TLS and self._is_plain):
                return source, False
            elif len(first) < (whole := _record_of(first)):
                is_told, wanted = True, whole
            else:
                return source, True

    async def _peeked(self, made: socket.socket, wanted: int) -> bytes:
        """What has come, at least so many bytes; it stays there."""
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
        first = b""
        while len(first) < wanted:
            await self._readable(made)
            with contextlib.suppress(BlockingIOError):
                before, first = len(first), made.recv(HEADER_BYTES_MAX, socket.MSG_PEEK)
                if len(first) == before:
                    raise ConnectionResetError("it ended before it was said what it is")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        return first

    async def _readable(self, made: socket.socket) -> None:
        readable: asyncio.Future[None] = self.loop.create_future()
        number = made.fileno()

        def tell() -> None:
            if not readable.done():
                readable.set_result(None)

        self.loop.add_reader(number, tell)
        try:
            await readable
        finally:
            self.loop.remove_reader(number)


def _record_of(first: bytes) -> int:
    """How many bytes to wait for so that the first record of TLS is whole, which is a client's whole greeting."""
    size = _RECORD_HEAD if len(first) < _RECORD_HEAD else _RECORD_HEAD + int.from_bytes(first[3:_RECORD_HEAD], "big")
    return size if size <= HEADER_BYTES_MAX else 1  # so long is none's: TLS itself refuses it


async def _unknown(call: Call) -> None:
    call.end(Status.UNIMPLEMENTED, f"no such method: {call.metadata[':path'][:200]}")
