"""Keeps a broker in the role that its group's register gives it, by ``docs/internals/failover-protocol.md``.

One task. It reads the register when there is reason to, begins as master when it may, steps down when another epoch
has begun, follows otherwise, and as master keeps the sync-state set true.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, InitVar, dataclass

from penstock.proto.errors import KeyNotFound, NotMaster, PenstockError, WrongStore
from penstock.proto.register import Register
from penstock.proto.wire import coordination_pb2
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from penstock.replication.leases import LEASE_S, MasterLease, begins_at, master_share_s
from penstock.replication.master.primary import Primary
from penstock.replication.master.sync_state_set import SetRules
from penstock.runtime.clock import Clock

from ..config import ReplicationSettings
from ..core.tables.uninterrupted import to_its_end
from ..store.store import Store
from .completeness import Completeness
from .elected_role import ElectedRole
from .epoch_file import EpochFile
from .handing_over import await_answers, await_level, check_successor, successor, write_hand_over
from .held_membership import MembershipFile
from .registers import Registers
from .roles import MasterRole, SlaveRole
from .set_keeping import SetKeeper

log = logging.getLogger(__name__)

TICK_S = 0.05
READ_INTERVAL_S = 0.2
CALM_INTERVAL_S = 2.0
FIRST_ID = 0
"""The broker with this id makes the register of a new group."""


@dataclass(eq=False)
class Leadership:
    """Event loop only. ``on_role()`` is called after each change of role, ``on_news()`` when reports should go out.

    ``is_answered()`` tells whether every sender has its answer: no role is handed over before. ``may_have_lost``: as of
    :class:`Completeness`.
    """

    broker_id: int
    role: ElectedRole
    registers: Registers
    membership: MembershipFile
    epochs: EpochFile
    store: Store
    rules: InitVar[SetRules]
    _: KW_ONLY
    make_master: Callable[[Callable[[int, float], None], frozenset[int], int, int], MasterRole]
    make_slave: Callable[[], SlaveRole]
    clock: Clock
    settings: ReplicationSettings
    may_have_lost: InitVar[bool]

    def __post_init__(self, rules: SetRules, may_have_lost: bool) -> None:
        self.on_role: Callable[[], None] = lambda: None
        self.on_news: Callable[[], None] = lambda: None
        self.is_answered: Callable[[], bool] = lambda: True
        self.register: Register | None = None  # as last read or written; its version never goes back
        self._own = Completeness(self.broker_id, self.membership, may_have_lost, self.store.end_doubt)
        self._elected: tuple[Register, float] | None = None  # to begin as its master, at that time
        self._giving_epoch = 0  # which this broker has ended, and is handing over
        self._hinted = 0  # the newest version that a nameserver has seen, or that a refusal tells of
        self._read_at = -READ_INTERVAL_S  # when the register was last asked for
        self._confirmed_asked_at = 0.0  # when the answer was asked for that names this broker: its lease counts from it
        # One call at a time; set by `_step`, cleared by the task itself as its last act.
        self._reading: asyncio.Task[None] | None = None
        behind_ms_max = self.settings.not_catchup_ms_max
        on_change = self._on_answer, self._on_set_failure
        self._keeper = SetKeeper(self.broker_id, self.registers, rules, behind_ms_max, self.clock, *on_change)
        self._running: asyncio.Task[None] | None = None  # the role inside; ended before another is put there
        self._wake = asyncio.Event()  # set by whoever has news for `_step`
        self._told: tuple[bool, ...] = ()  # what reports said last
        self.trouble = ""  # the last warning, so that an outage is told once; empty while the register is read
        self.role.run = self.run
        self.role.on_view = self._wake.set

    # What others ask and tell.

    def on_register_hint(self, register: coordination_pb2.Register) -> None:
        """A nameserver saw the register in this version: read it, if it is newer than the one known."""
        if register.version > self._hinted:
            self._hinted = register.version
            self._read_at = -READ_INTERVAL_S  # at once
            self._wake.set()

    def candidacy(self) -> BrokerReport.Candidacy:
        """What nameservers are told for elections."""
        is_master = self.role.is_master
        epoch = self.role.epoch if is_master else 0
        if self._elected is not None:
            epoch = self._elected[0].epoch
        is_giving = self._giving_epoch > 0  # no reason for an election: the group is about to have another master
        return BrokerReport.Candidacy(
            epoch=self._giving_epoch if is_giving else epoch,
            log_epoch=self.epochs.history.latest,
            hears_master=self._hears_master() or is_giving,
            is_acting=self.role.can_acknowledge() or is_giving,
            priority=self.settings.election_priority,
            is_doubtful=self._own.is_doubtful(self.register),
        )

    @property
    def sync_state_set(self) -> list[int]:
        """The set as last read, ascending."""
        return sorted(self.register.sync_state_set) if self.register is not None else []

    @property
    def is_current(self) -> bool:
        """True if this broker's tables know what the group has acknowledged.

        A member that has had all of it in this life does; a slave once its epoch's begin is confirmed there too.
        """
        is_confirmed = self.store.confirm_offset >= self.epochs.history.latest_start
        if self.role.is_master:
            return self.role.is_acting and (is_confirmed or self._own.is_level)
        return is_confirmed and self._own.is_level and self._own.is_member(self.register)

    async def hand_over(self, to_id: int) -> Register:
        """Make the slave ``to_id`` master, with no message refused for good; the register afterwards.

        Raises:
            NotMaster: this broker is not the acting master.
            InvalidArgument: the slave is not in sync; nothing was changed.
            BrokerUnavailable: it did not catch up in time; nothing was changed.
            CoordinatorUnavailable: nobody knows whether it was done; an election follows.
        """
        self.role.check_master()
        master, register = self.role.inner, self.register
        assert isinstance(master, MasterRole)
        assert register is not None, "a master without a register"
        check_successor(to_id, self.broker_id, register.sync_state_set, self.role.replicas())
        self._giving_epoch = register.epoch
        try:
            current = await self._ready_to_hand_over(master, register, to_id)
            await to_its_end(self._step_down())  # for good: from here on an election is the only other way
            answer, coordinator, asked_at = await write_hand_over(self.registers, current, to_id, self.clock)
            self._on_answer(answer, coordinator, asked_at)
            return answer
        finally:
            self._giving_epoch = 0
            self.on_news()

    async def _ready_to_hand_over(self, master: MasterRole, register: Register, to_id: int) -> Register:
        """Refuse messages until the slave has everything; the register then. After an error all is as before."""
        self.role.is_handing_over = True
        try:
            await await_level(master.primary, self.store, to_id, self.clock)
            await await_answers(self.is_answered, self.clock)
            await await_level(master.primary, self.store, to_id, self.clock)  # commits of slaves may have come
            await self._keeper.settled()
            current = self.register
            if self.role.inner is not master or current is None or current.epoch != register.epoch:
                raise NotMaster("another master was elected meanwhile")
            check_successor(to_id, self.broker_id, current.sync_state_set, self.role.replicas())
        except BaseException:
            self.role.is_handing_over = False
            raise
        return current

    async def hand_over_to_any(self) -> Register | None:
        """The same to the slave that can take over soonest; None where none can, or this is no acting master."""
        if not self.role.is_acting or self.register is None:
            return None
        to_id = successor(self.register.sync_state_set, self.role.replicas())
        return None if to_id is None else await self.hand_over(to_id)

    # The task.

    async def run(self) -> None:
        """Keep the role, until cancelled; raises what makes the broker unable to go on."""
        self._start_inner()
        try:
            while True:
                self._wake.clear()
                await self._step()
                begins_s = TICK_S if self._elected is None else self._elected[1] - self.clock.monotonic_s()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(TICK_S, begins_s)):
                        await self._wake.wait()
        finally:
            if self._reading is not None:
                self._reading.cancel()
                await asyncio.gather(self._reading, return_exceptions=True)
            await self._keeper.close()
            await self._stop_inner()
            await self.registers.close()

    async def _step(self) -> None:
        now = self.clock.monotonic_s()
        if self._running is not None and self._running.done():
            self._running.result()
        register = self.register
        if self.role.is_master and register is not None and register.epoch > self.role.epoch:
            await self._step_down()
        if self._elected is not None and now >= self._elected[1]:
            await self._begin(self._elected[0])
        if self._reading is None and self._should_read(now):
            self._read_at = now
            self._reading = asyncio.create_task(self._finish_reading(self._read()), name="read register")
        if self.role.is_master:
            self._keep_set()
        self._look_level(now)
        told = (self.role.is_master, self._hears_master(), self.role.can_acknowledge(), self._elected is not None)
        if told != self._told:
            self._told = told
            self.on_news()

    def _should_read(self, now: float) -> bool:
        register = self.register
        if register is None or self._hinted > register.version:
            return now - self._read_at >= TICK_S
        if now - self._read_at < READ_INTERVAL_S:
            return False
        if now - self._read_at >= CALM_INTERVAL_S:
            return True  # nothing needs it: but a coordinator that was exchanged is better known before it does
        if self.role.is_master:
            lease = self.role.lease
            return lease is not None and lease.until - now < master_share_s(LEASE_S) / 2
        return not self._hears_master()

    async def _finish_reading(self, reading: Awaitable[None]) -> None:
        """Tell what it fails with: it is done again while there is reason to."""
        try:
            await reading
        except (PenstockError, OSError) as error:
            self._warn(f"{type(error).__name__}: {error}")
        except Exception as error:  # the task's edge: the role goes on, with what was read before
            log.error("reading the register failed", exc_info=error)
        finally:
            self._reading = None
            self._wake.set()

    async def _read(self) -> None:
        asked_at = self.clock.monotonic_s()
        try:
            answer, coordinator = await self.registers.read()
        except KeyNotFound:
            self.membership.check("", self.broker_id)
            if self.broker_id != FIRST_ID or self.settings.async_learner:
                return
            answer, coordinator = await self.registers.create(self.epochs.history.latest)
            if answer.version == 1 and answer.master_id == self.broker_id and not self.membership.is_known:
                self.membership.hold(coordinator, self.broker_id)
        self._on_answer(answer, coordinator, asked_at)

    def _on_answer(self, register: Register, coordinator: str, asked_at: float) -> None:
        """The register as it was after ``asked_at``."""
        try:
            self.membership.check(coordinator, self.broker_id)
        except WrongStore as error:
            self._warn(f"{type(error).__name__}: {error}")
            return
        self.trouble = ""
        known = self.register
        if known is not None and register.version < known.version:
            return
        if known is None or register.epoch != known.epoch:
            log.info(
                "register read epoch=%d master=%d sync_state_set=%s own_epoch=%d",
                register.epoch,
                register.master_id,
                sorted(register.sync_state_set),
                self.epochs.history.latest,
            )
        self.register = register
        self._keeper.on_register(register.version)
        if register.master_id == self.broker_id:
            self._on_own(register, asked_at)
        else:
            self._elected = None
            if isinstance(self.role.inner, SlaveRole):
                self.role.inner.replica.require_epoch(register.epoch)
                self.role.inner.replica.accept_loss(register.unclean_epoch)
        self._require()
        self._wake.set()

    def _on_own(self, register: Register, asked_at: float) -> None:
        """This broker is the master that the register names."""
        if self.role.is_master and self.role.epoch == register.epoch:
            if self.role.lease is not None:
                self.role.lease.on_coordinator(asked_at)
            return
        latest = self.epochs.history.latest
        if register.epoch <= latest:
            return  # it was, before it ended: only another election makes it master again
        self._confirmed_asked_at = asked_at
        if self._elected is not None and self._elected[0].epoch == register.epoch:
            return
        if isinstance(self.role.inner, SlaveRole):
            self.role.inner.replica.require_epoch(register.epoch)
        now = self.clock.monotonic_s()
        began = latest if not self._own.is_doubtful(self.register) else 0
        begin_at = begins_at(register, self.broker_id, now, began=began)
        log.info("elected epoch=%d begins_in_ms=%.0f", register.epoch, (begin_at - now) * 1000)
        self._elected = (register, begin_at)

    # Changes of role.

    async def _begin(self, register: Register) -> None:
        """Act as master of ``register`` from now on, unless another epoch begins before this broker can."""
        await self._stop_inner()  # may take seconds; the register is read meanwhile
        if self.register is None or self.register.epoch != register.epoch:
            self._start_inner()
            return
        self._elected = None  # not before: the same register, read again, would elect this broker once more
        if self.role.is_master:
            self.role.inner.close()
        end = self.store.cut_unfinished()
        source = self._own.source_of(register, self.epochs.history.latest)
        self.epochs.begin(register.epoch, end)
        self._own.end_doubt()  # this log is the group's from now on
        lease = MasterLease(self.broker_id, register.sync_state_set, needs_coordinator=register.unclean_allowed)
        lease.on_coordinator(self._confirmed_asked_at)
        members = register.sync_state_set
        master = self.make_master(lease.on_member, members, self._keeper.needed(members), source)
        self.role.put(master, lease)
        self._keeper.begin()
        self._read_at = -READ_INTERVAL_S  # a confirmation by the coordinator, at once
        self._require()
        self._start_inner()
        log.info(
            "master begins epoch=%d start=%d confirm=%d sync_state_set=%s",
            register.epoch,
            end,
            master.primary.confirm_offset,
            sorted(register.sync_state_set),
        )
        self.on_role()
        self.on_news()

    async def _step_down(self) -> None:
        """Be a slave from now on; whoever is master, others say."""
        await self._stop_inner()
        if not self.role.is_master:
            return  # a hand-over and the news of another master came at once, and the other one was quicker
        epoch = self.role.epoch
        self.role.inner.close()
        slave = self.make_slave()
        if self.register is not None:
            epoch = max(epoch, self.register.epoch - 1)
            slave.replica.accept_loss(self.register.unclean_epoch)
        slave.replica.require_epoch(epoch + 1)
        self.role.put(slave, None)
        self._start_inner()
        log.warning("master stepped down epoch=%d end=%d", epoch, self.store.end_offset)
        self.on_role()
        self.on_news()

    def _start_inner(self) -> None:
        if isinstance(self.role.inner, SlaveRole):
            self.role.inner.replica.on_unheard = self._wake.set
        self._running = asyncio.create_task(self.role.inner.run(), name="role")

    async def _stop_inner(self) -> None:
        task, self._running = self._running, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _hears_master(self) -> bool:
        inner = self.role.inner
        if not isinstance(inner, SlaveRole):
            return True
        replica = inner.replica
        return self.settings.async_learner or (
            replica.connected and self.clock.monotonic_s() - replica.heard_at < LEASE_S
        )

    # The slave's memory of having everything.

    def _look_level(self, now: float) -> None:
        inner, own = self.role.inner, self._own
        if isinstance(inner, SlaveRole) and inner.replica.has_been_level:
            own.on_level()
        is_sure = own.is_member(self.register) and (own.is_level or self.role.is_master)
        if is_sure and not self.membership.is_known and self._reading is None and now - self._read_at >= TICK_S:
            self._read_at = now
            self._reading = asyncio.create_task(self._finish_reading(self._hold_membership()), name="note membership")
        if is_sure and own.is_level:
            try:
                self.membership.note_boot()
            except OSError as error:  # a full disk: the next step tries again
                self._warn(f"{type(error).__name__}: {error}")

    async def _hold_membership(self) -> None:
        answer, coordinator = await self.registers.read()
        if self.broker_id in answer.sync_state_set:
            self.membership.hold(coordinator, self.broker_id)

    def _mastership(self) -> tuple[Primary, MasterLease, Register] | None:
        """Of this broker, while the register that is known is its epoch's."""
        inner, register, lease = self.role.inner, self.register, self.role.lease
        if not isinstance(inner, MasterRole) or register is None or lease is None or register.epoch != inner.epoch:
            return None
        return inner.primary, lease, register

    def _require(self) -> None:
        """As master, wait for everybody who may be in the set."""
        if (mastership := self._mastership()) is not None:
            self._keeper.require(*mastership)

    def _keep_set(self) -> None:
        """As master, have the set hold whom it should."""
        mastership = self._mastership()
        if mastership is not None and mastership[2].master_id == self.broker_id and not self.role.is_handing_over:
            self._keeper.keep(*mastership, self.store.end_offset)

    def _on_set_failure(self, said: str, version: int) -> None:
        self._warn(said)
        self._hinted = max(self._hinted, version)
        self._wake.set()

    def _warn(self, said: str) -> None:
        if said != self.trouble:
            log.warning("coordination: %s", said)
            self.trouble = said
