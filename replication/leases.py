"""The right to act as master, and the promises that it rests on: decisions of ``docs/internals/failover-protocol.md``.

Pure. All times are seconds of the caller's own monotonic clock; no time of another machine is ever compared.

A member that answers its master *promises*: for the lease time it does not begin to act in another epoch. The master
counts from the sending of what was answered, and a shorter time, so that it is done first even when its clock is slow
and the member's fast. The member need not count at all: elected, it answers no more, and waits one lease from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from penstock.proto.register import NOBODY, Register

LEASE_S = 0.75
CLOCK_DRIFT_MAX = 0.1
"""Clocks of two machines may go up to so much faster or slower than they should."""
HEARD_MAX = 64
"""Answers of so many slaves are remembered: strangers choose their ids, so their number must be bounded."""


def master_share_s(lease_s: float) -> float:
    """The seconds that a master may count on a promise of ``lease_s``: they end first on any two clocks."""
    return lease_s * (1 - CLOCK_DRIFT_MAX) / (1 + CLOCK_DRIFT_MAX)


def begins_at(register: Register, own_id: int, learned_at: float, *, began: int, lease_s: float = LEASE_S) -> float:
    """The time from which the new master of ``register`` may act, if it read the register at ``learned_at``.

    From reading on it answers no older master. So when a lease has gone by, everybody else's right to act has ended:
    the former master's by its members' promises, because this member was one of them; and by the coordinator's
    confirmation, because that was given before the register changed. Nothing need be waited out when there was no
    former master, when it had ended its epoch before it handed over, and when it was this broker itself: but only if
    it has begun in that epoch, as its log then tells (``began``, the newest epoch of the own log). One that was elected
    and never began has waited for nobody.
    """
    assert register.master_id == own_id
    was_itself = register.former_id == own_id and began == register.epoch - 1
    if was_itself or register.former_id == NOBODY or register.handed_over:
        return learned_at
    return learned_at + lease_s


class MasterLease:
    """The time until which the master of one epoch may act."""

    def __init__(
        self, own_id: int, members: Iterable[int], *, lease_s: float = LEASE_S, needs_coordinator: bool = False
    ) -> None:
        """``needs_coordinator``: members do not count, since others than members may be elected too."""
        self._own_id = own_id
        self._share_s = master_share_s(lease_s)
        self._needs_coordinator = needs_coordinator
        self._heard: dict[int, float] = {}  # of the slaves heard last: who joins the set has answered before
        self._members: dict[int, float] = {}
        self._coordinator = -math.inf
        self.require(members)

    def require(self, members: Iterable[int]) -> None:
        """The sync-state set as it is, or may have become: each of them but the master must confirm."""
        self._members = {member: self._heard.get(member, -math.inf) for member in members if member != self._own_id}

    def on_member(self, member: int, sent_at: float) -> None:
        """A slave, ``member`` or not yet, has answered, in this epoch, what was sent to it at ``sent_at``."""
        if member not in self._heard and len(self._heard) >= HEARD_MAX:
            del self._heard[min(self._heard, key=self._heard.__getitem__)]
        heard = self._heard[member] = max(self._heard.get(member, -math.inf), sent_at)
        if member in self._members:
            self._members[member] = heard

    def on_coordinator(self, asked_at: float) -> None:
        """The register, asked for at ``asked_at``, showed this master and epoch."""
        self._coordinator = max(self._coordinator, asked_at)

    @property
    def until(self) -> float:
        """The end of the right to act; infinite for the only member of its set, whom nobody can replace."""
        if self._needs_coordinator:
            return self._coordinator + self._share_s
        members = min(self._members.values(), default=math.inf)
        return max(members, self._coordinator) + self._share_s

    def is_valid(self, now: float) -> bool:
        """True if the master may act now."""
        return now < self.until

    def silent(self, now: float) -> list[int]:
        """The members whose last confirmation has run out."""
        return sorted(member for member, heard in self._members.items() if now >= heard + self._share_s)
