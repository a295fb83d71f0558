"""QueryRoute and QueryAssignment: where a topic's queues are, all of them behind this gateway's own address.

Any gateway takes any call and passes it on to the master that it is for, so the address that a client has reached is
good for all brokers, and stays good when masters change.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Any, Final

from penstock.client.cluster import master_of
from penstock.formats.attributes.message_types import MESSAGE_TYPE
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import (
    Address,
    AddressScheme,
    Assignment,
    Broker,
    Code,
    Endpoints,
    MessageQueue,
    MessageType,
    Permission,
    Resource,
)
from penstock.proto.names import PERM_READ, PERM_WRITE
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from .brokers import Brokers
from .callers import Caller
from .groups import Groups
from .names import group_of, topic_of
from .status import Refusal, ok

ADDRESSES_MAX: Final = 64
HOST_LENGTH_MAX: Final = 255
_CACHED: Final = 256
_SCHEMES: Final = frozenset({AddressScheme.IPv4, AddressScheme.IPv6, AddressScheme.DOMAIN_NAME})
_ALL_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)
_TYPES = {MessageType.Name(each): (each,) for each in _ALL_TYPES} | {"MIXED": _ALL_TYPES}


def accepted_types(route: TopicRoute) -> tuple[MessageType, ...]:
    """The types of messages that a topic takes; one without the attribute takes NORMAL ones."""
    return _TYPES.get(route.attributes.get(MESSAGE_TYPE, ""), (MessageType.NORMAL,))


class Routes:
    """Answers of one port."""

    def __init__(self, brokers: Brokers, groups: Groups, host: str, port: int) -> None:
        """``host``, ``port``: what clients are told that have said no address themselves."""
        self._brokers = brokers
        self._groups = groups
        self._host = host
        self._port = port
        self._cached: OrderedDict[tuple[Any, ...], tuple[TopicRoute, wire.QueryRouteResponse]] = (
            OrderedDict()
        )  # by request

    async def query(self, caller: Caller, request: wire.QueryRouteRequest) -> wire.QueryRouteResponse:
        """Every queue that may be both read and written; those of a topic that is only one of it where there are none.

        Those of the broker groups alternate: simple consumers take the queues in turn, and wait at the broker of each.

        Raises:
            Refusal, PenstockError: no such topic.
        """
        topic = topic_of(request.topic, caller.namespace)
        key = (request.SerializeToString(), caller.namespace, caller.is_node_js)
        cached = self._cached.get(key)
        if cached is not None and cached[0] is self._brokers.known_route(topic):
            self._cached.move_to_end(key)
            return cached[1]
        route = await self._brokers.served_route(topic)
        endpoints = self._endpoints(request.endpoints, only_one=caller.is_node_js)
        answer = wire.QueryRouteResponse(status=ok(), message_queues=_queues(route, request.topic, endpoints))
        self._cached[key] = route, answer
        if len(self._cached) > _CACHED:
            self._cached.popitem(last=False)
        return answer

    async def assign(self, caller: Caller, request: wire.QueryAssignmentRequest) -> wire.QueryAssignmentResponse:
        """For a group: each broker once, with queue -1; for an orderly one each readable queue.

        Raises:
            Refusal: FORBIDDEN, nothing may be read. PenstockError: no such topic.
        """
        topic = topic_of(request.topic, caller.namespace)
        group = group_of(request.group, caller.namespace)
        route = await self._brokers.served_route(topic)
        endpoints = self._endpoints(request.endpoints, only_one=caller.is_node_js)
        with_master = {shard.broker_name for shard in route.shards if master_of(shard)}
        readable = [
            each
            for each in route.queues
            if each.perm & PERM_READ and each.read_queues and each.broker_name in with_master
        ]
        if not readable:
            raise Refusal(Code.FORBIDDEN, f"no readable queue: topic {topic}")
        is_fifo = (await self._groups.config(group)).orderly
        assignments = []
        for each in readable:
            permission = Permission.READ_WRITE if each.perm & PERM_WRITE else Permission.READ
            broker = Broker(name=each.broker_name, id=0, endpoints=endpoints)
            for queue_id in range(each.read_queues) if is_fifo else (-1,):
                queue = MessageQueue(topic=request.topic, id=queue_id, permission=permission, broker=broker)
                queue.accept_message_types.extend(accepted_types(route))
                assignments.append(Assignment(message_queue=queue))
        return wire.QueryAssignmentResponse(status=ok(), assignments=assignments)

    def _endpoints(self, asked: Endpoints, *, only_one: bool) -> Endpoints:
        """The addresses by which the client has reached this gateway; ``only_one``: it cannot choose among several.

        Raises:
            Refusal: ILLEGAL_ACCESS_POINT.
        """
        addresses = list(asked.addresses)
        if not addresses:
            addresses = [Address(host=self._host, port=self._port)]
        if len(addresses) > ADDRESSES_MAX:
            raise Refusal(Code.ILLEGAL_ACCESS_POINT, f"{len(addresses)} addresses: at most {ADDRESSES_MAX}")
        for each in addresses:
            if not each.host.strip() or len(each.host) > HOST_LENGTH_MAX or not 0 <= each.port <= 65535:
                raise Refusal(
                    Code.ILLEGAL_ACCESS_POINT, f"address {each.host[:64]!r}, port {each.port}: no host and port"
                )
        scheme = asked.scheme
        if scheme not in _SCHEMES:
            scheme = _scheme_of(addresses[0].host)
        if only_one or scheme == AddressScheme.DOMAIN_NAME:
            addresses = addresses[:1]
        return Endpoints(
            scheme=scheme, addresses=[Address(host=each.host, port=each.port or self._port) for each in addresses]
        )


def _scheme_of(host: str) -> AddressScheme:
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return AddressScheme.DOMAIN_NAME
    return AddressScheme.IPv4 if address.version == 4 else AddressScheme.IPv6


def _queues(route: TopicRoute, topic: Resource, endpoints: Endpoints) -> list[MessageQueue]:
    with_master = {shard.broker_name for shard in route.shards if master_of(shard)}
    types = accepted_types(route)
    both: list[MessageQueue] = []
    single: list[MessageQueue] = []
    for each in sorted(route.queues, key=lambda queues: queues.broker_name):
        if each.broker_name not in with_master:
            continue
        reads = each.read_queues if each.perm & PERM_READ else 0
        writes = each.write_queues if each.perm & PERM_WRITE else 0
        broker = Broker(name=each.broker_name, id=0, endpoints=endpoints)
        found, permission = both, Permission.READ_WRITE
        if not min(reads, writes):
            found, permission = single, Permission.READ if reads else Permission.WRITE
        for queue_id in range(min(reads, writes) or max(reads, writes)):
            queue = MessageQueue(topic=topic, id=queue_id, permission=permission, broker=broker)
            queue.accept_message_types.extend(types)
            found.append(queue)
    return sorted(both or single, key=lambda queue: queue.id)
