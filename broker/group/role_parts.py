"""The role of one broker, and where masters are elected, what keeps it true."""

from __future__ import annotations

from collections.abc import Callable

from penstock.proto.errors import StorageError
from penstock.proto.wire import common_pb2
from penstock.replication.config import ReplicationConfig
from penstock.replication.master.sync_state_set import SetRules
from penstock.runtime.clock import SystemClock
from penstock.runtime.security.credentials import PLAIN, Security

from ..config import BrokerConfig, BrokerRole
from ..startup import Opened
from ..store.config import FlushMode
from .elected_role import ElectedRole
from .follower_log import FollowerLog
from .held_membership import MembershipFile
from .leadership import Leadership
from .registers import Registers
from .roles import Commits, MasterRole, Role, SlaveRole

ELECTED_RECONNECT_MS_MAX = 200
"""A slave's pause between two attempts, where each second without a slave is one without sends."""


class RoleParts:
    """Makes masters and slaves out of one store, again at each change of role."""

    def __init__(
        self,
        config: BrokerConfig,
        opened: Opened,
        identity: common_pb2.BrokerIdentity,
        instance: str,
        *,
        on_slave_appended: Callable[[], None],
        on_confirm: Callable[[int], None],
        on_commits: Callable[[Commits], None],
        pending_commits: Callable[[], list[Commits]],
        security: Security = PLAIN,
    ) -> None:
        """``on_slave_appended``: the master's bytes came; ``on_commits``: what was committed at a slave."""
        self.leadership: Leadership | None = None
        self._config = config
        self._opened = opened
        self._identity = identity
        self._instance = instance
        self._security = security
        self._on_slave_appended = on_slave_appended
        self._on_confirm = on_confirm
        self._on_commits = on_commits
        self._pending_commits = pending_commits
        self._sync_flush = config.store.flush_mode is FlushMode.SYNC_FLUSH

    def make(self) -> Role | ElectedRole:
        """The broker's role, as its configuration says; with it :attr:`leadership`, where masters are elected."""
        if self._config.replication.is_elected:
            return self._make_elected()
        is_master = self._config.replication.role is not BrokerRole.SLAVE
        return self._make_master() if is_master else self._make_slave()

    def _make_elected(self) -> ElectedRole:
        settings, opened, clock = self._config.replication, self._opened, SystemClock()
        is_sync = settings.is_sync
        rules = SetRules(
            in_sync_replicas=settings.in_sync_replicas if is_sync else 1,
            min_in_sync_replicas=settings.min_in_sync_replicas if is_sync else 1,
            is_auto=settings.auto_in_sync_replicas and is_sync,
        )
        role = ElectedRole(
            self._identity, self._make_slave(), waits=is_sync and settings.in_sync_replicas > 1, clock=clock
        )
        membership = MembershipFile(self._config.store.root)
        lost = is_sync and not self._sync_flush and not opened.store.recovery.clean and membership.has_booted_since()
        self.leadership = Leadership(
            self._identity.broker_id,
            role,
            Registers(self._config.nameservers.addresses, self._identity, self._security),
            membership,
            opened.epochs,
            opened.store,
            rules,
            make_master=self._make_master,
            make_slave=self._make_slave,
            clock=clock,
            priority=settings.election_priority,
            behind_ms_max=settings.not_catchup_ms_max,
            is_learner=settings.async_learner,
            may_have_lost=lost,
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

    def _make_master(
        self,
        on_answer: Callable[[int, float], None] | None = None,
        members: frozenset[int] | None = None,
        needed: int = 0,
    ) -> MasterRole:
        if not self._opened.snapshots.is_current:
            directory = self._opened.snapshots.directory
            raise StorageError(
                f"{directory}: topics, groups and offsets did not go back with the log when its end was cut off, no "
                "master can begin with them: see the errors before this; a start reads them anew",
                path=str(directory),
            )
        return MasterRole(
            self._identity,
            self._opened.store,
            self._replication_config(),
            epochs=self._opened.epochs.history,
            confirm=self._opened.store.confirm_offset,
            slave_read=self._config.replication.slave_read,
            on_confirm=self._on_confirm,
            on_commits=self._on_commits,
            on_answer=on_answer,
            members=members,
            needed=needed,
        )

    def _make_slave(self) -> SlaveRole:
        opened = self._opened
        opened.store.commit()  # what a master had in buffers: a slave's log grows by its master's bytes alone
        return SlaveRole(
            self._identity,
            FollowerLog(
                opened.store, opened.state, opened.producers, opened.snapshots, log_has_all=not opened.imported
            ),
            self._replication_config(),
            epochs=opened.epochs,
            confirm=self._opened.store.confirm_offset,
            instance=self._instance,
            master_address=self._config.replication.master_address,
            on_appended=self._on_slave_appended,
            on_confirm=self._on_confirm,
            pending_commits=self._pending_commits,
            security=self._security,
        )
