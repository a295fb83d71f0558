"""Every short workload, cut off after each of its effects: on an empty log, and on a file that is full but for one.

``SHORT_WORKLOADS`` is the number of operations, 2 by default; ``make test-crash`` sets 3.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import pytest

from tests.support.broker.stepped_store import stepped_stores
from tests.support.crash.crash_model import SEGMENT_BYTES, CrashRun
from tests.support.crash.crash_steps import Step
from tests.support.crash.simulated_disk import PowerCut

OPERATIONS = ("append", "marked", "roll", "sync", "dispatch", "checkpoint")
LENGTH = int(os.environ.get("SHORT_WORKLOADS", "2"))
SHARES = (0.0, 0.5, 1.0)


def _workloads() -> Iterator[tuple[str, ...]]:
    for length in range(1, LENGTH + 1):
        yield from itertools.product(OPERATIONS, repeat=length)


def _prepared(seed: int, *, full: bool) -> CrashRun:
    history = CrashRun(4)
    history.sync_mode = True
    history.play(Step("background", seed))
    if full:
        history._produce(8, marked=False, size=800)
        history._produce(1, marked=True, size=SEGMENT_BYTES - history.history.end - 400)
        history.play(Step("sync", 1))
        history.play(Step("dispatch", 1))
        history.play(Step("checkpoint", 1))
    return history


def _play(workload: tuple[str, ...], cut_after: int, share: float, *, full: bool) -> bool:
    """Cut it there, and each of the two recoveries that follow. True if the cut came before the end."""
    with stepped_stores(), contextlib.closing(_prepared(cut_after, full=full)) as history:
        history.disk.cut_after = cut_after
        try:
            for number, name in enumerate(workload):
                history.play(Step(name, number))
            was_cut = False
        except PowerCut:
            was_cut = True
        history._gone()
        for again in range(2):  # the start is cut off as well, twice
            history.disk = history.disk.cut(share)
            history.disk.cut_after = 5 + 7 * again + cut_after % 11
            history._open()
            history._gone()
        history.disk = history.disk.cut(share)
        history.finish()
    return was_cut


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("full", [False, True], ids=["empty", "full but for one record"])
def test_a_short_workload_cut_off_anywhere_keeps_what_it_acknowledged(full: bool) -> None:
    runs = 0
    for workload in _workloads():
        for cut_after in range(200):
            share = SHARES[(cut_after + len(workload)) % len(SHARES)]
            runs += 1
            if not _play(workload, cut_after, share, full=full):
                break
    print(f"short workloads: {runs} cuts")
    assert runs > 200
