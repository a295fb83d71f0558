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
    "--out", type=click.Path(file_okay=False), help="Where results.jsonl and RESULTS.md go. [bench/ of the source]"
)
@click.option("--scratch", type=click.Path(exists=True, file_okay=False), help="Where the stores lie. [the system's]")
@click.option("--warm-memory", is_flag=True, help="Fill the page cache first, as on a machine that has run for long.")
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="TREE",
    help="Another tree of the source: its turns alternate with these, and the ratio is shown.",
)
@click.option("--list", "list_them", is_flag=True, help="Name the cases and their floors, run nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON line per case.")
def bench(
    cases: tuple[str, ...],
    repeats: int,
    seconds: float,
    out: str | None,
    scratch: str | None,
    warm_memory: bool,
    against: Path | None,
    list_them: bool,
    as_json: bool,
) -> int:
    """Run the benchmarks but the heaviest, or only these CASEs; 1 when a ratio is below its floor.

    Each turn starts fresh processes on fresh directories. Results are kept in results.jsonl and RESULTS.md. Cases
    beside Kafka and RocketMQ fetch these into .peers/ with Maven and pip; their page is PEERS.md.
    """
    from penstock.bench.cases.cases import CASES
    from penstock.bench.page import keep, render
    from penstock.bench.peers.cases import PEERS
    from penstock.bench.rig import Rig
    from penstock.bench.runner import run_case

    from .kernels import warm_up

    known = CASES | PEERS
    if list_them:
        rows = [[c.name, c.title, [f"{name} {floor:g}" for name, floor in c.floors.items()]] for c in known.values()]
        print_table(["case", "what", "floors"], rows)
        return 0
    unknown = [name for name in cases if name not in known]
    if unknown:
        raise click.UsageError(f"no case {unknown[0]!r}: {', '.join(known)}")
    folder = Path(out) if out else _default_folder()
    progress = ProgressLine(every_s=10.0)
    warm_up(progress)
    results: list[dict[str, Any]] = []
    with interrupts(), tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=scratch) as stores:
        for name in cases or tuple(name for name, case in known.items() if not case.is_heavy):
            rig = Rig(seconds=seconds, scratch=Path(stores), progress=progress.show)
            result = run_case(known[name], rig, repeats=repeats, warm_memory=warm_memory, against=against)
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
    return 0 if all(m.get("met", True) for result in results for m in result["measures"].values()) else 1


def _show(results: list[dict[str, Any]]) -> None:
    rows = [
        [r["case"], name, m["unit"], m["median"], m["min"], m["max"], m.get("floor"), m.get("before")]
        for r in results
        for name, m in r["measures"].items()
    ]
    print_table(["case", "measure", "unit", "median", "min", "max", "at least", "before"], rows)
