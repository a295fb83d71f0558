"""Makes the role of a broker, and where masters are elected, what keeps it true."""

from __future__ import annotations

from collections.abc import Callable

from penstock.proto.errors import StorageError
from penstock.proto.register import NOBODY
from penstock.replication.config import ReplicationConfig
from penstock.replication.master.primary import Primary
from penstock.replication.master.sync_state_set import SetRules
from penstock.replication.slave.replica import Replica
from penstock.runtime.clock import Clock

from ..config import BrokerConfig, BrokerRole
from ..core.events import LogEvents
from ..core.role import Role
from ..opening import Opened
from ..store.config import FlushMode
from .elected_role import ElectedRole
from .follower_log import FollowerLog
from .held_membership import MembershipFile
from .leadership import Leadership
from .registers import Registers
from .roles import MasterRole, SlaveRole

ELECTED_RECONNECT_MS_MAX = 200
"""A slave's pause between two attempts, where each second without a slave is one without sends."""


class RoleMaker:
    """Makes masters and slaves out of one store, again at each change of role."""

    def __init__(self, config: BrokerConfig, opened: Opened, events: LogEvents, clock: Clock) -> None:
        self._config = config
        self._opened = opened
        self._events = events
        self._clock = clock
        self._identity = config.wire_identity
        self._security = config.security.outgoing()
        self._sync_flush = config.store.flush_mode is FlushMode.SYNC_FLUSH

    def make(self) -> Role:
        """The broker's role, as its configuration says."""
        if self._config.replication.is_elected:
            role: Role = self._make_elected()
        elif self._config.replication.role is BrokerRole.SLAVE:
            role = self.make_slave()
        else:
            role = self.make_master()
        role.instance = self._opened.instance
        return role

    def make_master(
        self,
        on_answer: Callable[[int, float], None] | None = None,
        members: frozenset[int] | None = None,
        needed: int = 0,
        source: int = NOBODY,
    ) -> MasterRole:
        """A master that begins at the log's end; what it is given besides: see :class:`Primary`."""
        opened = self._opened
        if not opened.tables.files.is_current:
            directory = opened.tables.files.directory
            raise StorageError(
                f"{directory}: topics, groups and offsets did not go back with the log when its end was cut off, no "
                "master can begin with them: see the errors before this; a start reads them anew",
                path=str(directory),
            )
        epochs, config = opened.epochs.history, self._replication_config()
        primary = Primary(
            self._identity,
            opened.store,
            config,
            epoch=epochs.latest,
            epochs=epochs,
            initial_confirm=opened.store.confirm_offset,
            on_confirm=self._events.on_confirmed,
            on_commits=lambda commits: self._events.on_commits(commits),
            on_answer=on_answer,
            members=members,
            needed=needed,
            source=source,
        )
        return MasterRole(
            self._identity.broker_id,
            primary,
            history=epochs,
            waits_for_replicas=config.sync and config.in_sync_replicas > 1,
            slave_read=self._config.replication.slave_read,
        )

    def make_slave(self) -> SlaveRole:
        """A slave; what a master had in buffers is in its log, which grows by its master's bytes alone."""
        opened = self._opened
        opened.store.commit()
        replica = Replica(
            self._identity,
            FollowerLog(opened.store, opened.tables, log_has_all=not opened.imported, on_cut=self._events.on_cut),
            config=self._replication_config(),
            epochs=opened.epochs,
            initial_confirm=opened.store.confirm_offset,
            store_instance=opened.instance,
            on_appended=self._events.on_received,
            on_confirm=self._events.on_confirmed,
            pending_commits=lambda: self._events.pending_commits(),
            security=self._security,
        )
        return SlaveRole(self._identity, replica, opened.epochs, self._config.replication.master_address)

    def _make_elected(self) -> ElectedRole:
        settings, opened = self._config.replication, self._opened
        is_sync = settings.is_sync
        rules = SetRules(
            in_sync_replicas=settings.in_sync_replicas if is_sync else 1,
            min_in_sync_replicas=settings.min_in_sync_replicas if is_sync else 1,
            is_auto=settings.auto_in_sync_replicas and is_sync,
        )
        waits = is_sync and settings.in_sync_replicas > 1
        role = ElectedRole(self._identity, self.make_slave(), waits=waits, clock=self._clock)
        role.leadership = Leadership(
            self._identity.broker_id,
            role,
            Registers(self._config.nameservers.addresses, self._identity, self._security),
            MembershipFile(self._config.store.root),
            opened.epochs,
            opened.store,
            rules,
            make_master=self.make_master,
            make_slave=self.make_slave,
            clock=self._clock,
            settings=settings,
            may_have_lost=is_sync and bool(opened.store.doubt),
        )
        return role

    def _replication_config(self) -> ReplicationConfig:
        settings = self._config.replication
        return ReplicationConfig(
            sync=settings.is_sync,
            in_sync_replicas=settings.in_sync_replicas,
            flush_acknowledged=self._sync_flush,
            gap_bytes_max=settings.in_sync_gap_bytes,
            learner=settings.async_learner,
            frame_bytes=settings.transfer_batch_bytes,
            transfer_bytes_per_s_max=settings.transfer_bytes_per_s_max if settings.flow_control else 0,
            reconnect_max_ms=ELECTED_RECONNECT_MS_MAX if settings.is_elected else 1000,
        )
