"""Benchmark results: turns made to medians, kept line by line, shown on a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.cases.cases import CASES
from penstock.bench.page import keep, newest, render
from penstock.bench.rig import Cost, Rig
from penstock.bench.runner import Case, Figures, alone, run_case
from penstock.proto.errors import ConfigError

MakeCase = Callable[[Iterator[float]], Case]


def case_of(rates: Iterator[float]) -> Case:
    def turn(rig: Rig) -> Figures:
        rig.costs.append(Cost({"broker-a-0": 0.9, "producer-0": 1.0}, 1_000_000, 120.0))
        rate = next(rates)
        return {"rate": rate, "rate ÷ async": rate / 1_000_000}

    return Case("sync-flush", "a title", alone(turn), floors={"rate ÷ async": 0.5})


def result_of(folder: Path, *rates: float, against: Path | None = None) -> dict[str, Any]:
    rig = Rig(seconds=1.0, scratch=folder, progress=lambda _: None)
    return run_case(case_of(iter(rates)), rig, repeats=len(rates), against=against)


def test_a_result_holds_median_limits_and_costs(tmp_path: Path) -> None:
    result = result_of(tmp_path, 400_000.0, 500_000.0, 600_000.0)
    rate, share = result["measures"].values()
    assert rate == {"unit": "messages/s", "median": 500_000, "min": 400_000, "max": 600_000}
    assert (share["unit"], share["median"], share["floor"], share["met"]) == ("", 0.5, 0.5, True)
    assert result["cpu_share"] == {"broker-a-0": 0.9, "producer-0": 1.0}
    assert result["machine"]["processors"]


def test_turns_alternate_with_those_of_another_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".namespace" / "penstock").mkdir(parents=True)
    calls: list[str] = []

    class Ran:
        stdout = json.dumps({"measures": {"rate": {"median": 250_000}}})
        stderr = ""

    def run(command: list[str], env: dict[str, str], **_: Any) -> Ran:
        calls.append(command[4])
        assert env["PYTHONPATH"] == str(tmp_path / ".namespace")
        return Ran()

    monkeypatch.setattr("penstock.bench.runner.subprocess.run", run)
    monkeypatch.setattr("penstock.bench.runner.commit", lambda: "abc")
    measures = result_of(tmp_path, 500_000.0, 500_000.0, against=tmp_path)["measures"]
    assert (calls, measures["rate"]["before"]) == (["sync-flush", "sync-flush"], 250_000)
    assert "before" not in measures["rate ÷ async"]
    with pytest.raises(ConfigError, match="no tree of the source"):
        result_of(tmp_path, 500_000.0, against=tmp_path / "stores")


def test_the_page_shows_the_newest_result_of_each_machine(tmp_path: Path) -> None:
    result = result_of(tmp_path, 400_000.0)
    keep({**result, "title": "an older one"}, tmp_path)
    keep(result, tmp_path)
    other: dict[str, Any] = json.loads(json.dumps(result))
    other["machine"].update(processor="Z80 (TM)", warm_memory=True, time="1976-07-01T00:00:00+00:00")
    other["measures"]["rate"]["before"] = 200_000
    keep(other, tmp_path)
    found = newest(tmp_path)
    assert [[each["title"] for each in results] for results in found.values()] == [["a title"], ["a title"]]
    assert list(found)[1] == "Z80 (TM)"
    lines = (tmp_path / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["title"] for line in lines] == ["an older one", "a title", "a title"]
    text = render(tmp_path).read_text()
    assert "| sync-flush: a title | rate (messages/s) | 400,000 | 400,000 | 400,000 |  |  |" in text
    assert "| rate ÷ async | 0.4 | 0.4 | 0.4 | 0.5 **missed** |  |" in text
    assert "| sync-flush, warm: a title | rate (messages/s) | 400,000 | 400,000 | 400,000 |  | 2.00 |" in text


def test_only_ratios_have_floors() -> None:
    floors = [name for case in CASES.values() for name in case.floors]
    assert floors
    assert all(" ÷ " in name for name in floors)
