"""A data port's client for tests, on the event loop: frames as they are."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TypeVar

import pytest

from penstock.proto.data_frames import HEAD, VERSION, Kind, Method
from penstock.proto.errors import BrokerUnavailable, from_bytes
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.data_pb2 import Hello
from penstock.proto.wire.data_pb2_grpc import BrokerDataStub
from penstock.runtime.busy_poll import BusyPoll
from penstock.runtime.channel import open_async_channel

T = TypeVar("T")


class DataConnection:
    """One connection. Numbers are the caller's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, number: int, method: int, content: bytes = b"", kind: int = Kind.REQUEST) -> None:
        """Send a frame."""
        self.writer.write(HEAD.pack(len(content), number, method, kind) + content)

    async def receive(self) -> tuple[int, int, bytes]:
        """Number, kind and content of what comes next. Raises BrokerUnavailable at the end."""
        try:
            size, number, _, kind = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            return number, kind, await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise BrokerUnavailable(f"the data port ended the connection: {error!r}", status="UNAVAILABLE") from None

    async def answer(self) -> bytes:
        """The content of the next answer; raises the error in it."""
        _, kind, content = await self.receive()
        if kind == Kind.ERROR:
            raise from_bytes(content)
        return content

    async def ask(self, method: int, content: bytes = b"", number: int = 1) -> bytes:
        """What is answered to a request, where nothing else is under way."""
        self.send(number, method, content)
        return await self.answer()


@contextlib.asynccontextmanager
async def connected(
    host: str, port: int, metadata: Mapping[str, str] | None = None, *, greets: bool = True
) -> AsyncIterator[DataConnection]:
    """A connection, greeted, that is closed at the end."""
    reader, writer = await asyncio.open_connection(host, port)
    made = DataConnection(reader, writer)
    try:
        if greets:
            await made.ask(Method.HELLO, Hello(version=VERSION, metadata=metadata or {}).SerializeToString(), 0)
        yield made
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@contextlib.asynccontextmanager
async def connected_to(address: str, metadata: Mapping[str, str] | None = None) -> AsyncIterator[DataConnection]:
    """The same to the data port of the broker at ``address``, which tells it."""
    port = await data_port_of(address)
    async with connected(address.rpartition(":")[0], port, metadata) as made:
        yield made


async def data_port_of(address: str) -> int:
    """The data port of the broker at ``address``."""
    async with open_async_channel(address) as channel:
        stub = BrokerDataStub(channel)  # type: ignore[no-untyped-call]  # generated code
        return int((await stub.Open(Empty(), timeout=10, wait_for_ready=True)).port)


NEVER_S = 1000.0


def poll_always(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Every wait that may look for what comes does so; how often it was looked, by the threads' names."""
    looks: Counter[str] = Counter()
    wait = BusyPoll.wait

    def counted(self: BusyPoll, look: Callable[[], T | None], sleep: Callable[[], T]) -> T:
        def noted() -> T | None:
            looks[threading.current_thread().name] += 1
            return look()

        return wait(self, noted, sleep)

    monkeypatch.setattr(BusyPoll, "wait", counted)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("penstock.runtime.busy_poll.SHORT_WINDOWS", 1e9)
    monkeypatch.setattr("penstock.runtime.busy_poll.SKIPPED_MAX", 0)
    return looks


def trust_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients ping no silent broker and leave none: who plays it may be as slow as the machine is."""
    for module, name in (("data_stream", "PING_S"), ("data_streams", "PING_S"), ("data_stream", "SILENCE_S")):
        monkeypatch.setattr(f"penstock.client.cluster.{module}.{name}", NEVER_S)
    for name in ("PING_S", "SILENCE_S"):
        monkeypatch.setattr(f"penstock.client.cluster.fetch_links.{name}", NEVER_S)


class Peer:
    """A broker's end of one connection, in the test's hands."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._there: socket.socket | None = None

    def greet(self) -> None:
        self._there, _ = self._listening.accept()
        self._there.settimeout(30)
        self.receive()
        self.answer(0, Method.HELLO)

    def receive(self) -> tuple[int, int, bytes]:
        assert self._there is not None
        size, number, method, _ = HEAD.unpack(self._exactly(HEAD.size))
        return number, method, self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        assert self._there is not None
        found = b""
        while len(found) < count:
            more = self._there.recv(count - len(found))
            if not more:
                raise ConnectionError("the client has gone")
            found += more
        return found

    def answer(self, number: int, method: int, content: bytes = b"", kind: Kind = Kind.ANSWER) -> None:
        self.say(HEAD.pack(len(content), number, method, kind) + content)

    def say(self, sent: bytes) -> None:
        assert self._there is not None
        self._there.sendall(sent)

    def leave(self) -> None:
        """End the connection."""
        assert self._there is not None
        self._there.close()

    def close(self) -> None:
        self._listening.close()
        if self._there is not None:
            self._there.close()
