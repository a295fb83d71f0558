"""Messages go out to consumers: fetches, groups, and how far each group has got."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.proto import names
from penstock.proto.data_frames import Method
from penstock.proto.errors import Forbidden, GroupNotFound, InvalidArgument
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.runtime.data.port import Converse

from ..core.core import Core
from ..core.failed import check_group_count
from ..core.feature import Feature
from ..core.journal import Journal
from ..core.metrics import Families
from ..core.tables.consumer_filters import ConsumerFilters
from ..core.tables.groups import GROUP, GROUP_DELETED, Group
from ..core.tables.retry_policy import RetryPolicy
from ..core.tables.topics import TOPIC_DELETED, Topic
from ..core.wire import Service, in_turns, service
from ..limits import check_attributes
from .consumer_sessions import ConsumerSessions
from .fetch import Fetch
from .fetch_streams import FetchStreams
from .filter_records import FilterRecords
from .offsets import OffsetService, PendingCommits, to_wire

RETRY_SETTING_MAX: Final = 1024


class Consume(Feature):
    """Everything that consumers ask for."""

    tables = (ConsumerFilters,)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.pending = PendingCommits(core)
        self.sessions = ConsumerSessions(
            committed=self.pending.committed,
            queue_range=core.store.reader.queue_range,
            join_group=lambda group: self.offsets.join_group(group),
            check_join=self._check_join,
            begins_at_end=self._begins_at_end,
            on_joined=FilterRecords(core).on_joined,
            clock=core.clock,
            limits=core.config.limits,
            catch_up=core.dispatcher.catch_up,
            is_acting=lambda: core.role.is_acting,
            shown=core.shown,
        )
        self.offsets = OffsetService(core, self.sessions, self.pending)
        self.fetch = Fetch(core)
        self.streams = FetchStreams(self.fetch)
        core.events.on_commits = self.offsets.take_from_slave
        core.events.pending_commits = self.pending.offered
        core.dispatcher.watchers.append(self.fetch.waiters)
        core.tables.topics.on_changed.append(self._on_topics_changed)

    def services(self) -> Iterable[Service]:
        yield service(
            broker_pb2.DESCRIPTOR.services_by_name["Broker"],
            before=self.core.dispatcher.catch_up,
            CreateGroup=self._create_group,
            DeleteGroup=self._delete_group,
            ListGroups=self._list_groups,
            DescribeGroup=self.describe_group,
            CommitOffsets=self.offsets.commit,
            QueryOffsets=self.offsets.query,
            QueryQueueRanges=self.offsets.ranges,
            SearchOffset=self.offsets.search,
            ConsumerSession=self._consumer_session,
        )

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.FETCH: self.streams.begin}

    def describe(self, families: Families) -> None:
        by_topic = self.core.counters.by_topic
        families.counters("rocketmq_messages_out", "Messages sent to consumers", ("topic",), by_topic("messages_out"))
        families.counters("rocketmq_throughput_out", "Bytes sent to consumers", ("topic",), by_topic("bytes_out"))
        families.gauge("penstock_fetches_waiting", "Fetches that wait for messages", len(self.fetch.waiters))
        families.gauge("penstock_fetch_bytes_held", "Of replies not taken yet", self.fetch.load.reply_bytes)
        families.gauge("rocketmq_consumer_group_number", "Consumer groups", len(self.core.tables.groups))
        families.gauges(
            "rocketmq_consumer_lag_messages", "Messages not consumed yet", ("topic", "consumer_group"), self._lags()
        )

    def consumed_by(self, group: str) -> str:
        return "push or pull consumers, which claim queues" if self.sessions.has_members(group) else ""

    def on_role(self, journal: Journal | None) -> None:
        if journal is not None:
            self.offsets.lower_to_log()
            self.offsets.take_over()
        self.sessions.on_role(list(self.core.tables.groups) if journal is not None else None)
        self.fetch.waiters.wake_all()  # a consumer that waits here learns where to go on

    async def stop(self) -> None:
        self.fetch.close()
        self.sessions.close()
        await self.streams.close()

    async def put_group(self, asked: common_pb2.GroupConfig) -> Group:
        """Create or change a consumer group; what is not mentioned stays as it is.

        Raises:
            InvalidName, InvalidArgument: what was asked for makes no group.
            NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it exists here, replicas or disk did not confirm in time.
        """
        journal = self.core.writable()
        existing = self.core.tables.group_or_default(names.check_group(asked.group))
        for name, value in (("retry_max_times", asked.retry_max_times), ("retry_queues", asked.retry_queues)):
            if not 0 <= value <= RETRY_SETTING_MAX:
                raise InvalidArgument(f"group {asked.group}: {name} {value}: 0..{RETRY_SETTING_MAX} are allowed")
        policy = RetryPolicy.from_wire(asked.group, asked.retry_policy)
        check_attributes(f"group {asked.group}", asked.attributes, self.core.config.limits)
        group = replace(
            existing,
            attributes={name: text for name, text in (asked.attributes or existing.attributes).items() if text},
            retry_queues=asked.retry_queues or existing.retry_queues,
            retry_policy=policy if asked.HasField("retry_policy") else existing.retry_policy,
            **{
                name: getattr(asked, name)
                for name in ("consume_enable", "retry_max_times", "orderly", "broadcast_enable", "from_min_enable")
                if asked.HasField(name)
            },
        )
        if group.name not in self.core.tables.groups:
            check_group_count(self.core, group.name)
        if group != self.core.tables.groups.get(asked.group):
            journal.put(GROUP, group.to_json())
        await self.core.acknowledgements.safe(journal.state_end, f"group {group.name}")
        return group

    async def delete_group(self, name: str) -> None:
        """Delete a group without members, its committed offsets, and its topics of retries and dead letters."""
        names.check_group(name)
        journal = self.core.writable()
        if self.core.tables.groups.get(name) is None:
            raise GroupNotFound(f"group {name} does not exist at this broker", group=name)
        members = self.sessions.describe(name)
        if members:
            raise InvalidArgument(f"group {name} has {len(members)} members: stop them first")
        for topic in (names.RETRY_PREFIX + name, names.DLQ_PREFIX + name):
            if topic in self.core.tables.topics:
                journal.put(TOPIC_DELETED, {"topicName": topic})
        end = journal.put(GROUP_DELETED, {"groupName": name})  # last: until then all of it can be asked for again
        await self.core.acknowledgements.safe(end, f"deletion of group {name}")

    async def describe_group(self, request: broker_pb2.GroupName) -> broker_pb2.GroupDescription:
        """Settings, members and committed offsets of a group. Raises NotCurrent."""
        self.offsets.check_current()
        await self.core.shown()
        name = request.group
        group = self.core.tables.groups.get(names.check_group(name))
        if group is None:
            raise GroupNotFound(f"group {name} does not exist at this broker", group=name)
        table = self.core.tables.offsets
        described = broker_pb2.GroupDescription(
            config=group.to_wire(),
            generation=self.sessions.generation(name),
            members=self.sessions.describe(name),
        )
        async for topic in in_turns(table.topics_of(name)):
            described.committed.extend(to_wire({topic: table.row(name, topic)}))
        return described

    def _check_join(self, join: broker_pb2.ConsumerRequest.Join) -> None:
        group = self.core.tables.groups.get(join.group)
        if not join.broadcasting:
            self.core.features.check_consumer(self, join.group)
        if group is not None and join.broadcasting and not group.broadcast_enable:
            raise Forbidden(f"group {join.group} may not broadcast: its consumeBroadcastEnable is false")
        if group is not None and group.orderly and join.concurrent:
            raise Forbidden(
                f"group {join.group} is orderly (consumeMessageOrderly): make its push consumers with orderly=True"
            )

    def _begins_at_end(self, group_name: str, topic: str) -> bool:
        group = self.core.tables.groups.get(group_name)
        return group is not None and not group.from_min_enable and not topic.startswith(names.RETRY_PREFIX)

    def _on_topics_changed(self, updated: list[Topic], removed: list[str]) -> None:
        for topic in [each.name for each in updated] + removed:
            self.fetch.waiters.wake_topic(topic)

    def _lags(self) -> Iterable[tuple[tuple[str, ...], float]]:
        offsets = self.core.tables.offsets
        for group, topic in offsets.pairs():
            lag = 0
            for queue_id, offset in offsets.row(group, topic).items():
                lag += max(0, self.core.store.reader.queue_range(topic, queue_id)[1] - offset)
            yield (topic, group), lag

    # The wire.

    async def _create_group(self, request: common_pb2.GroupConfig) -> common_pb2.GroupConfig:
        return (await self.put_group(request)).to_wire()

    async def _delete_group(self, request: broker_pb2.GroupName) -> common_pb2.Empty:
        await self.delete_group(request.group)
        return common_pb2.Empty()

    async def _list_groups(self, request: common_pb2.Empty) -> broker_pb2.GroupConfigs:
        await self.core.shown()
        reply = broker_pb2.GroupConfigs()
        async for group in in_turns(self.core.tables.groups.values()):
            reply.groups.append(group.to_wire())
        return reply

    async def _consumer_session(
        self, requests: AsyncIterator[broker_pb2.ConsumerRequest], context: Any
    ) -> AsyncIterator[broker_pb2.ConsumerEvent]:
        self.offsets.check_current()
        async with contextlib.aclosing(self.sessions.serve(requests, context)) as events:  # type: ignore[type-var]
            async for event in events:
                yield event
