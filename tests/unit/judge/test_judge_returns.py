"""What is given back comes again or is a dead letter, once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cluster.drill_history import FAULT_END, FAULT_START, Damaged, clean, given_back
from tests.unit.judge.test_judge import verdicts, violated


def test_what_is_given_back_and_comes_once_is_as_it_should_be() -> None:
    damaged = clean()
    given_back(damaged)
    assert violated(damaged) == {}
    assert verdicts(damaged)["I15"].checked == 63 + 32
    damaged.extra[1] = damaged.extra[1][5:]  # it is not known of some that they were kept, and they come
    assert violated(damaged) == {}
    damaged.extra += [damaged.extra[0][:1]]  # and one was perhaps given back twice
    assert violated(damaged) == {}


def forget_a_retry(damaged: Damaged) -> None:
    damaged.extra[6] = damaged.extra[6][1:]
    damaged.extra[4], damaged.extra[5] = damaged.extra[4][1:], damaged.extra[5][:0]


def forget_a_dead_letter(damaged: Damaged) -> None:
    damaged.extra[7] = damaged.extra[7][1:]


def double_a_retry(damaged: Damaged) -> None:
    for number in (4, 6):
        twice = damaged.extra[number][:1].copy()
        twice["offset"] = 900
        damaged.extra.append(twice)


def double_a_dead_letter(damaged: Damaged) -> None:
    twice = damaged.extra[7][:1].copy()
    twice["offset"] = 900
    damaged.extra.append(twice)


def return_what_nobody_gave_back(damaged: Damaged) -> None:
    for number in (4, 6):
        stranger = damaged.extra[number][:1].copy()
        stranger["sequence"], stranger["offset"] = 1, 900
        damaged.extra.append(stranger)


def bring_a_retry_to_nobody(damaged: Damaged) -> None:
    damaged.extra[4] = damaged.extra[4][:-1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (forget_a_retry, "message 7.0 was given back 2 times, 1 copies are there"),
        (forget_a_dead_letter, "message 7.0 was given back 2 times, 1 copies are there"),
        (double_a_retry, "message 7.0 was given back 2 times at most, 3 are there"),
        (double_a_dead_letter, "message 7.0 was given back 2 times at most, 3 are there"),
        (return_what_nobody_gave_back, "message 7.1 was given back 0 times at most, 1 are there"),
        (bring_a_retry_to_nobody, "message 7.3968 came back in broker-a queue 0 offset 62 to nobody"),
    ],
)
def test_what_is_given_back_and_lost_or_doubled_is_named(damage: Callable[[Damaged], None], says: str) -> None:
    damaged = clean()
    given_back(damaged)
    damage(damaged)
    found = violated(damaged)
    assert list(found) == ["I15"]
    assert says in found["I15"].examples


def test_a_mode_that_may_lose_messages_at_a_fault_may_lose_what_was_given_back_there() -> None:
    damaged = clean()
    damaged.conditions.mode = "async"
    given_back(damaged)
    during = (damaged.extra[6]["end_ns"] > FAULT_START) & (damaged.extra[6]["end_ns"] < FAULT_END)
    gone = damaged.extra[6]["sequence"][during][:1]
    for number in (4, 5, 6, 7):
        damaged.extra[number] = damaged.extra[number][~np.isin(damaged.extra[number]["sequence"], gone)]
    assert violated(damaged) == {}
    damaged.conditions.mode = "durable"
    assert list(violated(damaged)) == ["I15"]
