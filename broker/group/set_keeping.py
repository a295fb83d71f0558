"""The master's care for its sync-state set: who is in it, who may come in, who has to go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from penstock.proto.errors import CoordinatorUnavailable, PenstockError
from penstock.proto.register import NOBODY, Register
from penstock.replication.leases import MasterLease
from penstock.replication.master.primary import Primary
from penstock.replication.master.standings import Standings
from penstock.replication.master.sync_state_set import SetRules, wanted_set
from penstock.runtime.clock import Clock

from .registers import Registers

log = logging.getLogger(__name__)

CHANGE_PAUSE_S = 0.2


@dataclass(eq=False)
class SetKeeper:
    """Keeps the set of one broker while it is master; event loop only.

    ``on_answer(register, coordinator, asked at)`` is told what a change has made. ``on_failure(said, version)``: why
    one was not; the register is in that version by now, or nobody knows (0).
    """

    broker_id: int
    registers: Registers
    rules: SetRules
    behind_ms_max: int
    clock: Clock
    on_answer: Callable[[Register, str, float], None]
    on_failure: Callable[[str, int], None]

    def __post_init__(self) -> None:
        self._standings = Standings()  # of the slaves, in this mastership
        self._tried: tuple[int, frozenset[int]] = (0, frozenset())  # a change whose fate is unknown: version, members
        self._changing: asyncio.Task[None] | None = None  # set by `keep`, cleared by the task itself as its last act
        self._not_before = 0.0

    def needed(self, members: frozenset[int]) -> int:
        """How many of a set of these must have what is acknowledged."""
        return self.rules.needed(len(members))

    def begin(self) -> None:
        """A mastership begins."""
        self._standings = Standings()

    def on_register(self, version: int) -> None:
        """The register was seen in this version."""
        if self._tried[0] != version:
            self._tried = (0, frozenset())  # the version has moved on: what was tried was done, or never will be

    def require(self, primary: Primary, lease: MasterLease, register: Register) -> None:
        """Wait for everybody who may be in the set."""
        members = register.sync_state_set | self._tried[1]
        lease.require(members)
        primary.require(members, self.needed(register.sync_state_set))

    def keep(self, primary: Primary, lease: MasterLease, register: Register, end: int) -> None:
        """Begin a change of the set, if it is not what it should be; ``end``: of the log."""
        now = self.clock.monotonic_s()
        if self._changing is not None or now < self._not_before or not lease.is_valid(now):
            return
        wanted = wanted_set(
            self.broker_id,
            register.sync_state_set,
            self._standings.at(now, primary.observed(), end, lease.silent(now)),
            self.rules,
            behind_ms_max=self.behind_ms_max,
            replaced_id=NOBODY if register.handed_over else register.former_id,
        )
        if wanted == register.sync_state_set and not self._tried[1]:
            return
        self._tried = (register.version, self._tried[1] | wanted)
        self.require(primary, lease, register)
        self._not_before = now + CHANGE_PAUSE_S
        self._changing = asyncio.create_task(self._change(register, wanted), name="change sync-state set")

    async def settled(self) -> None:
        """Return when no change is under way."""
        if self._changing is not None:
            await asyncio.wait((self._changing,))

    async def close(self) -> None:
        """Give up a change that is under way."""
        if self._changing is not None:
            self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)

    async def _change(self, register: Register, wanted: frozenset[int]) -> None:
        asked_at = self.clock.monotonic_s()
        try:
            answer, coordinator = await self.registers.change_set(register, wanted)
        except PenstockError as error:
            newer = 0 if isinstance(error, CoordinatorUnavailable) else register.version + 1
            said = f"sync-state set not changed to {sorted(wanted)}: {type(error).__name__}: {error}"
            self.on_failure(said, newer)
            return
        finally:
            self._changing = None
        log.info("sync-state set from=%s to=%s", sorted(register.sync_state_set), sorted(answer.sync_state_set))
        self.on_answer(answer, coordinator, asked_at)
