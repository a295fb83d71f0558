"""What is confirmed where masters are elected: what every member that may be in the set has."""

from __future__ import annotations

from penstock.replication.config import ReplicationConfig
from penstock.replication.master.progress import Progress

ALL = frozenset((0, 1, 2))


def table(members: frozenset[int] = ALL, needed: int = 2) -> Progress:
    made = Progress(ReplicationConfig(sync=True), end=100, flushed=100, confirm=10)
    made.require(0, members, needed)
    for each in (1, 2):
        made.connect(each, f"h:{each}", 0, 0.0).sent = 100
    return made


def ack(progress: Progress, broker_id: int, end: int) -> None:
    replica = next(each for each in progress.replicas() if each.broker_id == broker_id)
    progress.on_ack(replica, end, end, 0.0)


def test_two_of_three_are_not_enough_while_the_third_may_be_elected() -> None:
    progress = table()
    ack(progress, 1, 100)
    assert progress.confirm == 10
    ack(progress, 2, 60)
    assert progress.confirm == 60
    assert progress.require(0, frozenset((0, 1)), 2)
    assert progress.confirm == 100


def test_a_set_below_the_number_needed_confirms_nothing() -> None:
    progress = table(frozenset((0,)))
    assert progress.confirm == 10
    assert not progress.has_enough()
    assert progress.require(0, frozenset((0,)), 1)
    assert progress.confirm == 100


def test_a_slave_outside_the_set_counts_only_from_when_it_may_join() -> None:
    progress = table(frozenset((0, 1)))
    ack(progress, 2, 100)
    assert progress.confirm == 10
    progress.require(0, ALL, 2)
    ack(progress, 1, 90)
    assert progress.confirm == 90


def test_a_member_that_left_the_stream_holds_everything_back() -> None:
    progress = table()
    ack(progress, 1, 100)
    ack(progress, 2, 50)
    gone = next(each for each in progress.replicas() if each.broker_id == 2)
    progress.disconnect(gone, "gone")
    progress.on_flushed(100)
    assert progress.confirm == 50


def test_a_slave_is_level_when_waiting_for_it_takes_nothing_back() -> None:
    progress = table(frozenset((0, 1)))
    ack(progress, 1, 40)
    slave = next(each for each in progress.replicas() if each.broker_id == 2)
    assert (progress.confirm, progress.is_level(slave)) == (40, False)
    ack(progress, 2, 40)
    assert progress.is_level(slave)
