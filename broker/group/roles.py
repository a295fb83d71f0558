"""What a broker is at the moment: the master of its group, or a slave of it.

The two roles answer the same questions, so that the services never ask which one they work for. The server
holds one role object; where masters are elected that one has either of the two inside.
"""

from __future__ import annotations

import asyncio
import logging

import psutil

from penstock.proto.errors import NotMaster
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.replication.epochs import EpochHistory
from penstock.replication.interfaces import EpochStore
from penstock.replication.master.primary import Primary
from penstock.replication.slave.replica import Replica

from ..core.role import Following

log = logging.getLogger(__name__)

MEMORY_SHARE_MAX = 0.4  # RocketMQ's accessMessageInMemoryMaxRatio: what lies further back is on disk, not in memory


class _Role:
    """What is true of a broker that nobody follows, and that is behind nobody."""

    instance = ""
    is_master = False
    is_acting = False
    is_current = True
    waits_for_replicas = False
    master_address: str | None = None

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self._behind_bytes_max = int(psutil.virtual_memory().total * MEMORY_SHARE_MAX)

    def on_appended(self) -> None:
        """The log has grown, by what this broker appended itself."""

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        """The slaves that follow, and how far each is."""
        return []

    def needed_from(self, patience_s: float) -> int | None:
        """What lies from here on in the log, a slave still needs; None: nobody does."""
        return None

    @property
    def lag_bytes(self) -> int:
        """How far behind the master, as last heard."""
        return 0

    @property
    def following(self) -> Following:
        """Whether a master is heard; a master follows nobody, and nothing is wrong with that."""
        return Following(False, "")

    def close(self) -> None:
        """End every stream and let every waiting append go unconfirmed. ``run`` is cancelled before."""


class MasterRole(_Role):
    """The one writer of its group; serves the replication stream."""

    is_master = True
    is_acting = True

    def __init__(
        self, broker_id: int, primary: Primary, *, history: EpochHistory, waits_for_replicas: bool, slave_read: bool
    ) -> None:
        """``primary`` serves the slaves; ``history``: of the log, this master's epoch the last.

        ``slave_read``: consumers that are far behind read at a slave.
        """
        super().__init__(broker_id)
        self.primary = primary
        self.history = history
        self.epoch = history.latest
        self.waits_for_replicas = waits_for_replicas
        self.wait_confirmed, self.on_flushed = primary.wait_confirmed, primary.on_flushed
        self._slave_read = slave_read

    def check_master(self) -> None:
        """Writes are welcome."""

    def can_acknowledge(self) -> bool:
        """True if enough replicas are in sync for what is appended now."""
        return not self.waits_for_replicas or self.primary.can_acknowledge()

    def on_appended(self) -> None:
        self.primary.on_appended()

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
        return [
            broker_pb2.BrokerStatus.Replica(
                broker_id=each.broker_id,
                written_offset=each.written,
                flushed_offset=each.flushed,
                lag_bytes=each.lag_bytes,
                in_sync=each.in_sync,
                learner=each.learner,
            )
            for each in self.primary.replicas()
        ]

    def needed_from(self, patience_s: float) -> int | None:
        return self.primary.needed_from(patience_s)

    def close(self) -> None:
        self.primary.close()

    async def run(self) -> None:
        """Nothing to do by itself: the slaves come here."""
        await asyncio.Event().wait()

    def followed(self) -> Primary:
        """What slaves follow."""
        return self.primary


class SlaveRole(_Role):
    """Follows the master of its group, serves reads, and keeps commits for it while it is gone."""

    def __init__(
        self, identity: common_pb2.BrokerIdentity, replica: Replica, epochs: EpochStore, master_address: str = ""
    ) -> None:
        """``replica`` follows the master; ``master_address``: a fixed one; empty: the nameserver names it."""
        super().__init__(identity.broker_id)
        self.replica = replica
        self.broker_name = identity.broker_name
        self.master_address = master_address or None
        self._master_data_port = 0  # 0: the master is asked for it
        self._epochs = epochs
        self._is_fixed = bool(master_address)
        self._master_id = 0
        self._changed = asyncio.Event()

    @property
    def epoch(self) -> int:
        """The latest epoch that this broker has seen."""
        return self.history.latest

    @property
    def history(self) -> EpochHistory:
        """The epochs of the log."""
        return self._epochs.history

    @property
    def is_current(self) -> bool:  # type: ignore[override]
        """True if it has had, since it began, what its master had acknowledged."""
        return self.replica.has_been_level

    def check_master(self) -> None:
        """Refuse a write, and say where it belongs."""
        where = self.master_address or "not known at the moment"
        raise NotMaster(
            f"broker {self.broker_name}/{self.broker_id} is a slave: the master is {where}",
            master=self.master_address or "",
            epoch=self.epoch,
        )

    def can_acknowledge(self) -> bool:
        """A slave acknowledges nothing."""
        return False

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        """A slave appends nothing of its own, so there is nothing to wait for."""
        return True

    def on_flushed(self, offset: int) -> None:
        """The log is synced up to ``offset``: the master may count it."""
        self.replica.on_flushed(offset)

    def on_shard(self, view: nameserver_pb2.ShardView) -> None:
        """The nameserver told who lives in the group: follow its master; without one, try the last one again."""
        if self._is_fixed:
            return
        for member in view.members:
            if member.broker_id == self.broker_id or member.role != common_pb2.MASTER:
                continue  # what this broker was a moment ago, or a slave
            self._master_id = member.broker_id
            if (member.address, member.data_port) != (self.master_address, self._master_data_port):
                log.info("master found address=%s former=%s", member.address, self.master_address)
                self.master_address, self._master_data_port = member.address, member.data_port
                self._changed.set()

    def suggested_broker_id(self, behind_bytes: int) -> int:
        """The master again, once the consumer has caught up and as long as the master lives."""
        stays = not self.replica.connected or behind_bytes > self._behind_bytes_max
        return self.broker_id if stays else self._master_id

    @property
    def lag_bytes(self) -> int:
        return self.replica.lag_bytes

    @property
    def following(self) -> Following:
        """Whether a master has welcomed this slave and is heard; else the error that ended or refused the stream."""
        error, gave_up = self.replica.last_error, self.replica.last_loss
        if self.replica.connected or (error is None and self.master_address):
            return Following(self.replica.connected, "", gave_up)
        if error is None:
            return Following(False, "no nameserver has named a master of the broker group yet", gave_up)
        return Following(False, f"{type(error).__name__}: {error}", gave_up)

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
                follow.cancel()
                changed.cancel()
                await asyncio.gather(follow, changed, return_exceptions=True)  # does not hide that this is cancelled

    def followed(self) -> Primary:
        """Refuse to be followed."""
        self.check_master()
        raise AssertionError("unreachable")

    async def _follow(self) -> None:
        if self.master_address is None:
            await asyncio.Event().wait()  # until the nameserver names one
            return
        await self.replica.follow(self.master_address, self._master_data_port)


FixedRole = MasterRole | SlaveRole
