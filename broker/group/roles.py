"""What a broker is at the moment: the master of its group, or a slave of it.

The two roles answer the same questions, so that the services never ask which one they work for. The server
holds one role object; where masters are elected that one has either of the two inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import psutil

from penstock.proto.errors import NotMaster
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.proto.wire.replication_pb2 import ReplicaReport
from penstock.replication.config import ReplicationConfig
from penstock.replication.epochs import EpochHistory
from penstock.replication.interfaces import EpochStore, ReplicaLog, SlaveLog
from penstock.replication.master.primary import Primary
from penstock.replication.slave.replica import Replica
from penstock.runtime.security.credentials import PLAIN, Security

from ..core.role import Following

log = logging.getLogger(__name__)

Commits = ReplicaReport.Commits
MEMORY_SHARE_MAX = 0.4  # RocketMQ's accessMessageInMemoryMaxRatio: what lies further back is on disk, not in memory


class MasterRole:
    """The one writer of its group; serves the replication stream."""

    instance = ""
    is_master = True
    is_acting = True
    master_address = None

    def __init__(
        self,
        identity: common_pb2.BrokerIdentity,
        log_: ReplicaLog,
        config: ReplicationConfig,
        *,
        epochs: EpochHistory,
        confirm: int,
        slave_read: bool,
        on_confirm: Callable[[int], None],
        on_commits: Callable[[Commits], None],
        on_answer: Callable[[int, float], None] | None = None,
        members: frozenset[int] | None = None,
        needed: int = 0,
    ) -> None:
        """``confirm``: the confirm offset known from before the start; ``on_answer``, ``members``, ``needed``: see
        :class:`Primary`.
        """
        self.broker_id = identity.broker_id
        self.epoch = epochs.latest
        self.waits_for_replicas = config.sync and config.in_sync_replicas > 1
        self._slave_read = slave_read
        self._behind_bytes_max = int(psutil.virtual_memory().total * MEMORY_SHARE_MAX)
        self._primary = Primary(
            identity,
            log_,
            config,
            epoch=self.epoch,
            on_confirm=on_confirm,
            on_commits=on_commits,
            initial_confirm=confirm,
            epochs=epochs,
            on_answer=on_answer,
            members=members,
            needed=needed,
        )

    @property
    def primary(self) -> Primary:
        """What serves the slaves."""
        return self._primary

    def check_master(self) -> None:
        """Writes are welcome."""

    def can_acknowledge(self) -> bool:
        """True if enough replicas are in sync for what is appended now."""
        return not self.waits_for_replicas or self._primary.can_acknowledge()

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        """True if enough replicas had everything below ``end`` in time."""
        return await self._primary.wait_confirmed(end, timeout_s)

    def on_appended(self) -> None:
        """The log has grown."""
        self._primary.on_appended()

    def on_flushed(self, offset: int) -> None:
        """The log is synced up to ``offset``."""
        self._primary.on_flushed(offset)

    def on_shard(self, view: nameserver_pb2.ShardView) -> None:
        """The nameserver told who lives in the group; a configured master stays master whatever that is."""
        other = [m for m in view.members if m.role == common_pb2.MASTER and m.broker_id != 0]
        if other:
            log.error("nameserver names another master broker_id=%d address=%s", other[0].broker_id, other[0].address)

    def suggested_broker_id(self, behind_bytes: int) -> int:
        """Where a consumer that is ``behind_bytes`` behind should read next time."""
        if self._slave_read and behind_bytes > self._behind_bytes_max:
            return next((each.broker_id for each in self.replicas() if each.in_sync), self.broker_id)
        return self.broker_id

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        """The slaves that follow, and how far each is."""
        return [
            broker_pb2.BrokerStatus.Replica(
                broker_id=each.broker_id,
                written_offset=each.written,
                flushed_offset=each.flushed,
                lag_bytes=each.lag_bytes,
                in_sync=each.in_sync,
                learner=each.learner,
            )
            for each in self._primary.replicas()
        ]

    def needed_from(self, patience_s: float) -> int | None:
        """What lies from here on in the log, a slave still needs; None: nobody does."""
        return self._primary.needed_from(patience_s)

    @property
    def lag_bytes(self) -> int:
        """A master is behind nobody."""
        return 0

    @property
    def following(self) -> Following:
        """A master follows nobody, and nothing is wrong with that."""
        return Following(False, "")

    def close(self) -> None:
        """End every stream and let every waiting append go unconfirmed."""
        self._primary.close()

    async def run(self) -> None:
        """Nothing to do by itself: the slaves come here."""
        await asyncio.Event().wait()

    def serve(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """One slave's replication stream."""
        return self._primary.serve(requests, context)


class SlaveRole:
    """Follows the master of its group, serves reads, and keeps commits for it while it is gone."""

    instance = ""
    is_master = False
    is_acting = False
    waits_for_replicas = False

    def __init__(
        self,
        identity: common_pb2.BrokerIdentity,
        log_: SlaveLog,
        config: ReplicationConfig,
        *,
        epochs: EpochStore,
        confirm: int,
        instance: str,
        master_address: str,
        on_appended: Callable[[], None],
        on_confirm: Callable[[int], None],
        pending_commits: Callable[[], list[Commits]],
        security: Security = PLAIN,
    ) -> None:
        """``master_address``: a fixed one; empty: the nameserver names it."""
        self._epochs = epochs
        self.broker_name = identity.broker_name
        self._broker_id = identity.broker_id
        self.master_address = master_address or None
        self._is_fixed = bool(master_address)
        self._master_id = 0
        self._changed = asyncio.Event()
        self._behind_bytes_max = int(psutil.virtual_memory().total * MEMORY_SHARE_MAX)
        self._replica = Replica(
            identity,
            log_,
            on_appended=on_appended,
            on_confirm=on_confirm,
            pending_commits=pending_commits,
            config=config,
            epochs=epochs,
            initial_confirm=confirm,
            store_instance=instance,
            security=security,
        )

    @property
    def epoch(self) -> int:
        """The latest epoch that this broker has seen."""
        return self._epochs.history.latest

    def check_master(self) -> None:
        """Refuse a write, and say where it belongs."""
        where = self.master_address or "not known at the moment"
        raise NotMaster(
            f"broker {self.broker_name}/{self._broker_id} is a slave: the master is {where}",
            master=self.master_address or "",
            epoch=self.epoch,
        )

    def can_acknowledge(self) -> bool:
        """A slave acknowledges nothing."""
        return False

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        """A slave appends nothing of its own, so there is nothing to wait for."""
        return True

    def on_appended(self) -> None:
        """Only masters append."""

    def on_flushed(self, offset: int) -> None:
        """The log is synced up to ``offset``: the master may count it."""
        self._replica.on_flushed(offset)

    def on_shard(self, view: nameserver_pb2.ShardView) -> None:
        """The nameserver told who lives in the group: follow its master; without one, try the last one again."""
        if self._is_fixed:
            return
        for member in view.members:
            if member.broker_id == self._broker_id:
                continue  # what this broker was a moment ago
            if member.role == common_pb2.MASTER and member.address != self.master_address:
                log.info("master found address=%s former=%s", member.address, self.master_address)
                self.master_address = member.address
                self._changed.set()
            if member.role == common_pb2.MASTER:
                self._master_id = member.broker_id

    def suggested_broker_id(self, behind_bytes: int) -> int:
        """The master again, once the consumer has caught up and as long as the master lives."""
        return (
            self._broker_id if not self._replica.connected or behind_bytes > self._behind_bytes_max else self._master_id
        )

    @property
    def replica(self) -> Replica:
        """What follows the master."""
        return self._replica

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        """Nobody follows a slave."""
        return []

    def needed_from(self, patience_s: float) -> int | None:
        """Nobody follows a slave."""
        return None

    @property
    def lag_bytes(self) -> int:
        """How far behind the master, as last heard."""
        return self._replica.lag_bytes

    @property
    def following(self) -> Following:
        """Whether a master has welcomed this slave and is heard; else the error that ended or refused the stream."""
        error, gave_up = self._replica.last_error, self._replica.last_loss
        if self._replica.connected or (error is None and self.master_address):
            return Following(self._replica.connected, "", gave_up)
        if error is None:
            return Following(False, "no nameserver has named a master of the broker group yet", gave_up)
        return Following(False, f"{type(error).__name__}: {error}", gave_up)

    def close(self) -> None:
        """Nothing to end: ``run`` is cancelled."""

    async def run(self) -> None:
        """Follow the master, wherever it is, until cancelled."""
        while True:
            self._changed.clear()
            follow = asyncio.create_task(self._follow(), name="follow-master")
            changed = asyncio.create_task(self._changed.wait(), name="master-changed")
            try:
                await asyncio.wait((follow, changed), return_when=asyncio.FIRST_COMPLETED)
                if follow.done():
                    follow.result()  # raises what ended it: a log that cannot follow this master
            finally:
                for task in (follow, changed):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        await task

    def serve(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """Refuse to be followed."""
        self.check_master()
        raise AssertionError("unreachable")

    async def _follow(self) -> None:
        if self.master_address is None:
            await asyncio.Event().wait()  # until the nameserver names one
            return
        await self._replica.follow(self.master_address)


FixedRole = MasterRole | SlaveRole
