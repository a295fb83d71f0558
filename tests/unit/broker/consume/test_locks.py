"""Queues of orderly members: who may have them when a session or a mastership has ended."""

from __future__ import annotations

import pytest

from penstock.broker.consume.groups import Grant, Groups
from penstock.broker.consume.locks import SILENCE_S, Locks

LOCK_S = 30.0
ALL_OF_IT_S = SILENCE_S + LOCK_S


class Master:
    """The groups of a broker that is master, if it is not told otherwise."""

    def __init__(self) -> None:
        self.is_acting = True
        self.locks = Locks(lambda: self.is_acting)
        self.groups = Groups(self.locks)

    def join(self, session_id: int, client_id: str, lock_s: float = LOCK_S, now_s: float = 0.0) -> None:
        self.groups.join(session_id, "g", client_id, {"T": "*"}, lock_s, now_s)


def granted(session_id: int, *queue_ids: int) -> list[Grant]:
    return [Grant(session_id, "T", queue_id) for queue_id in queue_ids]


@pytest.fixture
def master() -> Master:
    made = Master()
    made.join(1, "a")
    made.join(2, "b")
    return made


def test_a_queue_whose_holders_session_ended_is_another_members_when_its_work_has_had_its_time(master: Master) -> None:
    assert master.groups.claim(1, "T", [0], 0.0).grants == granted(1, 0)
    master.groups.claim(2, "T", [0], 0.0)
    assert master.groups.end(1, 100.0).grants == []
    assert master.groups.holder("g", "T", 0) is None
    assert master.groups.look_again(2, 100.0 + ALL_OF_IT_S - 0.01).grants == []
    assert master.groups.look_again(2, 100.0 + ALL_OF_IT_S).grants == granted(2, 0)


def test_the_member_itself_gets_it_at_once_in_its_next_session(master: Master) -> None:
    master.groups.claim(1, "T", [0], 0.0)
    master.groups.claim(2, "T", [0], 0.0)
    master.join(3, "a", now_s=100.0)  # ends its former session
    assert master.groups.claim(3, "T", [0], 100.0).grants == granted(3, 0)
    assert master.groups.release(3, "T", [0], 101.0).grants == granted(2, 0)


def test_what_was_released_and_what_nobody_locks_goes_on_at_once(master: Master) -> None:
    master.join(4, "c", lock_s=0.0)
    master.groups.claim(1, "T", [0], 0.0)
    master.groups.claim(4, "T", [1], 0.0)
    master.groups.claim(2, "T", [0, 1], 0.0)
    assert master.groups.release(1, "T", [0], 100.0).grants == granted(2, 0)
    assert master.groups.end(4, 100.0).grants == granted(2, 1)


def test_a_lock_outlives_its_group(master: Master) -> None:
    master.groups.end(2, 0.0)
    master.groups.claim(1, "T", [0], 0.0)
    master.groups.end(1, 10.0)
    master.join(5, "b", lock_s=0.0, now_s=11.0)
    assert master.groups.claim(5, "T", [0], 11.0).grants == [], "nor is it there for who locks nothing"
    master.locks.forget_old(10.0 + ALL_OF_IT_S)
    assert not len(master.locks)
    assert master.groups.look_again(5, 10.0 + ALL_OF_IT_S).grants == granted(5, 0)


def test_a_new_master_grants_what_nobody_speaks_for_when_older_locks_have_ended(master: Master) -> None:
    master.locks.begin(["g"], 1000.0)
    assert master.groups.claim(2, "T", [0, 1], 1000.0).grants == []
    assert master.groups.claim(1, "T", [0], 1001.0, held_until_s=1020.0).grants == granted(1, 0)
    assert master.groups.look_again(2, 1000.0 + ALL_OF_IT_S).grants == granted(2, 1)
    assert master.groups.release(1, "T", [0], 1002.0).grants == granted(2, 0), "it is known who had it"


def test_what_a_member_held_counts_only_as_long_as_its_lock(master: Master) -> None:
    master.locks.begin(["g"], 1000.0)
    assert master.groups.claim(1, "T", [0], 1010.0, held_until_s=1010.0).grants == []


def test_a_group_that_is_new_in_a_mastership_has_no_older_locks(master: Master) -> None:
    master.locks.begin(["other"], 1000.0)
    assert master.groups.claim(1, "T", [0], 1000.0).grants == granted(1, 0)


def test_a_broker_that_may_not_be_the_only_master_locks_nothing(master: Master) -> None:
    master.is_acting = False
    assert master.groups.claim(1, "T", [0], 0.0, held_until_s=50.0).grants == []
    master.join(4, "c", lock_s=0.0)
    assert master.groups.claim(4, "T", [1], 0.0).grants == granted(4, 1)
    master.is_acting = True
    assert master.groups.look_again(1, 1.0).grants == granted(1, 0)
