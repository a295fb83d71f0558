"""Random histories with power cuts: what was acknowledged is there, and nothing else is.

``CRASH_HISTORIES`` sets how many, ``CRASH_SEED`` the first one's seed; a failure prints its seed and the shortest
part of its history that fails in the same way.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from tests.support.crash_model import Failed, run, shortest, steps_of

HISTORIES = int(os.environ.get("CRASH_HISTORIES", "0"))
FIRST = int(os.environ.get("CRASH_SEED", "1"))
STEPS = 40
SHARES = 4
DEFAULT_HISTORIES = 5000
DEFAULT_SECONDS = 60.0 / SHARES


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # recoveries by the thousand
    yield
    logging.disable(before)


def _play(seed: int) -> tuple[int, int]:
    steps = steps_of(seed, STEPS)
    try:
        history = run(seed, steps)
    except Failed as failure:
        fewer = shortest(seed, steps)
        try:
            run(seed, fewer)
        except Failed as error:
            raise error from error.__cause__
        raise AssertionError(f"history {seed} fails at times only") from failure
    return history.cuts, history.recoveries


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(SHARES))
def test_every_history_keeps_what_was_acknowledged_and_nothing_else(share: int) -> None:
    """As many histories as set; without a setting 5,000, or fewer on a machine on which they take too long."""
    wanted = (HISTORIES or DEFAULT_HISTORIES) // SHARES
    first = FIRST + share * wanted
    started = time.monotonic()
    played = cuts = recoveries = 0
    for seed in range(first, first + wanted):
        if not HISTORIES and time.monotonic() - started > DEFAULT_SECONDS:
            break
        one = _play(seed)
        played, cuts, recoveries = played + 1, cuts + one[0], recoveries + one[1]
    seconds = time.monotonic() - started
    print(f"crash model: seeds {first}..{first + played - 1}, {cuts} cuts, {recoveries} recoveries, {seconds:.1f} s")
    assert played


def test_the_same_seed_plays_the_same_history() -> None:
    once, again = (run(11, steps_of(11, STEPS)) for _ in range(2))
    assert once.history.image == again.history.image
    assert (once.cuts, once.recoveries, once.messages) == (again.cuts, again.recoveries, again.messages)
