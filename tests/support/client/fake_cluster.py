"""A cluster in memory: a nameserver and the brokers of :mod:`.fake_broker`, for tests of clients."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from penstock.proto.errors import InvalidArgument
from penstock.proto.wire import common_pb2, nameserver_pb2, nameserver_pb2_grpc
from penstock.runtime.channel import SERVER_OPTIONS
from tests.support.client.fake_broker import FakeBroker, fail

DEFAULT_QUEUES = 8


class FakeNameserver(nameserver_pb2_grpc.NameserverServicer):
    """Answers from the cluster's living brokers, and pushes to watchers when told to."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.port = 0
        self._watchers: dict[queue.SimpleQueue[list[str] | None], set[str]] = {}
        self._server: grpc.Server | None = None
        self.key_values: dict[tuple[str, str], str] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        server = grpc.server(futures.ThreadPoolExecutor(32), options=SERVER_OPTIONS)
        nameserver_pb2_grpc.add_NameserverServicer_to_server(self, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server

    def stop(self) -> None:
        server, self._server = self._server, None
        for watcher in list(self._watchers):
            watcher.put(None)
        if server is not None:
            server.stop(grace=0).wait()

    def push(self) -> None:
        for watcher, topics in list(self._watchers.items()):
            watcher.put(sorted(topics))

    def WatchRoutes(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        updates: queue.SimpleQueue[list[str] | None] = queue.SimpleQueue()
        topics: set[str] = set()

        def read() -> None:
            try:
                for request in requests:
                    topics.update(request.add_topics)
                    topics.difference_update(request.remove_topics)
                    updates.put(list(request.add_topics))
            except grpc.RpcError:
                pass
            updates.put(None)

        self._watchers[updates] = topics
        context.add_callback(lambda: updates.put(None))
        threading.Thread(target=read, name="fake-watch", daemon=True).start()
        try:
            while (wanted := updates.get()) is not None:
                yield nameserver_pb2.RouteUpdate(routes=[self.cluster.route(topic) for topic in wanted])
        finally:
            self._watchers.pop(updates, None)

    def QueryRoute(self, request: Any, context: grpc.ServicerContext) -> Any:
        return nameserver_pb2.RouteUpdate(routes=[self.cluster.route(topic) for topic in request.topics])

    def QueryCluster(self, request: Any, context: grpc.ServicerContext) -> Any:
        absent = [nameserver_pb2.ShardView(broker_name=broker.broker_name) for broker in self.cluster.absent()]
        return nameserver_pb2.ClusterView(shards=self.cluster.shards(), absent=absent)

    def ListTopics(self, request: Any, context: grpc.ServicerContext) -> Any:
        known = [*self.cluster.living(), *self.cluster.absent()]
        return nameserver_pb2.TopicNames(topics=sorted({topic for broker in known for topic in broker.topics}))

    def ForgetShard(self, request: Any, context: grpc.ServicerContext) -> Any:
        if request.broker_name not in {broker.broker_name for broker in self.cluster.absent()}:
            fail(context, InvalidArgument(f"broker group {request.broker_name} is not known here"))
        self.cluster.forgotten.add(request.broker_name)
        self.cluster.push_routes()
        return common_pb2.Empty()


class FakeCluster:
    """Shards ``broker-a``, ``broker-b``, …, one broker each, and one nameserver. Use it with ``with``."""

    name = "DefaultCluster"

    def __init__(
        self, shards: int = 1, *, topics: dict[str, int] | None = None, auto_create_topics: bool = True
    ) -> None:
        self.auto_create_topics = auto_create_topics
        self.nameserver = FakeNameserver(self)
        self.brokers = {name: FakeBroker(self, name) for name in (f"broker-{chr(97 + n)}" for n in range(shards))}
        self._topics = topics or {}
        self.forgotten: set[str] = set()  # groups that are gone for good

    @property
    def namesrv(self) -> str:
        return self.nameserver.address

    def __enter__(self) -> FakeCluster:
        for broker in self.brokers.values():
            broker.start()
        self.nameserver.start()
        for topic, queues in self._topics.items():
            self.create_topic(topic, queues)
        return self

    def __exit__(self, *_: object) -> None:
        self.nameserver.stop()
        for broker in self.brokers.values():
            broker.stop()

    def create_topic(self, topic: str, queues: int = DEFAULT_QUEUES) -> None:
        config = common_pb2.TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6)
        self.put_topic(config, list(self.brokers.values()))

    def put_topic(self, config: common_pb2.TopicConfig, brokers: list[FakeBroker]) -> None:
        full = common_pb2.TopicConfig()
        full.CopyFrom(config)
        full.read_queues = full.read_queues or DEFAULT_QUEUES
        full.write_queues = full.write_queues or DEFAULT_QUEUES
        full.perm = full.perm or 6
        for broker in brokers:
            broker.topics[full.topic] = full
        self.push_routes()

    def kill(self, broker_name: str) -> None:
        """Stop one broker and tell the watchers."""
        self.brokers[broker_name].stop()
        self.push_routes()

    def revive(self, broker_name: str) -> None:
        """Start it again on its port, with what it had stored, and tell the watchers."""
        self.brokers[broker_name].start()
        self.forgotten.discard(self.brokers[broker_name].broker_name)
        self.push_routes()

    def push_routes(self) -> None:
        self.nameserver.push()

    def living(self) -> list[FakeBroker]:
        return [broker for broker in self.brokers.values() if broker.alive]

    def absent(self) -> list[FakeBroker]:
        """The first broker of each group of which none lives, by name."""
        gone = {broker.broker_name for broker in self.brokers.values()} - self.forgotten
        gone -= {broker.broker_name for broker in self.living()}
        return [self.brokers[name] for name in sorted(gone)]

    def member(self, broker: FakeBroker) -> nameserver_pb2.ShardMember:
        return nameserver_pb2.ShardMember(
            broker_id=broker.broker_id,
            address=broker.address,
            role=common_pb2.MASTER if broker.broker_id == 0 else common_pb2.SLAVE,
            end_offset=broker.log_end,
            confirm_offset=broker.log_end,
        )

    def shards(self) -> list[nameserver_pb2.ShardView]:
        found: dict[str, nameserver_pb2.ShardView] = {}
        for broker in self.living():
            view = found.setdefault(
                broker.broker_name,
                nameserver_pb2.ShardView(
                    cluster=self.name,
                    broker_name=broker.broker_name,
                    epoch=1,
                    auto_create_topics=self.auto_create_topics,
                ),
            )
            view.members.append(self.member(broker))
        return [found[name] for name in sorted(found)]

    def route(self, topic: str) -> nameserver_pb2.TopicRoute:
        route, shards = nameserver_pb2.TopicRoute(topic=topic), {shard.broker_name: shard for shard in self.shards()}
        for broker in sorted(self.living(), key=lambda one: one.broker_name):
            config = broker.topics.get(topic)
            if config is None or any(queues.broker_name == broker.broker_name for queues in route.queues):
                continue
            route.queues.append(_queue_data(broker, config))
            route.shards.append(shards[broker.broker_name])
        route.absent.extend(_queue_data(gone, gone.topics[topic]) for gone in self.absent() if topic in gone.topics)
        route.exists = bool(route.queues or route.absent)
        if not route.exists:
            route.shards.extend(shards.values())
        elif not route.queues:
            route.queues.extend(route.absent)
        return route


def _queue_data(broker: FakeBroker, config: common_pb2.TopicConfig) -> nameserver_pb2.QueueData:
    return nameserver_pb2.QueueData(
        broker_name=broker.broker_name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        perm=config.perm,
    )
