"""A nameserver with many brokers, topics and clients that watch: simulated ones, over its own services."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import psutil

from penstock.proto.errors import PenstockError
from penstock.proto.wire.common_pb2 import MASTER, BrokerIdentity, TopicConfig
from penstock.proto.wire.nameserver_pb2 import BrokerReport, WatchRequest
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_async_channel

from ..machine import cpu_s, own_memory_mib
from ..rig import Rig
from ..runner import Figures

TOPICS_EACH = 100
"""Of a simulated broker: a thousand brokers have 100,000 topics."""
FEW = 100
"""Brokers, or clients, while the others grow."""
WATCHED = "growth-0-0"
CHANGES = 10
TOGETHER = 50
"""Streams over one connection."""
AT_ONCE = 50
"""Sessions that are opened at a time."""
WAIT_S = 120.0
IDLE_S = 2.0

UNITS = {"everywhere": "ms", "change": "ms of CPU", "idle": "ms of CPU a second", "memory": "MiB"}


def brokers(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many brokers with 100 topics each; 100 clients watch."""
    for size in sizes:
        yield _with_nameserver(rig, size, FEW)


def watchers(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """So many clients that watch one topic; 100 brokers with 100 topics each."""
    for size in sizes:
        yield _with_nameserver(rig, FEW, size)


def _with_nameserver(rig: Rig, broker_count: int, watcher_count: int) -> Figures:
    with rig.cluster() as bench:
        nameserver = next(state for state in bench.cluster.states() if state.node.is_nameserver)
        assert nameserver.pid
        rig.progress(f"nameserver: {broker_count:,} brokers, {watcher_count:,} clients")
        return asyncio.run(_measured(nameserver.node.address, nameserver.pid, broker_count, watcher_count))


async def _measured(address: str, pid: int, broker_count: int, watcher_count: int) -> Figures:
    """``everywhere``: from a change of the watched topic until the last client has it, the median of ``CHANGES``;
    ``change``: what that takes of the nameserver's processor, less what it takes idle."""
    process = psutil.Process(pid)
    async with _stubs(address, broker_count + watcher_count) as stubs, asyncio.TaskGroup() as tasks:
        entry = asyncio.Semaphore(AT_ONCE)
        simulated = [_Broker(number) for number in range(broker_count)]
        beating = [tasks.create_task(each.serve(stub, entry)) for each, stub in zip(simulated, stubs, strict=False)]
        await _all([each.registered for each in simulated])
        crowd = _Crowd(watcher_count)
        watching = [tasks.create_task(crowd.watch(stub, entry)) for stub in stubs[broker_count:]]
        await crowd.everywhere(1)
        memory, before, began = own_memory_mib(pid), cpu_s(process), time.monotonic()
        await asyncio.sleep(IDLE_S)
        idle = (cpu_s(process) - before) / (time.monotonic() - began)
        took_ms: list[float] = []
        before, began = cpu_s(process), time.monotonic()
        for queues in range(2, 2 + CHANGES):
            changed_at = time.monotonic()
            await simulated[0].change(queues)
            took_ms.append((await crowd.everywhere(queues) - changed_at) * 1000)
        busy = cpu_s(process) - before - idle * (time.monotonic() - began)
        for task in [*beating, *watching]:
            task.cancel()
    return {
        "everywhere": sorted(took_ms)[CHANGES // 2],
        "change": max(busy * 1000 / CHANGES, 0.0),
        "idle": idle * 1000,
        "memory": memory,
    }


@contextlib.asynccontextmanager
async def _stubs(address: str, count: int) -> AsyncIterator[list[Any]]:
    """A stub for each simulated process; some share a connection."""
    async with contextlib.AsyncExitStack() as stack:
        found: list[Any] = []
        for _ in range(0, count, TOGETHER):
            channel = await stack.enter_async_context(open_async_channel(address))
            stub = NameserverStub(channel)  # type: ignore[no-untyped-call]  # generated code
            found += [stub] * TOGETHER
        yield found[:count]


async def _all(events: Sequence[asyncio.Event]) -> None:
    try:
        async with asyncio.timeout(WAIT_S):
            for each in events:
                await each.wait()
    except TimeoutError:
        count = sum(each.is_set() for each in events)
        raise PenstockError(f"no figure: {count} of {len(events)} came within {WAIT_S:.0f} s") from None


class _Broker:
    """A master of its own broker group."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._call: Any = None
        self._writing = asyncio.Lock()
        self.registered = asyncio.Event()

    async def serve(self, stub: Any, entry: asyncio.Semaphore) -> None:
        """Register, and send heartbeats as often as it is told."""
        number = self._number
        topics = [_topic(f"growth-{number}-{each}", 1) for each in range(TOPICS_EACH)]
        identity = BrokerIdentity(
            cluster="growth", broker_name=f"growth-{number}", broker_id=0, address=f"127.0.0.1:{1 + number}"
        )
        registration = BrokerReport.Registration(
            identity=identity, role=MASTER, epoch=1, topics=topics, store_instance=f"growth-{number}"
        )
        async with entry:
            self._call = stub.BrokerSession()
            await self._call.write(BrokerReport(registration=registration))
            directive = await self._call.read()
        self.registered.set()
        reading = asyncio.ensure_future(self._read())
        try:
            while True:
                await asyncio.sleep(directive.heartbeat_interval_ms / 1000)
                await self._write(BrokerReport(heartbeat=BrokerReport.Heartbeat(role=MASTER, epoch=1)))
        finally:
            reading.cancel()
            self._call.cancel()

    async def change(self, queues: int) -> None:
        """Give the watched topic so many queues."""
        changes = BrokerReport.TopicChanges(updated=[_topic(WATCHED, queues)])
        await self._write(BrokerReport(topic_changes=changes))

    async def _write(self, report: BrokerReport) -> None:
        async with self._writing:
            await self._call.write(report)

    async def _read(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while await self._call.read():
                pass


class _Crowd:
    """Clients that watch one topic."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: dict[int, int] = {}  # number of queues -> how many clients have seen it
        self._last_at: dict[int, float] = {}
        self._changed = asyncio.Condition()

    async def watch(self, stub: Any, entry: asyncio.Semaphore) -> None:
        """Read updates until cancelled."""
        async with entry:
            call = stub.WatchRoutes()
            await call.write(WatchRequest(add_topics=[WATCHED]))
            update = await call.read()
        latest = 0
        try:
            while update:
                for queue in (queue for route in update.routes for queue in route.queues):
                    if queue.write_queues > latest:
                        latest = queue.write_queues
                        await self._saw(latest)
                update = await call.read()
        finally:
            call.cancel()

    async def everywhere(self, queues: int) -> float:
        """When (monotonic) the last client saw the topic with so many queues."""
        try:
            async with asyncio.timeout(WAIT_S), self._changed:
                await self._changed.wait_for(lambda: self._seen.get(queues, 0) >= self._size)
        except TimeoutError:
            count = self._seen.get(queues, 0)
            raise PenstockError(
                f"no figure: {count} of {self._size} clients saw a change within {WAIT_S:.0f} s"
            ) from None
        return self._last_at[queues]

    async def _saw(self, queues: int) -> None:
        self._seen[queues] = self._seen.get(queues, 0) + 1
        self._last_at[queues] = time.monotonic()
        if self._seen[queues] >= self._size:
            async with self._changed:
                self._changed.notify_all()


def _topic(name: str, queues: int) -> TopicConfig:
    return TopicConfig(topic=name, read_queues=queues, write_queues=queues, perm=6)
