"""One broker among its brokers: what it tells nameservers and operators, and who follows it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Final

from penstock.proto import names
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument, PenstockError, StorageError, WrongCluster
from penstock.proto.wire import broker_pb2, common_pb2
from penstock.replication import Slaves
from penstock.runtime.data.port import Converse
from penstock.runtime.turns import tasks_together

from ..core.core import Core
from ..core.feature import Feature, Hold
from ..core.metrics import Families
from ..core.tables.topics import Topic
from ..core.wire import Service, service
from .elected_role import ElectedRole
from .registration import Registration
from .status import Status

REFUSED_S: Final = 5.0
LAST_WAIT_S: Final = 1.0
SLAVE_PATIENCE_S: Final = 3600.0
"""A master keeps what a slave still has to get, for so long after it left."""


class BrokerGroup(Feature):
    """Role, registration and replication of one broker."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.leadership = core.role.leadership if isinstance(core.role, ElectedRole) else None
        leadership, config = self.leadership, core.config
        self.status = Status(core, leadership)
        self.registration = Registration(
            config.nameservers.addresses,
            self.status.registration,
            self.status.heartbeat,
            core.role.on_shard,
            self._on_refused,
            leadership.on_register_hint if leadership is not None else lambda register: None,
            config.security.outgoing(),
        )
        if leadership is not None:
            leadership.on_news = self.registration.changed
        self._slaves = Slaves(core.role.followed)
        core.tables.topics.on_changed.append(self._on_topics_changed)
        self._failed: asyncio.Future[PenstockError] = asyncio.get_running_loop().create_future()

    def services(self) -> Iterable[Service]:
        broker = broker_pb2.DESCRIPTOR.services_by_name["Broker"]
        yield service(broker, before=self.core.dispatcher.catch_up, Status=self._status)
        yield service(broker, TransferMaster=self._transfer_master)

    def data_methods(self) -> Mapping[int, Converse]:
        return {Method.REPLICATE: self._slaves}

    def holds(self) -> Iterable[Hold]:
        needed = self.core.role.needed_from(SLAVE_PATIENCE_S)
        if needed is not None:
            yield Hold("a slave is behind", needed)

    def describe(self, families: Families) -> None:
        role = self.core.role
        replicas = role.replicas()
        families.gauge("rocketmq_broker_permission", "READ 4, WRITE 2", 6 if role.is_master else names.PERM_READ)
        families.gauge("penstock_epoch", "Epoch of the role", role.epoch)
        families.gauge("penstock_is_master", "1 as master, 0 as slave", int(role.is_master))
        families.gauge("penstock_is_acting", "1: a master with the right to act", int(role.is_acting))
        members = self.leadership.sync_state_set if self.leadership is not None else []
        families.gauge("penstock_sync_state_set_size", "Members, as last read", len(members))
        families.gauge("penstock_replication_lag_bytes", "Slave: behind its master", role.lag_bytes)
        families.gauge("penstock_is_following", "Slave: 1 while its master is heard", int(role.following.is_following))
        families.gauge("penstock_replicas_in_sync", "Slaves in sync", sum(replica.in_sync for replica in replicas))
        families.gauges(
            "penstock_replica_lag_bytes",
            "How far a slave is behind",
            ("broker_id",),
            [((str(replica.broker_id),), replica.lag_bytes) for replica in replicas],
        )

    async def run(self) -> None:
        """Keep the role and the registrations; raises what makes the broker unable to go on."""
        async with tasks_together() as tasks:
            tasks.create_task(self.core.role.run(), name="role")
            tasks.create_task(self.registration.run(), name="registration")
            raise await self._failed

    async def stop(self) -> None:
        """Let what was appended reach the disk and the slaves that its senders wait for; then end every stream."""
        core = self.core
        if core.role.is_master:
            with contextlib.suppress(StorageError):
                await core.acknowledgements.wait(core.store.appended_offset, LAST_WAIT_S)
        core.role.close()
        await self._slaves.close()

    def _on_refused(self, error: PenstockError) -> None:
        """A nameserver refuses this broker: without any that takes it, it is set up wrongly and ends.

        Not at once, since a broker that moved to another port is refused until its old self is forgotten.
        """
        if isinstance(error, WrongCluster):
            asyncio.get_running_loop().call_later(REFUSED_S, self._end_unless_registered, error)

    def _end_unless_registered(self, error: PenstockError) -> None:
        if self.registration.registered == 0 and not self._failed.done():
            self._failed.set_result(error)

    def _on_topics_changed(self, updated: list[Topic], removed: list[str]) -> None:
        self.registration.topics_changed([topic.to_wire() for topic in updated], removed)

    # The wire.

    async def _status(self, request: common_pb2.Empty) -> broker_pb2.BrokerStatus:
        return self.status.status()

    async def _transfer_master(self, request: broker_pb2.TransferMasterRequest) -> broker_pb2.TransferMasterReply:
        if self.leadership is None:
            raise InvalidArgument(
                "the master of this broker group is configured, not elected: enableControllerMode=false"
            )
        register = await self.leadership.hand_over(request.to_broker_id)
        return broker_pb2.TransferMasterReply(
            epoch=register.epoch, former_broker_id=self.core.config.identity.broker_id
        )
