"""Whom a master wants in its set, until when it may act, and when an elected one begins."""

from __future__ import annotations

import math

import pytest

from penstock.proto.errors import InvalidArgument, NotMaster, StaleRegister
from penstock.proto.register import NOBODY, Register, new_register, register_of_json, register_of_wire
from penstock.replication.leases import HEARD_MAX, LEASE_S, MasterLease, begins_at, master_share_s
from penstock.replication.master.sync_state_set import SetRules, Standing, wanted_set

TWO = SetRules(in_sync_replicas=2)


def slave(broker_id: int, *, silent: bool = False, level: bool = True, behind_ms: float = 0.0) -> Standing:
    return Standing(broker_id, silent, level, behind_ms)


def wanted(members: set[int], *slaves: Standing, rules: SetRules = TWO) -> set[int]:
    return set(wanted_set(0, members, slaves, rules, behind_ms_max=15_000))


def test_a_silent_or_slow_member_leaves_and_a_level_slave_joins() -> None:
    assert wanted({0, 1, 2}, slave(1), slave(2, silent=True)) == {0, 1}
    assert wanted({0, 1, 2}, slave(1), slave(2, level=False, behind_ms=15_001)) == {0, 1}
    assert wanted({0, 1, 2}, slave(1)) == {0, 1}, "one that never connected is silent"
    assert wanted({0, 1}, slave(1), slave(2)) == {0, 1, 2}


def test_who_is_behind_or_a_learner_does_not_join() -> None:
    assert wanted({0, 1}, slave(1), slave(2, level=False)) == {0, 1}
    assert wanted({0, 1}, slave(1), slave(2, silent=True)) == {0, 1}
    assert wanted({0, 1}, slave(1), slave(2)._replace(is_learner=True)) == {0, 1}


def test_nobody_leaves_who_is_needed_to_acknowledge() -> None:
    assert wanted({0, 1}, slave(1, silent=True)) == {0, 1}
    alone = SetRules(in_sync_replicas=2, min_in_sync_replicas=1, is_auto=True)
    assert wanted({0, 1}, slave(1, silent=True), rules=alone) == {0}
    assert wanted({0, 1}, slave(1, silent=True), slave(2)) == {0, 2}
    assert wanted({0, 1}, slave(1, silent=True), rules=SetRules()) == {0}


def test_a_master_that_begins_lets_the_one_before_it_go_and_waits_for_the_others() -> None:
    begins = {"rules": TWO, "behind_ms_max": 15_000, "replaced_id": 2}
    assert wanted_set(0, {0, 1, 2}, [], **begins) == {0, 1}
    assert wanted_set(0, {0, 1, 2}, [slave(2)], **begins) == {0, 2}, "it came back, and the other has not come"
    assert wanted_set(0, {0, 2}, [], **begins) == {0, 2}, "it is needed"
    assert wanted_set(0, {0, 2}, [slave(1)], **begins) == {0, 1}


@pytest.mark.parametrize(("auto", "members", "needed"), [(False, 1, 2), (False, 3, 2), (True, 1, 1), (True, 3, 2)])
def test_how_many_are_needed(auto: bool, members: int, needed: int) -> None:
    assert SetRules(in_sync_replicas=2, min_in_sync_replicas=1, is_auto=auto).needed(members) == needed


def test_a_master_acts_while_all_members_or_the_coordinator_have_confirmed() -> None:
    share = master_share_s(LEASE_S)
    lease = MasterLease(0, (0, 1, 2))
    assert not lease.is_valid(0.0)
    lease.on_member(1, 10.0)
    assert not lease.is_valid(10.0)
    lease.on_member(2, 10.1)
    assert lease.is_valid(10.0 + share - 0.01)
    assert not lease.is_valid(10.0 + share)
    lease.on_coordinator(10.3)
    assert lease.is_valid(10.2 + share)
    assert lease.silent(10.05 + share) == [1]
    lease.on_member(1, 9.0)
    assert lease.silent(10.05 + share) == [1], "an older answer takes nothing back and adds nothing"


def test_a_slave_that_joins_has_confirmed_by_what_it_answered_before() -> None:
    lease = MasterLease(0, (0, 1))
    lease.on_member(1, 10.0)
    lease.on_member(2, 10.0)
    lease.require((0, 1, 2))
    assert lease.is_valid(10.1)
    lease.require((0, 1, 2, 3))
    assert not lease.is_valid(10.1)


def test_the_only_member_may_always_act_unless_others_may_be_elected() -> None:
    assert MasterLease(0, (0,)).until == math.inf
    lease = MasterLease(0, (0, 1), needs_coordinator=True)
    lease.on_member(1, 10.0)
    assert not lease.is_valid(10.0)
    lease.on_coordinator(10.0)
    assert lease.is_valid(10.0)


def test_a_member_that_joins_has_not_confirmed_yet() -> None:
    lease = MasterLease(0, (0, 1))
    lease.on_member(1, 10.0)
    lease.require((0, 1, 2))
    assert not lease.is_valid(10.0)
    lease.on_member(2, 10.0)
    assert lease.is_valid(10.0)


def test_strangers_of_ever_new_ids_cost_a_lease_no_memory_and_take_nothing_from_who_answers() -> None:
    lease = MasterLease(0, (0, 1))
    for stranger in range(1000, 2000):
        lease.on_member(1, 10.0)
        lease.on_member(2, 10.0)
        lease.on_member(stranger, 9.0)
    assert len(lease._heard) <= HEARD_MAX
    lease.require((0, 1, 2))
    assert lease.is_valid(10.0)


def test_when_an_elected_member_begins() -> None:
    first = new_register("c", "a", 0, 0)
    assert begins_at(first, 0, 5.0, began=0) == 5.0
    grown = first.with_set(0, 1, 1, (0, 1))
    assert begins_at(grown.elected(1), 1, 5.0, began=1) == 5.0 + LEASE_S
    assert begins_at(grown.elected(0), 0, 5.0, began=1) == 5.0, "it was master itself, and nobody else since"
    assert begins_at(grown.elected(1).elected(1), 1, 5.0, began=1) == 5.0 + LEASE_S, "it has not begun in between"
    assert begins_at(grown.handed_over_to(0, 1, 2, 1), 1, 5.0, began=1) == 5.0


def test_changes_of_a_register_are_refused_by_name() -> None:
    register = new_register("c", "broker-a", 0, 4).with_set(0, 5, 1, (0, 1))
    with pytest.raises(NotMaster, match="broker 1 was master in epoch 5; broker 0 is, in epoch 5"):
        register.with_set(1, 5, 2, (0, 1))
    with pytest.raises(NotMaster, match="epoch 4"):
        register.with_set(0, 4, 2, (0, 1))
    with pytest.raises(StaleRegister, match="version 2, not 1"):
        register.with_set(0, 5, 1, (0, 1))
    with pytest.raises(InvalidArgument, match="must hold the master 0"):
        register.with_set(0, 5, 2, (1,))
    with pytest.raises(InvalidArgument, match=r"broker 2 is not in sync \(sync-state set \[0, 1\]\)"):
        register.handed_over_to(0, 5, 2, 2)
    with pytest.raises(InvalidArgument, match="master already"):
        register.handed_over_to(0, 5, 2, 0)
    with pytest.raises(InvalidArgument, match="not in the sync-state set"):
        register.elected(7)
    with pytest.raises(InvalidArgument, match="enableElectUncleanMaster"):
        register.elected_unclean(7)


def test_an_election_leaves_the_set_as_it_is() -> None:
    """With each that took the old master out, two in a row would leave one broker whose death stops the group."""
    register = new_register("c", "a", 0, 0).with_set(0, 1, 1, (0, 1, 2)).elected(2)
    assert (register.epoch, register.master_id, sorted(register.sync_state_set)) == (2, 2, [0, 1, 2])
    assert (register.former_id, register.handed_over, register.version) == (0, False, 3)
    assert register.elected(1).elected(0).master_id == 0


def test_the_former_master_has_a_log_that_knows_its_epoch_and_no_other() -> None:
    register = new_register("c", "a", 0, 0).with_set(0, 1, 1, (0, 1, 2)).elected(1)
    assert register.source_of(1) == 0
    assert register.source_of(0) == NOBODY, "this log did not follow the former master"
    assert new_register("c", "a", 0, 4).source_of(4) == NOBODY, "there was none"
    assert register.handed_over_to(1, 2, 3, 2).source_of(2) == 1
    again = register.elected(2).elected(1)
    assert again.former_id == 2
    assert again.source_of(1) == NOBODY, "brokers 1 and 2 were elected in between, and neither acted"
    assert again.source_of(2) == NOBODY
    assert again.source_of(3) == 2


def test_a_register_survives_text_and_wire() -> None:
    register = new_register("c", "a", 3, 7, unclean_allowed=True).with_set(3, 8, 1, (3, 4)).elected(4)
    assert register_of_json(register.to_json()) == register
    assert register_of_wire(register.to_wire("x")) == register


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{}", '{"epoch": 1}', "{" * 10_000]
    + [
        new_register("c", "a", 0, 0).to_json().replace(before, after)
        for before, after in [
            ('"epoch": 1', '"epoch": 0'),
            ('"epoch": 1', '"epoch": "1"'),
            ('"version": 1', '"version": 1.5'),
            ("[0]", "[1]"),
            ("[0]", "[]"),
            ("[0]", '["0"]'),
            ("[0]", "0"),
        ]
    ],
)
def test_what_is_no_register_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        register_of_json(text)


def test_a_register_with_a_field_of_a_newer_release_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="witnesses: a newer release wrote it: upgrade this nameserver"):
        register_of_json(new_register("c", "a", 0, 0).to_json().replace("{", '{"witnesses": [], '))


def test_a_register_of_the_wire_is_checked() -> None:
    message = new_register("c", "a", 0, 0).to_wire("x")
    message.master_id = 5
    with pytest.raises(ValueError, match="master 5 is not in the sync-state set"):
        register_of_wire(message)
    assert isinstance(register_of_wire(Register.to_wire(new_register("c", "a", 0, 0), "x")), Register)
