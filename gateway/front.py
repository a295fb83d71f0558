"""One port for plain connections and for TLS: the first byte of a connection tells which of two ports it is for.

A port of gRPC takes either. So this one passes bytes on to one of each within the process, as they come; but for a
PROXY header before them, which says who is behind the connection.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from penstock.runtime.listening import cannot_listen

from .proxy_header import header_of

log = logging.getLogger(__name__)

INSIDE: Final = "127.0.0.1"
CONNECTIONS_MAX: Final = 20_000
FIRST_BYTE_S: Final = 10.0
"""A connection whose client says nothing for so long ends."""
REST_S: Final = 30.0
"""A client has so long to read what was sent before its connection ended."""
_TLS: Final = 0x16
"""The type of a TLS record that begins a handshake; plain HTTP/2 begins with ``PRI``."""


class Front:
    """The port. Event loop only; made by :meth:`listening`."""

    def __init__(self, plain_port: int, tls_port: int, hosts: dict[str, str]) -> None:
        """``hosts``: who is behind a connection, ``ip:port`` by gRPC's name of it, is put there while it is open."""
        self._plain_port = plain_port
        self._tls_port = tls_port
        self._hosts = hosts
        self._open: set[_Outside] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int, key: str) -> int:
        """Take connections at ``host:port``; the port.

        Raises:
            ConfigError: it is taken, or not this machine's; names ``key``, the setting.
        """
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Outside(self), host, port)
        except OSError as error:
            raise cannot_listen(key, host, port, error) from error
        found: int = self._server.sockets[0].getsockname()[1]
        return found

    async def close(self) -> None:
        """Take none any more, and end those that are open."""
        if self._server is not None:
            self._server.close()
        for task in self._opening:
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for outside in list(self._open):
            outside.transport.abort()

    def enter(self, outside: _Outside) -> bool:
        """False: there are too many."""
        if len(self._open) >= CONNECTIONS_MAX:
            log.warning("connection refused reason=there are %d", CONNECTIONS_MAX)
            return False
        self._open.add(outside)
        return True

    def leave(self, outside: _Outside) -> None:
        """It has ended."""
        self._open.discard(outside)

    def begin(self, outside: _Outside, first: bytes) -> None:
        """Connect it to the port that ``first`` is for."""
        task = asyncio.create_task(self._begun(outside, first))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _begun(self, outside: _Outside, first: bytes) -> None:
        port = self._tls_port if first[0] == _TLS else self._plain_port
        inside = _Inside(outside, self._hosts)
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: inside, INSIDE, port)
        except OSError as error:
            log.warning("connection not passed on port=%d error=%s", port, error)
            outside.transport.abort()
            return
        transport.write(first)
        if outside.transport.is_closing():
            transport.close()
        else:
            outside.other = inside
            outside.transport.resume_reading()


class _End(asyncio.Protocol):
    """One end; what it receives goes out at the other, no faster than that is read."""

    transport: asyncio.Transport
    other: _End | None = None

    def data_received(self, data: bytes) -> None:
        assert self.other is not None, "nothing is read before there is another end"
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        if self.other is not None and not self.other.transport.is_closing():
            self.other.transport.close()  # behind what waits to be written
            asyncio.get_running_loop().call_later(REST_S, self.other.transport.abort)


class _Outside(_End):
    """The client's."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._timer: asyncio.TimerHandle | None = None
        self._first = b""
        self._is_told = False  # True once what comes first is known: a PROXY header, or something else
        self.source = ""  # of whom it says that the connection is

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        if not self._front.enter(self):
            transport.abort()
            return
        self._timer = asyncio.get_running_loop().call_later(FIRST_BYTE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            super().data_received(data)
            return
        self._first += data
        try:
            header = None if self._is_told else header_of(self._first)
        except ValueError as error:
            log.info("connection ended error=%s", error)
            self.transport.abort()
            return
        if header is not None:
            self._is_told, self.source = True, header.source
            self._first = self._first[header.length :]
        if self._is_told and self._first:
            self._timer.cancel()
            self._timer = None
            self.transport.pause_reading()
            self._front.begin(self, self._first)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._front.leave(self)
        super().connection_lost(error)


class _Inside(_End):
    """The one at gRPC's port."""

    def __init__(self, outside: _Outside, hosts: dict[str, str]) -> None:
        self.other: _End | None = outside
        self._source = outside.source
        self._hosts = hosts
        self._name = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert self.other is not None
        self.transport = transport
        peer = self.other.transport.get_extra_info("peername")
        if peer:
            host = f"[{peer[0]}]" if ":" in peer[0] else peer[0]
            self._name = f"ipv4:{INSIDE}:{transport.get_extra_info('sockname')[1]}"
            self._hosts[self._name] = self._source or f"{host}:{peer[1]}"

    def connection_lost(self, error: Exception | None) -> None:
        self._hosts.pop(self._name, None)
        super().connection_lost(error)
