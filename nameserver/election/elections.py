"""When a broker group needs another master, and which member that should be. Pure: the time is passed in.

This decides what is *wise*, never what is safe: whether a change of master may be is decided by the register's
compare-and-set, and when the new one may act by itself (``replication/leases.py``). So a nameserver that knows too
little, or that has just stood still, can at worst cause a change of master that was not needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from penstock.proto.register import Register

FRESH_S = 1.0
"""A report older than this says nothing of now."""
BEGIN_S_MAX = 2.5
"""A new master that lives and has not begun to act so long after its election is replaced."""
SETTLE_S = 0.03
"""How long a group must be without a master before one is elected, while a member may still say that it hears one."""
DEAF_S = 0.5
"""How long a member must have heard no master, without a break, to be elected in place of one that lives."""


class MemberReport(NamedTuple):
    """What one living member last said."""

    broker_id: int
    heard_at: float
    epoch: int  # in which it is master, or about to begin; 0: a slave, or just started
    log_epoch: int  # the newest in its log
    end_offset: int
    hears_master: bool
    is_acting: bool  # is master, has the right to act, and enough members to acknowledge
    priority: int  # brokerElectionPriority: the smaller, the rather
    is_doubtful: bool = False  # its log may have lost acknowledged bytes in a power cut


@dataclass(frozen=True, slots=True)
class Choice:
    """Elect ``candidate``; ``is_unclean``: from outside the set."""

    candidate: int
    is_unclean: bool = False


class Elections:
    """What this nameserver watched of one broker group, whose register was in ``epoch`` before; -1: nobody looked."""

    def __init__(self, epoch: int = -1) -> None:
        self._epoch = epoch
        self._epoch_since = -math.inf
        self._headless_since: float | None = None
        self._acted = -1  # the epoch in which this nameserver last heard the master act
        self._deaf_since: dict[int, float] = {}  # members that say they hear no master -> since when, without a break

    def decide(
        self, register: Register, reports: Collection[MemberReport], now: float, *, unclean_allowed: bool = False
    ) -> Choice | None:
        """The member to elect now, or None. Ask again at every report and every few hundredths of a second."""
        if register.epoch != self._epoch:
            self._epoch_since = -math.inf if self._epoch < 0 else now  # one that was there before is not new
            self._epoch = register.epoch
        fresh = {report.broker_id: report for report in reports if now - report.heard_at <= FRESH_S}
        self._deaf_since = {
            member: self._deaf_since.get(member, report.heard_at)
            for member, report in fresh.items()
            if not report.hears_master
        }
        if not self._is_headless(register, fresh, now):
            self._headless_since = None
            return None
        if self._headless_since is None:
            self._headless_since = now
        if now - self._headless_since < SETTLE_S and not self._is_lost(register, fresh):
            return None
        return choose(register, self._of_now(register, fresh), unclean_allowed=unclean_allowed)

    def _is_lost(self, register: Register, fresh: dict[int, MemberReport]) -> bool:
        """True if the master acted in its epoch and is gone, and every other member of the set hears none."""
        others = register.sync_state_set - {register.master_id}
        return self._acted == register.epoch and register.master_id not in fresh and others <= self._deaf_since.keys()

    def _of_now(self, register: Register, fresh: dict[int, MemberReport]) -> dict[int, MemberReport]:
        """``fresh`` without those who may hear the master by now, and have not told yet.

        A living master that lacks members takes in one that has just come back, thawed for instance, within a few
        tries to connect. What that one said before is no reason to replace the master, which then acts.
        """
        master = fresh.get(register.master_id)
        if master is None or master.epoch != register.epoch:
            return fresh
        return {
            member: report
            for member, report in fresh.items()
            if member not in self._deaf_since or report.heard_at - self._deaf_since[member] >= DEAF_S
        }

    def _is_headless(self, register: Register, fresh: dict[int, MemberReport], now: float) -> bool:
        master = fresh.get(register.master_id)
        if master is None:
            return True
        if master.epoch == register.epoch and master.is_acting:
            self._acted = register.epoch
            return False
        # The one just elected waits out promises before it begins; it is given the time for that, as long as it lives.
        return now - self._epoch_since >= BEGIN_S_MAX


def choose(register: Register, fresh: dict[int, MemberReport], *, unclean_allowed: bool) -> Choice | None:
    """The best living member that does not hear its master, or None.

    Order: ``brokerElectionPriority``, then the newest epoch and the longest log, then the smaller id. Members whose
    log may have lost something are elected only when all members of the set are there to compare, and none is better.
    """
    deaf = [report for report in fresh.values() if not report.hears_master]
    members = [report for report in deaf if report.broker_id in register.sync_state_set]
    sure = [report for report in members if not report.is_doubtful]
    if sure:
        return Choice(min(sure, key=_by_priority).broker_id)
    if members and len(members) == len(register.sync_state_set):
        return Choice(min(members, key=_by_length).broker_id)
    if unclean_allowed and deaf:
        return Choice(min(deaf, key=_by_length).broker_id, is_unclean=True)
    return None


def _by_priority(report: MemberReport) -> tuple[int, int, int, int]:
    return report.priority, -report.log_epoch, -report.end_offset, report.broker_id


def _by_length(report: MemberReport) -> tuple[int, int, int, int]:
    return -report.log_epoch, -report.end_offset, report.priority, report.broker_id
