"""Four short drills with real processes; `make test-drills` does all of them, long and often."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.drill.catalogue import DRILLS
from penstock.drill.result import judged
from penstock.drill.runner import run_drill
from penstock.drill.schedule import Shape, Timing

SEED = 3
SHAPE = Shape(replicas=2, nameservers=1, rate=200, producers=1)
TIMES = {"I8"}
"""How fast a shard comes back depends on the machine; here it is measured and not judged."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["master-kill", "master-freeze", "nameserver-all", "consumer-kill"])
def test_every_invariant_holds(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    run_drill(
        DRILLS[name],
        tmp_path / name,
        seed=SEED,
        shape=SHAPE,
        timing=Timing(steady_s=1.5, fault_s=3.0, after_s=1.0),
        command=f"penstock drill {name} --seed {SEED}",
        progress=told.append,
    )
    document = judged(tmp_path / name)
    broken = [each for each in document["verdicts"] if each["holds"] is False and each["invariant"] not in TIMES]
    assert broken == []
    assert document["counts"]["acknowledged"] > 100
    assert document["counts"]["received"] >= document["counts"]["acknowledged"]
    assert document["windows"]
