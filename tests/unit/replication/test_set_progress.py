"""What is confirmed where masters are elected: what every member that may be in the set has."""

from __future__ import annotations

from penstock.proto.register import NOBODY
from penstock.replication.config import ReplicationConfig
from penstock.replication.master.progress import Progress
from penstock.replication.master.standings import Standings
from penstock.replication.master.sync_state_set import SetRules, wanted_set

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


def test_a_slave_that_follows_closely_stays_though_an_asynchronous_master_is_always_ahead() -> None:
    progress = Progress(ReplicationConfig(), end=0, flushed=0, confirm=0, others=frozenset((1,)), needed=1)
    slave, standings = progress.connect(1, "h:1", 0, 0.0), Standings()
    for second in range(60):
        slave.sent = 100 * second
        progress.on_end(100 * second + 100, second)
        progress.on_ack(slave, slave.sent, slave.sent, second)
        progress.refresh(second)
        assert not progress.is_level(slave)
        found = standings.at(second, progress, progress.end, ())
        assert wanted_set(0, (0, 1), found, SetRules(), behind_ms_max=15_000) == {0, 1}, second


def begun(flush_acknowledged: bool = False) -> Progress:
    """Broker 1 begins alone: its log ends at 1000, and as a slave it had heard that 950 is confirmed."""
    config = ReplicationConfig(sync=True, flush_acknowledged=flush_acknowledged)
    return Progress(config, end=1000, flushed=1000, confirm=950, epoch_start=1000, others=frozenset(), needed=2)


def joined(progress: Progress, end: int) -> frozenset[int]:
    """The set that the new master asks for when it ends at ``end``, and its slave, broker 2, is in sync."""
    progress.refresh(0.0)
    return wanted_set(1, (1,), Standings().at(0.0, progress, end, ()), SetRules(2, 1), behind_ms_max=15_000)


def test_a_new_master_takes_in_who_has_what_earlier_masters_acknowledged() -> None:
    progress = begun()
    slave = progress.connect(2, "h:2", 960, 0.0)
    progress.on_ack(slave, 960, 960, 0.0)
    assert not progress.is_level(slave)
    assert joined(progress, 1000) == {1}
    progress.on_end(1200, 0.0)  # what this master appends, it has not acknowledged
    slave.sent = 1000
    progress.on_ack(slave, 1000, 1000, 0.0)
    assert progress.is_level(slave)
    assert joined(progress, 1200) == {1, 2}


def test_where_only_synced_bytes_count_the_written_ones_make_nobody_level() -> None:
    progress = begun(flush_acknowledged=True)
    slave = progress.connect(2, "h:2", 1000, 0.0)
    progress.on_ack(slave, 1000, 960, 0.0)
    assert (progress.is_level(slave), joined(progress, 1000)) == (False, {1})
    progress.on_ack(slave, 1000, 1000, 0.0)
    assert (progress.is_level(slave), joined(progress, 1000)) == (True, {1, 2})


def test_the_set_is_waited_for_from_the_first_moment() -> None:
    config = ReplicationConfig(sync=True)
    alone = Progress(config, end=100, flushed=100, confirm=10, others=frozenset(), needed=1)
    assert (alone.confirm, alone.has_enough()) == (100, True)
    progress = Progress(config, end=100, flushed=100, confirm=10, others=frozenset((1, 2)), needed=2)
    progress.connect(1, "h:1", 0, 0.0).sent = 100
    ack(progress, 1, 100)
    assert progress.confirm == 10, "broker 2 may be elected"


def elected(others: frozenset[int] = frozenset((0,)), *, source: int = 0, flush_acknowledged: bool = False) -> Progress:
    """Broker 1 begins in place of broker 0: its log ends at 1000, and it had heard that 950 is confirmed."""
    config = ReplicationConfig(sync=True, flush_acknowledged=flush_acknowledged)
    return Progress(
        config, end=1000, flushed=1000, confirm=950, epoch_start=1000, others=others, needed=2, source=source
    )


def test_what_the_former_master_shipped_is_confirmed_at_once_and_nothing_beyond_it() -> None:
    progress = elected()
    assert progress.confirm == 1000
    assert not progress.on_end(1200, 0.0)
    assert not progress.require(1, frozenset((0, 1)), 2)
    assert progress.confirm == 1000
    assert not progress.has_enough(), "it is not there to acknowledge what comes now"


def test_without_a_source_or_where_only_synced_bytes_count_the_former_master_is_waited_for() -> None:
    assert elected(source=NOBODY).confirm == 950
    assert elected(flush_acknowledged=True).confirm == 950, "it may have shipped what it had not synced"


def test_a_set_that_is_too_small_confirms_nothing_on_the_former_masters_word() -> None:
    progress = elected(frozenset())
    assert progress.confirm == 950
    assert progress.require(1, frozenset((0, 1)), 2)
    assert progress.confirm == 1000


def test_the_living_members_must_have_it_themselves() -> None:
    progress = elected(frozenset((0, 2)))
    assert progress.confirm == 950
    living = progress.connect(2, "h:2", 0, 0.0)
    living.sent = 1000
    progress.on_ack(living, 970, 970, 0.0)
    assert progress.confirm == 970
    progress.disconnect(living, "gone")
    assert not progress.on_end(1200, 0.0), "another member than the former master counts only while it is there"
    living = progress.connect(2, "h:2", 970, 1.0)
    living.sent = 1200
    progress.on_ack(living, 1200, 1200, 1.0)
    assert progress.confirm == 1000


def test_a_former_master_that_comes_back_counts_by_what_it_says_and_never_by_its_past_again() -> None:
    progress = elected(frozenset((0, 2)))
    former = progress.connect(0, "h:0", 960, 0.0)
    living = progress.connect(2, "h:2", 1000, 0.0)
    progress.on_ack(living, 1000, 1000, 0.0)
    assert progress.confirm == 950, "its hello is a claim, and a smaller one"
    progress.on_ack(former, 960, 960, 0.0)
    assert progress.confirm == 960
    progress.disconnect(former, "gone")
    progress.forget(0)
    assert not progress.on_end(1100, 0.0)
    assert progress.confirm == 960
    former = progress.connect(0, "h:0", 960, 1.0)
    former.sent = living.sent = 1100
    progress.on_ack(living, 1100, 1100, 1.0)
    progress.on_ack(former, 1100, 1100, 1.0)
    assert progress.confirm == 1100


def test_what_is_confirmed_stays_when_the_former_master_comes_with_less() -> None:
    progress = elected()
    former = progress.connect(0, "h:0", 960, 0.0)
    progress.on_ack(former, 960, 960, 0.0)
    assert progress.confirm == 1000
    assert not progress.is_level(former), "so it may not be taken in anew"
