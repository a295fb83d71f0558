"""Work in order, transactions, and messages for later: what a history shows of them."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.judge.history import Events, Op, Outcome
from penstock.judge.invariants.promises import LATER, TRANSACTIONS
from tests.support.cluster.drill_history import FAULT_START, MS, Damaged, clean, rows
from tests.unit.judge.test_judge import verdicts, violated

OK, REFUSED, UNKNOWN = Outcome.OK, Outcome.REFUSED, Outcome.UNKNOWN
DUE_MS = 1_700_000_000_000


def work(*pieces: tuple[int, int, int, Outcome]) -> Events:
    """Of one queue: client, and when each piece began and ended, in ms. Offsets count up."""
    made = rows(len(pieces))
    made["op"], made["shard"], made["queue"], made["offset"] = Op.WORK, 0, 1, np.arange(len(pieces))
    for row, (client, start_ms, end_ms, outcome) in zip(made, pieces, strict=True):
        row["client"], row["start_ns"], row["end_ns"], row["outcome"] = client, start_ms * MS, end_ms * MS, outcome
    return made


def told(op: Op, stream: int, sequence: int, outcome: Outcome, at_ms: int = 0) -> Events:
    made = rows(1)
    made["op"], made["stream"], made["sequence"], made["outcome"] = op, stream, sequence, outcome
    made["start_ns"] = made["end_ns"] = at_ms * MS
    made["offset"] = DUE_MS if op is Op.LATER else -1
    return made


def shown(stream: int, sequence: int, offset: int, stored_ms: int = DUE_MS) -> Events:
    made = rows(1)
    made["op"], made["stream"], made["sequence"], made["offset"] = Op.SHOWN, stream, sequence, offset
    made["shard"], made["queue"], made["position"] = 0, 0, stored_ms
    return made


def with_rows(*extra: Events) -> Damaged:
    damaged = clean()
    damaged.extra = list(extra)
    return damaged


def test_work_one_after_the_other_is_as_it_should_be_also_where_the_end_is_not_known() -> None:
    damaged = with_rows(work((8, 0, 5, OK), (8, 5, 9, OK), (8, 12, 12, UNKNOWN), (9, 20, 25, OK)))
    begun = damaged.extra[0][:1].copy()
    begun["outcome"], begun["end_ns"] = UNKNOWN, begun["start_ns"]
    damaged.extra.append(begun)
    assert violated(damaged) == {}
    assert (verdicts(damaged)["I16"].checked, verdicts(damaged)["I16"].note) == (4, "1 were cut short")


@pytest.mark.parametrize(
    "pieces",
    [
        ((8, 0, 5, OK), (9, 4, 9, OK)),
        ((8, 0, 9, OK), (9, 2, 3, OK), (8, 10, 11, OK)),
        ((8, 0, 9, OK), (9, 4, 4, UNKNOWN)),
        ((8, 0, 9, OK), (8, 4, 5, OK)),  # one member's two threads
    ],
)
def test_work_that_overlaps_is_a_lock_that_two_hold(pieces: tuple[tuple[int, int, int, Outcome], ...]) -> None:
    found = violated(with_rows(work(*pieces)))
    assert list(found) == ["I16"]
    assert found["I16"].violations == 1
    assert found["I16"].examples[0].startswith(f"client {pieces[1][0]} was at broker-a queue 1 offset 1 while client 8")


def test_work_in_other_queues_may_overlap() -> None:
    two = work((8, 0, 9, OK), (9, 4, 5, OK))
    two["queue"][1] = 0
    assert violated(with_rows(two)) == {}


COMMITTED = (told(Op.DECIDE, TRANSACTIONS, 0, UNKNOWN), told(Op.DECIDE, TRANSACTIONS, 0, OK))


def test_transactions_that_are_shown_as_they_were_decided_are_as_they_should_be() -> None:
    rolled_back, tried, tried_too = (
        told(Op.DECIDE, TRANSACTIONS, 1, REFUSED),
        told(Op.DECIDE, TRANSACTIONS, 2, UNKNOWN),
        told(Op.DECIDE, TRANSACTIONS, 3, UNKNOWN),
    )
    seen = shown(TRANSACTIONS, 0, 0), shown(TRANSACTIONS, 0, 0), shown(TRANSACTIONS, 3, 1)
    damaged = with_rows(*COMMITTED, rolled_back, tried, tried_too, *seen)
    assert violated(damaged) == {}
    assert verdicts(damaged)["I17"].checked == 4


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (COMMITTED, f"message {TRANSACTIONS}.0 is lost"),
        ((*COMMITTED, shown(TRANSACTIONS, 0, 0), shown(TRANSACTIONS, 0, 1)), "is shown 2 times, 1 allowed"),
        ((told(Op.DECIDE, TRANSACTIONS, 1, REFUSED), shown(TRANSACTIONS, 1, 0)), "is shown 1 times, 0 allowed"),
        ((shown(TRANSACTIONS, 9, 0),), f"message {TRANSACTIONS}.9 is shown 1 times, 0 allowed"),
    ],
)
def test_transactions_that_are_not_are_told(extra: tuple[Events, ...], says: str) -> None:
    found = violated(with_rows(*extra))
    assert list(found) == ["I17"]
    assert says in found["I17"].examples[0]


SENT = (told(Op.LATER, LATER, 0, UNKNOWN), told(Op.LATER, LATER, 0, OK))


def test_messages_for_later_that_come_once_and_in_time_are_as_they_should_be() -> None:
    perhaps = told(Op.LATER, LATER, 1, UNKNOWN), told(Op.LATER, LATER, 2, UNKNOWN)
    damaged = with_rows(*SENT, shown(LATER, 0, 0), *perhaps, shown(LATER, 2, 1, DUE_MS + 30))
    assert violated(damaged) == {}
    assert verdicts(damaged)["I18"].checked == 3


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (SENT, "is lost"),
        ((*SENT, shown(LATER, 0, 0), shown(LATER, 0, 1)), "is shown 2 times, 1 allowed"),
        ((*SENT, shown(LATER, 0, 0, DUE_MS - 1)), "was shown before its time"),
        ((told(Op.LATER, LATER, 3, REFUSED), shown(LATER, 3, 0)), "is shown 1 times, 0 allowed"),
    ],
)
def test_messages_for_later_that_are_not_are_told(extra: tuple[Events, ...], says: str) -> None:
    found = violated(with_rows(*extra))
    assert list(found) == ["I18"]
    assert says in found["I18"].examples[0]


@pytest.mark.parametrize(("op", "stream"), [(Op.DECIDE, TRANSACTIONS), (Op.LATER, LATER)])
def test_a_mode_that_may_lose_what_it_acknowledged_may_lose_these(op: Op, stream: int) -> None:
    damaged = with_rows(told(op, stream, 0, OK, FAULT_START // MS - 500))
    assert violated(damaged)
    damaged.conditions.mode = "async"
    assert violated(damaged) == {}
