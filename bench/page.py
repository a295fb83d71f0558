"""Results of benchmarks: one JSON line per case and run, a page that shows the newest, and a plot."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    lines = [
        "# Benchmark results",
        "",
        "Written by `penstock bench` from `results/*.jsonl`; do not edit. One producer or consumer process, one",
        "broker, 8 queues, asynchronous flush, no replica, unless a case says otherwise; client and server share the",
        "machine. Each repetition has fresh processes and directories. A floor is what has to be reached, a target",
        "what is aimed at; absolute figures move by 20-30 % from run to run and machine to machine.",
        "",
        "Two prices tell what a machine was worth when a case began. *Python step*: one turn of an empty loop. *Fresh",
        "page*: the first touch of a page of memory; above 1 µs the machine's host had not backed its memory yet",
        "(`bench/memory.py`). *Warm*: the page cache was filled first.",
    ]
    for processor, results in newest(folder).items():
        plot_name = f"results/against-floors-{_slug(processor)}.svg"
        lines += ["", f"## {_machine(results[-1])}", "", *_tables(results), "", f"![medians over floors]({plot_name})"]
        plot([result for result in results if not result["machine"]["warm_memory"]] or results, folder / plot_name)
    lines += _spark(folder / "results" / "spark.jsonl")
    path = folder / "RESULTS.md"
    path.write_text("\n".join(lines) + "\n")
    return path


def _tables(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| Case | Measure | Median | Min | Max | Floor | Target | Reached |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for result in results:
        lines += [_line(result, name, measure) for name, measure in result["measures"].items()]
    lines += [
        "",
        "| Case | Share of one processor, by process | Log written | Broker's own memory | Load before | Python step | "
        "Fresh page |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for result in results:
        shares = ", ".join(f"{name} {share:.2f}" for name, share in result["cpu_share"].items())
        found = result["machine"]
        cells = [
            _name(result),
            shares,
            f"{result['log_bytes'] / 1e6:,.0f} MB",
            f"{result['own_memory_mib']:,.0f} MiB",
            found["load_before"],
            f"{found['python_step_ns']} ns" if "python_step_ns" in found else "not measured",
            f"{found['fresh_page_us']} µs",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _slug(processor: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", processor.lower()))


def _name(result: dict[str, Any]) -> str:
    return str(result["case"]) + (", warm" if result["machine"]["warm_memory"] else "")


def _spark(path: Path) -> list[str]:
    """The newest result of each case of ``make bench-spark``, per machine, the one measured last first."""
    if not path.exists():
        return []
    kept: dict[str, dict[tuple[str, int], list[dict[str, Any]]]] = {}
    for line in path.read_text().splitlines():
        each = json.loads(line)
        cases = kept[each["processor"]] = kept.pop(each["processor"], {})
        cases.setdefault((each["case"], each["body_bytes"]), []).append(each)
    lines: list[str] = []
    for processor, cases in reversed(kept.items()):
        last = max((runs[-1] for runs in cases.values()), key=lambda run: str(run["at"]))
        lines += [
            "",
            f"## Spark: {last['cpus']} × {processor}, {last['at']}",
            "",
            f"Written by `make bench-spark`: generated stores and topics of a broker on the same machine, "
            f"{last['master']}, Spark {last['spark']}, pyarrow {last['pyarrow']}, Python {last['python']}, warm cache; "
            "the median after warm-ups. The floor is 80 % of the target. Parquet: rows/s of a scan of the same "
            "messages as plain Parquet files, in turn with the case, where it was run, and the case's share of it: "
            "machines differ, and this one twofold from hour to hour. On the machine that the targets come from "
            "Parquet made 516,000 (1,024 B) and 2,200,000 (100 B): a floor that is missed in rows/s and reached as a "
            "share of that says both. The figure is the newest run's; kept are the lowest and the highest of all "
            "runs on record, earlier code among them. Bare loop: the topic read by one "
            "process without Spark, all columns (there 260,000 and 1,170,000). Spark alone: a source that passes one "
            "batch with these columns on again and again, so what any source behind Spark's Python interface can "
            "reach. Sink alone: to a broker that acknowledges and keeps nothing. Streams: their batches behind the "
            "first. Large store: one scan of 1,024 queues. Memory: the highest resident set of Java and of one "
            "Python worker, sampled.",
            "",
            "| Case | Body bytes | Records | Seconds, each | Figure | Kept | Target | Reached | Parquet | Of it | MB/s "
            "| Java MiB | Worker MiB | Load before |",
            "|---|---:|---:|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [_spark_line(runs) for runs in cases.values()]
    return lines


def _spark_line(runs: Sequence[dict[str, Any]]) -> str:
    each = runs[-1]
    reached = {None: "", True: "yes", False: "**no**"}[each["reached"]]
    if each["reached"] is False and each["unit"] == "rows/s" and each.get("peer"):
        floor = 0.8 * each["target"] / SPARK_PARQUET_THERE[each["body_bytes"]]
        held = each["figure"] / each["peer"] >= floor
        reached += f"; {floor:.3f} of Parquet: {'yes' if held else '**no**'}"
    times = ", ".join(f"{seconds:g}" for seconds in each["times"])
    target, peer = (_shown(each[name]) if each.get(name) else "" for name in ("target", "peer"))
    share = f"{each['figure'] / each['peer']:.2f}" if peer and each["unit"] == "rows/s" else ""
    figures = [run["figure"] for run in runs]
    kept = f"{_shown(min(figures))}–{_shown(max(figures))} ({len(runs)})" if len(runs) > 1 else ""
    return (
        f"| {each['case']} | {each['body_bytes']} | {each['records']:,} | {times} "
        f"| {_shown(each['figure'])} {each['unit']} | {kept} | {target} | {reached} | {peer} | {share} "
        f"| {each['mb_per_s']:,} | {each['java_peak_mib']:,} | {each['worker_peak_mib']:,} | {each['load_before']} |"
    )


def _line(result: dict[str, Any], name: str, measure: dict[str, Any]) -> str:
    cells = [_shown(measure[value]) for value in ("median", "min", "max")]
    sign = "≤ " if measure["at_most"] else "≥ "
    floor = sign + _shown(measure["floor"]) if measure["floor"] else ""
    target = sign + measure["target"] if measure["target"] else ""
    reached = ("yes" if measure["met"] else "**no**") if measure["floor"] else ""
    what = f"{name} ({measure['unit']})"
    return f"| {_name(result)}: {result['title']} | {what} | {' | '.join(cells)} | {floor} | {target} | {reached} |"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _machine(result: dict[str, Any]) -> str:
    found = result["machine"]
    return (
        f"{found['processors']} × {found['processor']}, {found['memory_gib']} GiB, {found['system']}, "
        f"Python {found['python']}, {found['time'][:10]}"
    )


def plot(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Bars: each median as a multiple of its floor (of its inverse where less is better), with minimum and maximum.

    Without matplotlib (the extra ``bench``) the page goes without a new plot.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "penstock"  # the same figures give the same file
    from matplotlib import pyplot

    labels, values, errors = [], [], []
    for result in results:
        for name, measure in result["measures"].items():
            if not measure["floor"] or not measure["median"]:
                continue
            marks = [_multiple(measure, measure[value]) for value in ("median", "min", "max")]
            labels.append(f"{result['case']} {name}")
            values.append(marks[0])
            errors.append((marks[0] - min(marks), max(marks) - marks[0]))
    figure, axes = pyplot.subplots(figsize=(8, 0.5 + 0.4 * max(len(labels), 1)))
    axes.barh(
        labels, values, xerr=list(zip(*errors, strict=True)) if errors else None, color="#4477aa", ecolor="#222222"
    )
    axes.axvline(1.0, color="#cc3311")
    axes.invert_yaxis()
    axes.set_xlabel("multiple of the floor (red line), median with minimum and maximum")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _multiple(measure: dict[str, Any], value: float) -> float:
    if measure["at_most"]:
        return float(measure["floor"] / value) if value else 0.0
    return float(value / measure["floor"])
