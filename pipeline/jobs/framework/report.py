"""What a job says when it is done: figures, problems, tables and plots, as JSON and as a page."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import pages
from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError, StorageError

PROBLEMS_MAX = 1000
"""Examples kept; ``problem_count`` has all."""


@dataclass(slots=True)
class Table:
    """Rows under named columns."""

    title: str
    columns: list[str]
    rows: list[list[Any]]


@dataclass(slots=True)
class Report:
    """The outcome of one run. ``ok`` is the verdict, and so the exit code; ``problems`` are what speaks against it."""

    job: str
    config: dict[str, Any]
    ok: bool = True
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

    def finish(self) -> Report:
        """Take the time; the report itself."""
        self.seconds = round(time.time() - self.began_ms / 1000, 3)
        return self

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def write(self, path: Path) -> None:
        """Write the page, or the JSON document where the name ends so; whole or not at all.

        Raises:
            StorageError: it cannot be written.
        """
        is_json = path.suffix == ".json"
        text = json.dumps(self.as_document(), indent=2, default=str) if is_json else render(self)
        partial = path.with_name(path.name + ".partial")
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            raise StorageError(f"{path}: the report is not written: {error}") from error


def render(report: Report) -> str:
    """A report as one HTML page: verdict, figures, problems, plots, tables."""
    problems = report.problem_count
    columns = list(dict.fromkeys(key for problem in report.problems for key in problem))
    return pages.render(
        Path(__file__).with_name("page.html"),
        title=report.job,
        verdict="passed" if report.ok else f"failed: {problems:,} problem{'' if problems == 1 else 's'}",
        ok=report.ok,
        began=f"{datetime.fromtimestamp(report.began_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
        report=report,
        settings={name: value for name, value in report.config.items() if value not in (None, (), "")},
        figures=[(name.replace("_", " "), value) for name, value in report.figures.items()],
        problems=(columns, [[problem.get(column) for column in columns] for problem in report.problems]),
    )


def require_writable(path: Path) -> None:
    """Nothing, if a report can be written there, as far as can be told before.

    Raises:
        ConfigError: its directory is missing or not writable, or it is a directory itself.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"report {path}: there is no directory {folder}: make it, or name another")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(f"report {path}: the directory {folder} is not writable: name another")
    if path.is_dir():
        raise ConfigError(f"report {path}: is a directory: name a file in it")
