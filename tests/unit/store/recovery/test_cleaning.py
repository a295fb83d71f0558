"""Which files may go: decisions from given ages, sizes, disk use and holds."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.store.recovery.cleaning import (
    HOUR_MS,
    Choice,
    CleaningRules,
    DiskUse,
    FileAge,
    Wish,
    choose,
    hour_of,
    is_writable,
    next_to_go,
)
from penstock.runtime.clock import SteadyClock

RULES = CleaningRules(reserved_ms=72 * HOUR_MS, delete_hours=frozenset({4}))
ENDLESS = 1 << 60


def at(hour: int, day: int = 20) -> int:
    """Milliseconds of a local time."""
    return int(datetime(2026, 3, day, hour, 30).astimezone().timestamp() * 1000)


def aged(*hours: float, now_ms: int) -> list[FileAge]:
    """Files of 100 bytes, the oldest first."""
    return [FileAge(100 * n, 100 * n + 100, round(now_ms - age * HOUR_MS)) for n, age in enumerate(hours)]


def chosen(*hours: float, hour: int = 4, percent: int = 50, rules: CleaningRules = RULES, **limits: object) -> Choice:
    now_ms = at(hour)
    settings: dict[str, object] = {"must_keep": ENDLESS} | limits
    return choose(aged(*hours, now_ms=now_ms), rules, now_ms=now_ms, percent=percent, **settings)  # type: ignore[arg-type]


def test_expired_files_go_in_the_hour_of_deletion_only() -> None:
    assert chosen(100, 80, 71, 1).files == 2
    assert chosen(100, 80, 71, 1, hour=5).files == 0
    several = CleaningRules(delete_hours=frozenset({4, 16}))
    assert [chosen(100, 1, hour=hour, rules=several).files for hour in (3, 4, 5, 16, 17)] == [0, 1, 0, 1, 0]


def test_a_file_is_expired_from_the_reserved_time_on() -> None:
    assert chosen(72, 1).files == 1
    assert chosen(71.999, 1).files == 0


def test_the_last_file_never_goes() -> None:
    assert chosen(500, 400).files == 1
    assert chosen(500).files == 0
    assert chosen(500, percent=99).files == 0
    assert choose([], RULES, now_ms=at(4), percent=99, must_keep=ENDLESS) == Choice(is_forced=True)


@pytest.mark.parametrize(
    ("percent", "files", "forced"), [(75, 0, False), (76, 1, False), (85, 1, False), (86, 3, True), (99, 3, True)]
)
def test_above_each_ratio_more_goes(percent: int, files: int, forced: bool) -> None:
    assert chosen(100, 2, 1, 0, hour=12, percent=percent) == Choice(files, 100 * files, forced)


def test_files_whose_deletion_makes_no_space_are_forced_out_only_before_one_that_does() -> None:
    """The oldest lie in directories without new files."""
    now_ms = at(12)
    files = aged(100, 2, 1, 0, now_ms=now_ms)

    def forced(spared: int) -> Choice:
        old = [file._replace(makes_space=False) for file in files[:spared]]
        return choose([*old, *files[spared:]], RULES, now_ms=now_ms, percent=99, must_keep=ENDLESS)

    assert forced(2) == Choice(3, 300, True)
    assert forced(3) == Choice(1, 100), "all would go for nothing: as without force, the expired ones"


def test_forced_deletion_can_be_forbidden() -> None:
    gentle = CleaningRules(is_forcing=False)
    assert chosen(100, 2, 1, hour=12, percent=95, rules=gentle) == Choice(1, 100)


def test_a_round_ends_at_the_batch_limit_and_at_the_first_file_that_stays() -> None:
    assert chosen(*[100] * 30).files == 10
    assert chosen(100, 1, 100, 100).files == 1


def test_what_the_broker_needs_itself_stays_even_when_the_disk_forces() -> None:
    kept = "not synced, dispatched or in snapshots yet"
    assert chosen(100, 100, 1, must_keep=150) == Choice(1, 100, False, kept)
    assert chosen(100, 100, 1, percent=95, must_keep=99) == Choice(0, 0, True, kept)


def test_a_wish_holds_until_the_disk_forces() -> None:
    wishes = [Wish("a slave", 150), Wish("group g", 120)]
    assert chosen(100, 100, 100, 1, wishes=wishes) == Choice(1, 100, False, "group g")
    assert chosen(100, 100, 100, 1, wishes=wishes, percent=86).files == 3
    assert chosen(100, 100, 100, 1, wishes=[Wish("a slave", 300)]).files == 3


def test_the_next_deletion_is_known_beforehand() -> None:
    def end(hour: int, *ages: float, percent: int = 10) -> int:
        now_ms = at(hour)
        return next_to_go(aged(*ages, now_ms=now_ms), RULES, now_ms=now_ms, percent=percent)

    assert end(12, 100, 60, 50, 1) == 200  # by five in the morning, 16.5 hours from now, the second is old enough
    assert end(4, 100, 71.6, 71.4, 1) == 200  # the hour has begun: until its end
    assert end(12, 100, 60, 50, 1, percent=80) == 100  # within an hour
    assert end(12, 9, 8, 7, percent=90) == 200  # forced: everything but the last
    assert end(12, 500) == 0
    assert next_to_go([], RULES, now_ms=at(1), percent=10) == 0


@given(
    ages=st.lists(st.floats(0, 200), min_size=1, max_size=20).map(lambda ages: sorted(ages, reverse=True)),
    percent=st.integers(0, 100),
    hour=st.integers(0, 23),
    must_keep=st.integers(0, 2000),
    wish=st.integers(0, 2000),
)
def test_no_choice_goes_beyond_what_must_stay(
    ages: list[float], percent: int, hour: int, must_keep: int, wish: int
) -> None:
    now_ms = at(hour)
    files = aged(*ages, now_ms=now_ms)
    wishes = [Wish("w", wish)]
    choice = choose(files, RULES, now_ms=now_ms, percent=percent, must_keep=must_keep, wishes=wishes)
    assert choice.files < len(files)
    assert choice.files <= RULES.files_max
    assert choice.end <= must_keep
    if choice.files:
        assert choice.end == files[choice.files - 1].end
        assert choice.end <= next_to_go(files, RULES, now_ms=now_ms, percent=percent)
    if not choice.is_forced:
        assert choice.end <= wish
        assert all(now_ms - file.modified_ms >= RULES.reserved_ms for file in files[: choice.files])


def test_use_is_rounded_up_as_rocketmq_does() -> None:
    assert DiskUse(750, 250).percent == 75
    assert DiskUse(7501, 2499).percent == 76
    assert DiskUse(0, 10).percent == 0
    assert DiskUse(0, 0).percent == 100


def test_messages_are_refused_above_ninety_and_welcome_again_at_eighty_five() -> None:
    steps = [(90, True), (91, False), (90, False), (86, False), (85, True), (88, True), (95, False)]
    writable = True
    for percent, expected in steps:
        writable = is_writable(writable, percent, RULES)
        assert writable == expected, percent


def test_a_clock_set_forward_ages_nothing_until_it_has_lasted() -> None:
    clock = SteadyClock(1_000_000, 0.0)
    assert clock.now_ms(1_010_000, 10.0) == 1_010_000
    assert clock.now_ms(1_020_000 + HOUR_MS, 20.0) == 1_020_000
    assert clock.now_ms(1_030_000, 30.0) == 1_030_000  # it was a mistake
    late = 40.0
    assert clock.now_ms(1_040_000 + HOUR_MS, late) == 1_040_000
    late += 6 * 3600
    wall = 1_000_000 + round(late * 1000) + HOUR_MS
    assert clock.now_ms(wall, late) == wall


def test_a_clock_set_back_is_followed_at_once() -> None:
    clock = SteadyClock(10 * HOUR_MS, 0.0)
    assert clock.now_ms(9 * HOUR_MS, 1.0) == 9 * HOUR_MS
    assert clock.now_ms(10 * HOUR_MS, 2.0) == 9 * HOUR_MS + 1000


def test_the_hour_is_a_local_one() -> None:
    assert [hour_of(at(hour)) for hour in (0, 4, 23)] == [0, 4, 23]
