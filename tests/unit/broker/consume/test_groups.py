"""Membership and claims of consumer groups at one broker."""

from __future__ import annotations

import pytest

from penstock.broker.consume.groups import Grant, Groups, Mismatch


def two_members() -> Groups:
    groups = Groups()
    groups.join(1, "g", "a", {"T": "*"})
    groups.join(2, "g", "b", {"T": "*"})
    return groups


def test_a_free_queue_is_granted_at_once_and_a_held_one_when_released() -> None:
    groups = two_members()
    assert groups.claim(1, "T", [0, 1]).grants == [Grant(1, "T", 0), Grant(1, "T", 1)]
    assert groups.claim(2, "T", [1]).grants == []
    assert groups.release(1, "T", [1]).grants == [Grant(2, "T", 1)]


def test_claims_wait_in_order_of_arrival() -> None:
    groups = two_members()
    groups.join(3, "g", "c", {"T": "*"})
    for session_id in (2, 3, 1):
        groups.claim(session_id, "T", [0])
    assert groups.holder("g", "T", 0) == 2
    assert groups.end(2).grants == [Grant(3, "T", 0)]
    assert groups.end(3).grants == [Grant(1, "T", 0)]


def test_a_waiting_claim_can_be_taken_back() -> None:
    groups = two_members()
    groups.claim(1, "T", [0])
    groups.claim(2, "T", [0])
    assert groups.release(2, "T", [0]).grants == []
    assert groups.release(1, "T", [0]).grants == []
    assert groups.holder("g", "T", 0) is None


def test_claiming_twice_grants_once() -> None:
    groups = two_members()
    groups.claim(1, "T", [0])
    assert groups.claim(1, "T", [0]).grants == []


def test_groups_do_not_share_claims() -> None:
    groups = two_members()
    groups.join(3, "other", "a", {"T": "*"})
    groups.claim(1, "T", [0])
    assert groups.claim(3, "T", [0]).grants == [Grant(3, "T", 0)]


def test_a_client_that_joins_again_ends_its_former_session() -> None:
    groups = two_members()
    groups.claim(1, "T", [0])
    groups.claim(2, "T", [0])
    assert groups.superseded("g", "a") == 1
    changes = groups.join(9, "g", "a", {"T": "*"})
    assert changes.grants == [Grant(2, "T", 0)]
    assert groups.sessions("g") == {"a": 9, "b": 2}


def test_generations_grow_even_when_a_group_was_empty_in_between() -> None:
    groups = two_members()
    before = groups.members("g")[0]
    groups.end(1)
    groups.end(2)
    assert groups.members("g") == (before + 2, [])
    groups.join(5, "g", "a", {})
    assert groups.members("g") == (before + 3, ["a"])


def test_members_that_subscribe_differently_are_named() -> None:
    groups = Groups()
    groups.join(1, "g", "a", {"T": "*", "U": "x"})
    groups.join(2, "g", "b", {"T": "paid", "U": "x"})
    assert groups.mismatches(2) == [Mismatch("g", "T", "b", "paid", "a", "*")]
    groups.join(2, "g", "b", {"T": "*", "U": "x"})
    assert groups.mismatches(2) == []
    groups.join(2, "g", "b", {"T": "*"})
    assert groups.mismatches(2) == [Mismatch("g", "U", "b", None, "a", "x")]


class Name(str):
    """A topic that counts how often it is looked up."""

    __slots__ = ()
    looks = 0

    def __hash__(self) -> int:
        Name.looks += 1
        return super().__hash__()


@pytest.mark.parametrize("alike", [True, False])
def test_comparing_a_member_with_many_others_costs_no_more_than_with_some(alike: bool) -> None:
    subscriptions = {Name(f"topic-{number}"): "*" for number in range(50)}
    looks = []
    for members in (20, 200):
        groups = Groups()
        for number in range(members):
            groups.join(number, "g", f"c{number:03d}", subscriptions | ({} if alike else {Name("odd"): f"{number}"}))
        Name.looks = 0
        found = groups.mismatches(0)
        looks.append(Name.looks)
        assert found == ([] if alike else [Mismatch("g", "odd", "c000", "0", "c001", "1")])
    assert looks[0] == looks[1]


def test_changed_subscriptions_are_not_a_change_of_members() -> None:
    groups = two_members()
    before = groups.members("g")
    assert groups.join(1, "g", "a", {"U": "*"}).groups == []
    assert groups.members("g") == before
    assert groups.member(1).subscriptions == {"U": "*"}
