"""Clocks that are set: what is believed of them, when, and who is told."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.runtime import clock as clocks
from penstock.runtime.clock import BELIEVED_S, DueClock
from tests.support.clock import ManualClock
from tests.support.waiting import eventually

START = 1_700_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


@pytest.mark.parametrize(("jump_ms", "lasting_s"), [(2 * MINUTE_MS, 12), (HOUR_MS, 360), (24 * HOUR_MS, BELIEVED_S)])
def test_a_clock_that_is_set_ahead_is_believed_when_a_tenth_of_that_has_passed(jump_ms: int, lasting_s: float) -> None:
    clock = ManualClock(START)
    it = DueClock(clock)
    clock.set_wall(START + jump_ms)
    assert it.due_ms() == START
    clock.advance(lasting_s - 1)
    assert it.due_ms() == START + (lasting_s - 1) * 1000
    clock.advance(1)
    assert it.due_ms() == clock.wall_ms()


def test_what_has_lasted_is_believed_and_not_what_came_on_top_of_it() -> None:
    clock = ManualClock(START)
    it = DueClock(clock)
    clock.set_wall(START + MINUTE_MS)
    it.due_ms()
    clock.advance(6)
    clock.set_wall(clock.wall_ms() + HOUR_MS)
    assert it.due_ms() == START + MINUTE_MS + 6000


def test_time_passes_also_for_who_looks_many_times_in_a_millisecond() -> None:
    clock = ManualClock(START)
    it = DueClock(clock)
    clock.set_wall(START + 24 * HOUR_MS)
    for _ in range(10_000):
        clock.advance(0.0004)
        found = it.due_ms()
    assert abs(found - START - 4000) <= 1


def test_one_warning_names_both_times(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START)
    it = DueClock(clock)
    with caplog.at_level(logging.WARNING):
        clock.set_wall(START + HOUR_MS)
        for _ in range(100):
            clock.advance(1)
            it.due_ms()
        clock.set_wall(START)
        it.due_ms()
    ahead, back = caplog.messages
    assert "set ahead wall=2023-11-14T23:13:21.000+00:00 reckoned=2023-11-14T22:13:21.000+00:00 seconds=3600.0" in ahead
    assert "set back wall=2023-11-14T22:13:20.000+00:00 reckoned=2023-11-14T22:15:00.000+00:00 seconds=100.0" in back


def test_a_clock_that_goes_to_and_fro_is_told_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(START)
    it = DueClock(clock)
    with caplog.at_level(logging.WARNING):
        for second in range(120):
            clock.advance(1)
            clock.set_wall(START + 1000 * second + (1500 if second % 2 else -1500))
            it.due_ms()
    assert len(caplog.messages) == 2


def test_a_jump_that_nobody_asked_about_is_old_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker on which nothing waits, as a slave, follows its clock all the same."""

    async def run() -> None:
        monkeypatch.setattr(clocks, "LOOK_S", 0.001)
        clock = ManualClock(START)
        it = DueClock(clock)
        looking = asyncio.create_task(it.run())
        clock.set_wall(START + HOUR_MS)
        await eventually(lambda: it.is_behind)
        clock.advance(360)
        await eventually(lambda: not it.is_behind)
        looking.cancel()
        assert it.due_ms() == clock.wall_ms()

    asyncio.run(run())
