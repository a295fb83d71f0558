"""Calls at whoever is to be asked: found, and found again while the cluster changes who that is.

One rule says when a call is made again, here and wherever a client repeats something: :func:`.retry.again`. Every call
that is repeated here may be made twice without harm, so its outcome need not be known.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

import grpc

from penstock.proto import errors, names
from penstock.proto.data_frames import Method
from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import CreateTopicRequest, FetchHeader, FetchReply, GroupDescription, GroupName
from penstock.proto.wire.common_pb2 import Empty, TopicConfig
from penstock.proto.wire.nameserver_pb2 import ShardView, TopicRoute
from penstock.runtime.nearest import hint
from penstock.runtime.security.credentials import Credentials, Tls

from .connections import BROKER, NAMESERVER, Connections, Service, fetched
from .directory import ROUTE_TIMEOUT_S, Directory
from .retry import again, require_timeout
from .routes import covers, master_of

log = logging.getLogger(__name__)

HINT_TOPICS_MAX = 1000
"""Topics among which a new one's likeness is looked for: more would hold up who makes many."""
MISSPELT = 0.85
"""How like another topic's name a new one is that may be a slip: ``ordrs`` is, ``order-lines`` is not."""

T = TypeVar("T")
K = TypeVar("K")

CALL_TIMEOUT_S = 10.0  # of one try
CALL_TIMEOUT_S_MIN = 0.2


class Listing(list[T]):
    """What was found. ``unreachable`` names broker groups that did not answer: what only they have is missing."""

    def __init__(self, found: Iterable[T], unreachable: Iterable[str]) -> None:
        super().__init__(found)
        self.unreachable = sorted(set(unreachable))


def unheard(unreachable: Sequence[str]) -> str:
    """`` (broker-b did not answer)``, behind what was not found; or nothing."""
    return f" ({', '.join(unreachable)} did not answer)" if unreachable else ""


class Calls:
    """Calls of one client at its cluster. Thread-safe.

    With ``directory`` and ``connections`` it is all that a program needs which moves records itself: find the master
    (``directory.address(broker_name)``), send it records (``connections.append(address, message, timeout_s)``), fetch
    some (:meth:`fetch`).
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.connections = directory.connections

    @classmethod
    def to(
        cls, nameservers: str | Sequence[str], *, tls: Tls | None = None, credentials: Credentials | None = None
    ) -> Self:
        """With connections of their own, see :class:`Connections`; :meth:`close` ends them."""
        return cls(Directory(Connections(nameservers, tls=tls, credentials=credentials)))

    def close(self) -> None:
        """Close the directory and all connections. May be called again."""
        self.directory.close()
        self.connections.close()

    # One broker group

    def at_master(
        self, broker_name: str, method: str, request: Any, timeout_s: float, *, service: Service = BROKER
    ) -> Any:
        """The master's answer. Refusals for the moment, and a master that is gone, are ridden through."""
        return self.on(broker_name, partial(self._call, method, request, service), timeout_s)

    def at_data_port(
        self, broker_name: str, method: Method, content: bytes, take: Callable[[bytes], T], timeout_s: float
    ) -> T:
        """The same of a method of the data port; ``take`` makes the answer out of its bytes, and may not block."""
        return self.on(
            broker_name,
            lambda address, left_s: self.connections.ask(
                address, method, content, take, left_s, is_awaited=True
            ).result(),
            timeout_s,
        )

    def at_reader(
        self, broker_name: str, method: str, request: Any, timeout_s: float, *, service: Service = BROKER
    ) -> Any:
        """The master's answer, or a slave's while there is no master; else as :meth:`at_master`."""
        return self.on(broker_name, partial(self._call, method, request, service), timeout_s, reading=True)

    def _call(self, method: str, request: Any, service: Service, address: str, timeout_s: float) -> Any:
        return self.connections.call(address, method, request, timeout_s, service=service)

    def fetch(self, broker_name: str, header: FetchHeader, timeout_s: float) -> tuple[FetchReply, memoryview]:
        """The reply and the records of all its results, end to end; from whom, and how often, as :meth:`at_reader`."""
        return self.on(
            broker_name,
            lambda address, left_s: fetched(self.connections.fetch(address, header, left_s)),
            timeout_s,
            reading=True,
        )

    def on(self, broker_name: str, call: Callable[[str, float], T], timeout_s: float, *, reading: bool = False) -> T:
        """The result of ``call(address, seconds left)`` for the master, or with ``reading`` also for a slave.

        Raises:
            PenstockError: the last one.
        """
        timeout_s = require_timeout(timeout_s)
        deadline = time.monotonic() + timeout_s
        is_first = True

        def try_once() -> T:
            nonlocal is_first
            left_s = min(max(deadline - time.monotonic(), CALL_TIMEOUT_S_MIN), CALL_TIMEOUT_S)
            fresh, is_first = not is_first, False
            address = self.directory.address(broker_name, min(left_s, ROUTE_TIMEOUT_S), reading=reading, fresh=fresh)
            return call(address, left_s)

        return again(try_once, timeout_s)

    # Many at the same time, none of them again

    def at_addresses(
        self,
        addresses: Mapping[K, str],
        method: str,
        request_for: Callable[[K], Any],
        timeout_s: float,
        *,
        what: str = "broker",
        service: Service = BROKER,
    ) -> tuple[dict[K, Any], dict[K, PenstockError]]:
        """One call at each of these brokers: the answers, and the errors of the others, which name ``what`` it was."""
        calls = {}
        for key, address in addresses.items():
            stub = self.connections.stub(address, service)
            calls[key] = getattr(stub, method).future(request_for(key), timeout=timeout_s)
        answers: dict[K, Any] = {}
        failures: dict[K, PenstockError] = {}
        for key, call in calls.items():
            try:
                answers[key] = call.result()
            except grpc.RpcError as error:
                failures[key] = errors.from_rpc_error(error, f"{what} {addresses[key]}")
        return answers, failures

    def at_nameservers(
        self, method: str, request: Any, timeout_s: float
    ) -> tuple[dict[str, Any], dict[str, PenstockError]]:
        """One call at every nameserver: the answers by address, and the errors of the others."""
        timeout_s = require_timeout(timeout_s)
        addresses = {each: each for each in self.connections.addresses}
        at_each = self.at_addresses
        return at_each(addresses, method, lambda _: request, timeout_s, what="nameserver", service=NAMESERVER)

    def at_each(
        self,
        shards: Iterable[ShardView],
        method: str,
        request_for: Callable[[str], Any],
        timeout_s: float,
        *,
        skip: type[PenstockError] | None = None,
    ) -> tuple[dict[str, Any], list[str]]:
        """One answer per broker group (its master's, else a slave's), and the groups that did not answer.

        The answer is None where it is the error ``skip``.

        Raises:
            PenstockError: a group's answer that no repetition heals.
        """
        by_name = {shard.broker_name: shard for shard in shards}
        members = {name: master_of(shard) or next(iter(shard.members), None) for name, shard in by_name.items()}
        addresses = {name: member.address for name, member in members.items() if member is not None}
        answers, failures = self.at_addresses(addresses, method, request_for, timeout_s)
        silent = by_name.keys() - addresses
        for name, error in failures.items():
            if skip is not None and isinstance(error, skip):
                answers[name] = None
                continue
            if not error.retryable:
                raise error
            log.info("broker did not answer broker=%s error=%s", name, error.message)
            silent.add(name)
        return answers, sorted(silent)

    def everywhere(
        self, method: str, request: Any, timeout_s: float, *, skip: type[PenstockError] | None = None
    ) -> tuple[dict[str, Any], list[str]]:
        """The same of all broker groups; those that are down did not answer."""
        view = self.directory.cluster(timeout_s)
        answers, silent = self.at_each(view.shards, method, lambda _: request, timeout_s, skip=skip)
        return answers, sorted([*silent, *(shard.broker_name for shard in view.absent)])

    # Consumer groups

    def groups(self, timeout_s: float) -> Listing[str]:
        """The names of all consumer groups at the brokers that answer, sorted."""
        answers, silent = self.everywhere("ListGroups", Empty(), timeout_s)
        return Listing(sorted({group.group for answer in answers.values() for group in answer.groups}), silent)

    def describe_group(self, group: str, timeout_s: float) -> tuple[dict[str, GroupDescription], list[str]]:
        """A consumer group's descriptions by broker group that has it, and who did not answer. Raises GroupNotFound."""
        answers, silent = self.ask_about_group(group, timeout_s)
        return {name: answer for name, answer in answers.items() if answer is not None}, silent

    def ask_about_group(self, group: str, timeout_s: float) -> tuple[dict[str, GroupDescription | None], list[str]]:
        """The same with None for broker groups that do not have the consumer group. Others were not known to be asked.

        Raises:
            GroupNotFound: nobody has it; with the nearest group there is.
            BrokerUnavailable: no broker answers.
        """
        answers, silent = self.everywhere("DescribeGroup", GroupName(group=group), timeout_s, skip=errors.GroupNotFound)
        if not answers and silent:
            raise errors.BrokerUnavailable(
                f"group {group!r}: {', '.join(silent)} did not answer, and nobody else knows it: ask again later",
                group=group,
            )
        if not any(answers.values()):
            raise self.group_not_found(group, timeout_s, silent)
        return answers, silent

    def group_not_found(self, group: str, timeout_s: float, silent: Sequence[str]) -> errors.GroupNotFound:
        """The error that says so, with the nearest group there is and who was not heard."""
        near = hint(group, self.groups(timeout_s))
        return errors.GroupNotFound(f"group {group!r} does not exist at any broker{unheard(silent)}{near}", group=group)

    # Topics that are written

    def writable_route(self, topic: str, timeout_s: float, *, create: bool, queues: int) -> TopicRoute:
        """The route of ``topic``, watched; with ``create``, an unknown one is made everywhere (queues 0: the default).

        While no living broker is known this waits: a cluster that starts, or fails over, is not a missing topic.

        Raises:
            InvalidName, Forbidden: no topic that clients may write.
            TopicNotFound: it does not exist, and creation is off here or at every broker.
            RouteNotFound, NameserverUnavailable: nothing was known within ``timeout_s``.
        """
        names.check_topic(topic)
        if names.is_system_topic(topic):
            raise errors.Forbidden(f"topic {topic} is internal: clients may not write to it")
        directory, deadline = self.directory, time.monotonic() + timeout_s
        try:
            return directory.topic(topic, timeout_s)
        except errors.RouteNotFound:
            left_s = deadline - time.monotonic()
            route = directory.wait_for(topic, lambda known: known.exists or bool(known.shards), left_s)
            if route is None:
                raise
            if route.exists:
                return route
        except errors.TopicNotFound:
            pass
        return self._created(topic, queues, deadline) if create else directory.topic(topic, 0.0)

    def _created(self, topic: str, queues: int, deadline: float) -> TopicRoute:
        def left_s() -> float:
            return max(deadline - time.monotonic(), CALL_TIMEOUT_S_MIN)

        known = self.directory.known(topic)
        masters = {shard.broker_name: master_of(shard) for shard in (known.shards if known else ())}
        config = TopicConfig(topic=topic, read_queues=queues, write_queues=queues, perm=names.PERM_READ_WRITE)
        request = CreateTopicRequest(config=config, auto=True)
        addresses = {name: master.address for name, master in masters.items() if master is not None}
        answers, failures = self.at_addresses(addresses, "CreateTopic", lambda _: request, left_s())
        if not answers:
            failure = next(reversed(failures.values()), None)
            reason = failure.message if failure else "no broker group has a living master"
            kind = errors.RouteNotFound if failure is None or failure.retryable else errors.TopicNotFound
            raise kind(f"topic {topic!r} does not exist and was not created: {reason}")
        near = self._like(topic, left_s())
        (log.warning if near else log.info)("topic created topic=%s brokers=%s%s", topic, sorted(answers), near)
        route = self.directory.wait_for(topic, lambda candidate: covers(candidate, set(answers)), left_s())
        return route if route is not None else self.directory.topic(topic, 0.0)

    def _like(self, topic: str, timeout_s: float) -> str:
        """A hint with the existing topic that may have been meant; empty where none is like it, or there are many."""
        try:
            known = [each for each in self.directory.topics(timeout_s) if not names.is_system_topic(each)]
        except PenstockError:
            return ""
        return hint(topic, set(known) - {topic}, MISSPELT) if len(known) <= HINT_TOPICS_MAX else ""
