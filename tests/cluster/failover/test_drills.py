"""Six short drills with real processes; `make test-drills` does all of them, long and often.

Three have a cluster of their own, as `penstock drill` does it; the others use one that runs and is left running.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.deploy import LocalCluster
from penstock.drill.catalogue import DRILLS
from penstock.drill.lab.schedule import Shape, Timing
from penstock.drill.result import Document, judged
from penstock.drill.runner import run_drill
from tests.support.cluster.failover import local_cluster

SEED = 3
SHAPE = Shape(shards=1, replicas=3, nameservers=1, rate=100, producers=1, mode="sync")
TIMES = {"I8"}
"""How fast a shard comes back depends on the machine; here it is measured and not judged."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    shape = {"shards": SHAPE.shards, "replicas": SHAPE.replicas, "nameservers": 1, "mode": SHAPE.mode}
    with local_cluster(tmp_path_factory.mktemp("drilled"), **shape) as made:
        yield made


def drilled(
    name: str, folder: Path, existing: Path | None = None, *, shape: Shape = SHAPE, fault_s: float = 2.5
) -> Document:
    """The judged document of a short drill."""
    told: list[str] = []
    run_drill(
        DRILLS[name],
        folder,
        seed=SEED,
        shape=shape,
        timing=Timing(steady_s=1.0, fault_s=fault_s, after_s=0.5),
        command=f"penstock drill {name} --seed {SEED}",
        progress=told.append,
        tell=told.append,
        existing=existing,
    )
    return judged(folder)


def assert_held(document: Document) -> None:
    broken = [each for each in document["verdicts"] if each["holds"] is False and each["invariant"] not in TIMES]
    assert broken == []
    assert document["counts"]["acknowledged"] > 100
    assert document["counts"]["received"] >= document["counts"]["acknowledged"]
    assert document["windows"]


def test_every_invariant_holds_when_a_master_is_killed(tmp_path: Path) -> None:
    assert_held(drilled("master-kill", tmp_path / "master-kill"))


def test_nothing_is_lost_when_a_new_master_is_killed_while_a_slave_catches_up(tmp_path: Path) -> None:
    document = drilled("catch-up-kill", tmp_path / "catch-up-kill", shape=replace(SHAPE, mode="durable"), fault_s=6.0)
    assert_held(document)


def test_every_invariant_holds_in_a_random_sequence_of_faults(tmp_path: Path) -> None:
    document = drilled("nemesis", tmp_path / "nemesis", shape=replace(SHAPE, shards=2), fault_s=5.0)
    assert_held(document)
    assert any(note.startswith("step 1 of seed 3: ") for note in document["notes"])


@pytest.mark.parametrize("name", ["master-freeze", "nameserver-all", "consumer-kill"])
def test_every_invariant_holds_in_a_cluster_that_runs(name: str, tmp_path: Path, running: LocalCluster) -> None:
    assert_held(drilled(name, tmp_path / name, running.directory))
    assert all(state.state == "running" for state in running.states())
