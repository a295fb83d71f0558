"""A server of calls that echo, and a client that speaks HTTP/2 frame by frame, rightly or wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Self

from hpack import Decoder, Encoder

from penstock.gateway.http2.call import Call
from penstock.gateway.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    HEAD,
    MESSAGE_HEAD,
    PREFACE,
    Setting,
    Type,
    frame,
    settings,
    window_update,
)
from penstock.gateway.http2.method import Method
from penstock.gateway.http2.server import Server

WAIT_S = 60.0
ECHO, STREAM, HANG = "/test/Echo", "/test/Stream", "/test/Hang"
WIDE = settings({Setting.INITIAL_WINDOW_SIZE: 1 << 30}) + window_update(0, 1 << 30)


async def echo(call: Call) -> None:
    """The request is the answer."""
    call.finish(call.request)


async def echo_each(call: Call) -> None:
    """Each message is answered with itself."""
    async for message in call.requests():
        await call.write(message)


@contextlib.asynccontextmanager
async def serving(methods: Mapping[str, Method] | None = None) -> AsyncIterator[Running]:
    """A server of these methods, besides :data:`ECHO` and :data:`STREAM`; nothing may go wrong outside its calls."""
    loop = asyncio.get_running_loop()
    wrong: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: wrong.append(context))
    server = Server()
    port = server.listen("127.0.0.1", 0, "listenPort")
    server.start(
        {ECHO: Method(echo, begins_at_once=True), STREAM: Method(echo_each, is_streaming=True), **(methods or {})}
    )
    try:
        async with asyncio.timeout(WAIT_S):
            yield Running(server, port)
    finally:
        await server.stop(0.0)
    assert not wrong, wrong


class Running(NamedTuple):
    """See :func:`serving`."""

    server: Server
    port: int

    @contextlib.asynccontextmanager
    async def peer(self, first: bytes = WIDE) -> AsyncIterator[Peer]:
        """A client whose settings, and perhaps more, are ``first``."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        peer = Peer(reader, writer)
        try:
            peer.send(PREFACE + first)
            yield peer
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


class Frame(NamedTuple):
    """One that came."""

    kind: int
    flags: int
    stream: int
    content: bytes

    @property
    def code(self) -> int:
        """Of a RST_STREAM or a GOAWAY."""
        at = 4 if self.kind == Type.GOAWAY else 0
        return int.from_bytes(self.content[at : at + 4], "big")


class Answer(NamedTuple):
    """One call's, whole."""

    fields: dict[str, str]
    messages: list[bytes]

    @property
    def status(self) -> int:
        """gRPC's."""
        return int(self.fields["grpc-status"])


class Peer:
    """See :meth:`Running.peer`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.others: list[Frame] = []
        """Frames that came while an answer was awaited, and were none of it."""
        self._encoder, self._decoder = Encoder(), Decoder()

    def send(self, content: bytes) -> Self:
        """Any bytes."""
        self.writer.write(content)
        return self

    def block(self, path: str = ECHO, **fields: str | None) -> bytes:
        """A call's header fields; those without a value are left out."""
        known: dict[str, str | None] = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
        known |= {"content-type": "application/grpc", "te": "trailers", "x-mq-client-id": "client"}
        known |= {name.replace("__", ":").replace("_", "-"): value for name, value in fields.items()}
        return self._encoder.encode([(name, value) for name, value in known.items() if value is not None])

    def begin(self, stream: int, path: str = ECHO, *, ends: bool = False, **fields: str | None) -> Self:
        """Begin a call."""
        flags = END_HEADERS | (END_STREAM if ends else 0)
        return self.send(frame(Type.HEADERS, flags, stream, self.block(path, **fields)))

    def data(self, stream: int, content: bytes, *, ends: bool = True) -> Self:
        """Bytes of a call, in as many frames as it takes."""
        parts = [content[at : at + 16_384] for at in range(0, len(content), 16_384)] or [b""]
        for part in parts[:-1]:
            self.send(frame(Type.DATA, 0, stream, part))
        return self.send(frame(Type.DATA, END_STREAM if ends else 0, stream, parts[-1]))

    def ask(self, stream: int, message: bytes, path: str = ECHO, **fields: str | None) -> Self:
        """A whole call."""
        return self.begin(stream, path, **fields).data(stream, message_of(message))

    async def next(self) -> Frame:
        """The next frame that is no acknowledgement of settings.

        Raises:
            IncompleteReadError, ConnectionError: there comes none.
        """
        while True:
            high, low, kind, flags, stream = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            found = Frame(kind, flags, stream, await self.reader.readexactly(high << 16 | low))
            if not (kind == Type.SETTINGS and flags & ACK):
                return found

    async def until(self, kind: Type, stream: int | None = None) -> Frame:
        """The next frame of that kind."""
        while True:
            found = await self.next()
            if found.kind == kind and (stream is None or found.stream == stream):
                return found
            self.others.append(found)

    async def ping(self) -> None:
        """Return when everything that was sent is taken apart, and what it lets the server send has come."""
        for _ in range(2):
            self.send(frame(Type.PING, 0, 0, b"12345678"))
            while (await self.until(Type.PING)).content != b"12345678":
                pass

    def fields_of(self, block: bytes) -> dict[str, str]:
        """Of a block that came."""
        return {str(name): str(value) for name, value in self._decoder.decode(block)}

    async def answer(self, stream: int) -> Answer:
        """All that is answered to a call; what it breaks off with is ``rst`` among the fields."""
        fields: dict[str, str] = {}
        content = bytearray()
        kinds = (Type.HEADERS, Type.DATA, Type.RST_STREAM)
        early = [each for each in self.others if each.stream == stream and each.kind in kinds]
        self.others = [each for each in self.others if each not in early]
        while True:
            found = early.pop(0) if early else await self.next()
            if found.stream != stream or found.kind not in kinds:
                self.others.append(found)
                continue
            if found.kind == Type.HEADERS:
                fields |= self.fields_of(found.content)
            elif found.kind == Type.DATA:
                content += found.content
            else:
                fields["rst"] = str(found.code)
            if found.flags & END_STREAM or found.kind == Type.RST_STREAM:
                return Answer(fields, messages_of(bytes(content)))

    async def goodbye(self) -> Frame:
        """The GOAWAY, behind which the connection ends."""
        found = await self.until(Type.GOAWAY)
        with contextlib.suppress(ConnectionError):
            assert not await self.reader.read()
        return found


def message_of(content: bytes) -> bytes:
    """As gRPC frames it."""
    return MESSAGE_HEAD.pack(0, len(content)) + content


def messages_of(content: bytes) -> list[bytes]:
    """What is framed so; a last one that is cut off is left out."""
    found = []
    at = 0
    while len(content) - at >= MESSAGE_HEAD.size:
        _, size = MESSAGE_HEAD.unpack_from(content, at)
        at += MESSAGE_HEAD.size + size
        if at <= len(content):
            found.append(content[at - size : at])
    return found


def setting(number: int, value: int) -> bytes:
    """One setting, which may be none."""
    return struct.pack(">HL", number, value)


Body = Callable[[Running, Peer], Awaitable[None]]


class Hanging:
    """A method that never answers, and says what becomes of its calls."""

    def __init__(self) -> None:
        self.began = 0
        self.cancelled = 0

    @property
    def methods(self) -> dict[str, Method]:
        return {HANG: Method(self.answer)}

    async def answer(self, _: Call) -> None:
        self.began += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


def with_peer(body: Body, first: bytes = WIDE, methods: dict[str, Method] | None = None) -> None:
    """Run ``body`` with a server and a client of it."""

    async def scenario() -> None:
        async with serving(methods) as it, it.peer(first) as peer:
            await body(it, peer)

    asyncio.run(scenario())
