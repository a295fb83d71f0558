"""A master and slaves of :mod:`penstock.replication` in one event loop, over real gRPC on free ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio

from penstock.proto.wire import common_pb2
from penstock.replication import METHOD, SERVICE, Primary, Replica, ReplicationConfig, frames
from penstock.runtime.channel import new_server, open_async_channel, reporting_stream
from tests.support.replication.memory_log import MemoryLog

Tamper = Callable[[int, bytes], list[bytes]]
"""(number of the message from 0, message) -> what arrives in its place; raises BrokerUnavailable to cut."""


def identity(broker_id: int, *, cluster: str = "cluster", name: str = "broker-a") -> common_pb2.BrokerIdentity:
    return common_pb2.BrokerIdentity(
        cluster=cluster, broker_name=name, broker_id=broker_id, address=f"10.0.0.{broker_id % 250}:10911"
    )


@dataclass
class Master:
    """A Primary with its log, and what it called back."""

    log: MemoryLog
    primary: Primary
    address: str = ""
    confirms: list[int] = field(default_factory=list)
    commits: list[frames.Commits] = field(default_factory=list)

    def append(self, data: bytes) -> int:
        self.log.write(data)
        self.primary.on_appended()
        return self.log.end_offset


@dataclass
class Slave:
    """A Replica with its log, and what it called back."""

    log: MemoryLog
    replica: Replica
    task: asyncio.Task[None]
    confirms: list[int] = field(default_factory=list)
    pending: list[frames.Commits] = field(default_factory=list)
    appended: int = 0


def new_master(log: MemoryLog | None = None, config: ReplicationConfig | None = None, **more: object) -> Master:
    """A Primary without a server."""
    log = log if log is not None else MemoryLog()
    confirms: list[int] = []
    commits: list[frames.Commits] = []
    settings: dict[str, object] = {"epoch": 1, "on_confirm": confirms.append, "on_commits": commits.append}
    settings.update(more)
    own = settings.pop("identity", identity(0))
    primary = Primary(own, log, config or ReplicationConfig(), **settings)  # type: ignore[arg-type]
    log.on_flushed = primary.on_flushed
    return Master(log, primary, confirms=confirms, commits=commits)


@contextlib.asynccontextmanager
async def serving(master: Master, port: int = 0) -> AsyncIterator[Master]:
    """``master`` behind a server on a free port."""
    server = new_server()
    handler = grpc.stream_stream_rpc_method_handler(reporting_stream(master.primary.serve))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Replicate": handler}),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    master.address = f"127.0.0.1:{port}"
    try:
        yield master
    finally:
        master.primary.close()
        await server.stop(0)


@contextlib.asynccontextmanager
async def following(
    address: str, broker_id: int = 1, log: MemoryLog | None = None, **more: object
) -> AsyncIterator[Slave]:
    """A slave that follows ``address`` until the block ends."""
    log = log if log is not None else MemoryLog()
    confirms: list[int] = []
    pending: list[frames.Commits] = []
    grown: list[int] = []
    own = more.pop("identity", identity(broker_id))

    def on_confirm(offset: int) -> None:
        assert offset <= log.end_offset, f"confirmed {offset}, the slave's log ends at {log.end_offset}"
        assert offset > max(confirms, default=0), f"confirm offset went from {confirms[-1:]} to {offset}"
        confirms.append(offset)

    replica = Replica(
        own,  # type: ignore[arg-type]
        log,
        on_appended=lambda: grown.append(log.end_offset),
        on_confirm=on_confirm,
        pending_commits=lambda: list(pending),
        **more,  # type: ignore[arg-type]
    )
    log.on_flushed = replica.on_flushed
    task = asyncio.create_task(replica.follow(address))
    try:
        yield Slave(log, replica, task, confirms=confirms, pending=pending)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class RawSlave:
    """The slave's end of a stream by hand: sends what a test says, right or wrong."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = channel.stream_stream(METHOD)()  # type: ignore[call-arg]

    async def send(self, message: bytes) -> None:
        await self.call.write(message)

    async def receive(self) -> frames.Frame:
        """The next frame. Raises AioRpcError when the master refused."""
        async with asyncio.timeout(10):
            message = await self.call.read()
        assert isinstance(message, bytes), "the stream ended"
        return frames.decode_frame(message)

    async def receive_many(self, count: int) -> None:
        for _ in range(count):
            await self.receive()

    async def receive_until(self, condition: Callable[[frames.Frame], bool]) -> frames.Frame:
        while True:
            frame = await self.receive()
            if condition(frame):
                return frame


@contextlib.asynccontextmanager
async def raw_slave(address: str) -> AsyncIterator[RawSlave]:
    async with open_async_channel(address) as channel:
        slave = RawSlave(channel)
        try:
            yield slave
        finally:
            slave.call.cancel()


class PipeCall:
    """Joins a Replica to a Primary without a network: what a gRPC call is to the slave."""

    def __init__(self, primary: Primary, tamper: Tamper) -> None:
        self._reports: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._stream = primary.serve(self._requests(), None)
        self._tamper = tamper
        self._count = 0
        self._arrived: list[bytes] = []

    async def _requests(self) -> AsyncIterator[bytes]:
        while (message := await self._reports.get()) is not None:
            yield message

    async def write(self, message: bytes) -> None:
        """A report to the master."""
        await self._reports.put(message)

    async def done_writing(self) -> None:
        """The slave has said all."""
        await self._reports.put(None)

    async def read(self) -> bytes | None:
        """The next message of the master that arrives; None: the stream ended."""
        while not self._arrived:
            try:
                message = await anext(self._stream)
            except StopAsyncIteration:
                return None
            self._arrived = self._tamper(self._count, message)
            self._count += 1
        return self._arrived.pop(0)

    async def close(self) -> None:
        """The connection is gone."""
        await self._stream.aclose()  # type: ignore[attr-defined]
