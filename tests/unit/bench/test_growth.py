"""Curves of cost: what the points say, the page, and a nameserver with simulated brokers and clients."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.growth import nameservers
from penstock.bench.growth.__main__ import main, measured
from penstock.bench.growth.curve import Curve, judge
from penstock.bench.growth.curves import CURVES
from penstock.bench.growth.page import RECORDS, render
from penstock.bench.page import keep
from penstock.bench.rig import Rig
from tests.support.cluster.nameserver import nameserver

SIZES = [1, 10, 100, 1000, 10_000]


@pytest.mark.parametrize(
    ("costs", "words"),
    [
        ([5.0, 5.1, 4.9, 5.2, 5.0], "flat"),
        ([9.0, 5.0, 3.0, 2.0, 1.0], "falls"),
        ([1.0, 3.2, 10.0, 32.0, 100.0], "less than linear"),
        ([2.0, 20.0, 200.0, 2000.0, 20_000.0], "linear"),
        ([1.0, 100.0, 10_000.0, 1e6, 1e8], "worse than linear"),
        ([0.0, 0.0, 0.0, 0.0, 0.0], "flat"),
    ],
)
def test_the_verdict_follows_from_the_points(costs: list[float], words: str) -> None:
    assert judge(SIZES, costs).words == words


def test_a_constant_does_not_hide_what_grows_beneath_it() -> None:
    costs = [3.0 + 1e-7 * size**2 for size in (*SIZES, 100_000)]
    verdict = judge([*SIZES, 100_000], costs)
    assert (verdict.words, verdict.is_worse) == ("worse than linear", True)


def record(name: str, *, factor: float) -> dict[str, Any]:
    curve = CURVES[name]
    costs = {cost: [float(size) ** factor for size in curve.sizes] for cost in curve.units}
    machine = {
        "processor": "Z80",
        "processors": 2,
        "memory_gib": 1.0,
        "system": "CP/M",
        "python": "3.11",
        "time": "2026-11-25T00:00:00+00:00",
    }
    return {"curve": name, "sizes": list(curve.sizes), "costs": costs, "commit": "abc", "machine": machine}


def test_the_page_says_of_each_curve_how_it_grows(tmp_path: Path) -> None:
    keep(record("groups", factor=2.0), tmp_path, RECORDS)
    keep(record("groups", factor=1.0), tmp_path, RECORDS)
    page, is_good = render(tmp_path)
    assert is_good
    assert page.read_text().count('<td class="good">linear</td>') == len(CURVES["groups"].units)
    keep(record("shards", factor=1.5), tmp_path, RECORDS)
    page, is_good = render(tmp_path)
    assert not is_good
    text = page.read_text()
    assert "worse than linear: shards: processor time" in text
    assert text.count("<svg") == len(CURVES["groups"].units) + len(CURVES["shards"].units)


def test_sizes_that_do_not_grow_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        ("messages=5,2", "each size must be larger"),
        ("messages=5", "2 to 20 whole numbers"),
        ("messages=5,x", "2 to 20 whole numbers"),
        ("nothing", "no curve 'nothing': messages, log"),
    ):
        assert main([words, "--out", str(tmp_path)]) == 2
        assert told in capsys.readouterr().err


def test_a_record_holds_the_costs_of_each_size(tmp_path: Path) -> None:
    curve = Curve(
        "x", "a title", "things", lambda _, sizes: ({"cost": size * 2.0} for size in sizes), {"cost": "s"}, (1, 2), 2
    )
    found = measured(curve, [1, 2, 4], Rig(seconds=1.0, scratch=tmp_path, progress=lambda _: None))
    assert (found["sizes"], found["costs"]) == ([1, 2, 4], {"cost": [2.0, 4.0, 8.0]})


def test_simulated_brokers_and_clients_measure_a_nameserver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nameservers, "IDLE_S", 0.05)

    async def measure() -> dict[str, float]:
        async with nameserver(tmp_path) as address:
            return await nameservers._measured(address, os.getpid(), 3, 60)

    found = asyncio.run(measure())
    assert set(found) == set(nameservers.UNITS)
    assert found["everywhere"] > 0
