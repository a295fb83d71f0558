"""Benchmark results: kept line by line, shown on a page, plotted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.cases import CASES, Case, Measure
from penstock.bench.page import keep, newest, plot, render, run_case
from penstock.bench.rig import Cost, Rig, machine, own_memory_mib, processor


def fake_case(name: str, values: Iterator[float]) -> Case:
    def run(rig: Rig) -> dict[str, float]:
        rig.costs.append(Cost({"broker-a-0": 0.9, "producer-0": 1.0}, 1_000_000, 120.0))
        return {"rate": next(values)}

    return Case(name, "a title", (Measure("rate", "messages/s", 450_000, "1.1 × librdkafka"),), run)


@pytest.fixture
def result(tmp_path: Path) -> dict[str, object]:
    case = fake_case("produce-100b", iter([400_000.0, 500_000.0, 600_000.0]))
    return run_case(case, repeats=3, seconds=1.0, scratch=tmp_path, progress=lambda _: None)


def test_a_result_holds_median_limits_and_costs(result: dict[str, dict[str, dict[str, object]]]) -> None:
    rate = result["measures"]["rate"]
    assert (rate["median"], rate["min"], rate["max"], rate["met"]) == (500_000, 400_000, 600_000, True)
    assert result["cpu_share"] == {"broker-a-0": 0.9, "producer-0": 1.0}
    assert result["machine"]["processors"]


def test_the_page_shows_the_newest_result_beside_its_floor(tmp_path: Path, result: dict[str, object]) -> None:
    keep({**result, "title": "an older one"}, tmp_path)
    keep(result, tmp_path)
    other: dict[str, Any] = json.loads(json.dumps(result))
    other["machine"].update(processor="Z80 (TM)", warm_memory=True, time="1976-07-01T00:00:00+00:00")
    keep(other, tmp_path)
    found = newest(tmp_path)
    assert [[each["title"] for each in results] for results in found.values()] == [["a title"], ["a title"]]
    assert list(found)[1] == "Z80 (TM)"
    lines = (tmp_path / "results" / "produce-100b.jsonl").read_text().splitlines()
    assert [json.loads(line)["title"] for line in lines] == ["an older one", "a title", "a title"]
    text = render(tmp_path).read_text()
    assert "| 500,000 | 400,000 | 600,000 | ≥ 450,000 | ≥ 1.1 × librdkafka | yes |" in text
    assert "produce-100b, warm" in text
    assert (tmp_path / "results" / "against-floors-z80-tm.svg").read_text().startswith("<?xml")


def test_a_missed_floor_is_bold() -> None:
    measure = Measure("p99", "ms", 3.0, "1.5", at_most=True)
    assert measure.is_met(2.9)
    assert not measure.is_met(3.1)


@pytest.mark.parametrize(("figure", "said"), [(600_000, "yes"), (500_000, "**no**")])
def test_a_missed_floor_of_spark_is_also_given_as_a_share_of_parquet(tmp_path: Path, figure: int, said: str) -> None:
    line = {
        **{"case": "scan", "body_bytes": 100, "records": 1, "times": [1.0], "figure": figure, "unit": "rows/s"},
        **{"mb_per_s": 1, "target": 1_500_000, "peer": 1_000_000, "reached": False, "java_peak_mib": 1},
        **{"worker_peak_mib": 1, "load_before": 0.1, "processor": "Z80", "cpus": 2, "master": "local[2]"},
        **{"python": "3", "spark": "4", "pyarrow": "26", "at": "1976-07-01"},
    }
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "spark.jsonl").write_text(json.dumps(line) + "\n")
    assert f"| **no**; 0.545 of Parquet: {said} | 1,000,000 |" in render(tmp_path).read_text()


def test_the_same_results_give_the_same_plot(tmp_path: Path, result: dict[str, object]) -> None:
    plot([result], tmp_path / "one.svg")
    plot([result], tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_every_floor_of_the_performance_page_has_a_case() -> None:
    assert len(CASES) == 13
    assert all(any(measure.floor for measure in case.measures) for case in CASES.values())


def test_memory_besides_mapped_files_is_read_from_the_system() -> None:
    import os

    assert own_memory_mib(os.getpid()) > 1
    assert own_memory_mib(2**22) == 0.0
    assert machine()["processors"]


def test_processors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    first = "vendor_id\t: Maker\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: Maker 9\n"
    info.write_text(f"{first}\n{first.replace('26', '27')}\n")
    assert processor(info) == "Maker 9 (family 26, model 2)"
    info.write_text("model name\t: Maker 9\n")
    assert processor(info) == "Maker 9"
    assert processor(tmp_path / "absent")
