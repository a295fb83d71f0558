"""Calls of an administrator: at the master of a broker group, or at whoever of each group answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import tenacity

from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    GroupNotFound,
    InvalidArgument,
    NameserverUnavailable,
    PenstockError,
    Retryable,
    RouteNotFound,
    TopicNotFound,
    from_rpc_error,
)
from penstock.proto.wire.broker_pb2 import GroupDescription, GroupName
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.nameserver_pb2 import ClusterView, RouteQuery, ShardName, ShardView, TopicRoute
from penstock.runtime.nearest import hint

from .connections import Connections, rpc_error
from .routes import master_of
from .timeouts import check_timeout

log = logging.getLogger(__name__)

TRY_TIMEOUT_S_MIN = 0.2
ROUTE_POLL_S = 0.02


class AdminCalls:
    """Finds brokers and retries what was not done. Thread-safe."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections

    def cluster(self, timeout_s: float) -> ClusterView:
        """The broker groups that live, and those that are down, as a nameserver knows them."""
        check_timeout(timeout_s)
        view: ClusterView = self.connections.query_nameserver("QueryCluster", Empty(), timeout_s)
        return view

    def shards(self, timeout_s: float) -> dict[str, ShardView]:
        """Every living broker group by name."""
        return {shard.broker_name: shard for shard in self.cluster(timeout_s).shards}

    def masters(self, timeout_s: float) -> list[str]:
        """The names of broker groups with a living master; raises as :meth:`masters_and_others`."""
        return self.masters_and_others(timeout_s)[0]

    def masters_and_others(self, timeout_s: float) -> tuple[list[str], list[str]]:
        """The names of broker groups with a living master, and of those without: they take no changes now.

        Raises:
            RouteNotFound: none has one.
        """
        view = self.cluster(timeout_s)
        found = sorted(shard.broker_name for shard in view.shards if master_of(shard))
        if not found:
            raise RouteNotFound("the nameservers know no living master: is a broker running?")
        return found, sorted({shard.broker_name for shard in (*view.shards, *view.absent)} - set(found))

    def at_master(self, broker_name: str, method: str, request: Any, timeout_s: float) -> Any:
        """The master's answer; refusals for the moment, and a master that is gone, are retried until ``timeout_s``."""
        check_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s

        def call() -> Any:
            left_s = max(deadline - time.monotonic(), TRY_TIMEOUT_S_MIN)
            shard = self.shards(left_s).get(broker_name)
            member = master_of(shard) if shard else None
            if member is None:
                raise BrokerUnavailable(f"broker group {broker_name} has no living master")
            return self.connections.call(member.address, method, request, left_s)

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_delay(timeout_s),
            wait=tenacity.wait_exponential(multiplier=0.05, max=0.5),
            retry=tenacity.retry_if_exception_type(Retryable),
            reraise=True,
        )
        return retrying(call)

    def everywhere(
        self, method: str, request: Any, timeout_s: float, *, skip: type[PenstockError] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """One answer per broker group (its master's, else a slave's), and the groups that did not answer or are down.

        Groups that answer with the error ``skip`` are left out of both.
        """
        view = self.cluster(timeout_s)
        shards = {shard.broker_name: shard for shard in view.shards}
        answers, silent = self.at_each(shards, lambda _: (method, request), timeout_s, skip=skip)
        return answers, sorted([*silent, *(shard.broker_name for shard in view.absent)])

    def at_each(
        self,
        shards: dict[str, ShardView],
        request_for: Callable[[str], tuple[str, Any]],
        timeout_s: float,
        *,
        skip: type[PenstockError] | None = None,
    ) -> tuple[dict[str, Any], list[str]]:
        """The same for given groups, asked at the same time, each its own ``(method, request)``."""
        calls = {}
        for name, shard in shards.items():
            method, request = request_for(name)
            member = master_of(shard) or next(iter(shard.members), None)
            if member is not None:
                stub = self.connections.broker(member.address)
                calls[name] = (member.address, getattr(stub, method).future(request, timeout=timeout_s))
        answers, silent = {}, [name for name in shards if name not in calls]
        for name, (address, call) in calls.items():
            try:
                answers[name] = call.result()
            except grpc.RpcError as broken:
                error = rpc_error(broken, address)
                if skip is not None and isinstance(error, skip):
                    continue
                if not error.retryable:
                    raise error from broken
                log.info("broker did not answer broker=%s error=%s", name, error.message)
                silent.append(name)
        return answers, sorted(silent)

    def route(self, topic: str, timeout_s: float) -> TopicRoute:
        """The route of an existing topic. Raises TopicNotFound."""
        route = self._query_route(topic, timeout_s)
        if not route.exists:
            raise self.topic_not_found(topic, timeout_s)
        return route

    def topics(self, timeout_s: float) -> list[str]:
        """The names of all topics, also of broker groups that are down, without internal ones; sorted."""
        check_timeout(timeout_s)
        found = self.connections.query_nameserver("ListTopics", Empty(), timeout_s)
        return sorted(topic for topic in found.topics if not names.is_system_topic(topic))

    def forget_shard(self, broker_name: str, timeout_s: float) -> None:
        """At every nameserver, unless one of them knows a living member; see :meth:`Admin.forget_shard`."""
        check_timeout(timeout_s)
        views, _ = self._at_nameservers("QueryCluster", Empty(), timeout_s)
        for address, view in views.items():
            found = next((shard for shard in view.shards if shard.broker_name == broker_name), None)
            if found is not None:
                living = ", ".join(member.address for member in found.members)
                raise InvalidArgument(
                    f"broker group {broker_name} is not gone: {living} lives, says nameserver {address}; stop it first"
                )
        told, errors = self._at_nameservers("ForgetShard", ShardName(broker_name=broker_name), timeout_s)
        unknown = [error for error in errors if isinstance(error, InvalidArgument)]
        silent = [error.message for error in errors if error not in unknown]
        if silent:
            raise NameserverUnavailable(f"broker group {broker_name} is forgotten, but not by all: {'; '.join(silent)}")
        if not told:
            raise unknown[0]

    def _at_nameservers(
        self, method: str, request: Any, timeout_s: float
    ) -> tuple[dict[str, Any], list[PenstockError]]:
        """The answers of all nameservers, asked at the same time, by address; and the errors of the others."""
        calls = [
            (address, getattr(self.connections.nameserver(address), method).future(request, timeout=timeout_s))
            for address in self.connections.addresses
        ]
        answers: dict[str, Any] = {}
        errors: list[PenstockError] = []
        for address, call in calls:
            try:
                answers[address] = call.result()
            except grpc.RpcError as broken:
                errors.append(from_rpc_error(broken, f"nameserver {address}"))
        return answers, errors

    def topic_not_found(self, topic: str, timeout_s: float) -> TopicNotFound:
        """The error that says so, with the nearest topic there is."""
        near = hint(topic, self.topics(timeout_s))
        return TopicNotFound(f"topic {topic!r} does not exist at any living broker{near}", topic=topic)

    def groups(self, timeout_s: float) -> list[str]:
        """The names of all groups at the brokers that answer, sorted."""
        answers, _ = self.everywhere("ListGroups", Empty(), timeout_s)
        return sorted({group.group for answer in answers.values() for group in answer.groups})

    def describe_group(self, group: str, timeout_s: float) -> tuple[dict[str, GroupDescription], list[str]]:
        """What each broker group that has ``group`` tells of it, and which did not answer.

        Raises:
            GroupNotFound: nobody has it; with the nearest group there is.
        """
        answers, silent = self.everywhere("DescribeGroup", GroupName(group=group), timeout_s, skip=GroupNotFound)
        if not answers:
            raise self.group_not_found(group, timeout_s, silent)
        return answers, silent

    def group_not_found(self, group: str, timeout_s: float, silent: Sequence[str] = ()) -> GroupNotFound:
        """The error that says so, with the nearest group there is and who was not heard."""
        near = hint(group, self.groups(timeout_s))
        unheard = f" ({', '.join(silent)} did not answer)" if silent else ""
        return GroupNotFound(f"group {group!r} does not exist at any broker{unheard}{near}", group=group)

    def wait_route(self, topic: str, condition: Callable[[TopicRoute], bool], timeout_s: float) -> TopicRoute:
        """The route once ``condition`` holds for it, or as it is after ``timeout_s``: routes follow brokers shortly."""
        deadline = time.monotonic() + timeout_s
        while True:
            route = self._query_route(topic, timeout_s)
            if condition(route) or time.monotonic() >= deadline:
                return route
            time.sleep(ROUTE_POLL_S)

    def _query_route(self, topic: str, timeout_s: float) -> TopicRoute:
        check_timeout(timeout_s)
        update = self.connections.query_nameserver("QueryRoute", RouteQuery(topics=[topic]), timeout_s)
        route: TopicRoute = update.routes[0]
        return route
