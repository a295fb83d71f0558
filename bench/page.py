"""Results of benchmarks: one JSON line per case and run, and a page that shows the newest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import pages

Result = dict[str, Any]


def keep(result: Result, folder: Path) -> None:
    """Append the result to ``folder/results.jsonl``."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "results.jsonl", "a") as output:
        output.write(json.dumps(result) + "\n")


def kept(folder: Path) -> list[Result]:
    """All results of ``folder/results.jsonl``, oldest first."""
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def newest(folder: Path) -> dict[str, list[Result]]:
    """By processor, the one measured last first: the last result of each case, with and without warm memory."""
    found: dict[tuple[str, str, bool], Result] = {}
    for result in sorted(kept(folder), key=lambda result: str(result["case"])):
        found[result["machine"]["processor"], result["case"], result["machine"]["warm_memory"]] = result
    latest = sorted(found.values(), key=lambda result: str(result["machine"]["time"]), reverse=True)
    machines: dict[str, list[Result]] = {result["machine"]["processor"]: [] for result in latest}
    for (processor, _, _), result in found.items():
        machines[processor].append(result)
    return machines


def render(folder: Path) -> Path:
    """Write ``RESULTS.md`` from the newest results; the page's path."""
    page = folder / "RESULTS.md"
    page.write_text(pages.render(Path(__file__).with_name("results.md.jinja"), machines=newest(folder), number=number))
    return page


def number(value: float) -> str:
    """A figure as people read it."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
