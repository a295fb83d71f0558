"""What a broker says of itself: to operators, to nameservers, to Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from prometheus_client.core import Metric

from penstock.proto import names
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.nameserver_pb2 import BrokerReport

from ..config import BrokerConfig
from ..core.metrics import Counters, Families
from ..core.producers import ProducerTable
from ..core.state import State
from ..group.roles import Following

NODE_TYPE = "broker"


class StatusStore(Protocol):
    """What of the store this module needs."""

    @property
    def min_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def flushed_offset(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...
    @property
    def dispatched_offset(self) -> int: ...
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...


class StatusRole(Protocol):
    """What of the role this module needs."""

    @property
    def is_master(self) -> bool: ...
    @property
    def is_acting(self) -> bool: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lag_bytes(self) -> int: ...
    @property
    def following(self) -> Following: ...
    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]: ...


class Status:
    """Answers from the live parts of one broker; event loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: common_pb2.BrokerIdentity,
        instance: str,
        store: StatusStore,
        role: StatusRole,
        state: State,
        producers: ProducerTable,
        counters: Counters,
        waiting_fetches: Callable[[], int],
        version: str,
    ) -> None:
        """``instance``: random id of this process, which tells its restart from a second broker."""
        self._config = config
        self._identity = identity
        self._instance = instance
        self._store = store
        self._role = role
        self._state = state
        self._producers = producers
        self._counters = counters
        self._waiting_fetches = waiting_fetches
        self._version = version
        self._started_ms = time.time_ns() // 1_000_000
        self.candidacy: Callable[[], BrokerReport.Candidacy] | None = None
        """Of a broker whose master is elected."""
        self.sync_state_set: Callable[[], list[int]] = list
        self.more_metrics: list[Callable[[Families], None]] = []

    @property
    def wire_role(self) -> common_pb2.Role:
        """MASTER or SLAVE."""
        return common_pb2.MASTER if self._role.is_master else common_pb2.SLAVE

    def status(self) -> broker_pb2.BrokerStatus:
        """The answer to ``Status``."""
        store, following = self._store, self._role.following
        return broker_pb2.BrokerStatus(
            identity=self._identity,
            role=self.wire_role,
            epoch=self._role.epoch,
            pid=os.getpid(),
            min_offset=store.min_offset,
            max_offset=store.end_offset,
            flushed_offset=store.flushed_offset,
            confirm_offset=store.confirm_offset,
            dispatched_offset=store.dispatched_offset,
            replicas=self._role.replicas(),
            store_path=str(self._config.store.root),
            flush_mode=self._config.store.flush_mode.name,
            broker_role=self._config.replication.role.name,
            started_timestamp_ms=self._started_ms,
            lag_bytes=self._role.lag_bytes,
            version=self._version,
            is_following=following.is_following,
            not_following_because=following.not_because,
            gave_up=following.gave_up,
            sync_state_set=self.sync_state_set(),
            is_elected=self.candidacy is not None,
            is_learner=self._config.replication.async_learner and not self._role.is_master,
            is_acting=self._role.is_acting,
        )

    def registration(self) -> BrokerReport.Registration:
        """What a nameserver is told at the begin of a session."""
        return BrokerReport.Registration(
            identity=self._identity,
            role=self.wire_role,
            epoch=self._role.epoch,
            topics=[topic.to_wire() for topic in self._state.topics.values()],
            auto_create_topics=self._config.topics.auto_create,
            store_instance=self._instance,
            end_offset=self._store.end_offset,
            candidacy=self.candidacy() if self.candidacy is not None else None,
        )

    def heartbeat(self) -> BrokerReport.Heartbeat:
        """What a nameserver is told again and again."""
        return BrokerReport.Heartbeat(
            end_offset=self._store.end_offset,
            confirm_offset=self._store.confirm_offset,
            role=self.wire_role,
            epoch=self._role.epoch,
            candidacy=self.candidacy() if self.candidacy is not None else None,
        )

    def metrics(self) -> list[Metric]:
        """Everything that ``/metrics`` shows."""
        families = Families(
            {
                "cluster": self._identity.cluster,
                "node_type": NODE_TYPE,
                "node_id": f"{self._identity.broker_name}-{self._identity.broker_id}",
            }
        )
        self._traffic(families)
        self._storage(families)
        self._consumers(families)
        for add in self.more_metrics:
            add(families)
        return families.made

    def _traffic(self, families: Families) -> None:
        topics = list(self._counters.topics.items())
        for name, doc, attribute in (
            ("rocketmq_messages_in", "Messages stored", "messages_in"),
            ("rocketmq_throughput_in", "Bytes stored", "bytes_in"),
            ("rocketmq_messages_out", "Messages sent to consumers", "messages_out"),
            ("rocketmq_throughput_out", "Bytes sent to consumers", "bytes_out"),
        ):
            families.counters(name, doc, ("topic",), [((topic,), getattr(c, attribute)) for topic, c in topics])
        families.histogram(
            "penstock_append_seconds", "From an append's arrival to its answer", self._counters.append_seconds
        )
        families.counters(
            "penstock_append_duplicates", "Batches answered from the table", (), [((), self._producers.duplicates)]
        )
        families.gauge("penstock_producer_lanes", "Lanes in the duplicate table", len(self._producers))
        families.gauge("penstock_fetches_waiting", "Fetches that wait for messages", self._waiting_fetches())

    def _storage(self, families: Families) -> None:
        store = self._store
        families.gauge("rocketmq_topic_number", "Topics", len(self._state.topics))
        families.gauge("rocketmq_consumer_group_number", "Consumer groups", len(self._state.groups))
        families.gauge("rocketmq_broker_permission", "READ 4, WRITE 2", 6 if self._role.is_master else names.PERM_READ)
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
        families.gauge("penstock_epoch", "Epoch of the role", self._role.epoch)
        families.gauge("penstock_is_master", "1 as master, 0 as slave", int(self._role.is_master))
        families.gauge("penstock_is_acting", "1: a master with the right to act", int(self._role.is_acting))
        families.gauge("penstock_sync_state_set_size", "Members, as last read", len(self.sync_state_set()))
        families.gauge("penstock_replication_lag_bytes", "Slave: behind its master", self._role.lag_bytes)
        families.gauge("penstock_is_following", "Slave: 1 while its master is heard", int(self._role.following[0]))
        replicas = self._role.replicas()
        families.gauge("penstock_replicas_in_sync", "Slaves in sync", sum(replica.in_sync for replica in replicas))
        families.gauges(
            "penstock_replica_lag_bytes",
            "How far a slave is behind",
            ("broker_id",),
            [((str(replica.broker_id),), replica.lag_bytes) for replica in replicas],
        )

    def _consumers(self, families: Families) -> None:
        families.gauges(
            "rocketmq_consumer_lag_messages", "Messages not consumed yet", ("topic", "consumer_group"), self._lags()
        )

    def _lags(self) -> Iterable[tuple[tuple[str, ...], float]]:
        offsets = self._state.offsets
        for group, topic in offsets.pairs():
            lag = 0
            for queue_id, offset in offsets.row(group, topic).items():
                lag += max(0, self._store.queue_range(topic, queue_id)[1] - offset)
            yield (topic, group), lag
