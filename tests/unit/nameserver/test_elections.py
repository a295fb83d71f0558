"""When the nameserver elects, and whom."""

from __future__ import annotations

from penstock.nameserver.election.elections import BEGIN_S_MAX, FRESH_S, SETTLE_S, Choice, Elections, MemberReport
from penstock.proto.register import Register


def register(master: int = 0, members: tuple[int, ...] = (0, 1, 2), epoch: int = 3) -> Register:
    return Register(
        cluster="c", broker_name="a", epoch=epoch, master_id=master, sync_state_set=frozenset(members), former_id=9
    )


def report(broker_id: int, at: float = 0.0, **fields: object) -> MemberReport:
    values = {
        "epoch": 0,
        "log_epoch": 3,
        "end_offset": 100,
        "hears_master": False,
        "is_acting": False,
        "priority": 10,
        **fields,
    }
    return MemberReport(broker_id=broker_id, heard_at=at, **values)  # type: ignore[arg-type]


def acting(broker_id: int = 0, at: float = 0.0) -> MemberReport:
    return report(broker_id, at, epoch=3, hears_master=True, is_acting=True)


def decided(*reports: MemberReport, known: Register | None = None, now: float = 0.1, unclean: bool = False) -> object:
    elections = Elections()
    elections.decide(known or register(), reports, now - SETTLE_S, unclean_allowed=unclean)
    return elections.decide(known or register(), reports, now, unclean_allowed=unclean)


def test_nobody_is_elected_while_the_master_acts_whatever_slaves_say() -> None:
    assert decided(acting(), report(1), report(2)) is None


def test_a_slave_that_hears_its_master_is_not_elected() -> None:
    assert decided(report(1, hears_master=True), report(2, hears_master=True)) is None
    assert decided(report(1, hears_master=True), report(2)) == Choice(2)


def test_a_master_whose_reports_stopped_counts_as_gone() -> None:
    late = FRESH_S + 0.2
    assert decided(acting(at=0.0), report(1, at=late), now=late) == Choice(1)


def test_nobody_is_elected_at_the_first_word() -> None:
    elections = Elections()
    assert elections.decide(register(), [report(1)], 0.0) is None
    assert elections.decide(register(), [report(1)], SETTLE_S) == Choice(1)


def test_priority_comes_first_then_the_newest_epoch_then_the_longest_log_then_the_id() -> None:
    assert decided(report(1, end_offset=900), report(2, priority=1)) == Choice(2)
    assert decided(report(1, end_offset=900), report(2, log_epoch=4)) == Choice(2)
    assert decided(report(1), report(2, end_offset=1 << 40)) == Choice(2)
    assert decided(report(2), report(1)) == Choice(1)


def test_only_members_of_the_set_are_elected() -> None:
    assert decided(report(2, end_offset=900), known=register(members=(0, 1))) is None


def test_an_unclean_election_is_the_last_resort() -> None:
    known = register(members=(0,))
    assert decided(report(2), report(1, end_offset=900), known=known, unclean=True) == Choice(1, is_unclean=True)
    assert decided(report(2), report(1), known=register(members=(0, 2)), unclean=True) == Choice(2)


def test_a_new_master_has_time_to_begin_as_long_as_it_lives() -> None:
    elections = Elections()
    waiting = [report(0, epoch=4, hears_master=False), report(1)]
    elections.decide(register(epoch=3), [acting()], 0.0)
    after = register(epoch=4)
    for at in (0.0, 0.5, 1.0):
        reports = [each._replace(heard_at=at) for each in waiting]
        assert elections.decide(after, reports, at) is None
    gone = [waiting[1]._replace(heard_at=1.2)]
    assert elections.decide(after, gone, 1.2 + FRESH_S) is None
    gone = [waiting[1]._replace(heard_at=3.0)]
    assert elections.decide(after, gone, 3.0) == Choice(1)
    assert BEGIN_S_MAX > 1.0


def test_the_restarted_only_member_is_elected_again() -> None:
    assert decided(report(0), report(1), known=register(members=(0,))) == Choice(0)


def test_doubtful_members_are_elected_only_when_all_are_there() -> None:
    doubtful = [report(each, is_doubtful=True, end_offset=100 * each, priority=each) for each in range(3)]
    assert decided(*doubtful[:2]) is None
    assert decided(*doubtful) == Choice(2)
    assert decided(*doubtful[1:], report(0, priority=99)) == Choice(0)
