"""The port: plain connections and TLS, PROXY headers, limits, and gRPC's own client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from penstock.gateway.http2 import server as module
from penstock.gateway.http2.call import Call
from penstock.gateway.http2.frames import PREFACE, Type
from penstock.gateway.http2.method import Method
from penstock.gateway.http2.proxy_header import Header, header_of
from penstock.gateway.http2.server import PROTOCOLS, Server
from penstock.proto.errors import ConfigError
from penstock.runtime.security.certificates import ServerTls
from tests.support.cluster.certificates import Authority
from tests.support.http2 import ECHO, STREAM, WAIT_S, WIDE, Peer, echo, echo_each, serving
from tests.support.waiting import eventually

FIRST = PREFACE + WIDE
WHO = "/test/Who"
NODELAY = "/test/Nodelay"


async def who(call: Call) -> None:
    """The answer is who calls."""
    call.finish(call.host.encode())


async def nodelay(call: Call) -> None:
    """The answer is 1 if small writes do not wait for each other (Nagle)."""
    made = call.out.transport.get_extra_info("socket")
    call.finish(b"%d" % made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


METHODS = {ECHO: Method(echo), STREAM: Method(echo_each, is_streaming=True), WHO: Method(who), NODELAY: Method(nodelay)}


@contextlib.asynccontextmanager
async def both(folder: Path) -> AsyncIterator[tuple[int, ssl.SSLContext, Authority]]:
    """A port that takes plain connections and TLS; its number, and what trusts it."""
    authority = Authority(folder)
    pair = authority.issue("gateway")
    server = Server()
    tls = ServerTls(cert_file=pair.cert, key_file=pair.key).context(PROTOCOLS)
    port = server.listen("127.0.0.1", 0, "listenPort", tls)
    server.start(METHODS)
    trusting = ssl.create_default_context(cafile=str(authority.file))
    trusting.check_hostname = False
    trusting.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(WAIT_S):
            yield port, trusting, authority
    finally:
        await server.stop(0.0)


async def asked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> str:
    peer = Peer(reader, writer)
    answer = (await peer.send(FIRST).ask(1, b"", path).answer(1)).messages[0].decode()
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return answer


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
    for rest in (b"", PREFACE):
        assert header_of(header + rest) == Header(len(header), HEADERS[header])


@pytest.mark.parametrize("first", [b"PRI", b"\x16", b"\r\n\r\n\0x", b"PROXYX"])
def test_other_bytes_are_no_proxy_header(first: bytes) -> None:
    assert header_of(first) == Header(0)


@pytest.mark.parametrize(
    "first",
    [
        b"PROXY TCP4 10.1.2.3 10.0.0.1 99999 8081\r\n",
        b"PROXY TCP4 10.1.2 10.0.0.1 4711 8081\r\n",
        b"PROXY TCP6 fe80::1%\x02TAGS\x01x ::1 4711 8081\r\n",
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
        async with serving() as it:
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(first)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            assert not it.server.connections

    asyncio.run(scenario())


@pytest.mark.parametrize("is_tls", [False, True])
def test_one_port_takes_plain_connections_and_tls_and_says_whose_they_are(tmp_path: Path, is_tls: bool) -> None:
    async def scenario() -> None:
        async with both(tmp_path) as (port, trusting, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting if is_tls else None)
            own = writer.get_extra_info("sockname")
            if is_tls:
                assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
            assert await asked(reader, writer, WHO) == f"127.0.0.1:{own[1]}"

    asyncio.run(scenario())


@pytest.mark.parametrize("is_tls", [False, True])
def test_an_answer_is_sent_before_the_client_confirms_earlier_ones(tmp_path: Path, is_tls: bool) -> None:
    async def scenario() -> None:
        async with both(tmp_path) as (port, trusting, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting if is_tls else None)
            assert await asked(reader, writer, NODELAY) == "1"

    asyncio.run(scenario())


@pytest.mark.parametrize("is_tls", [False, True])
@pytest.mark.parametrize("cuts", [(), (3,), (1, 11, 30)])
def test_a_proxy_header_is_taken_off_however_it_comes(tmp_path: Path, is_tls: bool, cuts: tuple[int, ...]) -> None:
    header = b"PROXY TCP4 10.1.2.3 10.0.0.1 4711 8081\r\n"

    async def scenario() -> None:
        async with both(tmp_path) as (port, trusting, _):
            made = socket.create_connection(("127.0.0.1", port))
            for begin, end in zip((0, *cuts), (*cuts, len(header)), strict=True):
                made.sendall(header[begin:end])
                await asyncio.sleep(0.01)
            made.setblocking(False)
            reader, writer = await asyncio.open_connection(
                sock=made, ssl=trusting if is_tls else None, server_hostname="gateway" if is_tls else None
            )
            assert await asked(reader, writer, WHO) == "10.1.2.3:4711"

    asyncio.run(scenario())


def test_a_connection_that_says_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_BYTE_S", 0.05)

    async def scenario() -> None:
        async with serving() as it:
            for first in (b"", b"PROXY TCP4"):
                reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
                writer.write(first)
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.close()
            await eventually(lambda: not it.server._tasks, WAIT_S, "nothing is awaited")

    asyncio.run(scenario())


def test_there_is_a_limit_to_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)

    async def scenario() -> None:
        async with serving() as it, it.peer() as kept:
            await kept.ping()
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
            assert (await kept.ask(1, b"more").answer(1)).messages == [b"more"]

    asyncio.run(scenario())


def test_connections_wait_while_there_are_no_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REST_S", 0.01)

    class NoFiles:
        def __init__(self, real: socket.socket) -> None:
            self.real, self.left = real, 2

        def accept(self) -> tuple[socket.socket, object]:
            if self.left:
                self.left -= 1
                raise OSError(24, "Too many open files")
            return self.real.accept()

        def fileno(self) -> int:
            return self.real.fileno()

        def close(self) -> None:
            self.real.close()

    async def scenario() -> None:
        async with serving() as it:
            real = it.server._socket
            assert real is not None
            it.server.loop.remove_reader(real)
            limited = it.server._socket = NoFiles(real)  # type: ignore[assignment]
            it.server._accept_on()
            async with it.peer() as peer:
                assert (await peer.ask(1, b"in the end").answer(1)).messages == [b"in the end"]
            assert limited.left == 0  # type: ignore[union-attr]

    asyncio.run(scenario())


def test_a_port_that_is_taken_is_named() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="listenPort"):
            Server().listen("127.0.0.1", taken.getsockname()[1], "listenPort")

    asyncio.run(scenario())


def test_a_port_for_tls_alone_takes_nothing_else(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("gateway")

    async def scenario() -> None:
        server = Server()
        tls = ServerTls(cert_file=pair.cert, key_file=pair.key)
        port = server.listen("127.0.0.1", 0, "listenPort", tls.context(PROTOCOLS), is_plain=False)
        server.start(METHODS)
        try:
            async with asyncio.timeout(WAIT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(FIRST)
                with contextlib.suppress(ConnectionError):
                    assert bytes((Type.SETTINGS,)) not in await reader.read()
                writer.close()
                assert not server.connections
        finally:
            await server.stop(0.0)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_tls", [False, True])
def test_grpcs_own_client_is_served(tmp_path: Path, is_tls: bool) -> None:
    large = bytes(range(256)) * 20_000

    async def scenario() -> None:
        async with both(tmp_path) as (port, _, authority):
            address = f"127.0.0.1:{port}"
            options = [("grpc.max_receive_message_length", -1)]
            if is_tls:
                trusted = grpc.ssl_channel_credentials(authority.file.read_bytes())
                channel = grpc.aio.secure_channel(address, trusted, options=options)
            else:
                channel = grpc.aio.insecure_channel(address, options=options)
            async with channel:
                call = channel.unary_unary(ECHO)
                answers = await asyncio.gather(*(call(b"%d" % n, timeout=WAIT_S) for n in range(200)))
                assert answers == [b"%d" % n for n in range(200)]
                assert await call(large, timeout=WAIT_S) == large
                stream = channel.stream_stream(STREAM)()
                for content in (b"", b"one", large, b"three"):
                    await stream.write(content)
                    assert await stream.read() == content
                await stream.done_writing()
                assert await stream.read() is grpc.aio.EOF
                assert await stream.code() is grpc.StatusCode.OK
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary("/test/Missing")(b"", timeout=WAIT_S)
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scenario())
