"""From the records of a drill to one JSON document: verdicts, counts, outages, latencies, and what a timeline needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from penstock.judge import judge
from penstock.judge.conditions import Conditions, load_conditions
from penstock.judge.history import Events, History, Op, Outcome, history_files, read_history
from penstock.judge.invariants.progress import able_gaps_ms, outages

from .lab.watching import Sample, read_samples

BIN_S = 0.25
"""Width of a step of the timeline."""
SILENT = "no answer"

Document = dict[str, Any]


def judged(folder: Path) -> Document:
    """Judge the drill that was recorded in ``folder``.

    Raises:
        ValueError: no drill was recorded there, or its files are damaged.
    """
    conditions = load_conditions(folder)
    files = history_files(folder)
    if not files:
        raise ValueError(f"{folder}: holds no history")
    document = result_of(read_history(files), conditions, read_samples(folder))
    document["folder"] = str(folder)
    return document


def result_of(history: History, conditions: Conditions, samples: Sequence[Sample] = ()) -> Document:
    """The whole document. ``ok``: every invariant that could be judged holds."""
    verdicts = judge(history, conditions)
    found = outages(history, conditions.fault_start_ns, conditions.fault_end_ns)
    target = conditions.recovery_target_ms
    longest = max((each.longest_ms for each in found), default=0.0)
    return {
        "drill": conditions.drill,
        "seed": conditions.seed,
        "ok": all(each.holds is not False for each in verdicts),
        "mode": conditions.mode,
        "command": conditions.command,
        "counts": _counts(history),
        "outages": [
            {"shard": each.shard, "longest_ms": round(each.longest_ms, 1), "sum_ms": round(each.sum_ms, 1)}
            for each in found
        ],
        "target_ms": target,
        "target_met": None if target is None else longest <= target,
        "able_longest_ms": round(max(able_gaps_ms(history, conditions)), 1) if conditions.able else None,
        "settled_s": conditions.settled_s,
        "latency_ms": _latencies(history, conditions),
        "windows": [
            {
                "what": window.what,
                "target": window.target,
                "start_s": _seconds(window.start_ns, conditions),
                "end_s": _seconds(window.end_ns, conditions),
            }
            for window in conditions.windows
        ],
        "verdicts": [each.as_document() for each in verdicts],
        "timeline": _timeline(history, conditions, samples),
        "notes": [*conditions.notes, *([f"{history.torn_bytes} bytes of torn rows"] if history.torn_bytes else [])],
        "stops": [asdict(each) for each in conditions.stops],
        "footprints": [asdict(each) for each in conditions.footprints],
    }


def _seconds(at_ns: int, conditions: Conditions) -> float:
    return round((at_ns - conditions.began_ns) / 1e9, 3)


def _counts(history: History) -> dict[str, int]:
    received = history.of(Op.RECEIVE)
    distinct = len(np.unique(received[["shard", "queue", "offset"]]))
    return {
        "acknowledged": len(history.sends(Outcome.OK)),
        "refused": len(history.sends(Outcome.REFUSED)),
        "unknown": len(history.sends(Outcome.UNKNOWN)),
        "received": len(received),
        "duplicates": len(received) - distinct,
        "read": len(history.of(Op.READ)),
    }


def _latencies(history: History, conditions: Conditions) -> dict[str, dict[str, float | int | None]]:
    """Of acknowledged sends that began before, during and after the fault."""
    sent = history.sends(Outcome.OK)
    latency = (sent["end_ns"] - sent["start_ns"]) / 1e6
    start, end = conditions.fault_start_ns, conditions.fault_end_ns
    phases = {
        "before": sent["start_ns"] < start,
        "during": (sent["start_ns"] >= start) & (sent["start_ns"] < end),
        "after": sent["start_ns"] >= end,
    }
    told: dict[str, dict[str, float | int | None]] = {}
    for name, chosen in phases.items():
        values = latency[chosen]
        quantiles = np.quantile(values, (0.5, 0.99, 1.0)) if len(values) else (None,) * 3
        p50, p99, most = (None if value is None else round(float(value), 2) for value in quantiles)
        told[name] = {"count": len(values), "p50": p50, "p99": p99, "max": most}
    return told


def _timeline(history: History, conditions: Conditions, samples: Sequence[Sample]) -> Document:
    start = conditions.began_ns
    sends = history.of(Op.SEND)
    times = [sends["end_ns"], history.of(Op.RECEIVE)["end_ns"]]
    last = max((int(each.max()) for each in times if len(each)), default=start)
    last = max([last, *(window.end_ns for window in conditions.windows)])
    bins = max(int((last - start) / 1e9 / BIN_S) + 1, 1)
    by_outcome = {outcome: sends[sends["outcome"] == outcome] for outcome in Outcome}
    received = history.of(Op.RECEIVE)
    shards = []
    for number, name in enumerate(history.shards):
        mine = by_outcome[Outcome.OK]
        mine = mine[mine["shard"] == number]
        shards.append(
            {
                "name": name,
                "acknowledged": _per_bin(mine, start, bins),
                "received": _per_bin(received[received["shard"] == number], start, bins),
                "latency_ms": _slowest_per_bin(mine, start, bins),
                "brokers": _roles(name, samples, conditions),
            }
        )
    return {
        "bin_s": BIN_S,
        "seconds": round(bins * BIN_S, 3),
        "shards": shards,
        "refused": _per_bin(by_outcome[Outcome.REFUSED], start, bins),
        "unknown": _per_bin(by_outcome[Outcome.UNKNOWN], start, bins),
    }


def _bins_of(events: Events, start: int) -> Any:
    return np.maximum((events["end_ns"] - start) / 1e9 / BIN_S, 0).astype(np.int64)


def _per_bin(events: Events, start: int, bins: int) -> list[int]:
    return [int(count) for count in np.bincount(_bins_of(events, start), minlength=bins)[:bins]]


def _slowest_per_bin(events: Events, start: int, bins: int) -> list[float | None]:
    slowest = np.full(bins, -1.0)
    where = np.minimum(_bins_of(events, start), bins - 1)
    np.maximum.at(slowest, where, (events["end_ns"] - events["start_ns"]) / 1e6)
    return [round(value, 1) if value >= 0 else None for value in slowest.tolist()]


def _roles(shard: str, samples: Sequence[Sample], conditions: Conditions) -> list[Document]:
    """Per broker: stretches of one role and epoch."""
    told = []
    for name in sorted({sample.name for sample in samples if sample.shard == shard}):
        stretches: list[Document] = []
        for sample in (each for each in samples if each.name == name):
            at = max(_seconds(sample.at_ns, conditions), 0.0)
            role = sample.role or SILENT
            if stretches and (stretches[-1]["role"], stretches[-1]["epoch"]) == (role, sample.epoch):
                stretches[-1]["end_s"] = at
            else:
                if stretches:
                    stretches[-1]["end_s"] = at
                stretches.append({"role": role, "epoch": sample.epoch, "start_s": at, "end_s": at})
        told.append({"name": name, "stretches": stretches})
    return told


def skipped(drill: str, seed: int, why: str) -> Document:
    """The document of a drill that could not be done here."""
    return {"drill": drill, "seed": seed, "ok": True, "skipped": why}


def failed(drill: str, seed: int, why: str, folder: Path) -> Document:
    """The document of a drill that broke off: nothing is proved, so it is not well."""
    return {"drill": drill, "seed": seed, "ok": False, "failed": why, "folder": str(folder)}
