"""A gateway in front of a :class:`RunningCluster`, on its event loop, and a client of the generated stubs."""

from __future__ import annotations

import itertools
import queue
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import grpc

from penstock.gateway.config import GatewayConfig
from penstock.gateway.server import serving
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.service_pb2_grpc import MessagingServiceStub
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardMember, ShardView, TopicRoute
from tests.support.client.running_cluster import RunningCluster, _Server
from tests.support.cluster.cluster import free_ports
from tests.support.waiting import wait_until

TIMEOUT_S = 30.0
_numbers = itertools.count()


def topic_of_type(cluster: RunningCluster, topic: str, kind: str = "", queues: int = 4) -> None:
    """A topic at all masters that takes messages of that type."""
    attributes = {"message.type": kind} if kind else {}
    config = common_pb2.TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=6, attributes=attributes)
    for broker in cluster.brokers.values():
        broker.call("CreateTopic", broker_pb2.CreateTopicRequest(config=config))
    wait_until(lambda: cluster.route(topic).exists, TIMEOUT_S, f"topic {topic} in the routes")


def orderly_group(cluster: RunningCluster, group: str) -> None:
    """A group whose members consume in order."""
    for broker in cluster.brokers.values():
        broker.call("CreateGroup", common_pb2.GroupConfig(group=group, consume_enable=True, orderly=True))


class RunningGateway:
    """Use it with ``with``, inside the cluster's."""

    def __init__(self, cluster: RunningCluster, **settings: Any) -> None:
        (port,) = free_ports(1)
        config = GatewayConfig(nameservers=cluster.namesrv, listen_port=port, bind_address="127.0.0.1")
        self.config = replace(config, **settings)
        self.address = f"127.0.0.1:{port}"
        self._loop = cluster._loop
        self._server = _Server(cluster._loop)

    def __enter__(self) -> Self:
        self._loop.run(self._server.start(serving(self.config)))
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._server.stop())

    def restart(self) -> None:
        """Another one at the same port."""
        self._loop.run(self._server.stop())
        self._loop.run(self._server.start(serving(self.config)))


class Client:
    """One client object, as a program has it; every call gives the protocol's answer."""

    def __init__(self, address: str, *, channel: grpc.Channel | None = None, **metadata: str) -> None:
        self.client_id = f"test@{next(_numbers)}"
        self.metadata = [("x-mq-client-id", self.client_id), ("x-mq-language", "JAVA")]
        self.metadata = [each for each in self.metadata if each[0].replace("-", "_") not in metadata]
        self.metadata += [(name.replace("_", "-"), value) for name, value in metadata.items()]
        self.channel = channel or grpc.insecure_channel(address)
        self._stub = MessagingServiceStub(self.channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, method: str, request: Any, timeout_s: float = 10.0) -> Any:
        """The answer."""
        return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self.metadata, wait_for_ready=True)

    def code(self, method: str, request: Any) -> str:
        """The name of the answer's code."""
        answer = self.call(method, request)
        answers = list(answer) if method in ("ReceiveMessage", "PullMessage") else [answer]
        return v2.Code.Name(answers[0].status.code)

    def send(self, *messages: v2.Message) -> wire.SendMessageResponse:
        """Send them in one request."""
        answer: wire.SendMessageResponse = self.call("SendMessage", wire.SendMessageRequest(messages=messages))
        return answer

    def receive(self, request: wire.ReceiveMessageRequest, timeout_s: float = 30.0) -> Received:
        """All of one answer."""
        return Received(list(self.call("ReceiveMessage", request, timeout_s)))

    def telemetry(self) -> Telemetry:
        """A stream."""
        return Telemetry(self._stub, self.metadata)


class OneBroker:
    """What a gateway asks about topics: each has one queue, of one broker group, and no messages."""

    async def served_route(self, topic: str) -> TopicRoute:
        shard = ShardView(broker_name="broker-a", members=[ShardMember(role=common_pb2.MASTER)])
        queues = [QueueData(broker_name="broker-a", perm=6, read_queues=1)]
        return TopicRoute(topic=topic, exists=True, queues=queues, shards=[shard])

    route = served_route

    async def at_master(self, *_: object) -> Any:
        return SimpleNamespace(ranges=[])


class Received:
    """One answer to a ReceiveMessage."""

    def __init__(self, answers: list[wire.ReceiveMessageResponse]) -> None:
        self.kinds = [answer.WhichOneof("content") for answer in answers]
        self.status = answers[0].status
        self.code = v2.Code.Name(self.status.code)
        self.messages = [answer.message for answer in answers if answer.HasField("message")]

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]


class Telemetry:
    """One stream, whose answers are waited for."""

    def __init__(self, stub: Any, metadata: list[tuple[str, str]]) -> None:
        self._requests: queue.Queue[wire.TelemetryCommand | None] = queue.Queue()
        self.call = stub.Telemetry(self._sent(), metadata=metadata, wait_for_ready=True, timeout=60)

    def _sent(self) -> Iterator[wire.TelemetryCommand]:
        while (command := self._requests.get()) is not None:
            yield command

    def push(self, settings: v2.Settings) -> None:
        self._requests.put(wire.TelemetryCommand(settings=settings))

    def next(self) -> wire.TelemetryCommand:
        command: wire.TelemetryCommand = next(self.call)
        return command

    def close(self) -> None:
        self._requests.put(None)
        self.call.cancel()


def message(topic: str, body: bytes = b"x", **system: Any) -> v2.Message:
    """A message with an id of its own; ``user``: its user properties."""
    user = system.pop("user", {})
    system.setdefault("message_id", f"01{next(_numbers):032X}")
    system.setdefault("body_encoding", v2.Encoding.IDENTITY)
    properties = v2.SystemProperties(**system)
    if not properties.HasField("born_timestamp"):
        properties.born_timestamp.seconds = int(time.time())
    return v2.Message(topic=v2.Resource(name=topic), user_properties=user, system_properties=properties, body=body)


def wish(
    group: str,
    topic: str,
    *,
    expression: str = "*",
    sql: bool = False,
    batch: int = 32,
    wait_s: float = 5.0,
    **other: Any,
) -> Any:
    """A request to receive."""
    request = wire.ReceiveMessageRequest(
        group=v2.Resource(name=group),
        message_queue=v2.MessageQueue(topic=v2.Resource(name=topic), broker=v2.Broker(name="broker-a")),
        filter_expression=v2.FilterExpression(
            type=v2.FilterType.SQL if sql else v2.FilterType.TAG, expression=expression
        ),
        batch_size=batch,
        auto_renew=other.pop("auto_renew", False),
        attempt_id=other.pop("attempt_id", None),
    )
    request.long_polling_timeout.FromNanoseconds(int(wait_s * 1e9))
    request.invisible_duration.FromMilliseconds(other.pop("invisible_ms", 30_000))
    assert not other
    return request


def acknowledged(group: str, topic: str, *handles: str) -> wire.AckMessageRequest:
    """A request that acknowledges."""
    entries = [wire.AckMessageEntry(message_id="m", receipt_handle=handle) for handle in handles]
    return wire.AckMessageRequest(group=v2.Resource(name=group), topic=v2.Resource(name=topic), entries=entries)


def changed(group: str, topic: str, handle: str, invisible_ms: int) -> wire.ChangeInvisibleDurationRequest:
    """A request that changes when a message is visible."""
    request = wire.ChangeInvisibleDurationRequest(
        group=v2.Resource(name=group), topic=v2.Resource(name=topic), receipt_handle=handle
    )
    request.invisible_duration.FromMilliseconds(invisible_ms)
    return request


def damaged(chance: random.Random, content: bytes) -> bytes:
    """The request with some bytes of its beginning changed, and now and then cut off."""
    found = bytearray(content)
    for _ in range(chance.choice([1, 1, 3])):
        found[chance.randrange(min(len(found), 400))] = chance.choice([0, 1, 8, 10, 18, 26, 65, 127, 128, 255])
    if chance.random() < 0.3:
        del found[chance.randrange(len(found)) :]
    return bytes(found)
