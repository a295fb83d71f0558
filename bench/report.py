"""What a load test found, as the document that programs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .load.histogram import Histogram, merged
from .load.ledger import Verdict, gaps, verify
from .load.plan import LoadPlan
from .load.senders import tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """The consumers' side of ``load both``; latency from sending to receiving."""

    count: int
    seconds: float
    messages_per_s: float
    bytes_per_s: float
    latency_ms: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The end of a load test. Field names are those of ``penstock load --json``."""

    kind: str
    topic: str
    style: str
    size: int  # of a body; for consume: the mean
    count: int  # sent; for consume: received
    acknowledged: int
    refused: int
    unknown: int
    duplicates: int
    lost: int
    out_of_order: int
    stored_twice: int
    verified: bool
    interrupted: bool = False  # by a signal: the figures are those of the part that was done
    seconds: float
    messages_per_s: float  # acknowledged; for consume: received
    bytes_per_s: float
    latency_ms: dict[str, float | None]
    histogram_ms: list[tuple[float, int]] = field(default_factory=list)  # upper limit, count
    errors: dict[str, int] = field(default_factory=dict)
    consumed: Consumed | None = None
    cpu_share: dict[str, float] = field(default_factory=dict)  # of one processor, by process

    @property
    def is_clean(self) -> bool:
        """True if nothing was refused, unknown, lost or out of order. Duplicates are allowed: at least once."""
        return not (self.refused or self.unknown or self.lost or self.out_of_order or self.stored_twice)


def report_on(
    plan: LoadPlan, produced: Sequence[dict[str, Any]], consumed: Sequence[dict[str, Any]], seen_paths: Sequence[Path]
) -> LoadReport:
    """Put the processes' results together."""
    sent, acknowledged = _sum(produced, "sent"), _sum(produced, "acknowledged")
    began = min((result["began_ns"] for result in produced), default=0)
    seconds = (max((result["ended_ns"] for result in produced), default=0) - began) / 1e9
    latency = merged([Histogram.from_document(result["latency"]) for result in produced])
    intake = _consumed(consumed, began) if consumed else None
    verdict = _verdict(plan, produced, seen_paths) if seen_paths else Verdict()
    count, done = sent, acknowledged
    if plan.kind == "consume":
        assert intake is not None
        count = done = intake.count
        seconds = intake.seconds
    rate = done / seconds if seconds > 0 else 0.0
    return LoadReport(
        kind=plan.kind,
        topic=plan.topic,
        style=plan.style,
        size=_sum(consumed, "body_bytes") // max(count, 1) if plan.kind == "consume" else plan.size,
        count=count,
        acknowledged=acknowledged,
        refused=_sum(produced, "refused"),
        unknown=_sum(produced, "unknown"),
        duplicates=verdict.duplicates,
        lost=verdict.lost,
        out_of_order=verdict.out_of_order,
        stored_twice=verdict.stored_twice,
        verified=bool(seen_paths),
        seconds=round(seconds, 3),
        messages_per_s=round(rate, 1),
        bytes_per_s=round(intake.bytes_per_s if plan.kind == "consume" and intake else rate * plan.size, 1),
        latency_ms=latency.summary(),
        histogram_ms=latency.coarse(),
        errors=_errors(produced),
        consumed=intake if plan.kind == "both" else None,
        cpu_share=_cpu_share(produced, consumed),
    )


def _sum(results: Sequence[dict[str, Any]], name: str) -> int:
    return sum(int(result[name]) for result in results)


def _cpu_share(produced: Sequence[dict[str, Any]], consumed: Sequence[dict[str, Any]]) -> dict[str, float]:
    shares = {}
    roles = (("producer", produced, "began_ns", "ended_ns"), ("consumer", consumed, "first_ns", "last_ns"))
    for role, results, began, ended in roles:
        for number, result in enumerate(results):
            seconds = (result[ended] - result[began]) / 1e9
            shares[f"{role}-{number}"] = round(result["cpu_s"] / seconds, 2) if seconds > 0 else 0.0
    return shares


def _errors(produced: Sequence[dict[str, Any]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for result in produced:
        for text, count in result["errors"].items():
            tally(total, text, count)
    return total


def _consumed(results: Sequence[dict[str, Any]], began_ns: int) -> Consumed:
    """Rates from the first message received to the last one; ``both`` counts from the first send."""
    busy = [result for result in results if result["received"]]
    count = _sum(results, "received")
    first = began_ns or min((result["first_ns"] for result in busy), default=0)
    seconds = (max((result["last_ns"] for result in busy), default=first) - first) / 1e9
    latency = merged([Histogram.from_document(result["latency"]) for result in results])
    return Consumed(
        count=count,
        seconds=round(seconds, 3),
        messages_per_s=round(count / seconds, 1) if seconds > 0 else 0.0,
        bytes_per_s=round(_sum(results, "body_bytes") / seconds, 1) if seconds > 0 else 0.0,
        latency_ms=latency.summary(),
    )


def _verdict(plan: LoadPlan, produced: Sequence[dict[str, Any]], seen_paths: Sequence[Path]) -> Verdict:
    seen = np.concatenate([np.load(path) for path in seen_paths])
    if plan.kind == "both":
        sent = {int(stream): count for result in produced for stream, count in result["streams"].items()}
        exact = {int(stream): numbers for result in produced for stream, numbers in result["failed"].items()}
        return verify(seen, plan.run, sent, _sum(produced, "failed_uncounted"), exact, keys=plan.keys)
    # Nobody says what was sent: what is missing below the largest number seen, of each run and stream, is lost.
    runs: dict[int, dict[int, int]] = {}
    for (run, stream), count in gaps(seen).items():
        runs.setdefault(run, {})[stream] = count
    verdicts = [astuple(verify(seen, run, sent, 0)) for run, sent in runs.items()]
    return Verdict(*map(sum, zip(*verdicts, strict=True)))
