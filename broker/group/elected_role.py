"""The role of a broker whose master is elected: master or slave, and changing at run time.

The services hold this one object; :class:`~.leadership.Leadership` puts the role inside that the register gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from penstock.proto.errors import NotMaster
from penstock.proto.wire import broker_pb2, common_pb2, nameserver_pb2
from penstock.replication.epochs import EpochHistory
from penstock.replication.leases import MasterLease
from penstock.replication.master.primary import Primary
from penstock.runtime.clock import Clock

from ..core.role import Following
from .roles import FixedRole, SlaveRole

if TYPE_CHECKING:
    from .leadership import Leadership


class ElectedRole:
    """Answers as the role inside does; as master only while it has the right to act. Event loop only."""

    instance = ""
    leadership: Leadership
    """What exchanges the role inside."""

    def __init__(self, identity: common_pb2.BrokerIdentity, inner: SlaveRole, *, waits: bool, clock: Clock) -> None:
        """``waits``: as master, acknowledge with replicas only."""
        self.inner: FixedRole = inner
        self.lease: MasterLease | None = None
        self.is_handing_over = False
        self.run: Callable[[], Coroutine[Any, Any, None]] = asyncio.Event().wait  # type: ignore[assignment]
        """Be what the register says, until cancelled."""
        self.on_view: Callable[[], None] = lambda: None
        self.view = nameserver_pb2.ShardView()
        self._name = f"{identity.broker_name}/{identity.broker_id}"
        self.waits_for_replicas = waits
        self._clock = clock

    @property
    def is_master(self) -> bool:
        return self.inner.is_master

    @property
    def is_acting(self) -> bool:
        """True if this is the master, and nobody else can be."""
        return self.inner.is_master and self.lease is not None and self.lease.is_valid(self._clock.monotonic_s())

    @property
    def is_current(self) -> bool:
        """True if this broker is known to have what the group has acknowledged, committed offsets among it."""
        return self.leadership.is_current

    @property
    def epoch(self) -> int:
        return self.inner.epoch

    @property
    def history(self) -> EpochHistory:
        return self.inner.history

    @property
    def master_address(self) -> str | None:
        return self.inner.master_address

    @property
    def lag_bytes(self) -> int:
        return self.inner.lag_bytes

    @property
    def following(self) -> Following:
        """As slave: whether the master is heard, and if not, why: who cannot read the register hears none for long."""
        found = self.inner.following
        trouble = "" if found.is_following or self.is_master else self.leadership.trouble
        return found._replace(not_because=trouble) if trouble else found

    def put(self, inner: FixedRole, lease: MasterLease | None) -> None:
        """Be ``inner`` from now on; ``lease`` of a master."""
        self.inner, self.lease = inner, lease
        self.is_handing_over = False
        if isinstance(inner, SlaveRole):
            inner.on_shard(self.view)

    def check_master(self) -> None:
        """Refuse a write, unless this broker is master now. ``no_master``: the sender should wait for one."""
        if not self.inner.is_master:
            try:
                self.inner.check_master()
            except NotMaster as error:
                raise NotMaster(error.message, **{**error.details, "no_master": True}) from None
        if self.is_handing_over:
            raise NotMaster(f"broker {self._name} hands over to another master", epoch=self.epoch, no_master=True)
        if not self.is_acting:
            raise NotMaster(
                f"broker {self._name} has lost its replicas and the coordinator: another may be master by now",
                epoch=self.epoch,
                no_master=True,
            )

    def can_acknowledge(self) -> bool:
        """True if what is appended now can be acknowledged in time."""
        return self.is_acting and not self.is_handing_over and self.inner.can_acknowledge()

    async def wait_confirmed(self, end: int, timeout_s: float) -> bool:
        """True if everything below ``end`` was confirmed in time, by a master that still is one."""
        inner = self.inner
        if not inner.is_master:
            return False
        return await inner.wait_confirmed(end, timeout_s) and inner is self.inner and self.is_acting

    def on_appended(self) -> None:
        self.inner.on_appended()

    def on_flushed(self, offset: int) -> None:
        self.inner.on_flushed(offset)

    def on_shard(self, view: nameserver_pb2.ShardView) -> None:
        """The nameservers told who lives in the group, and as what."""
        self.view = view
        if isinstance(self.inner, SlaveRole):
            self.inner.on_shard(view)
        self.on_view()

    def suggested_broker_id(self, behind_bytes: int) -> int:
        return self.inner.suggested_broker_id(behind_bytes)

    def replicas(self) -> list[broker_pb2.BrokerStatus.Replica]:
        return self.inner.replicas()

    def needed_from(self, patience_s: float) -> int | None:
        return self.inner.needed_from(patience_s)

    def close(self) -> None:
        self.inner.close()

    def followed(self) -> Primary:
        return self.inner.followed()
