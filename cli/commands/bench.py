"""``penstock bench``: the benchmarks of :mod:`penstock.bench`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click

from ..output import ProgressLine, note, print_table
from ..signals import interrupts


def _default_folder() -> Path:
    """``bench/`` of a source tree; elsewhere a folder here."""
    source = Path(__file__).resolve().parents[2]
    return source / "bench" if (source / "pyproject.toml").exists() else Path("penstock-bench")


@click.command()
@click.argument("cases", nargs=-1, metavar="[CASE]...")
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1, 100))
@click.option(
    "--seconds", default=5.0, show_default=True, type=click.FloatRange(0.5, 3600), help="Of each measured load."
)
@click.option(
    "--out", type=click.Path(file_okay=False), help="Where results/ and RESULTS.md go. [bench/ of the source]"
)
@click.option("--scratch", type=click.Path(exists=True, file_okay=False), help="Where the stores lie. [the system's]")
@click.option("--warm-memory", is_flag=True, help="Fill the page cache first, as on a machine that has run for long.")
@click.option("--list", "list_them", is_flag=True, help="Name the cases and their floors, run nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per case.")
def bench(
    cases: tuple[str, ...],
    repeats: int,
    seconds: float,
    out: str | None,
    scratch: str | None,
    warm_memory: bool,
    list_them: bool,
    as_json: bool,
) -> int:
    """Run the benchmarks but the heaviest, or only these CASEs; 1 when a floor is missed.

    Each repetition starts fresh processes on fresh directories. Results are kept in results/ and RESULTS.md.
    """
    from penstock.bench.cases import CASES
    from penstock.bench.page import keep, render, run_case

    from .kernels import warm_up

    if list_them:
        rows = [[c.name, c.title, [f"{m.name} {m.floor:g}" for m in c.measures if m.floor]] for c in CASES.values()]
        print_table(["case", "what", "floors"], rows)
        return 0
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        raise click.UsageError(f"no case {unknown[0]!r}: {', '.join(CASES)}")
    folder = Path(out) if out else _default_folder()
    progress = ProgressLine(every_s=10.0)
    warm_up(progress)
    results: list[dict[str, Any]] = []
    with interrupts(), tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=scratch) as stores:
        for name in cases or tuple(name for name, case in CASES.items() if not case.is_heavy):
            result = run_case(
                CASES[name],
                repeats=repeats,
                seconds=seconds,
                scratch=Path(stores),
                progress=progress.show,
                warm_memory=warm_memory,
            )
            progress.clear()
            keep(result, folder)
            results.append(result)
            if as_json:
                print(json.dumps(result), flush=True)
            else:
                note(f"{name}: " + ", ".join(f"{m} {v['median']:,}" for m, v in result["measures"].items()))
    page = render(folder)
    if not as_json:
        _show(results)
        note(f"kept in {page}")
    return 0 if all(m["met"] for result in results for m in result["measures"].values()) else 1


def _show(results: list[dict[str, Any]]) -> None:
    rows = []
    for result in results:
        for name, m in result["measures"].items():
            reached = ("yes" if m["met"] else "NO") if m["floor"] else "-"
            floor = m["floor"] or None
            rows.append([result["case"], name, m["unit"], m["median"], m["min"], m["max"], floor, m["target"], reached])
    print_table(["case", "measure", "unit", "median", "min", "max", "floor", "target", "reached"], rows)
