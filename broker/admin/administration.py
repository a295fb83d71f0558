"""What administrators ask for: topics, single messages, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from prometheus_client.core import Metric

from penstock.proto import names
from penstock.proto.errors import Forbidden, InvalidArgument, TopicNotFound
from penstock.proto.wire import broker_pb2, common_pb2

from ..config import MetricsExporterType
from ..core.core import Core
from ..core.feature import Feature
from ..core.intake import check_creatable
from ..core.metrics import Families, MetricsServer
from ..core.tables.topics import CREATED_MS, TOPIC, TOPIC_DELETED, Topic
from ..core.wire import Service, service
from .topics import WantedTopic, removed_queues, topic_to_create

NODE_TYPE = "broker"
QUERY_COUNT_MAX = 10_000
QUERY_COUNT_DEFAULT = 32
REPLY_BYTES_MAX = 32 * 1024 * 1024
TIMESTAMP_MAX = (1 << 63) - 1


class Administration(Feature):
    """Changes topics, finds messages by key and position, and shows the metrics of all features."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.metrics: MetricsServer | None = None
        if core.config.metrics.exporter is MetricsExporterType.PROM:
            self.metrics = MetricsServer(self.collect, asyncio.get_running_loop())
        core.tables.topics.on_changed.append(lambda updated, removed: core.counters.forget(removed))

    def services(self) -> Iterable[Service]:
        yield service(
            broker_pb2.DESCRIPTOR.services_by_name["Broker"],
            before=self.core.dispatcher.catch_up,
            CreateTopic=self._create_topic,
            DeleteTopic=self._delete_topic,
            ListTopics=self._list_topics,
            QueryMessages=self._query_messages,
            ViewMessage=self._view_message,
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

    def collect(self) -> list[Metric]:
        """Everything that ``/metrics`` shows."""
        identity = self.core.config.identity
        families = Families(
            {
                "cluster": identity.cluster,
                "node_type": NODE_TYPE,
                "node_id": f"{identity.broker_name}-{identity.broker_id}",
            }
        )
        self.core.features.describe(families)
        return families.made

    def start(self) -> None:
        """Raises ConfigError: the metrics port is in use."""
        if self.metrics is not None:
            self.metrics.start(self.core.config.metrics.host, self.core.config.metrics.port)

    async def stop(self) -> None:
        if self.metrics is not None:
            await asyncio.to_thread(self.metrics.stop)

    async def create_topic(self, asked: WantedTopic) -> Topic:
        """Create or change a topic; it exists durably, as far as the mode promises, when this returns.

        Raises:
            InvalidName, InvalidArgument, Forbidden, TopicExists: see :func:`.topics.topic_to_create`.
            TopicNotFound: automatic creation is off.
            NotMaster, NotEnoughReplicas: nothing was changed.
            OutcomeUnknown: it exists here, replicas or disk did not confirm in time.
        """
        settings, name = self.core.config.topics, asked.name
        existing = self.core.tables.topic(name)
        wanted = topic_to_create(
            asked, existing, auto_create=settings.auto_create, default_queues=settings.default_queues
        )
        if wanted is None:
            assert existing is not None, "nothing to do for a topic that does not exist"
            return existing
        journal = self.core.writable()
        check_creatable(self.core, name)
        self._check_drained(wanted, removed_queues(existing, wanted))
        if existing is None:
            wanted = replace(wanted, extra={**wanted.extra, CREATED_MS: self.core.clock.wall_ms()})
        await journal.safe(journal.put(TOPIC, wanted.to_json()), f"topic {name}")
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
        if self.core.tables.topic(name) is None:
            raise TopicNotFound(f"topic {name} does not exist at this broker", topic=name)
        end = journal.put(TOPIC_DELETED, {"topicName": name})
        await journal.safe(end, f"deletion of topic {name}")
        await self.core.dispatcher.wait_dispatched(end)  # then its queues are gone

    def query_messages(
        self, topic: str, key: str, *, count: int = 0, begin_ms: int = 0, end_ms: int = 0
    ) -> list[bytes]:
        """Records of a topic by key (or unique id), newest first, limited to 32 MiB of them."""
        if self.core.tables.topic(topic) is None:
            raise TopicNotFound(f"topic {names.check_topic(topic)} does not exist at this broker")
        if not key:
            raise InvalidArgument("a query needs a key")
        count = min(count if count > 0 else QUERY_COUNT_DEFAULT, QUERY_COUNT_MAX)
        found = self.core.store.lookup.query(topic, key, count, begin_ms, end_ms if end_ms > 0 else TIMESTAMP_MAX)
        records: list[bytes] = []
        size = 0
        for record in found:
            size += len(record)
            if size > REPLY_BYTES_MAX and records:
                break
            records.append(record)
        return records

    def view_message(self, physical_offset: int) -> bytes:
        """The record at a physical offset. Raises MessageNotFound, InvalidArgument."""
        if physical_offset < 0:
            raise InvalidArgument(f"physical offset {physical_offset} may not be negative")
        return bytes(self.core.store.lookup.view(physical_offset))

    def _check_drained(self, topic: Topic, queues: range) -> None:
        table = self.core.tables.offsets
        for queue_id in queues:
            low, high = self.core.store.reader.queue_range(topic.name, queue_id)
            behind = [
                group
                for group, name in table.pairs()
                if name == topic.name and low <= table.get(group, name, queue_id) < high
            ]
            if behind:
                raise InvalidArgument(
                    f"topic {topic.name}: queue {queue_id} still has messages for group {behind[0]}: let it drain"
                )

    # The wire.

    async def _create_topic(self, request: broker_pb2.CreateTopicRequest) -> common_pb2.TopicConfig:
        config = request.config
        asked = WantedTopic(
            name=config.topic,
            read_queues=config.read_queues,
            write_queues=config.write_queues,
            perm=config.perm,
            attributes=dict(config.attributes),
            auto=request.auto,
            update=request.update,
        )
        return (await self.create_topic(asked)).to_wire()

    async def _delete_topic(self, request: broker_pb2.TopicName) -> common_pb2.Empty:
        await self.delete_topic(request.topic)
        return common_pb2.Empty()

    async def _list_topics(self, request: common_pb2.Empty) -> broker_pb2.TopicConfigs:
        return broker_pb2.TopicConfigs(topics=[topic.to_wire() for topic in self.core.tables.topics.values()])

    async def _query_messages(self, request: broker_pb2.QueryMessagesRequest) -> broker_pb2.MessageRecords:
        records = self.query_messages(
            request.topic,
            request.key,
            count=request.max_count,
            begin_ms=request.begin_timestamp_ms,
            end_ms=request.end_timestamp_ms,
        )
        return broker_pb2.MessageRecords(records=records)

    async def _view_message(self, request: broker_pb2.ViewMessageRequest) -> broker_pb2.MessageRecords:
        return broker_pb2.MessageRecords(records=[self.view_message(request.physical_offset)])
