"""Counts over time, as a plot."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from penstock.pages.plots import SERIES_MAX, Plot, time_step_ms

STEPS_MAX = 120
"""Points of a line."""


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
