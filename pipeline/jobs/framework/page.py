"""A report as one HTML page: verdict, figures, problems, plots, tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import pages

if TYPE_CHECKING:
    from .report import Report


def render(report: Report) -> str:
    """The page of a report."""
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
