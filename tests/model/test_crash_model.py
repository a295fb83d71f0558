"""Random histories with power cuts: what was acknowledged is there, and nothing else is.

``CRASH_HISTORIES`` sets how many: so many find the defects of :mod:`tests.seeded` that are for this test to find, and
``make test-crash`` plays ten times as many. ``CRASH_SEED`` sets the first one's seed; a failure prints its seed and the
shortest part of its history that fails in the same way.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator

import pytest

from tests.support.crash.crash_histories import STEPS, Played, play_all, run
from tests.support.crash.crash_steps import steps_of

HISTORIES = int(os.environ.get("CRASH_HISTORIES", "2000"))
FIRST = int(os.environ.get("CRASH_SEED", "1"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # recoveries by the thousand
    yield
    logging.disable(before)


@pytest.mark.timeout(7200)
def test_every_history_keeps_what_was_acknowledged_and_nothing_else() -> None:
    started = time.monotonic()
    total = Played()
    for played in play_all(range(FIRST, FIRST + HISTORIES)):
        total = total.and_also(played)
    seconds = time.monotonic() - started
    print(
        f"crash model: seeds {FIRST}..{FIRST + HISTORIES - 1}, {total.cuts} cuts, {total.recoveries} recoveries, "
        f"{seconds:.1f} s"
    )
    assert total.histories == HISTORIES


def test_the_same_seed_plays_the_same_history() -> None:
    once, again = (run(11, steps_of(11, STEPS)) for _ in range(2))
    assert once.history.image == again.history.image
    assert (once.cuts, once.recoveries, once.messages) == (again.cuts, again.recoveries, again.messages)
