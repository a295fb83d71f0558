"""Results of benchmarks: one JSON line per case and run, and a page that shows the newest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from penstock import pages

from .runner import RATIO

Result = dict[str, Any]


RECORDS = "results.jsonl"


def keep(result: Result, folder: Path, name: str = RECORDS) -> None:
    """Append the result to ``folder/results.jsonl``, or to another file of records."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / name, "a") as output:
        output.write(json.dumps(result) + "\n")


def kept(folder: Path, name: str = RECORDS) -> list[Result]:
    """All results of ``folder/results.jsonl``, or of another file of records, oldest first."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def newest(folder: Path, *, beside: bool = False) -> dict[str, list[Result]]:
    """By processor, the one measured last first: the last result of each case, with and without warm memory.

    ``beside``: of those cases that ran beside other systems; else of the others.
    """
    found: dict[tuple[str, str, bool], Result] = {}
    mine = [result for result in kept(folder) if bool(result.get("versions")) == beside]
    for result in sorted(mine, key=lambda result: str(result["case"])):
        found[result["machine"]["processor"], result["case"], result["machine"]["warm_memory"]] = result
    latest = sorted(found.values(), key=lambda result: str(result["machine"]["time"]), reverse=True)
    machines: dict[str, list[Result]] = {result["machine"]["processor"]: [] for result in latest}
    for (processor, _, _), result in found.items():
        machines[processor].append(result)
    return machines


def render(folder: Path) -> Path:
    """Write ``RESULTS.md`` and ``PEERS.md`` from the newest results; the path of the first."""
    page = folder / "RESULTS.md"
    for path, template, beside in ((page, "results.md.jinja", False), (folder / "PEERS.md", "peers.md.jinja", True)):
        machines = newest(folder, beside=beside)
        path.write_text(pages.render(Path(__file__).with_name(template), machines=machines, number=number, ratio=RATIO))
    return page


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"
