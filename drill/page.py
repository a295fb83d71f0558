"""The report of drills as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock import pages

from .charts import timeline, timeline_rows

Document = dict[str, Any]

LEGEND = (
    ("s0", "acknowledged sends"),
    ("s1", "received by the group"),
    ("s2", "refused"),
    ("s3", "outcome unknown"),
    ("fault", "fault"),
    ("master", "master"),
    ("slave", "slave"),
    ("silent", "no answer"),
)


def render(documents: Sequence[Document]) -> str:
    first = documents[0]
    return pages.render(
        Path(__file__).with_name("page.html"),
        title="Failover drills" if len(documents) > 1 else f"Failover drill {first['drill']}",
        verdict=verdict(first) if len(documents) == 1 else _together(documents),
        ok=all(each["ok"] for each in documents),
        documents=documents,
        told=verdict,
        figures=_figures,
        timeline=timeline,
        timeline_rows=timeline_rows,
        legend=LEGEND,
    )


def verdict(document: Document) -> str:
    """How a drill ended, in words."""
    if "skipped" in document:
        return "skipped"
    if "failed" in document:
        return "broke off"
    broken = [each["invariant"] for each in document["verdicts"] if each["holds"] is False]
    return f"{', '.join(broken)} violated" if broken else "everything held"


def _together(documents: Sequence[Document]) -> str:
    bad = [each for each in documents if not each["ok"]]
    return f"{len(bad)} of {len(documents)} did not hold" if bad else "everything held"


def _figures(document: Document) -> list[tuple[str, Any]]:
    counts = document["counts"]
    told: list[tuple[str, Any]] = [(name, counts[name]) for name in ("acknowledged", "refused", "unknown", "received")]
    told.append(("delivered again", counts["duplicates"]))
    told += [
        (f"{each['shard']} without acknowledgement", f"{each['longest_ms']:,.0f} ms") for each in document["outages"]
    ]
    if document["target_ms"] is not None:
        met = "reached" if document["target_met"] else "missed"
        told.append((f"target, {met}", f"≤ {document['target_ms']:,} ms"))
    return told
