"""What a job says when it is done: its verdict, checks, figures, problems, tables and plots, as JSON and as a page."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import pages
from penstock.pages.plots import SERIES_MAX, Plot, time_step_ms
from penstock.proto.errors import ConfigError
from penstock.runtime import whole_files

PROBLEMS_MAX = 1000
"""Examples kept; ``problem_count`` has all."""
FOLD_ABOVE = 40
"""Rows of a table that the page shows without being asked."""
STEPS_MAX = 120
"""Points of a line."""
_SUFFIXES = (".html", ".htm", ".json")


@dataclass(slots=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


@dataclass(slots=True)
class Check:
    """What has to hold, and whether it does. ``checked``: how many things were looked at; if 0, ``note`` says why."""

    name: str
    title: str
    checked: int = 0
    violations: int = 0
    note: str = ""

    @property
    def holds(self) -> bool | None:
        """None: there was nothing that could break it."""
        return not self.violations if self.checked or self.violations else None


@dataclass(slots=True)
class Report:
    """The outcome of one run. ``ok`` is the verdict, and so the exit code; ``problems`` are what speaks against it.

    ``summary``: the outcome in a sentence, for a headline; ``subject``: what it is about, a line each.
    """

    job: str
    config: dict[str, Any]
    ok: bool = True
    summary: str = ""
    subject: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    began_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    problem_count: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)

    def problem(self, what: str, count: int = 1, **details: Any) -> None:
        """Note what is wrong; the run has failed. ``count``: how many of the kind this one stands for."""
        self.ok = False
        self.problem_count += count
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append({"problem": what, **details})

    @contextlib.contextmanager
    def checking(self, name: str, title: str) -> Iterator[Check]:
        """A check whose violations are the problems that are noted within the block, which says how much it checked."""
        check, before = Check(name, title), self.problem_count
        yield check
        check.violations += self.problem_count - before
        self.checks.append(check)

    @property
    def headline(self) -> str:
        """The verdict in words."""
        if self.ok:
            return self.summary or "passed"
        broken = ", ".join(check.name for check in self.checks if check.violations)
        count = f"{self.problem_count:,} problem{'' if self.problem_count == 1 else 's'}"
        return f"failed: {count} ({broken})" if broken else f"failed: {count}"

    def finish(self) -> Report:
        """Take the time; the report itself."""
        self.seconds = round(time.time() - self.began_ms / 1000, 3)
        return self

    def write(self, path: Path) -> None:
        """Write the page, or the JSON document where the name ends so; whole or not at all.

        Raises StorageError: it cannot be written.
        """
        is_json = path.suffix.lower() == ".json"
        text = json.dumps(asdict(self), indent=2, default=str) if is_json else render(self)
        whole_files.write_report(path, text)


def render(report: Report) -> str:
    """A report as one HTML page: verdict, what was judged, checks, figures, problems, plots, tables."""
    columns = list(dict.fromkeys(key for problem in report.problems for key in problem))
    return pages.render(
        Path(__file__).with_name("page.html"),
        title=report.job,
        verdict=report.headline,
        ok=None if report.ok and report.summary and not report.checks else report.ok,  # nothing was judged
        began=f"{datetime.fromtimestamp(report.began_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        report=report,
        settings={name: value for name, value in report.config.items() if value not in (None, (), "")},
        figures=[(name.replace("_", " "), value) for name, value in report.figures.items()],
        fold_above=FOLD_ABOVE,
        problems=(columns, [[problem.get(column) for column in columns] for problem in report.problems]),
    )


def require_writable(path: Path) -> None:
    """Raises ConfigError if a report's name says neither page nor document, or no file can be written there."""
    whole_files.require_writable(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(
            f"report {path}: a report is a page (.html) or a document (.json), nothing else is written: name "
            f"{path.with_suffix('.html').name} or {path.with_suffix('.json').name}"
        )


def step_for(first_ms: int, last_ms: int) -> int:
    """How long a point of the plot stands for, ms."""
    return time_step_ms(last_ms - first_ms, STEPS_MAX)


def over_time(
    title: str, counts: Iterable[tuple[str, int, int]], step_ms: int, shown: Sequence[str] | None = None
) -> Plot:
    """A line for each of the largest series of ``counts``: their names, times (ms), and what was counted then.

    ``shown``: these series of it, in place of the largest: those of the plot beside it, so in the same colours.
    """
    by_name: dict[str, Counter[int]] = defaultdict(Counter)
    for name, at_ms, count in counts:
        by_name[name][at_ms // step_ms * step_ms] += count
    if shown is None:
        shown = sorted(by_name, key=lambda name: (-by_name[name].total(), name))[:SERIES_MAX]
    ends = [at for name in shown for at in (min(by_name[name]), max(by_name[name]))]
    axis = list(range(min(ends), max(ends) + step_ms, step_ms)) if ends else []
    series = {name: [float(by_name[name][at]) for at in axis] for name in shown}
    return Plot(title, "times", axis, series, f"in {_words(step_ms)}", axis_name="from (UTC)")


def _words(step_ms: int) -> str:
    for size_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if step_ms % size_ms == 0:
            return f"{step_ms // size_ms} {unit}"
    return f"{step_ms // 1000} s"
