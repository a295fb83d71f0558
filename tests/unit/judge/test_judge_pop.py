"""What simple consumers have for a time: what a history shows of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from penstock.judge.history import Events, Op, Outcome
from tests.support.cluster.drill_history import FAULT_START, MS, STREAM, Damaged, clean, rows
from tests.unit.judge.test_judge import verdicts, violated

INVISIBLE_MS = 10_000
AT = 20_000
"""After everything, in ms."""


def row(op: Op, sequence: int, start_ms: int, end_ms: int, until_ms: int = 0, outcome: Outcome = Outcome.OK) -> Events:
    made = rows(1)
    made["op"], made["outcome"], made["stream"], made["sequence"] = op, outcome, STREAM, sequence
    made["start_ns"], made["end_ns"], made["offset"] = start_ms * MS, end_ms * MS, until_ms * MS
    return made


def hold(sequence: int, at_ms: int, *, asked_ms: int = -1) -> Events:
    """It came at ``at_ms`` to who had asked then, or at ``asked_ms``."""
    return row(Op.HOLD, sequence, at_ms if asked_ms < 0 else asked_ms, at_ms, at_ms + INVISIBLE_MS)


def give_back(sequence: int, at_ms: int) -> Events:
    return row(Op.HOLD, sequence, at_ms, at_ms, at_ms, Outcome.UNKNOWN)


def done(sequence: int, at_ms: int) -> Events:
    return row(Op.ACKNOWLEDGE, sequence, at_ms - 1, at_ms)


def popped(*extra: Events) -> Damaged:
    """Every message was received and acknowledged right after it was sent; and ``extra``."""
    damaged = clean()
    held, acknowledged = damaged.received.copy(), damaged.received.copy()
    held["op"], acknowledged["op"] = Op.HOLD, Op.ACKNOWLEDGE
    held["offset"] = held["end_ns"] + INVISIBLE_MS * MS
    acknowledged["start_ns"], acknowledged["end_ns"] = held["end_ns"], held["end_ns"] + MS
    fresh = np.unique(np.concatenate(extra)["sequence"]) if extra else []
    damaged.extra = [each[~np.isin(each["sequence"], fresh)] for each in (held, acknowledged)] + list(extra)
    return damaged


@pytest.mark.parametrize(
    "extra",
    [
        (),
        (hold(5, AT), hold(5, AT + INVISIBLE_MS - 99), done(5, AT + INVISIBLE_MS)),  # within what clocks may differ
        (hold(5, AT), give_back(5, AT + 1), hold(5, AT + 2), done(5, AT + 3)),
        (hold(5, AT), done(5, AT + 3), hold(5, AT - 1)[:0]),
        (hold(5, AT), row(Op.HOLD, 5, AT - 9000, AT + 5000, AT + 1000)),  # an answer that came too late
        (hold(5, AT), done(5, AT + INVISIBLE_MS), hold(5, AT + INVISIBLE_MS + 1, asked_ms=AT)),
    ],
)
def test_what_comes_in_its_time_is_as_it_should_be(extra: tuple[Events, ...]) -> None:
    damaged = popped(*extra)
    assert violated(damaged) == {}
    assert verdicts(damaged)["I19"].checked >= 4000


@pytest.mark.parametrize(
    ("extra", "invariant", "says"),
    [
        ((hold(5, AT), hold(5, AT + INVISIBLE_MS - 101)), "I19", "was given to another before its time"),
        ((hold(5, AT), give_back(5, AT + 1), hold(5, AT + 2), hold(5, AT + 3)), "I19", "before its time"),
        ((hold(5, AT), done(5, AT + 1), hold(5, AT + INVISIBLE_MS)), "I20", "given again after its acknowledgement"),
        ((give_back(5, AT),), "I20", "was never given to a simple consumer"),
    ],
)
def test_what_comes_early_again_or_never_is_named(extra: tuple[Events, ...], invariant: str, says: str) -> None:
    found = violated(popped(*extra))
    assert list(found) == [invariant]
    assert found[invariant].violations == 1
    assert found[invariant].examples[0].startswith(f"message {STREAM}.5 ")
    assert says in found[invariant].examples[0]


def test_an_acknowledgement_that_is_lost_early_breaks_both() -> None:
    assert list(violated(popped(hold(5, AT), done(5, AT + 1), hold(5, AT + 2)))) == ["I19", "I20"]


def test_without_simple_consumers_nothing_is_missing() -> None:
    assert violated(clean()) == {}
    assert verdicts(clean())["I20"].checked == 0


@pytest.mark.parametrize(
    "extra",
    [
        (lambda at: (hold(5, at), hold(5, at + 5000))),
        (lambda at: (hold(5, at - INVISIBLE_MS), done(5, at), hold(5, at + 1))),
    ],
)
def test_a_mode_that_may_lose_what_it_acknowledged_may_lose_these(extra: Callable[[int], tuple[Events, ...]]) -> None:
    damaged = popped(*extra(FAULT_START // MS - 500))
    assert violated(damaged)
    damaged.conditions.mode = "async"
    assert violated(damaged) == {}
