"""How far each replica is, who is in sync, and up to where the log is confirmed.

Pure decisions: positions and times come in, numbers go out. Times are seconds of a monotonic clock.

A broker *has* a byte when it has written it, or, with ``flush_acknowledged``, when it has synced it. A slave with
``SYNC_FLUSH`` has what it has synced whatever its master's mode is, since it does not say after a loss of power that
it may lack the rest. With ``sync`` the confirm offset is the largest offset that the master and
``in_sync_replicas - 1`` connected slaves have; without, what the master has. Learners never count. The confirm offset
never goes back, because what was confirmed was acknowledged to producers and seen by consumers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.proto.errors import InvalidArgument
from penstock.proto.register import NOBODY

from ..config import ReplicationConfig


@dataclass(slots=True)
class ReplicaProgress:
    """One slave as its master knows it. Positions of a stream that has ended are the last ones heard."""

    broker_id: int
    address: str
    learner: bool = False  # gets everything and never counts
    syncs: bool = False  # has what it has synced, whatever the master counts of others
    connected: bool = True
    has_acked: bool = False  # on this stream; until then its positions are only what its hello claimed
    in_sync: bool = False
    sent: int = 0  # end of what was put on the stream
    stamped: int = 0  # stamp of the newest frame put on the stream
    written: int = 0
    flushed: int = 0
    lag_bytes: int = 0  # to the master's end
    acked_at: float = 0.0  # last report of any kind
    moved_at: float = 0.0  # last time it came forward, or had everything
    left_because: str = ""  # why the last stream ended

    @property
    def in_flight(self) -> int:
        """Bytes sent and not acknowledged: what the window bounds."""
        return self.sent - self.written


def confirmed_end(master: int, replicas: Iterable[int], replicas_needed: int) -> int:
    """The largest offset that the master and at least ``replicas_needed`` of the replicas have; 0 when too few."""
    if replicas_needed == 0:
        return master
    positions = sorted(replicas, reverse=True)
    if len(positions) < replicas_needed:
        return 0
    return min(master, positions[replicas_needed - 1])


def level_from(confirm: int, epoch_start: int) -> int:
    """From where on a log has everything acknowledged: by this epoch's master below ``confirm``, by those before it
    below the epoch's start.

    A new master's confirm offset alone is too low. It is what this broker once heard, and earlier masters may have
    acknowledged more: as far as its log reached when it began.
    """
    return max(confirm, epoch_start)


class Progress:
    """The master's table of slaves.

    Where masters are elected (``others``, :meth:`require`), a byte is confirmed when *every* member of the
    sync-state set has it and the set has enough members: see ``docs/internals/failover-protocol.md``.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        *,
        end: int,
        flushed: int,
        confirm: int,
        epoch_start: int = 0,
        others: frozenset[int] | None = None,
        needed: int = 0,
        source: int = NOBODY,
    ) -> None:
        """``confirm`` is known to be confirmed already, from before a restart; ``epoch_start``: the end of the log when
        this master began.

        ``others``: where masters are elected, who may be in the set beside the master; ``needed`` as in
        :meth:`require`. ``source``: the former master, if this log is from it up to ``epoch_start``
        (:meth:`Register.source_of`); it has all of that, until it comes and says itself what it has.
        """
        assert 0 <= confirm <= end, f"confirm offset {confirm} beyond the end {end}"
        self._config = config
        self._replicas: dict[int, ReplicaProgress] = {}
        self.end = end
        self._flushed = flushed
        self.confirm = confirm
        self._epoch_start = epoch_start
        self._required = others
        self._needed = config.replicas_needed + 1 if others is None else needed
        # Where only synced bytes count it may have shipped what it had not synced, and then lost.
        self._source = NOBODY if config.flush_acknowledged else source
        self._raise_confirm()

    def require(self, own_id: int, members: frozenset[int], needed: int) -> bool:
        """From now on ``members`` are those who may be in the set, and ``needed`` of them, at least, must be.

        Returns True if the confirm offset advanced. The master itself, ``own_id``, counts as one.
        """
        self._required, self._needed = members - {own_id}, needed
        return self._raise_confirm()

    def on_end(self, end: int, now: float) -> bool:
        """Note that the master's log grew to ``end``. Returns True if the confirm offset advanced."""
        assert end >= self.end, f"the log went back from {self.end} to {end}"
        for replica in self._replicas.values():
            if self._position(replica) >= self.end:
                replica.moved_at = now  # it was level until now: from here on it has time to follow
            replica.lag_bytes = end - replica.written
        self.end = end
        return self._raise_confirm()

    def on_flushed(self, flushed: int) -> bool:
        """Note that the master synced up to ``flushed``. Returns True if the confirm offset advanced."""
        self._flushed = max(self._flushed, flushed)
        return self._raise_confirm()

    def connect(
        self, broker_id: int, address: str, start: int, now: float, *, learner: bool = False, syncs: bool = False
    ) -> ReplicaProgress:
        """A slave's stream begins at ``start``. It counts from its first acknowledgement on, a learner never."""
        replica = ReplicaProgress(
            broker_id,
            address,
            learner,
            syncs,
            sent=start,
            written=start,
            lag_bytes=max(0, self.end - start),
            acked_at=now,
            moved_at=now,
        )
        self._replicas[broker_id] = replica
        if broker_id == self._source:
            self._source = NOBODY  # for good: what it says from here on is newer than what follows from its past
        return replica

    def disconnect(self, replica: ReplicaProgress, because: str) -> None:
        """Note that a slave's stream ended. The slave counts no more; what it confirmed stays confirmed."""
        replica.connected = False
        replica.in_sync = False
        replica.left_because = because

    def forget(self, broker_id: int) -> None:
        """Drop a disconnected slave from the table."""
        assert not self._replicas[broker_id].connected
        del self._replicas[broker_id]

    def on_ack(self, replica: ReplicaProgress, written: int, flushed: int, now: float) -> bool:
        """Note an acknowledgement. Returns True if the confirm offset advanced.

        Raises:
            InvalidArgument: it is beyond what was sent, or goes back; nothing changed.
        """
        name = f"replica {replica.broker_id} at {replica.address}"
        if written > replica.sent:
            raise InvalidArgument(f"{name} acknowledged {written}, only {replica.sent} was sent")
        if flushed > written:
            raise InvalidArgument(f"{name} acknowledged {flushed} as synced and only {written} as written")
        if written < replica.written or flushed < replica.flushed:
            raise InvalidArgument(
                f"{name} went back from written {replica.written} synced {replica.flushed} "
                f"to written {written} synced {flushed}"
            )
        before = self._position(replica)
        replica.written, replica.flushed, replica.has_acked = written, flushed, True
        replica.lag_bytes = max(0, self.end - written)  # a commit may be ahead of on_end
        replica.acked_at = now
        if self._position(replica) > before or self._position(replica) >= self.end:
            replica.moved_at = now
        return self._raise_confirm()

    def refresh(self, now: float) -> list[ReplicaProgress]:
        """Decide who is in sync at ``now``. Returns the slaves for which the answer changed."""
        changed = []
        for replica in self._replicas.values():
            in_sync = self._is_in_sync(replica, now)
            if in_sync != replica.in_sync:
                replica.in_sync = in_sync
                changed.append(replica)
        return changed

    def has_enough(self) -> bool:
        """True if enough slaves were in sync at the last :meth:`refresh` for appends to be confirmed."""
        if self._required is not None:
            in_sync = sum(self._replicas[member].in_sync for member in self._required if member in self._replicas)
            return 1 + in_sync >= self._needed
        return sum(replica.in_sync for replica in self._replicas.values()) >= self._config.replicas_needed

    def needed_from(self, now: float, patience_s: float) -> int | None:
        """The lowest offset that a slave still has to get or to sync, or None.

        A slave that left counts for ``patience_s``: it is probably being restarted.
        """
        return min(
            (
                replica.flushed if replica.has_acked else replica.written
                for replica in self._replicas.values()
                if replica.connected or now - replica.acked_at <= patience_s
            ),
            default=None,
        )

    def replicas(self) -> list[ReplicaProgress]:
        """Every slave ever connected and not forgotten, by id."""
        return [self._replicas[broker_id] for broker_id in sorted(self._replicas)]

    def _is_in_sync(self, replica: ReplicaProgress, now: float) -> bool:
        timeout_s = self._config.replica_timeout_ms / 1000
        return (
            replica.connected
            and not replica.learner
            and replica.has_acked
            and now - replica.acked_at <= timeout_s
            and replica.lag_bytes <= self._config.gap_bytes_max
            and (self._position(replica) >= self.end or now - replica.moved_at <= timeout_s)
        )

    def _position(self, replica: ReplicaProgress) -> int:
        if not replica.has_acked:
            return 0
        return replica.flushed if self._config.flush_acknowledged or replica.syncs else replica.written

    def _raise_confirm(self) -> bool:
        master = min(self._flushed, self.end) if self._config.flush_acknowledged else self.end
        if self._required is None or not self._config.sync:
            counted = (self._position(each) for each in self._replicas.values() if each.connected and not each.learner)
            confirmed = confirmed_end(master, counted, self._config.replicas_needed)
        elif len(self._required) + 1 >= self._needed:
            confirmed = min([master, *map(self._had_by, self._required)])
        else:
            return False
        if confirmed <= self.confirm:
            return False
        self.confirm = confirmed
        return True

    def _had_by(self, member: int) -> int:
        """Up to where a member has the log, as far as is known.

        The former master, while it is away, has what this log got from it. It ships nothing that is not in its own
        log's files, and would have confirmed it at the answer that it did not live to hear. If its machine has lost
        power since, it says so when it comes back, and is elected only in comparison with the others: that is so for
        what it acknowledged too.
        """
        if member == self._source:
            return self._epoch_start
        replica = self._replicas.get(member)
        return self._position(replica) if replica is not None and replica.connected else 0

    def is_level(self, replica: ReplicaProgress) -> bool:
        """True if the slave has everything acknowledged, by this master or an earlier one, and so may be elected."""
        return self.has(replica, self.confirm)

    def has(self, replica: ReplicaProgress, end: int) -> bool:
        """True if the slave has the log below ``end``, and what was there when this master began."""
        wanted = level_from(end, self._epoch_start)
        return replica.connected and replica.has_acked and self._position(replica) >= wanted
