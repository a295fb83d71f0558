"""The page of curves, from the newest record of each on the machine that measured last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import pages
from penstock.pages.plots import Plot

from ..page import kept
from .curve import FLAT, LINEAR, judge
from .curves import CURVES

RECORDS = "growth.jsonl"


def render(folder: Path) -> tuple[Path, bool]:
    """Write ``growth.html``; its path, and whether no curve on it is worse than linear."""
    records = newest(folder)
    sections = [section(record) for record in records]
    verdicts = [row for each in sections for row in each["verdicts"]]
    worse = [f"{each['name']}: {row[0]}" for each in sections for row in each["verdicts"] if row[-1]]
    page = folder / "growth.html"
    page.write_text(
        pages.render(
            Path(__file__).with_name("growth.html"),
            title="How cost grows",
            verdict=f"worse than linear: {', '.join(worse)}" if worse else "nothing is worse than linear",
            ok=not worse,
            machine=records[-1]["machine"],
            sections=sections,
            count=len(verdicts),
            flat=FLAT,
            linear=LINEAR,
        )
    )
    return page, not worse


def newest(folder: Path) -> list[dict[str, Any]]:
    """The last record of each curve of the machine that measured last, in the order of the curves."""
    records = [record for record in kept(folder, RECORDS) if record["curve"] in CURVES]
    mine = records[-1]["machine"]["processor"]
    found = {record["curve"]: record for record in records if record["machine"]["processor"] == mine}
    return [found[name] for name in CURVES if name in found]


def section(record: dict[str, Any]) -> dict[str, Any]:
    """What the page shows of one curve: a plot and a row ``[cost, unit, exponent, words, is worse]`` a cost."""
    curve, sizes = CURVES[record["curve"]], record["sizes"]
    plots, verdicts = [], []
    for name, costs in record["costs"].items():
        verdict = judge(sizes, costs)
        unit = curve.units.get(name, "")
        plots.append(Plot(f"{curve.axis}: {name}", "growth", sizes, {name: costs}, unit))
        verdicts.append([name, unit, verdict.exponent, verdict.words, verdict.is_worse])
    return {
        "name": curve.name,
        "title": curve.title,
        "axis": curve.axis,
        "largest": sizes[-1],
        "most": curve.most,
        "commit": record["commit"],
        "time": record["machine"]["time"][:10],
        "plots": plots,
        "verdicts": verdicts,
    }
