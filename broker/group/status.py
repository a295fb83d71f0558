"""What a broker says of itself: to operators and to nameservers."""

from __future__ import annotations

import os
import time

from penstock.proto import distribution
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.proto.wire.nameserver_pb2 import BrokerReport

from ..core.core import Core
from .leadership import Leadership


class Status:
    """Answers from the core of one broker; event loop only."""

    def __init__(self, core: Core, leadership: Leadership | None) -> None:
        """``leadership``: of a broker whose master is elected."""
        self._core = core
        self._config = core.config
        self._store = core.store
        self._role = core.role
        self._identity = core.config.wire_identity
        self._version = distribution.version()
        self._started_ms = time.time_ns() // 1_000_000
        self._leadership = leadership

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
            sync_state_set=self._leadership.sync_state_set if self._leadership is not None else [],
            is_elected=self._leadership is not None,
            is_learner=self._config.replication.async_learner and not self._role.is_master,
            is_acting=self._role.is_acting,
            coordination_trouble=self._leadership.trouble if self._leadership is not None else "",
        )

    def registration(self) -> BrokerReport.Registration:
        """What a nameserver is told at the begin of a session."""
        return BrokerReport.Registration(
            identity=self._identity,
            role=self.wire_role,
            epoch=self._role.epoch,
            topics=[topic.to_wire() for topic in self._core.tables.topics.values()],
            auto_create_topics=self._config.topics.auto_create,
            store_instance=self._role.instance,
            end_offset=self._store.end_offset,
            candidacy=self._leadership.candidacy() if self._leadership is not None else None,
        )

    def heartbeat(self) -> BrokerReport.Heartbeat:
        """What a nameserver is told again and again."""
        return BrokerReport.Heartbeat(
            end_offset=self._store.end_offset,
            confirm_offset=self._store.confirm_offset,
            role=self.wire_role,
            epoch=self._role.epoch,
            candidacy=self._leadership.candidacy() if self._leadership is not None else None,
        )
