"""What administrators ask for: topics, single messages, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import replace

from penstock.formats.record.layout import decode_record
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    FlowControl,
    Forbidden,
    InvalidArgument,
    LimitReached,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2

from ..config import MetricsExporterType
from ..core.core import Core
from ..core.feature import Feature
from ..core.intake import check_creatable
from ..core.journal import Journal
from ..core.metrics import Families, MetricsServer
from ..core.tables.topics import CREATED_MS, TOPIC, TOPIC_DELETED, Topic
from ..core.wire import Service, in_turns, service
from ..limits import check_attributes
from .topics import removed_queues, topic_to_create

log = logging.getLogger(__name__)

NODE_TYPE = "broker"
TRACE_RETRY_S = 1.0
QUERY_COUNT_MAX = 1000
QUERY_COUNT_DEFAULT = 32
REPLY_BYTES_MAX = 32 * 1024 * 1024
TIMESTAMP_MAX = (1 << 63) - 1
REGISTRATION_BYTES_MAX = 32 << 20
"""Of all topics: a nameserver is told of them in one message of at most 64 MiB, and so are administrators."""


class Administration(Feature):
    """Changes topics, finds messages by key and position, and shows the metrics of all features."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.metrics: MetricsServer | None = None
        if core.config.metrics.exporter is MetricsExporterType.PROM:
            self.metrics = MetricsServer(self.collect, asyncio.get_running_loop())
        core.tables.topics.on_changed.append(lambda updated, removed: core.counters.forget(removed))
        self._is_master = asyncio.Event()  # set by a new role, cleared by the task
        self._known_end = 0  # of the log when this broker became master

    def services(self) -> Iterable[Service]:
        yield service(
            broker_pb2.DESCRIPTOR.services_by_name["Broker"],
            before=self.core.dispatcher.catch_up,
            CreateTopic=self._create_topic,
            DeleteTopic=self._delete_topic,
            ListTopics=self._list_topics,
            QueryMessages=self.query_messages,
            ViewMessage=self.view_message,
        )

    def describe(self, families: Families) -> None:
        store = self.core.store
        families.gauge("rocketmq_topic_number", "Topics", len(self.core.tables.topics))
        families.gauge("rocketmq_storage_size", "Bytes of the log", store.end_offset - store.min_offset)
        families.gauge(
            "rocketmq_storage_flush_behind_bytes", "Bytes not synced yet", store.end_offset - store.flushed_offset
        )
        families.gauge(
            "rocketmq_storage_dispatch_behind_bytes",
            "Bytes that consumers cannot read yet",
            store.end_offset - store.dispatched_offset,
        )
        families.gauge("penstock_confirm_offset", "End of what consumers may read", store.confirm_offset)
        families.gauge("penstock_end_offset", "End of the log", store.end_offset)

    async def collect(self) -> Families:
        """Everything that ``/metrics`` shows, as it is now, more or less: others have their turn meanwhile."""
        identity = self.core.config.identity
        families = Families(
            {
                "cluster": identity.cluster,
                "node_type": NODE_TYPE,
                "node_id": f"{identity.broker_name}-{identity.broker_id}",
            }
        )
        for feature in self.core.features.made:
            feature.describe(families)
            await asyncio.sleep(0)
        await families.look()
        return families

    def start(self) -> None:
        """Raises ConfigError: the metrics port is in use."""
        if self.metrics is not None:
            self.metrics.start(self.core.config.metrics.host, self.core.config.metrics.port)

    def on_role(self, journal: Journal | None) -> None:
        self._known_end = self.core.store.end_offset
        if journal is not None:
            self._is_master.set()

    async def run(self) -> None:
        """Have the topic of traces, if that is wanted, whenever this broker has become master."""
        while self.core.config.topics.trace:
            await self._is_master.wait()
            self._is_master.clear()
            try:
                await self._make_trace_topic()
            except PenstockError as error:
                log.info("topic of traces not made yet error=%s", error.message)
                await asyncio.sleep(TRACE_RETRY_S)
                self._is_master.set()

    async def _make_trace_topic(self) -> None:
        """Raises PenstockError: it has to be tried again."""
        name = self.core.config.topics.trace_topic
        if self.core.events.journal is None:
            return
        if self.core.store.dispatched_offset < self._known_end:
            raise BrokerUnavailable(f"topic {name}: the log may hold it, and is not dispatched yet")
        if self.core.tables.topics.get(name) is None:
            config = common_pb2.TopicConfig(topic=name, read_queues=1, write_queues=1)
            await self.create_topic(broker_pb2.CreateTopicRequest(config=config))

    async def stop(self) -> None:
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)

    async def create_topic(self, request: broker_pb2.CreateTopicRequest) -> Topic:
        """Create or change a topic; it exists durably, as far as the mode promises, when this returns.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicExists: see :func:`.topics.topic_to_create`.
            TopicNotFound: automatic creation is off.
            NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it exists here, replicas or disk did not confirm in time.
        """
        name = request.config.topic
        check_attributes(f"topic {name:.80}", request.config.attributes, self.core.config.limits)
        existing = self.core.tables.topics.get(name)
        wanted = topic_to_create(request, existing, self.core.config.topics, len(self.core.tables.topics))
        if wanted is None:
            assert existing is not None, "nothing to do for a topic that does not exist"
            if self.core.events.journal is not None:  # what was asked for before may not be confirmed yet
                await self.core.acknowledgements.safe(self.core.events.journal.state_end, f"topic {name}")
            return existing
        self.core.writable()
        check_creatable(self.core, name)
        self._check_room(existing, wanted)
        await self._check_drained(wanted, removed_queues(existing, wanted))
        if self.core.tables.topics.get(name) is not existing:
            raise FlowControl(f"topic {name} was changed by somebody else meanwhile: try again")
        journal = self.core.writable()
        if existing is None:
            wanted = replace(wanted, extra={**wanted.extra, CREATED_MS: self.core.clock.wall_ms()})
        await self.core.acknowledgements.safe(journal.put(TOPIC, wanted.to_json()), f"topic {name}")
        return wanted

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues and committed offsets.

        Raises:
            TopicNotFound, Forbidden, NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it is gone here, replicas or disk did not confirm in time.
        """
        if names.is_system_topic(names.check_topic(name)):
            raise Forbidden(f"topic {name} is internal: clients may not delete it")
        journal = self.core.writable()
        if self.core.tables.topics.get(name) is None:
            raise TopicNotFound(f"topic {name} does not exist at this broker", topic=name)
        end = journal.put(TOPIC_DELETED, {"topicName": name})
        await self.core.acknowledgements.safe(end, f"deletion of topic {name}")
        await self.core.dispatcher.wait_dispatched(end)  # then its queues are gone

    async def query_messages(self, request: broker_pb2.QueryMessagesRequest) -> broker_pb2.MessageRecords:
        """Records of a topic, or halves of transactions, by key (or unique id), newest first, up to 32 MiB of them."""
        topic, end_ms = request.topic, request.end_timestamp_ms
        if topic != names.HALF_TOPIC and self.core.tables.topics.get(topic) is None:
            raise TopicNotFound(f"topic {names.check_topic(topic)} does not exist at this broker")
        if not request.key:
            raise InvalidArgument("a query needs a key")
        count = min(request.max_count if request.max_count > 0 else QUERY_COUNT_DEFAULT, QUERY_COUNT_MAX)
        begin_ms, end_ms = request.begin_timestamp_ms, end_ms if end_ms > 0 else TIMESTAMP_MAX
        records: list[bytes] = []
        size = 0
        for record in self.core.store.lookup.query(topic, request.key, count, begin_ms, end_ms):
            size += len(record)
            if size > REPLY_BYTES_MAX and records:
                break
            records.append(record)
        return broker_pb2.MessageRecords(records=records)

    async def view_message(self, request: broker_pb2.ViewMessageRequest) -> broker_pb2.MessageRecords:
        """The message at a physical offset. Raises MessageNotFound, InvalidArgument, Forbidden: it may not be read."""
        offset = request.physical_offset
        if offset < 0:
            raise InvalidArgument(f"physical offset {offset} may not be negative")
        self.core.dispatcher.catch_up()
        if offset < self.core.store.confirm_offset:
            await self.core.dispatcher.wait_dispatched(offset + 1)
        record = self.core.store.lookup.message_at(offset)
        name = decode_record(record).topic
        topic = self.core.tables.topics.get(name)
        if name in (names.STATE_TOPIC, names.STAGE_TOPIC) or (topic is not None and not topic.is_readable):
            raise Forbidden(f"the record at physical offset {offset} is of topic {name}, which clients may not read")
        return broker_pb2.MessageRecords(records=[record])

    def _check_room(self, existing: Topic | None, wanted: Topic) -> None:
        """Refuse what would make the broker hold, or tell nameservers at once, more than they take."""
        size = (
            self.core.tables.topics.wire_bytes
            + wanted.wire_bytes
            - (existing.wire_bytes if existing is not None else 0)
        )
        if size > REGISTRATION_BYTES_MAX:
            raise LimitReached(
                f"topic {wanted.name}: names and attributes of all topics would take {size} bytes, and "
                f"{REGISTRATION_BYTES_MAX} fit into a registration: delete some, or their attributes"
            )

    async def _check_drained(self, topic: Topic, queues: range) -> None:
        table = self.core.tables.offsets
        groups = [group for group, name in table.pairs() if name == topic.name] if queues else []
        ends: list[int] | None = None
        while ends != (now := self.core.store.queue_ends(topic.name)[queues.start : queues.stop]):
            ends = now  # what comes meanwhile is looked at, too
            async for queue_id, high in in_turns(list(zip(queues, now, strict=False))):
                low, _ = self.core.store.reader.queue_range(topic.name, queue_id)
                behind = [group for group in groups if max(table.get(group, topic.name, queue_id), low) < high]
                if behind:
                    raise InvalidArgument(
                        f"topic {topic.name}: queue {queue_id} still has messages for group {behind[0]}: let it drain, "
                        f"or skip them: penstock offset reset {behind[0]} {topic.name} --to last"
                    )

    # The wire.

    async def _create_topic(self, request: broker_pb2.CreateTopicRequest) -> common_pb2.TopicConfig:
        return (await self.create_topic(request)).to_wire()

    async def _delete_topic(self, request: broker_pb2.TopicName) -> common_pb2.Empty:
        await self.delete_topic(request.topic)
        return common_pb2.Empty()

    async def _list_topics(self, request: common_pb2.Empty) -> broker_pb2.TopicConfigs:
        await self.core.shown()
        reply = broker_pb2.TopicConfigs()
        async for topic in in_turns(self.core.tables.topics.values()):
            reply.topics.append(topic.to_wire())
        return reply
