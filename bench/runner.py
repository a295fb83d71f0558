"""Running a benchmark case: some turns, in turn with those of another tree of the source, and their medians."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.proto.errors import ConfigError, PenstockError

from .machine import commit, fill_page_cache, machine
from .rig import Rig

Figures = dict[str, float]
Turns = Generator[Figures, None, None]

RATIO = " ÷ "
"""Stands in the name of a figure that is a ratio, between what is divided by what."""


@dataclass(frozen=True, slots=True)
class Case:
    """One benchmark. ``turns`` gives figures by name, again and again.

    Figures are in ``unit``, or what ``units`` says of their name. Of ratios of one turn, which machines do not change
    much, ``floors`` have to be reached. ``is_heavy``: takes minutes or tens of gigabytes, so it runs only when it is
    named.
    """

    name: str
    title: str
    turns: Callable[[Rig], Turns]
    unit: str = "messages/s"
    units: Mapping[str, str] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    is_heavy: bool = False

    def unit_of(self, figure: str) -> str:
        """The unit of a figure; empty for a ratio."""
        return "" if RATIO in figure else self.units.get(figure, self.unit)


def alone(turn: Callable[[Rig], Figures]) -> Callable[[Rig], Turns]:
    """Turns that have nothing in common: each makes what it needs."""

    def turns(rig: Rig) -> Turns:
        while True:
            yield turn(rig)

    return turns


def run_case(
    case: Case, rig: Rig, *, repeats: int, warm_memory: bool = False, against: Path | None = None
) -> dict[str, Any]:
    """``repeats`` turns of ``case`` as one document; ``against``: another tree, whose turns alternate with these.

    Raises:
        ConfigError: that tree is none.
        PenstockError: a turn gave no figure.
    """
    if warm_memory:
        rig.progress(f"{case.name}: filling the page cache")
        fill_page_cache(rig.scratch)
    found = {**machine(), "warm_memory": warm_memory}
    runs: list[Figures] = []
    others: list[Figures] = []
    with contextlib.closing(case.turns(rig)) as turns:
        for turn in range(repeats):
            rig.progress(f"{case.name}: turn {turn + 1} of {repeats}")
            if against is not None and turn % 2:
                others.append(_turn_of(against, case, rig))
            runs.append(next(turns))
            if against is not None and not turn % 2:
                others.append(_turn_of(against, case, rig))
    names = sorted({name for cost in rig.costs for name in cost.cpu_share})
    shares = {name: [cost.cpu_share[name] for cost in rig.costs if name in cost.cpu_share] for name in names}
    return {
        "case": case.name,
        "title": case.title,
        "repeats": repeats,
        "seconds": rig.seconds,
        "measures": {name: _summary(case, name, runs, others) for name in runs[0]},
        "cpu_share": {name: round(statistics.median(values), 2) for name, values in shares.items()},
        "log_bytes": int(statistics.median([cost.log_bytes for cost in rig.costs] or [0])),
        "own_memory_mib": round(max((cost.own_memory_mib for cost in rig.costs), default=0.0), 1),
        "versions": rig.versions,
        "commit": commit(),
        "machine": found,
    }


def _turn_of(tree: Path, case: Case, rig: Rig) -> Figures:
    """The figures of one turn of the case of the same name in another tree of the source."""
    packages = tree.absolute() / ".namespace"
    if not (packages / "penstock").is_dir():
        raise ConfigError(f"--against {tree}: no tree of the source with {packages.name}/: `make setup` there makes it")
    with rig.folder() as folder:
        command = [sys.executable, "-m", "penstock.cli", "bench", case.name, "--json", "--repeats", "1"]
        command += ["--seconds", str(rig.seconds), "--out", str(folder), "--scratch", str(folder)]
        environment = os.environ | {"PYTHONPATH": str(packages)}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not ran.stdout.strip():
        raise PenstockError(f"--against {tree}: {(ran.stderr.strip().splitlines() or ['no figure'])[-1]}")
    measures = json.loads(ran.stdout.splitlines()[-1])["measures"]
    return {name: measure["median"] for name, measure in measures.items()}


def _summary(case: Case, name: str, runs: Sequence[Figures], others: Sequence[Figures]) -> dict[str, Any]:
    values = [run[name] for run in runs]
    median, floor = statistics.median(values), case.floors.get(name)
    made = {"unit": case.unit_of(name), "median": median, "min": min(values), "max": max(values)}
    if name in case.floors:
        made |= {"floor": floor, "met": median >= case.floors[name]}
    before = [other[name] for other in others if name in other]
    if before:
        made["before"] = statistics.median(before)
    return {
        key: round(value, 0 if abs(value) >= 1000 else 3) if isinstance(value, float) else value
        for key, value in made.items()
    }
