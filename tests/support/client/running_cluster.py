"""A real nameserver and real brokers on an event loop in a thread, for tests of what calls them.

Their files are small and lie in a directory that goes with the cluster. A broker that is killed breaks its connections
and keeps what it has stored, for :meth:`RunningCluster.revive`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self

from penstock.broker.broker import serving as serving_broker
from penstock.broker.config import BrokerConfig
from penstock.formats.record.layout import decode_record
from penstock.nameserver.config import NameserverConfig
from penstock.nameserver.server import serving as serving_nameserver
from penstock.proto.errors import TopicExists
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_channel
from tests.support.broker.running_broker import small_config
from tests.support.client.calls import BrokerCalls
from tests.support.client.faults import Faults
from tests.support.cluster.cluster import free_ports
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0
MEMORY = "/dev/shm"
BODY_AT = 88  # in a record with IPv4 hosts


@contextlib.asynccontextmanager
async def _serving(config: BrokerConfig, faults: Faults) -> AsyncIterator[None]:
    """A broker in the running loop: nothing else here knows how one is started."""
    async with serving_broker(config, interceptors=[faults]) as broker:
        faults.around(broker.data.methods)
        yield


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test-cluster", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What ``work`` returns or raises, done by the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(TIMEOUT_S)

    def close(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the loop of the test's cluster hangs"
        self.loop.close()


class _Server:
    """A server that is open between ``start`` and ``stop``, which a task of its own enters and leaves."""

    def __init__(self, loop: _Loop) -> None:
        self._loop = loop
        self._ending: asyncio.Event | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, server: contextlib.AbstractAsyncContextManager[Any]) -> None:
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._serve(server, opened, self._ending))
        await asyncio.wait({self._task, opened}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            await self._task

    async def _serve(self, server: Any, opened: asyncio.Future[None], ending: asyncio.Event) -> None:
        async with server:
            opened.set_result(None)
            await ending.wait()

    async def stop(self) -> None:
        if self._task is not None and self._ending is not None:
            self._ending.set()
            await self._task
            self._task = None


class RunningBroker(BrokerCalls):
    """One broker of a cluster; :attr:`faults` are those of its clients' calls."""

    def __init__(self, loop: _Loop, config: BrokerConfig) -> None:
        super().__init__(config.advertised_address)
        self.config = config
        self.address = config.advertised_address
        self.faults = Faults(loop.loop)
        self._loop = loop
        self._server = _Server(loop)

    async def start(self) -> None:
        self.faults.is_dead = False
        await self._server.start(_serving(self.config, self.faults))

    async def die(self) -> None:
        """Break every call; what is stored stays."""
        self.faults.is_dead = True
        self.faults.cut(why="the broker died")
        await self._server.stop()

    def members(self, group: str) -> list[str]:
        """Client ids."""
        return list(self.claimed(group))

    def flip(self, record: bytes, at: int) -> None:
        """Change a bit of a stored record's byte in the log's file, or change it back."""
        position = decode_record(record).physical_offset + at
        path = max(path for path in (self.config.store.root / "commitlog").iterdir() if int(path.name) <= position)
        with path.open("r+b") as file:
            file.seek(position - int(path.name))
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))


class RunningCluster:
    """Broker groups ``broker-a``, ``broker-b``, …, of one master each, and one nameserver. Use it with ``with``."""

    def __init__(
        self,
        shards: int = 1,
        *,
        topics: dict[str, int] | None = None,
        beside: RunningCluster | None = None,
        **settings: object,
    ) -> None:
        """``settings``: the brokers'. ``beside``: a cluster whose loop this one uses, since gRPC bears only one."""
        self._shards = shards
        self._topics = topics or {}
        self._beside = beside
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self.brokers: dict[str, RunningBroker] = {}
        (port,) = free_ports(1)
        self.namesrv = f"127.0.0.1:{port}"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            room = MEMORY if os.access(MEMORY, os.W_OK) else None
            self._directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=room)))
            self._loop = self._beside._loop if self._beside is not None else _Loop()
            if self._beside is None:
                stack.callback(self._loop.close)
            self._nameserver = _Server(self._loop)
            self._loop.run(self._nameserver.start(serving_nameserver(self._nameserver_config())))
            stack.callback(self.stop_nameserver)
            channel = stack.enter_context(open_channel(self.namesrv))
            self._routes = NameserverStub(channel)  # type: ignore[no-untyped-call]
            for letter in "abcdefgh"[: self._shards]:
                self._add(f"broker-{letter}", f"broker-{letter}", stack)
            for topic, queues in self._topics.items():
                self.create_topic(topic, queues)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _nameserver_config(self) -> NameserverConfig:
        port = int(self.namesrv.rpartition(":")[2])
        path = self._directory / "kvConfig.json"
        return NameserverConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=path)

    def _add(self, name: str, broker_name: str, stack: contextlib.ExitStack, **settings: object) -> RunningBroker:
        (port,) = free_ports(1)
        own = {"brokerName": broker_name, "listenPort": port, "namesrvAddr": self.namesrv}
        config = small_config(self._directory / name, **(own | self._settings | settings))
        broker = self.brokers[name] = stack.enter_context(RunningBroker(self._loop, config))
        self.revive(name)
        stack.callback(lambda: self._loop.run(broker.die()))
        return broker

    def add_slave(self, broker_name: str = "broker-a") -> RunningBroker:
        """A slave of that group, ``broker-a-1``, which follows its master."""
        name = f"{broker_name}-1"
        slave = self._add(name, broker_name, self._stack, brokerId=1, brokerRole="SLAVE")
        self.wait_level(broker_name)
        return slave

    def wait_level(self, broker_name: str = "broker-a") -> None:
        """Wait until the slave of that group can be read as far as its master."""
        master, slave = self.brokers[broker_name], self.brokers[f"{broker_name}-1"]

        def is_level() -> bool:
            ends = [broker.call("Status", common_pb2.Empty()) for broker in (master, slave)]
            return ends[1].is_following and ends[1].dispatched_offset == ends[0].max_offset == ends[0].confirm_offset

        wait_until(is_level, TIMEOUT_S, f"a slave of {broker_name} that has everything")

    def kill(self, name: str) -> None:
        """Have a broker die, as its clients see it, and the nameserver know."""
        broker = self.brokers[name]
        self._loop.run(broker.die())
        wait_until(lambda: broker.address not in self._living(), TIMEOUT_S, f"{name} out of the routes")

    def revive(self, name: str) -> None:
        """Start it again on its port, with what it had stored."""
        broker = self.brokers[name]
        self._loop.run(broker.start())
        wait_until(lambda: broker.address in self._living(), TIMEOUT_S, f"{name} in the routes")

    def cut_off(self, name: str, end: int) -> None:
        """Have the only broker of its group begin anew after a loss of power, which has taken its log from there on."""
        root = self.brokers[name].config.store.root
        self.kill(name)
        (path,) = (root / "commitlog").iterdir()
        size = path.stat().st_size
        os.truncate(path, end)
        os.truncate(path, size)
        (root / "abort").touch()
        self.revive(name)

    def stop_nameserver(self) -> None:
        """It is not there any more."""
        self._loop.run(self._nameserver.stop())

    def _living(self) -> set[str]:
        view = self._routes.QueryCluster(common_pb2.Empty(), timeout=10, wait_for_ready=True)
        return {member.address for shard in view.shards for member in shard.members}

    def create_topic(self, topic: str, queues: int = 8, *, brokers: Sequence[str] = ()) -> None:
        """Have the topic with so many queues at the masters, all by default, and in the routes."""
        masters = brokers or [name for name in self.brokers if not name.endswith("-1")]
        for name in masters:
            try:
                self.brokers[name].create_topic(topic, queues)
            except TopicExists:
                self.brokers[name].create_topic(topic, queues, update=True)

        def is_known() -> bool:
            route = self.route(topic)
            return {each.broker_name for each in route.queues if each.read_queues == queues} >= set(masters)

        wait_until(is_known, TIMEOUT_S, f"topic {topic} in the routes")

    def route(self, topic: str) -> nameserver_pb2.TopicRoute:
        """What the nameserver answers."""
        (route,) = self._routes.QueryRoute(nameserver_pb2.RouteQuery(topics=[topic]), timeout=10).routes
        return route

    def retry_soon(self, group: str = "g", *, times: int = 16, delays_ms: Sequence[int] = (20,)) -> None:
        """Have the group's failed messages come again after these times, so often."""
        policy = common_pb2.RetryPolicy(delays_ms=delays_ms)
        asked = common_pb2.GroupConfig(group=group, retry_max_times=times, retry_policy=policy)
        for name, broker in self.brokers.items():
            if not name.endswith("-1"):
                broker.call("CreateGroup", asked)

    def put(
        self,
        topic: str,
        bodies: Sequence[bytes],
        queue_id: int = 0,
        *,
        broker_name: str = "broker-a",
        tags: Sequence[str] | None = None,
    ) -> broker_pb2.AppendReceipt:
        """Store messages in one queue."""
        return self.brokers[broker_name].append(topic, bodies, queue_id, tags=tags)

    def committed(self, group: str, topic: str, queue_id: int, broker_name: str = "broker-a") -> int:
        """The group's offset in the queue, -1 if it has none."""
        return self.brokers[broker_name].committed(group, topic).get(queue_id, -1)


def stored(cluster: RunningCluster, topic: str = "orders") -> list[bytes]:
    """The bodies that its brokers have of the topic."""
    return [body for broker in cluster.brokers.values() for body in broker.bodies(topic)]
