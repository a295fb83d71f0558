"""Who is in the sync-state set, as its master wants it; the coordinator store has the last word. Pure.

Every member of the set has everything that is acknowledged, so any of them may be elected. The master keeps that
true by waiting for all of them: for the union of what the set is and what it may be while a change is under way.

| Event | The master wants |
|---|---|
| a member answers nothing for the lease time | it out |
| a member is behind for ``haMaxTimeSlaveNotCatchup`` without a break | it out |
| a slave has everything acknowledged in this epoch or before, and is no learner | it in |

It asks nobody to leave whom it needs: a set smaller than ``inSyncReplicas`` acknowledges nothing anyway, and the
members that are left out could not be elected in its place. When an elected master begins, no slave has come to it
yet: so long only the former master, which was replaced because it was gone, is asked to leave.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.proto.register import NOBODY


class SetRules(NamedTuple):
    """``inSyncReplicas``, ``minInSyncReplicas``, ``enableAutoInSyncReplicas``; all 1 without SYNC_MASTER."""

    in_sync_replicas: int = 1
    min_in_sync_replicas: int = 1
    is_auto: bool = False

    def needed(self, members: int) -> int:
        """The number of brokers that must have a byte while the set has ``members``.

        RocketMQ's rule: with ``enableAutoInSyncReplicas`` a smaller set is enough, down to ``minInSyncReplicas``.
        """
        if not self.is_auto:
            return self.in_sync_replicas
        return max(min(self.in_sync_replicas, members), self.min_in_sync_replicas)

    @property
    def smallest(self) -> int:
        """The smallest set that acknowledges anything."""
        return min(self.min_in_sync_replicas, self.in_sync_replicas) if self.is_auto else self.in_sync_replicas


class Standing(NamedTuple):
    """One slave as its master sees it now."""

    broker_id: int
    is_silent: bool  # no answer for the lease time, or none at all
    is_level: bool  # has everything acknowledged, by this master or one before it, as it said on this connection
    behind_ms: float  # for how long it has not been level with the master
    is_learner: bool = False


def wanted_set(
    own_id: int,
    members: Iterable[int],
    slaves: Iterable[Standing],
    rules: SetRules,
    *,
    behind_ms_max: int,
    replaced_id: int = NOBODY,
) -> frozenset[int]:
    """The set that the master should ask for; the present one if nothing is to change.

    ``replaced_id``: the former master, if it did not hand over.
    """
    now = frozenset(members)
    standing = {slave.broker_id: slave for slave in slaves}
    joining = {
        slave.broker_id
        for slave in standing.values()
        if slave.broker_id not in now and slave.is_level and not slave.is_silent and not slave.is_learner
    }
    leaving = {
        member
        for member in now - {own_id}
        if member not in standing or standing[member].is_silent or standing[member].behind_ms > behind_ms_max
    }
    for leave in (leaving, leaving & {replaced_id}):
        if len(now | joining) - len(leave) >= min(rules.smallest, len(now)):
            return (now | joining) - leave
    return now | joining
