"""Results of benchmarks: one JSON line per case and run, a page that shows the newest, and a plot."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock import pages
from penstock.pages.plots import beside_limit

from .cases import CASES, Case
from .memory import fill_page_cache
from .rig import Rig, machine

SPARK_PARQUET_THERE = {1024: 516_000, 100: 2_200_000}
"""Rows/s of a Parquet scan on the machine that the Spark targets come from, by bytes of body."""


def run_case(
    case: Case,
    *,
    repeats: int,
    seconds: float,
    scratch: Path,
    progress: Callable[[str], None],
    warm_memory: bool = False,
) -> dict[str, Any]:
    """Run ``case`` ``repeats`` times; its result as one document. ``warm_memory``: see :mod:`.memory`."""
    if warm_memory:
        progress(f"{case.name}: filling the page cache")
        fill_page_cache(scratch)
    found = {**machine(), "warm_memory": warm_memory}
    rig = Rig(seconds=seconds, scratch=scratch, progress=progress)
    runs = []
    for turn in range(repeats):
        progress(f"{case.name}: repetition {turn + 1} of {repeats}")
        runs.append(case.run(rig))
    measures = {measure.name: _summary(measure, [run[measure.name] for run in runs]) for measure in case.measures}
    names = sorted({name for cost in rig.costs for name in cost.cpu_share})
    shares = {name: [cost.cpu_share[name] for cost in rig.costs if name in cost.cpu_share] for name in names}
    return {
        "case": case.name,
        "title": case.title,
        "repeats": repeats,
        "seconds": seconds,
        "measures": measures,
        "cpu_share": {name: round(statistics.median(values), 2) for name, values in shares.items()},
        "log_bytes": int(statistics.median([cost.log_bytes for cost in rig.costs])),
        "own_memory_mib": round(max(cost.own_memory_mib for cost in rig.costs), 1),
        "machine": found,
    }


def _summary(measure: Any, values: Sequence[float]) -> dict[str, Any]:
    median = statistics.median(values)
    return {
        "unit": measure.unit,
        "median": _rounded(median),
        "min": _rounded(min(values)),
        "max": _rounded(max(values)),
        "floor": measure.floor,
        "at_most": measure.at_most,
        "target": measure.target,
        "met": measure.is_met(median),
    }


def _rounded(value: float) -> float:
    return round(value) if abs(value) >= 1000 else round(value, 3)


def keep(result: dict[str, Any], folder: Path) -> None:
    """Append the result to its case's file under ``folder/results``."""
    results = folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    with open(results / f"{result['case']}.jsonl", "a") as output:
        output.write(json.dumps(result) + "\n")


def newest(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By processor, the one measured last first: the last result of each case, with and without warm memory."""
    found: dict[tuple[str, str, bool], dict[str, Any]] = {}
    for name in CASES:
        path = folder / "results" / f"{name}.jsonl"
        if path.exists():
            for line in path.read_text().splitlines():
                result = json.loads(line)
                found[result["machine"]["processor"], name, result["machine"]["warm_memory"]] = result
    latest = sorted(found.values(), key=lambda result: str(result["machine"]["time"]), reverse=True)
    machines: dict[str, list[dict[str, Any]]] = {result["machine"]["processor"]: [] for result in latest}
    for (processor, _, _), result in found.items():
        machines[processor].append(result)
    return machines


def render(folder: Path) -> Path:
    """Write ``RESULTS.md`` and its plots from the newest results; returns the page's path."""
    machines = []
    for processor, results in newest(folder).items():
        plot_name = f"results/against-floors-{_slug(processor)}.svg"
        plot([result for result in results if not result["machine"]["warm_memory"]] or results, folder / plot_name)
        measures = [_line(result, *each) for result in results for each in result["measures"].items()]
        machines.append((_machine(results[-1]), measures, [_cost(result) for result in results], plot_name))
    page = folder / "RESULTS.md"
    template = Path(__file__).with_name("results.md.jinja")
    page.write_text(pages.render(template, machines=machines, sparks=_sparks(folder / "results" / "spark.jsonl")))
    return page


def _cost(result: dict[str, Any]) -> list[Any]:
    found = result["machine"]
    return [
        _name(result),
        ", ".join(f"{name} {share:.2f}" for name, share in result["cpu_share"].items()),
        f"{result['log_bytes'] / 1e6:,.0f} MB",
        f"{result['own_memory_mib']:,.0f} MiB",
        found["load_before"],
        f"{found['python_step_ns']} ns" if "python_step_ns" in found else "not measured",
        f"{found['fresh_page_us']} µs",
    ]


def _slug(processor: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", processor.lower()))


def _name(result: dict[str, Any]) -> str:
    return str(result["case"]) + (", warm" if result["machine"]["warm_memory"] else "")


def _sparks(path: Path) -> list[tuple[dict[str, Any], list[list[Any]]]]:
    """Per machine, the one measured last first: its newest run, and a line for each case of ``make bench-spark``."""
    kept: dict[str, dict[tuple[str, int], list[dict[str, Any]]]] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        each = json.loads(line)
        cases = kept[each["processor"]] = kept.pop(each["processor"], {})
        cases.setdefault((each["case"], each["body_bytes"]), []).append(each)
    return [
        (
            max((runs[-1] for runs in cases.values()), key=lambda run: str(run["at"])),
            [_spark_line(runs) for runs in cases.values()],
        )
        for cases in reversed(kept.values())
    ]


def _spark_line(runs: Sequence[dict[str, Any]]) -> list[Any]:
    each = runs[-1]
    reached = {None: "", True: "yes", False: "**no**"}[each["reached"]]
    if each["reached"] is False and each["unit"] == "rows/s" and each.get("peer"):
        floor = 0.8 * each["target"] / SPARK_PARQUET_THERE[each["body_bytes"]]
        held = each["figure"] / each["peer"] >= floor
        reached += f"; {floor:.3f} of Parquet: {'yes' if held else '**no**'}"
    target, peer = (_shown(each[name]) if each.get(name) else "" for name in ("target", "peer"))
    figures = [run["figure"] for run in runs]
    return [
        each["case"],
        each["body_bytes"],
        f"{each['records']:,}",
        ", ".join(f"{seconds:g}" for seconds in each["times"]),
        f"{_shown(each['figure'])} {each['unit']}",
        f"{_shown(min(figures))}–{_shown(max(figures))} ({len(runs)})" if len(runs) > 1 else "",
        target,
        reached,
        peer,
        f"{each['figure'] / each['peer']:.2f}" if peer and each["unit"] == "rows/s" else "",
        *(f"{each[name]:,}" for name in ("mb_per_s", "java_peak_mib", "worker_peak_mib")),
        each["load_before"],
    ]


def _line(result: dict[str, Any], name: str, measure: dict[str, Any]) -> list[str]:
    sign = "≤ " if measure["at_most"] else "≥ "
    return [
        f"{_name(result)}: {result['title']}",
        f"{name} ({measure['unit']})",
        *(_shown(measure[value]) for value in ("median", "min", "max")),
        sign + _shown(measure["floor"]) if measure["floor"] else "",
        sign + measure["target"] if measure["target"] else "",
        ("yes" if measure["met"] else "**no**") if measure["floor"] else "",
    ]


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _machine(result: dict[str, Any]) -> str:
    found = result["machine"]
    return (
        f"{found['processors']} × {found['processor']}, {found['memory_gib']} GiB, {found['system']}, "
        f"Python {found['python']}, {found['time'][:10]}"
    )


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars: each median as a multiple of its floor (of its inverse where less is better), with minimum and maximum."""
    bars = {}
    for result in results:
        for name, measure in result["measures"].items():
            if measure["floor"] and measure["median"]:
                marks = [_multiple(measure, measure[value]) for value in ("median", "min", "max")]
                bars[f"{result['case']} {name}"] = (marks[0], min(marks), max(marks))
    axis = "multiple of the floor (red line), median with minimum and maximum"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(beside_limit("medians over floors", bars, axis).document())


def _multiple(measure: dict[str, Any], value: float) -> float:
    if measure["at_most"]:
        return float(measure["floor"] / value) if value else 0.0
    return float(value / measure["floor"])
