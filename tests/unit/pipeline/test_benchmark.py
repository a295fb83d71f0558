"""What the Spark benchmark makes of its times, with a clock that tests move."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.bench.rig import Rig
from penstock.bench.spark import turns
from penstock.bench.spark.turns import Peer, per_second, turns_of


def test_a_figure_and_its_peer_run_in_turn_and_warm_ups_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = [99.0, 98.0, 97.0, 2.0, 10.0, 50.0]
    now = [0.0]
    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])

    def work() -> None:
        now[0] += passes.pop(0)

    rig = Rig(seconds=1.0, scratch=tmp_path, progress=lambda _: None)
    runs = {"scan": per_second(1000, work), "empty batch": per_second(1000, work)}
    made = turns_of(rig, runs, peers={"scan": Peer("Parquet", per_second(1000, work))}, warm_ups=1)
    (found,) = itertools.islice(made, 1)
    assert (found["scan"], found["scan ÷ Parquet"], found["empty batch"]) == (100, 0.2, 20)
    assert "empty batch ÷ Parquet" not in found
    assert not passes
