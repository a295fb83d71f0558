"""What the nameserver answers: broker sessions, route watches, queries, key-value configuration.

The two streams are coroutines that read and write, not generators: a coroutine is cancelled where it waits, so the
end of a broker's stream takes it out of the routes at once, not when the collector finds the generator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc.aio

from penstock.proto import names
from penstock.proto.errors import FlowControl, InvalidArgument, NameserverUnavailable, PenstockError, WrongCluster
from penstock.proto.wire.common_pb2 import BrokerIdentity, Empty
from penstock.proto.wire.nameserver_pb2 import (
    BrokerDirective,
    BrokerReport,
    ClusterView,
    KeyQuery,
    KeyValue,
    KeyValues,
    RouteQuery,
    RouteUpdate,
    ShardName,
    TopicNames,
    WatchRequest,
)
from penstock.runtime.clock import Clock
from penstock.runtime.turns import tasks_together

from .election.coordination import Coordination
from .holders import TOPICS_AT_ONCE
from .key_values import KeyValues as KeyValueFile
from .routes import HEARTBEAT_INTERVAL_MS, Change, RouteTable, checked_topics
from .shard import Topics
from .watches import Watcher, Watches

log = logging.getLogger(__name__)

ROUTES_PER_UPDATE = 500
TOPICS_PER_QUERY_MAX = 10_000
ROUTES_BYTES_MAX = 32 * 1024 * 1024
"""Of one answer. The route of a topic that does not exist names all brokers."""
FIRST_REPORT_TIMEOUT_S = 3.0
ELECTABLE_INTERVAL_MS = 200
"""Reports of brokers whose master is elected: several fit into the time after which one is old."""
SWEEP_INTERVAL_MS = 200
STALL_MS = 500
"""A sweep later than this by that much: the nameserver itself stood still, and the brokers' reports wait unread."""

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(slots=True, eq=False)
class _Session:
    """One broker's stream. ``wake`` is set when there is something to tell it: its shard, or its end."""

    number: int
    broker: str = "nobody"
    broker_name: str = ""
    identity: BrokerIdentity | None = None
    is_electable: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    end: PenstockError | None = None

    def finish(self, error: PenstockError) -> None:
        self.end = error
        self.wake.set()


class NameserverService:
    """The gRPC service over a :class:`RouteTable`; everything runs on one event loop."""

    def __init__(
        self, table: RouteTable, key_values: KeyValueFile, clock: Clock, coordination: Coordination | None = None
    ) -> None:
        self._coordination = coordination
        if coordination is not None:
            coordination.on_register = self._wake_shard
        self._table = table
        self._key_values = key_values
        self._clock = clock
        self._watches = Watches()
        self._sessions: dict[int, _Session] = {}
        self._last_session = 0
        self._catching_up: asyncio.Task[None] | None = None  # while the table, or the watches, are behind
        self._closing = asyncio.Event()

    async def BrokerSession(self, reports: AsyncIterator[BrokerReport], context: Context) -> None:
        """Keep a broker in the routes from its registration, the first report, until the call ends."""
        self._last_session += 1
        session = _Session(self._last_session)
        try:
            async with asyncio.timeout(FIRST_REPORT_TIMEOUT_S):
                first = await anext(reports, None)
        except TimeoutError:
            raise InvalidArgument(f"no registration within {FIRST_REPORT_TIMEOUT_S} s") from None
        if first is None:
            return
        self._sessions[session.number] = session
        try:
            await self._on_report(session, first)
            log.info("broker registered broker=%s peer=%s", session.broker, context.peer())
            await _while_reading(self._read_reports(session, reports), self._write_directives(session, context))
        finally:
            del self._sessions[session.number]
            self._publish(self._table.unregister(session.number))
            self._leave(session)
            if session.broker_name:
                log.info("broker session ended broker=%s peer=%s", session.broker, context.peer())

    async def WatchRoutes(self, requests: AsyncIterator[WatchRequest], context: Context) -> None:
        """Push the routes asked for, at once and when they change, until the client ends the call.

        A client that has said all it wants may close its side; it is served on.
        """
        watcher = self._watches.open()
        try:
            await _while_reading(self._read_watch(watcher, requests), self._write_routes(watcher, context))
        finally:
            try:
                await self._unwatch(watcher, list(watcher.topics))
            finally:
                self._watches.close(watcher)

    async def QueryRoute(self, request: RouteQuery, context: Context) -> RouteUpdate:
        if len(request.topics) > TOPICS_PER_QUERY_MAX:
            raise InvalidArgument(f"{len(request.topics)} topics in one query: at most {TOPICS_PER_QUERY_MAX}")
        update = RouteUpdate()
        for part in batched(request.topics, TOPICS_AT_ONCE // 20):
            update.routes.extend(self._table.route(names.check_topic(topic)) for topic in part)
            if update.ByteSize() > ROUTES_BYTES_MAX:
                raise FlowControl(
                    f"the routes of {len(request.topics)} topics have more than {ROUTES_BYTES_MAX} bytes: ask for fewer"
                )
            await asyncio.sleep(0)
        return update

    async def QueryCluster(self, request: Empty, context: Context) -> ClusterView:
        return self._table.cluster()

    async def ListTopics(self, request: Empty, context: Context) -> TopicNames:
        return TopicNames(topics=self._table.holders.topics())

    async def ForgetShard(self, request: ShardName, context: Context) -> Empty:
        self._publish(self._table.forget(names.check_broker_name(request.broker_name)))
        log.info("broker group forgotten broker_name=%s peer=%s", request.broker_name, context.peer())
        return Empty()

    async def PutKeyValue(self, request: KeyValue, context: Context) -> Empty:
        await self._key_values.put(request.namespace, request.key, request.value)
        return Empty()

    async def GetKeyValue(self, request: KeyQuery, context: Context) -> KeyValue:
        value = self._key_values.get(request.namespace, request.key)
        return KeyValue(namespace=request.namespace, key=request.key, value=value)

    async def DeleteKeyValue(self, request: KeyQuery, context: Context) -> Empty:
        await self._key_values.delete(request.namespace, request.key)
        return Empty()

    async def ListKeyValues(self, request: KeyQuery, context: Context) -> KeyValues:
        return KeyValues(values=self._key_values.list(request.namespace))

    async def sweep_forever(self) -> None:
        """Take silent brokers out, forever; the owner cancels it."""
        loop = asyncio.get_running_loop()
        while True:
            slept_at = loop.time()
            await asyncio.sleep(SWEEP_INTERVAL_MS / 1000)
            late_ms = (loop.time() - slept_at) * 1000 - SWEEP_INTERVAL_MS
            if late_ms > STALL_MS:
                log.warning("nameserver stood still late_ms=%d action=brokers' silence counted anew", late_ms)
                self._table.excuse_silence(self._clock.monotonic_s())
            self.sweep()

    def sweep(self) -> None:
        """Take out the brokers that are silent now."""
        change = self._table.expire(self._clock.monotonic_s())
        for number in change.ended:
            log.warning("broker silent broker=%s action=taken out of the routes", self._sessions[number].broker)
        self._publish(change)

    def close(self) -> None:
        """End all streams; clients and brokers go to another nameserver."""
        stopping = NameserverUnavailable("the nameserver is stopping")
        for session in self._sessions.values():
            session.finish(stopping)
        self._closing.set()
        self._watches.wake_all()

    async def _on_report(self, session: _Session, report: BrokerReport) -> None:
        """Take a report over; others are served between the parts of a long one."""
        kind = report.WhichOneof("report")
        if kind == "registration":
            registration, identity, topics = report.registration, report.registration.identity, Topics()
            self._require_electable(registration)
            for part in checked_topics(registration):
                topics |= part
                await asyncio.sleep(0)
            change = self._table.register(session.number, registration, self._clock.monotonic_s(), topics)
            session.broker_name, session.broker = identity.broker_name, f"{identity.broker_name}:{identity.broker_id}"
            session.identity = identity
            self._tell_coordination(session, registration)
            session.wake.set()
        elif kind == "heartbeat":
            change = self._table.heartbeat(session.number, report.heartbeat, self._clock.monotonic_s())
            self._tell_coordination(session, report.heartbeat)
        elif kind == "topic_changes":
            whole, now_s = report.topic_changes, self._clock.monotonic_s()
            changes = [BrokerReport.TopicChanges(removed=part) for part in batched(whole.removed, TOPICS_AT_ONCE)]
            changes += [BrokerReport.TopicChanges(updated=part) for part in batched(whole.updated, TOPICS_AT_ONCE)]
            for each in changes:
                self._publish(self._table.topics_changed(session.number, each, now_s))
                await asyncio.sleep(0)
            return
        else:
            raise InvalidArgument("a broker report that holds nothing")
        self._publish(change)

    def _require_electable(self, registration: BrokerReport.Registration) -> None:
        """Refuse a broker outside elections in a group that has them: its master would count on what nobody elects."""
        name = registration.identity.broker_name
        if registration.HasField("candidacy") or self._coordination is None:
            return
        if self._coordination.register(name) is not None:
            raise WrongCluster(
                f"broker group {name} elects its masters, and broker {registration.identity.broker_id} takes no part: "
                "set enableControllerMode = true, or give it another brokerName"
            )

    def _tell_coordination(self, session: _Session, report: BrokerReport.Registration | BrokerReport.Heartbeat) -> None:
        if self._coordination is not None and session.identity is not None and report.HasField("candidacy"):
            session.is_electable = True
            self._coordination.on_report(session.identity, report.candidacy, report.end_offset)

    def _leave(self, session: _Session) -> None:
        """Tell elections that the broker is gone, unless a newer session speaks for it."""
        identity = session.identity
        if self._coordination is None or identity is None or not session.is_electable:
            return
        if any(other.broker == session.broker and other.end is None for other in self._sessions.values()):
            return
        self._coordination.on_gone(identity.broker_name, identity.broker_id)

    def _wake_shard(self, broker_name: str) -> None:
        for session in self._sessions.values():
            if session.broker_name == broker_name:
                session.wake.set()

    def _publish(self, change: Change) -> None:
        self._watches.publish(change, self._table)
        for number in change.ended:
            if number in self._sessions:
                self._sessions[number].finish(NameserverUnavailable("silent or replaced: register again"))
        if change.shards:
            for session in self._sessions.values():
                if session.broker_name in change.shards:
                    session.wake.set()
        if (self._table.holders.is_behind or self._watches.is_behind) and self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(), name="routes of many topics")

    async def _catch_up(self) -> None:
        """Let table and watches go on with a change of very many topics; others are served between its parts."""
        try:
            while self._table.holders.is_behind or self._watches.is_behind:
                if self._table.holders.is_behind:
                    self._watches.publish(Change(topics=self._table.holders.step()), self._table)
                if self._watches.is_behind:
                    self._watches.step(self._table)
                await asyncio.sleep(0)
        finally:
            self._catching_up = None

    async def _read_reports(self, session: _Session, reports: AsyncIterator[BrokerReport]) -> bool:
        async for report in reports:
            await self._on_report(session, report)
        return True

    async def _write_directives(self, session: _Session, context: Context) -> None:
        while True:
            await session.wake.wait()
            session.wake.clear()
            if session.end is not None:
                raise session.end
            directive = BrokerDirective(
                shard=self._table.shard(session.broker_name),
                heartbeat_interval_ms=ELECTABLE_INTERVAL_MS if session.is_electable else HEARTBEAT_INTERVAL_MS,
            )
            register = self._coordination.register(session.broker_name) if self._coordination is not None else None
            if register is not None:
                directive.register.CopyFrom(register)
            await context.write(directive)

    async def _read_watch(self, watcher: Watcher, requests: AsyncIterator[WatchRequest]) -> bool:
        async for request in requests:
            await self._unwatch(watcher, request.remove_topics)
            for part in batched(request.add_topics, TOPICS_AT_ONCE):
                self._watches.add(watcher, part)
                await asyncio.sleep(0)
        return False

    async def _unwatch(self, watcher: Watcher, topics: Sequence[str]) -> None:
        for part in batched(topics, TOPICS_AT_ONCE):
            self._watches.remove(watcher, part)
            await asyncio.sleep(0)

    async def _write_routes(self, watcher: Watcher, context: Context) -> None:
        while True:
            await watcher.wake.wait()
            if self._closing.is_set():
                raise NameserverUnavailable("the nameserver is stopping")
            topics = watcher.take(ROUTES_PER_UPDATE)
            if topics:  # none when those that were owed are watched no more
                await context.write(RouteUpdate(routes=[self._table.route(topic) for topic in topics]))


def batched(whole: Sequence[T], count: int) -> Iterator[Sequence[T]]:
    """Parts of ``whole`` of at most ``count`` each; one at least, which may be empty."""
    return (whole[start : start + count] for start in range(0, max(len(whole), 1), count))


async def _while_reading(read: Coroutine[Any, Any, bool], write: Coroutine[Any, Any, None]) -> None:
    """Read and write side by side until the requests end the call, or one side fails."""
    async with tasks_together() as tasks:
        writer = tasks.create_task(write)
        if await tasks.create_task(read):
            writer.cancel()
