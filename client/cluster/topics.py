"""Finding the route of a topic that is about to be written, and creating the topic where that is allowed."""

from __future__ import annotations

import logging
import time

import grpc

from penstock.proto import names
from penstock.proto.errors import Forbidden, PenstockError, RouteNotFound, TopicNotFound, from_rpc_error
from penstock.proto.wire.broker_pb2 import CreateTopicRequest
from penstock.proto.wire.common_pb2 import TopicConfig
from penstock.proto.wire.nameserver_pb2 import ShardView, TopicRoute

from .connections import Connections
from .routes import Routes, master_of

log = logging.getLogger(__name__)

CALL_TIMEOUT_S_MIN = 0.2


def masters(shards: list[ShardView]) -> list[tuple[str, str]]:
    """``(broker name, address)`` of the living masters."""
    found = [(shard.broker_name, master_of(shard)) for shard in shards]
    return [(name, member.address) for name, member in found if member is not None]


def covers(route: TopicRoute, broker_names: set[str]) -> bool:
    """Whether the topic has queues at all these broker groups."""
    return route.exists and broker_names <= {queues.broker_name for queues in route.queues}


def writable_route(
    connections: Connections, routes: Routes, topic: str, timeout_s: float, *, create: bool, queues: int = 0
) -> TopicRoute:
    """The route of ``topic``; with ``create``, an unknown one is created on every broker (queues 0: its default).

    While no living broker is known this waits: a cluster that starts, or fails over, is not a missing topic.

    Raises:
        InvalidName, Forbidden: no topic that clients may write.
        TopicNotFound: it does not exist, and creation is off here or at every broker.
        RouteNotFound, NameserverUnavailable: nothing was known within ``timeout_s``.
    """
    names.check_topic(topic)
    if names.is_system_topic(topic):
        raise Forbidden(f"topic {topic} is internal: clients may not write to it")
    deadline = time.monotonic() + timeout_s
    try:
        return routes.topic(topic, timeout_s)
    except RouteNotFound:
        route = routes.wait_for(topic, lambda known: known.exists or bool(known.shards), deadline - time.monotonic())
        if route is None:
            raise
        if route.exists:
            return route
    except TopicNotFound:
        pass
    if not create:
        return routes.topic(topic, 0.0)
    return _create(connections, routes, topic, queues, deadline)


def _create(connections: Connections, routes: Routes, topic: str, queues: int, deadline: float) -> TopicRoute:
    known = routes.known(topic)
    targets = masters(list(known.shards) if known else [])
    config = TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=names.PERM_READ_WRITE)
    request = CreateTopicRequest(config=config, auto=True)
    calls = []
    for name, address in targets:
        left = max(deadline - time.monotonic(), CALL_TIMEOUT_S_MIN)
        calls.append((name, address, connections.broker(address).CreateTopic.future(request, timeout=left)))
    created: set[str] = set()
    failure: PenstockError | None = None
    for name, address, call in calls:
        try:
            call.result()
            created.add(name)
        except grpc.RpcError as error:
            failure = from_rpc_error(error, f"broker {address}")
    if not created:
        reason = failure.message if failure else "no broker group has a living master"
        kind = RouteNotFound if failure is None or failure.retryable else TopicNotFound
        raise kind(f"topic {topic!r} does not exist and was not created: {reason}")
    log.info("topic created topic=%s brokers=%s", topic, sorted(created))
    left = max(deadline - time.monotonic(), CALL_TIMEOUT_S_MIN)
    route = routes.wait_for(topic, lambda candidate: covers(candidate, created), left)
    if route is None:
        return routes.topic(topic, 0.0)
    return route
