"""A master and slaves of :mod:`penstock.replication` in one event loop, over real data ports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable
from penstock.proto.wire import common_pb2
from penstock.replication import EpochHistory, Primary, Replica, ReplicationConfig, Slaves, frames
from penstock.replication.master.shipping import SlaveStream
from penstock.replication.slave.following import MasterLine
from penstock.runtime.data.peer import connect
from penstock.runtime.data.port import DataPort
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
    """``master`` behind a data port, which is a free one; its address is that of the port."""
    slaves = Slaves(lambda: master.primary)
    server = DataPort()
    server.methods[Method.REPLICATE] = slaves
    await server.open("127.0.0.1", port, "test")
    await server.start()
    master.address = f"127.0.0.1:{server.number}"
    try:
        yield master
    finally:
        master.primary.close()
        await slaves.close()
        server.close()
        for connection in list(server.connections):
            connection.abort()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


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
    task = asyncio.create_task(replica.follow(address, port_of(address)))
    try:
        yield Slave(log, replica, task, confirms=confirms, pending=pending)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def hello_of(own: common_pb2.BrokerIdentity, epochs: EpochHistory | None = None, **fields: Any) -> bytes:
    """A slave's first message."""
    told = frames.wire_epochs(epochs or EpochHistory())
    return frames.hello(frames.Hello(identity=own, epochs=told, **fields))


def welcome_of(
    own: common_pb2.BrokerIdentity, epochs: EpochHistory, *, tail: tuple[int, int] = (0, 0), **fields: Any
) -> frames.Welcome:
    """A master's answer to it."""
    told = {"epochs": frames.wire_epochs(epochs), "tail_bytes": tail[0], "tail_crc": tail[1], **fields}
    return frames.Welcome(identity=own, **told)


class RawSlave:
    """The slave's end of a stream by hand: sends what a test says, right or wrong."""

    def __init__(self, line: MasterLine) -> None:
        self.line = line

    async def send(self, message: bytes) -> None:
        await self.line.say(message)

    async def receive(self) -> frames.Frame:
        """The next frame. Raises what the master refused by."""
        async with asyncio.timeout(10):
            return frames.decode_frame(bytes(await self.line.hear()))

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
    peer = await connect(address, port_of(address))
    try:
        yield RawSlave(MasterLine(peer))
    finally:
        peer.close()


class Pipe:
    """Joins a Replica to a Primary without a network: either end's line to the other."""

    silent_s = 0.0

    def __init__(self, primary: Primary, tamper: Tamper) -> None:
        self._primary = primary
        self._stream: SlaveStream | None = None
        self._frames: AsyncIterator[tuple[bytes | memoryview, ...]]
        self._tamper = tamper
        self._count = 0
        self._arrived: list[bytes] = []

    async def say(self, report: bytes) -> None:
        """A report to the master."""
        if self._stream is None:
            self._stream = self._primary.admit(report, self)
            self._frames = self._stream.frames()
        else:
            self._stream.hear(report)

    async def hear(self) -> bytes:
        """The next message of the master that arrives."""
        assert self._stream is not None
        while not self._arrived:
            try:
                message = b"".join(await anext(self._frames))
            except StopAsyncIteration:
                raise BrokerUnavailable("the stream ended") from None
            self._stream.on_taken()
            self._arrived = self._tamper(self._count, message)
            self._count += 1
        return self._arrived.pop(0)

    async def ping(self) -> None:
        """Nobody watches."""

    def abort(self) -> None:
        """All was taken."""

    def close(self) -> None:
        """The connection is gone."""
        if self._stream is not None:
            self._stream.leave()
