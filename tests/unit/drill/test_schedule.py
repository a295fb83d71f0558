"""The same seed breaks the same things at the same moments."""

from __future__ import annotations

import itertools

import pytest

from penstock.drill.catalogue import DRILLS
from penstock.drill.lab.nemesis import KINDS, steps
from penstock.drill.lab.schedule import FaultPlan, Shape, Timing, plan_fault


def test_a_seed_repeats_its_plan() -> None:
    for name in DRILLS:
        assert plan_fault(name, 7, Shape()) == plan_fault(name, 7, Shape())


def test_the_plan_of_a_seed_stays_what_it_was_when_a_failure_was_reported() -> None:
    plan = plan_fault("one-way-partition", 1, Shape())
    assert (plan.shard, plan.slave, plan.nameserver, plan.consumer, plan.outwards) == (1, 1, 1, 0, True)


def test_seeds_and_drills_differ() -> None:
    plans = {repr(plan_fault(name, seed, Shape())) for name in DRILLS for seed in range(20)}
    assert len(plans) == 20 * len(DRILLS)
    assert {plan_fault("master-kill", seed, Shape()).shard for seed in range(20)} == {0, 1}
    assert {plan_fault("one-way-partition", seed, Shape()).outwards for seed in range(20)} == {True, False}


@pytest.mark.parametrize("shape", [Shape(), Shape(shards=1, replicas=1, nameservers=1, consumers=1), Shape(shards=5)])
def test_every_draw_names_something_that_is_there(shape: Shape) -> None:
    for seed in range(100):
        plan: FaultPlan = plan_fault("any", seed, shape)
        assert 0 <= plan.shard < shape.shards
        assert 0 <= plan.slave < max(shape.replicas - 1, 1)
        assert 0 <= plan.nameserver < shape.nameservers
        assert 0 <= plan.consumer < shape.consumers
        assert 0 <= plan.late_s <= 1
        assert all(delay > 0 for delay in plan.crash_delays_s)


def test_a_senseless_timing_or_load_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"--fault 0\.2: must be 1\.\.3600 seconds"):
        Timing(fault_s=0.2)
    with pytest.raises(ValueError, match=r"--rate 1: must be 10\.\.100000"):
        Shape(rate=1)
    with pytest.raises(ValueError, match=r"--producers 0: must be 1\.\.16"):
        Shape(producers=0)


def test_a_drill_says_why_it_cannot_be_done() -> None:
    two = Shape(replicas=1, nameservers=1)
    assert DRILLS["slave-kill"].why_skipped(two, elects=True) == "needs --replicas 2 or more"
    assert DRILLS["nameserver-kill"].why_skipped(two, elects=True) == "needs --nameservers 2 or more"
    assert "elections" in DRILLS["planned-switch"].why_skipped(Shape(), elects=False)
    assert DRILLS["catch-up-kill"].why_skipped(Shape(replicas=2), elects=True) == "needs --replicas 3 or more"
    assert "a cluster that the drill starts" in DRILLS["catch-up-kill"].why_skipped(
        Shape(), elects=True, own_cluster=False
    )
    assert DRILLS["master-kill"].why_skipped(two, elects=False) == ""


def test_no_time_is_set_where_the_shard_has_to_wait() -> None:
    kill = DRILLS["master-kill"]
    assert "masters are fixed" in kill.why_no_limit(Shape(), elects=False)
    assert "1 of 2 copies are left" in kill.why_no_limit(Shape(replicas=2), elects=True)
    assert kill.why_no_limit(Shape(replicas=3), elects=True) == ""
    assert kill.why_no_limit(Shape(replicas=2, mode="async"), elects=True) == ""


def test_a_seed_repeats_its_random_steps() -> None:
    shape = Shape()
    first = list(itertools.islice(steps(7, shape), 200))
    assert first == list(itertools.islice(steps(7, shape), 200))
    assert first[:3] != list(itertools.islice(steps(8, shape), 3))
    assert {step.kind for step in first} == set(KINDS)
    assert {step.shard for step in first} == {0, 1}
    assert all(set(step.members) <= {0, 1, 2} and len(step.members) == len(step.gaps_s) for step in first)
    two = itertools.islice(steps(7, Shape(replicas=2)), 200)
    assert "kill during catch-up" not in {step.kind for step in two}, "nobody is left to be killed"
