"""How long a shard was out, and what it is excused for."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.judge.conditions import Window
from penstock.judge.history import Outcome
from penstock.judge.invariants.progress import outages
from tests.support.cluster.drill_history import FAULT_END, FAULT_START, MS, clean
from tests.unit.judge.test_judge import silent_while_it_could_acknowledge, verdicts, violated


def test_a_shard_that_could_not_acknowledge_may_be_silent() -> None:
    damaged = clean()
    silent_while_it_could_acknowledge(damaged)
    damaged.conditions.able = [
        Window("able", "broker-a", 0, 3_900 * MS),
        Window("able", "broker-a", 6_100 * MS, 9_900 * MS),
    ]
    assert "I8" not in violated(damaged)


def test_an_asynchronous_shard_may_lose_only_the_end_of_what_it_acknowledged() -> None:
    damaged = clean()
    damaged.conditions.mode = "async"
    sent = damaged.sent
    tail = (sent["shard"] == 0) & (sent["end_ns"] >= FAULT_START - 20 * MS) & (sent["epoch"] == 1)
    assert tail.sum() > 2
    ids = sent["sequence"][tail]
    shift = {queue: int((tail & (sent["queue"] == queue)).sum()) for queue in (0, 1)}
    for part in (damaged.read, damaged.received, damaged.sent):
        again = (part["shard"] == 0) & (part["end_ns"] > 0)
        later = again & np.isin(part["sequence"], sent["sequence"][sent["epoch"] == 2])
        for queue, count in shift.items():
            part["offset"][later & (part["queue"] == queue)] -= count
    damaged.read = damaged.read[~np.isin(damaged.read["sequence"], ids)]
    damaged.received = damaged.received[~np.isin(damaged.received["sequence"], ids)]
    found = verdicts(damaged)
    assert found["I1"].holds
    assert "were lost at the fault" in found["I1"].note
    damaged.conditions.mode = "durable"
    assert not verdicts(damaged)["I1"].holds
    damaged.conditions.mode = "async"
    early = damaged.read["sequence"] == 8
    damaged.read = damaged.read[~early]
    assert verdicts(damaged)["I1"].violations == 1


def test_an_outage_is_measured_between_acknowledgements() -> None:
    damaged = clean()
    sent = damaged.sent
    sent["outcome"][(sent["shard"] == 0) & (sent["start_ns"] > FAULT_START) & (sent["start_ns"] < FAULT_END)] = 2
    first, second = outages(damaged.history, FAULT_START, FAULT_END)
    assert first.longest_ms == pytest.approx(2000, rel=0.05)
    assert first.sum_ms == first.longest_ms
    assert second.longest_ms < 50
    assert second.sum_ms == 0


def test_a_shard_that_never_comes_back_is_out_until_the_end_of_the_fault() -> None:
    damaged = clean()
    damaged.sent["outcome"][(damaged.sent["shard"] == 0)] = Outcome.REFUSED
    first, _ = outages(damaged.history, FAULT_START, FAULT_END)
    assert first.longest_ms == 2000
