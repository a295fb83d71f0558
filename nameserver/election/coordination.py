"""Registers of broker groups: read and changed for brokers, and elections where a group has no master."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from penstock.proto.errors import (
    CoordinatorUnavailable,
    InvalidArgument,
    KeyNotFound,
    PenstockError,
    StaleRegister,
    WrongCluster,
)
from penstock.proto.register import Register, new_register
from penstock.proto.wire import coordination_pb2
from penstock.proto.wire.common_pb2 import BrokerIdentity
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from penstock.runtime.clock import Clock

from ..shard import check_identity
from .coordinator import CoordinatorStore
from .elections import SETTLE_S, Choice, Elections, MemberReport

log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.05
GROUPS_MAX = 10_000
EPOCH_MAX = 1 << 62
"""Of a register that is made anew: each election takes the next one."""

OnRegister = Callable[[str], None]


class Coordination:
    """The gRPC service, and the task that elects; one event loop.

    ``on_register(broker_name)`` is called when the register of a group is another than was last seen here.
    """

    def __init__(self, store: CoordinatorStore, clock: Clock, *, unclean_allowed: bool) -> None:
        self._store = store
        self._clock = clock
        self._unclean_allowed = unclean_allowed
        self.on_register: OnRegister = lambda broker_name: None
        self._coordinator = ""
        self._seen: dict[str, Register] = {}
        self._reports: dict[str, dict[int, MemberReport]] = {}
        self._elections: dict[str, Elections] = {}
        self._news: set[str] = set()  # groups to look at before the next round
        self._wake = asyncio.Event()  # set when there are any
        self._looking: set[str] = set()  # groups whose look has not ended: each has one at a time
        self._said = ""

    # What brokers ask.

    async def ReadRegister(self, request: coordination_pb2.RegisterQuery, context: Any) -> coordination_pb2.Register:
        return await self._answer(await self._existing(request.identity))

    async def CreateRegister(
        self, request: coordination_pb2.RegisterCreation, context: Any
    ) -> coordination_pb2.Register:
        identity = request.identity
        if not 0 <= request.epoch <= EPOCH_MAX:
            raise InvalidArgument(f"{identity.broker_name}: epoch {request.epoch}: 0..{EPOCH_MAX} are allowed")
        register = await self._read(identity)
        if register is None:
            made = new_register(
                identity.cluster,
                identity.broker_name,
                identity.broker_id,
                request.epoch,
                unclean_allowed=self._unclean_allowed,
            )
            if await self._store.replace(None, made):
                self._elections[made.broker_name] = Elections(epoch=0)  # its master has the time to begin
                log.info("register made broker_name=%s epoch=%d", made.broker_name, made.epoch)
            register = await self._read(identity)
        assert register is not None, "a register vanished"
        return await self._answer(register)

    async def ChangeSyncStateSet(
        self, request: coordination_pb2.SyncStateSetChange, context: Any
    ) -> coordination_pb2.Register:
        before = await self._existing(request.identity)
        after = before.with_set(request.identity.broker_id, request.epoch, request.version, request.sync_state_set)
        await self._replace(before, after)
        log.info(
            "sync-state set changed broker_name=%s epoch=%d from=%s to=%s",
            after.broker_name,
            after.epoch,
            sorted(before.sync_state_set),
            sorted(after.sync_state_set),
        )
        return await self._answer(after)

    async def HandOver(self, request: coordination_pb2.MasterHandOver, context: Any) -> coordination_pb2.Register:
        before = await self._existing(request.identity)
        after = before.handed_over_to(request.identity.broker_id, request.epoch, request.version, request.to_broker_id)
        await self._replace(before, after)
        log.info("master handed over %s", _described(after))
        return await self._answer(after)

    # What broker sessions bring and take.

    def on_report(self, identity: BrokerIdentity, candidacy: BrokerReport.Candidacy, end_offset: int) -> None:
        self._reports.setdefault(identity.broker_name, {})[identity.broker_id] = MemberReport(
            broker_id=identity.broker_id,
            heard_at=self._clock.monotonic_s(),
            epoch=candidacy.epoch,
            log_epoch=candidacy.log_epoch,
            end_offset=end_offset,
            hears_master=candidacy.hears_master,
            is_acting=candidacy.is_acting,
            priority=candidacy.priority,
            is_doubtful=candidacy.is_doubtful,
        )
        self._look_soon(identity.broker_name)

    def on_gone(self, broker_name: str, broker_id: int) -> None:
        members = self._reports.get(broker_name, {})
        if members.pop(broker_id, None) is not None:
            if not members:
                del self._reports[broker_name]
                self._elections.pop(broker_name, None)
            self._look_soon(broker_name)
            asyncio.get_running_loop().call_later(1.1 * SETTLE_S, self._look_soon, broker_name)  # an election is due?

    def register(self, broker_name: str) -> coordination_pb2.Register | None:
        """The group's register as last seen here: a hint for brokers to read it."""
        seen = self._seen.get(broker_name)
        return None if seen is None else seen.to_wire(self._coordinator)

    # Elections.

    async def run(self) -> None:
        """Elect a master wherever a group has none, until cancelled. A group whose look waits delays no other group."""
        loop = asyncio.get_running_loop()
        next_round = loop.time()
        async with asyncio.TaskGroup() as looks:
            while True:
                names = self._news & self._reports.keys()
                if loop.time() >= next_round:
                    next_round = loop.time() + LOOK_INTERVAL_S
                    names = set(self._reports)
                self._news.clear()
                self._wake.clear()
                for broker_name in names - self._looking:
                    if not self._is_calm(broker_name):
                        self._looking.add(broker_name)
                        looks.create_task(self._look_once(broker_name))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(next_round):
                        await self._wake.wait()

    def _look_soon(self, broker_name: str) -> None:
        self._news.add(broker_name)
        self._wake.set()

    def _is_calm(self, broker_name: str) -> bool:
        """True if what was seen last asks for nothing."""
        register = self._seen.get(broker_name)
        return register is not None and self._decide(register) is None and not self._is_outdated(register)

    async def _look_once(self, broker_name: str) -> None:
        try:
            await self._look(broker_name)
        except PenstockError as error:  # the next look tries again
            self._warn(f"{type(error).__name__}: {error}")
        except Exception as error:  # noqa: BLE001  one group's: the others' elections go on
            self._warn(f"election failed broker_name={broker_name}: {error!r}")
        finally:
            self._looking.discard(broker_name)

    async def _look(self, broker_name: str) -> None:
        before = await self._store.read(broker_name)  # what was seen last may be what another nameserver has replaced
        if before is None:
            return
        self._see(before)
        if self._is_outdated(before):
            raise CoordinatorUnavailable(
                f"the register of {broker_name} is of epoch {before.epoch}, and a broker's log of a later one: the "
                "coordinator store was set back, from an old copy perhaps; restore the newest, or begin anew as "
                "docs/operate/backup.md says"
            )
        choice = self._decide(before)
        if choice is None:
            return
        if choice.is_unclean:
            after = before.elected_unclean(choice.candidate)
        else:
            after = before.elected(choice.candidate, unclean_allowed=self._unclean_allowed)
        if await self._store.replace(before, after):
            self._see(after)
            self._tell(before, after)
        else:
            self._seen.pop(broker_name, None)

    def _is_outdated(self, register: Register) -> bool:
        """True if a log knows a later epoch: each was in the register before it was in a log."""
        reports = self._reports.get(register.broker_name, {}).values()
        return any(report.log_epoch > register.epoch for report in reports)

    def _decide(self, register: Register) -> Choice | None:
        name = register.broker_name
        elections = self._elections.get(name)
        if elections is None:
            elections = self._elections[name] = Elections()
        reports = self._reports.get(name, {}).values()
        return elections.decide(register, reports, self._clock.monotonic_s(), unclean_allowed=register.unclean_allowed)

    def _tell(self, before: Register, after: Register) -> None:
        log.info("master elected %s", _described(after))
        if after.unclean_epoch == after.epoch:
            ends = {report.broker_id: report.end_offset for report in self._reports.get(after.broker_name, {}).values()}
            log.error(
                "unclean election: what only the former set has is lost broker_name=%s former_set=%s master=%d end=%d",
                after.broker_name,
                sorted(before.sync_state_set),
                after.master_id,
                ends.get(after.master_id, -1),
            )

    # The store.

    async def _read(self, identity: BrokerIdentity) -> Register | None:
        check_identity(identity)
        register = await self._store.read(identity.broker_name)
        if register is not None:
            if register.cluster != identity.cluster:
                raise WrongCluster(
                    f"broker group {identity.broker_name} is in cluster {register.cluster}, and broker "
                    f"{identity.broker_id} says brokerClusterName={identity.cluster}: give it the right one or another "
                    "brokerName"
                )
            self._see(register)
        return register

    async def _existing(self, identity: BrokerIdentity) -> Register:
        register = await self._read(identity)
        if register is None:
            raise KeyNotFound(f"broker group {identity.broker_name} has no register: its broker with id 0 makes it")
        return register

    async def _replace(self, before: Register, after: Register) -> None:
        if not await self._store.replace(before, after):
            self._seen.pop(after.broker_name, None)
            raise StaleRegister(f"{after.broker_name}: the register has just changed: read it again")
        self._see(after)

    async def _answer(self, register: Register) -> coordination_pb2.Register:
        if not self._coordinator:
            self._coordinator = await self._store.id()
        return register.to_wire(self._coordinator)

    def _see(self, register: Register) -> None:
        seen = self._seen.get(register.broker_name)
        if seen is not None and seen.version >= register.version:
            return
        if len(self._seen) >= GROUPS_MAX and seen is None:
            self._seen.pop(next(iter(self._seen)))
        self._seen[register.broker_name] = register
        self._said = ""
        self.on_register(register.broker_name)

    def _warn(self, said: str) -> None:
        if said != self._said:
            log.warning("election not possible now error=%s", said)
            self._said = said


class NoCoordination:
    """What a nameserver without ``enableControllerInNamesrv`` answers."""

    async def ReadRegister(self, request: Any, context: Any) -> coordination_pb2.Register:
        raise CoordinatorUnavailable(
            "this nameserver has no coordinator: enableControllerInNamesrv is false", none=True
        )

    CreateRegister = ChangeSyncStateSet = HandOver = ReadRegister


def _described(register: Register) -> str:
    return (
        f"broker_name={register.broker_name} epoch={register.epoch} master={register.master_id} "
        f"former={register.former_id} sync_state_set={sorted(register.sync_state_set)}"
    )
