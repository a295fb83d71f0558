"""Since when a slave has not had everything, as the master's log grows away from it or is reached."""

from __future__ import annotations

from penstock.replication.master.progress import ReplicaProgress
from penstock.replication.master.standings import Standings
from penstock.replication.master.sync_state_set import Standing


class Followers:
    """A primary of one slave, whose progress a test sets."""

    def __init__(self, **progress: object) -> None:
        self.slave = ReplicaProgress(2, "127.0.0.1:1", in_sync=True, **progress)  # type: ignore[arg-type]
        self.has_confirmed = True

    def replicas(self) -> list[ReplicaProgress]:
        return [self.slave]

    def is_level(self, replica: ReplicaProgress) -> bool:
        return self.has_confirmed

    def has(self, replica: ReplicaProgress, end: int) -> bool:
        return self.has_confirmed and replica.written >= end


def stand(standings: Standings, primary: Followers, now: float, end: int, silent: tuple[int, ...] = ()) -> Standing:
    (found,) = standings.at(now, primary, end, silent)
    return found


def test_a_slave_is_behind_since_the_mark_that_it_reached_last() -> None:
    standings, primary = Standings(), Followers()
    assert stand(standings, primary, 10.0, 100) == Standing(2, False, True, 0.0)
    primary.slave.written = 99
    assert stand(standings, primary, 11.0, 200).behind_ms == 1000
    primary.slave.written = 100  # what the log had at 10 seconds: a new mark, of now
    assert stand(standings, primary, 12.0, 300).behind_ms == 2000
    primary.slave.written = 299
    assert stand(standings, primary, 13.0, 400).behind_ms == 3000
    primary.slave.written = 300
    assert stand(standings, primary, 14.0, 500).behind_ms == 2000


def test_a_slave_that_lacks_what_is_confirmed_reaches_no_mark() -> None:
    standings, primary = Standings(), Followers(written=100)
    primary.has_confirmed = False
    for now in (1.0, 2.0, 3.0):
        found = stand(standings, primary, now, 100)
    assert (found.is_level, found.behind_ms) == (False, 2000)


def test_who_has_everything_again_is_behind_no_more() -> None:
    standings, primary = Standings(), Followers()
    stand(standings, primary, 1.0, 100)
    assert stand(standings, primary, 50.0, 200).behind_ms == 49_000
    primary.slave.written = 300
    assert stand(standings, primary, 51.0, 300).behind_ms == 0


def test_who_is_gone_or_not_heard_is_silent() -> None:
    primary = Followers()
    assert stand(Standings(), primary, 1.0, 0, silent=(2,)).is_silent
    assert not stand(Standings(), primary, 1.0, 0, silent=(3,)).is_silent
    primary.slave.connected = False
    assert stand(Standings(), primary, 1.0, 0).is_silent


def test_who_is_forgotten_by_the_master_leaves_no_mark() -> None:
    """Strangers choose their ids; the master's own table of them is bounded."""
    standings, primary = Standings(), Followers()
    for stranger in range(1000):
        primary.slave.broker_id = stranger
        stand(standings, primary, 1.0, 100)
    assert list(standings._marks) == [999]
