"""One port for plain connections and TLS, without a cluster: bytes that go to one of two servers, and back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.gateway import front as module
from penstock.gateway.front import Front
from penstock.gateway.proxy_header import Header, header_of
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.service import SERVICE, Service
from penstock.gateway.v2.status import ok
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.errors import ConfigError
from tests.support.cluster.certificates import Authority
from tests.support.waiting import eventually

PLAIN, TLS = b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01\x00"
WAIT_S = 60.0
LARGE = bytes(range(256)) * 64 * 1024


class _Server:
    """Says what it is, and then what it is told."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.peers: list[str] = []
        self.port = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> _Server:
        self._server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def stop(self) -> None:
        self._server.close()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")
        self.peers.append(f"ipv4:{peer[0]}:{peer[1]}")
        with contextlib.suppress(ConnectionError):
            writer.write(self.name)
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class _Running:
    def __init__(self, front: Front, plain: _Server, tls: _Server, hosts: dict[str, str], port: int) -> None:
        self.front, self.plain, self.tls, self.hosts, self.port = front, plain, tls, hosts, port
        self._clients: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._clients.append(writer)
        return reader, writer

    async def close(self) -> None:
        await self.front.close()
        for writer in self._clients:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def running() -> AsyncIterator[_Running]:
    hosts: dict[str, str] = {}
    async with asyncio.timeout(WAIT_S), _Server(b"plain:") as plain, _Server(b"tls:") as tls:
        front = Front(plain.port, tls.port, hosts)
        port = await front.listen("127.0.0.1", 0, "listenPort")
        made = _Running(front, plain, tls, hosts, port)
        try:
            yield made
        finally:
            await made.close()


@pytest.mark.parametrize(("first", "name"), [(PLAIN, b"plain:"), (TLS, b"tls:"), (b"\x00", b"plain:")])
def test_the_first_byte_tells_whose_a_connection_is(first: bytes, name: bytes) -> None:
    async def scenario() -> None:
        async with running() as it:
            reader, writer = await it.connect()
            writer.write(first)
            assert await reader.readexactly(len(name + first)) == name + first
            server = it.tls if name == b"tls:" else it.plain
            own = writer.get_extra_info("sockname")
            assert it.hosts == {server.peers[0]: f"127.0.0.1:{own[1]}"}
            writer.close()
            await eventually(lambda: not it.hosts, WAIT_S, "nothing is said of a connection that has ended")

    asyncio.run(scenario())


V2 = b"\r\n\r\n\0\r\nQUIT\n"
HEADERS = {
    b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 8081\r\n": "10.1.2.3:4711",
    b"PROXY TCP6 2001:db8::1 ::1 4711 8081\r\n": "[2001:db8::1]:4711",
    b"PROXY UNKNOWN\r\n": "",
    V2 + b"\x21\x11\0\x0e" + bytes([10, 1, 2, 3, 10, 0, 0, 1]) + b"\x12\x67\x1f\x91" + b"\0\0": "10.1.2.3:4711",
    V2 + b"\x21\x21\0\x24" + b"\0" * 15 + b"\1" + b"\0" * 16 + b"\x12\x67\x1f\x91": "[::1]:4711",
    V2 + b"\x20\0\0\0": "",
    V2 + b"\x21\x31\0\1x": "",
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_proxy_header_is_known_by_all_of_it_and_says_whose_the_connection_is(header: bytes) -> None:
    for cut in range(1, len(header)):
        assert header_of(header[:cut]) is None
    for rest in (b"", PLAIN):
        assert header_of(header + rest) == Header(len(header), HEADERS[header])


@pytest.mark.parametrize("first", [b"PRI", b"\x16", b"\r\n\r\n\0x", b"PROXYX"])
def test_other_bytes_are_no_proxy_header(first: bytes) -> None:
    assert header_of(first) == Header(0)


@pytest.mark.parametrize(
    "first",
    [
        b"PROXY TCP4 10.1.2.3 10.0.0.1 99999 8081\r\n",
        b"PROXY TCP4 10.1.2 10.0.0.1 4711 8081\r\n",
        b"PROXY TCP4 10.1.2.3\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"x" * 101,
        V2 + b"\x33\x11\0\x0c" + b"\0" * 12,
        V2 + b"\x21\x11\0\x04" + b"\0" * 4,
        V2 + b"\x21\x11\xff\xff",
    ],
)
def test_a_broken_proxy_header_ends_the_connection(first: bytes) -> None:
    async def scenario() -> None:
        async with running() as it:
            reader, writer = await it.connect()
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            assert not it.plain.peers

    asyncio.run(scenario())


@pytest.mark.parametrize(("first", "name"), [(PLAIN, b"plain:"), (TLS, b"tls:")])
def test_a_proxy_header_is_taken_off_however_it_comes(first: bytes, name: bytes) -> None:
    header = b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 8081\r\n"

    async def scenario() -> None:
        async with running() as it:
            for parts in ([header + first], [header[:3], header[3:], first]):
                reader, writer = await it.connect()
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0.01)
                assert await reader.readexactly(len(name + first)) == name + first
                assert "10.1.2.3:4711" in it.hosts.values()
                writer.close()
                await eventually(lambda: not it.hosts, WAIT_S, "nothing is said of a connection that has ended")

    asyncio.run(scenario())


def test_everything_arrives_and_what_is_not_read_yet_is_not_taken_from_the_sender() -> None:
    async def scenario() -> None:
        async with running() as it:
            reader, writer = await it.connect()
            writer.write(PLAIN + LARGE)
            found = bytearray()
            kept = 0
            while len(found) < len(b"plain:" + PLAIN + LARGE):
                found += await reader.read(65536)
                (outside,) = it.front._open
                if outside.other is not None:
                    ends = outside.transport, outside.other.transport
                    kept = max(kept, *(each.get_write_buffer_size() for each in ends))
            assert found == b"plain:" + PLAIN + LARGE
            assert kept < 1 << 20

    asyncio.run(scenario())


def test_a_connection_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BYTE_S", 0.01)

    async def scenario() -> None:
        async with running() as it:
            reader, _ = await it.connect()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""

    asyncio.run(scenario())


def test_there_is_a_limit_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)

    async def scenario() -> None:
        async with running() as it:
            first, kept = await it.connect()
            kept.write(PLAIN)
            await first.readexactly(len(b"plain:" + PLAIN))
            reader, _ = await it.connect()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            kept.write(b"more")
            assert await first.readexactly(4) == b"more"

    asyncio.run(scenario())


def test_a_server_that_is_gone_ends_the_connection() -> None:
    async def scenario() -> None:
        async with running() as it:
            it.plain.stop()
            reader, writer = await it.connect()
            writer.write(PLAIN)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""

    asyncio.run(scenario())


def test_open_connections_end_with_the_port() -> None:
    async def scenario() -> None:
        async with running() as it:
            reader, writer = await it.connect()
            writer.write(TLS)
            await reader.readexactly(len(b"tls:" + TLS))
            await it.front.close()
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="listenPort"):
            await Front(1, 1, {}).listen("127.0.0.1", taken.getsockname()[1], "listenPort")

    asyncio.run(scenario())


def test_calls_over_plain_connections_and_tls_are_those_of_the_clients_own_address(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("gateway")
    callers: list[Caller] = []

    async def answer(caller: Caller, _: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
        callers.append(caller)
        return wire.HeartbeatResponse(status=ok())

    async def scenario() -> None:
        hosts: dict[str, str] = {}
        server = grpc.aio.server()
        served = Service(None, hosts).handlers({"Heartbeat": answer}, {}, None)  # type: ignore[arg-type]
        server.add_generic_rpc_handlers((served,))
        plain = server.add_insecure_port("127.0.0.1:0")
        tls = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.cert.read_bytes())])
        )
        await server.start()
        front = Front(plain, tls, hosts)
        port = await front.listen("127.0.0.1", 0, "listenPort")
        trusted = grpc.ssl_channel_credentials(authority.file.read_bytes())
        try:
            for channel in (
                grpc.aio.insecure_channel(f"127.0.0.1:{port}"),
                grpc.aio.secure_channel(f"127.0.0.1:{port}", trusted),
            ):
                async with channel:
                    call = channel.unary_unary(
                        f"/{SERVICE.full_name}/Heartbeat",
                        request_serializer=wire.HeartbeatRequest.SerializeToString,
                        response_deserializer=wire.HeartbeatResponse.FromString,
                    )
                    told = await call(wire.HeartbeatRequest(), metadata=(("x-mq-client-id", "c"),), timeout=WAIT_S)
                    assert told.status.code == Code.OK
                    assert callers[-1].host == next(reversed(hosts.values()))
        finally:
            await front.close()
            await server.stop(0)

    asyncio.run(scenario())
    assert len({caller.host for caller in callers}) == 2
