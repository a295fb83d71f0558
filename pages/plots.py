"""Plots of series over one axis: lines with gaps and marked stretches, and bars."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from . import shown
from .pictures import CHARACTER, Picture, room_for, round_up

WIDTH, HEIGHT, RIGHT, TOP, BOTTOM = 960, 220, 12, 14, 26
SERIES_MAX = 6
"""Colours; a further series has that of the first again."""
NAME_MIN, NAME_MAX = 8, 24
"""Characters of a bar's name: as many as fit below it, where that names each bar in words of its own."""
LINES_MAX = 4
"""Of the grid, above zero."""
TICKS_MAX = 8
DAY_MS = 86_400_000
TIME_STEPS_MS = tuple(
    1000 * seconds for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200)
) + tuple(DAY_MS * days for days in (1, 2, 7, 14, 30, 90, 365))
MARK_LINES = 3
"""Labels of marks that follow each other stand in so many lines, so that they do not cover each other."""


@dataclass(slots=True)
class Plot:
    """Lines or bars over one axis. ``x`` are times (ms since 1970) if ``kind`` is ``times``, else names or numbers.

    ``axis_name`` heads the axis' column in the table of figures. ``marks`` are stretches of the axis with a text, as
    the faults of a drill. Of kind ``growth`` the axis is logarithmic, each point has a dot, and ``x`` are above 0.
    """

    title: str
    kind: str  # "times", "lines", "growth" or "bars"
    x: list[Any]
    series: Mapping[str, Sequence[float | None]]
    unit: str = ""
    marks: list[tuple[float, float, str]] = field(default_factory=list)
    axis_name: str = ""

    def picture(self) -> Markup:
        """The plot, whose ``x`` is not empty."""
        return _Drawn(self).markup()

    def legend(self) -> list[tuple[str, str]]:
        """The colour of each series, as a class, and its name."""
        return [(_colour(number), name) for number, name in enumerate(self.series)]

    def rows(self) -> list[list[Any]]:
        """The figures behind the picture: the axis, and each series."""
        return [[self.axis(at), *values] for at, *values in zip(self.x, *self.series.values(), strict=True)]

    def axis(self, at: Any) -> str:
        """A place of the axis in words."""
        if self.kind == "times":
            return f"{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S}"
        return str(at) if self.kind == "bars" else shown(at)


def time_step_ms(span_ms: float, most: int) -> int:
    """The shortest step of a clock or calendar of which at most so many fit into the span."""
    found = next((step for step in TIME_STEPS_MS if span_ms <= step * most), None)
    return int(round_up(span_ms / most)) if found is None else found


def _time_of_day(at_ms: float, step_ms: float) -> str:
    time = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{time:%m-%d}" if step_ms >= DAY_MS else f"{time:%H:%M}" if step_ms >= 60_000 else f"{time:%H:%M:%S}"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 and value == round(value) else f"{value:g}"


def _colour(number: int) -> str:
    return f"s{number % SERIES_MAX}"


class _Drawn(Picture):
    """A plot as it is drawn."""

    def __init__(self, plot: Plot) -> None:
        super().__init__(WIDTH, HEIGHT, plot.title)
        known = [value for values in plot.series.values() for value in values if value is not None]
        self._plot = plot
        largest = max([*known, 0.0]) or 1.0
        step = round_up(largest / LINES_MAX)
        count = math.ceil(largest / step)
        self._most = step * count
        scale = [(self._y(step * number), _figure(step * number)) for number in range(count)]
        scale.append((self._y(self._most), f"{_figure(self._most)} {plot.unit}".strip()))
        self.left = max(84.0, room_for(words for _, words in scale) + 12)
        for y, words in scale:
            self.line("grid", self.left, y, WIDTH - RIGHT, y)
            self.text(self.left - 6, y + 4, words, anchor="end")
        if plot.kind == "bars":
            self._bars()
        else:
            self._lines()

    def _y(self, value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(value / self._most, 1.0)

    def _x(self, value: float) -> float:
        first, last = float(self._plot.x[0]), float(self._plot.x[-1])
        if self._plot.kind == "growth":
            first, last, value = math.log(first), math.log(last), math.log(value)
        share = (value - first) / (last - first) if last > first else 0.5
        return self.left + (WIDTH - self.left - RIGHT) * share

    def _lines(self) -> None:
        plot, x = self._plot, self._x
        first, last = float(plot.x[0]), float(plot.x[-1])
        shown_marks = [(max(float(a), first), min(float(b), last), text) for a, b, text in plot.marks]
        for number, (start, end, text) in enumerate(shown_marks):
            if start <= end:
                self.box("fault", x(start), TOP, max(x(end) - x(start), 1.5), HEIGHT - BOTTOM - TOP, text)
                middle = (x(start) + x(end)) / 2
                anchor = "start" if middle < WIDTH / 4 else "end" if middle > WIDTH * 3 / 4 else "middle"
                at = {"start": x(start), "middle": middle, "end": x(end)}[anchor]
                self.text(at, TOP + 12 * (1 + number % MARK_LINES), text, anchor=anchor)
        for number, values in enumerate(plot.series.values()):
            for stretch in _stretches(plot.x, values):
                points = [(x(float(at)), self._y(value)) for at, value in stretch]
                if len(points) == 1 or plot.kind == "growth":
                    for (at, value), (left, top) in zip(stretch, points, strict=True):
                        told = f"{plot.axis(at)}: {shown(value)} {plot.unit}" if plot.kind == "growth" else ""
                        self.dot(_colour(number), left, top, told=told)
                if len(points) > 1:
                    self.path(_colour(number), points)
        self._label_axis(first, last)

    def _label_axis(self, first: float, last: float) -> None:
        plot, x, y = self._plot, self._x, HEIGHT - 8
        if first == last:
            self.text(x(first), y, plot.axis(plot.x[0]), anchor="middle")
            return
        ends = plot.axis(plot.x[0]), plot.axis(plot.x[-1])
        self.text(x(first), y, ends[0])
        self.text(x(last), y, ends[1], anchor="end")
        if plot.kind == "growth":
            return
        is_times = plot.kind == "times"
        step = time_step_ms(last - first, TICKS_MAX) if is_times else round_up((last - first) / TICKS_MAX)
        free = x(first) + room_for(ends[:1]) + CHARACTER, x(last) - room_for(ends[1:]) - CHARACTER
        for number in range(math.ceil(first / step), math.floor(last / step) + 1):
            at = number * step
            words = _time_of_day(at, step) if is_times else shown(int(at) if at == int(at) else at)
            half = room_for([words]) / 2
            if free[0] < x(at) - half and x(at) + half < free[1]:
                self.line("decade", x(at), TOP, x(at), HEIGHT - BOTTOM)
                self.text(x(at), y, words, anchor="middle")

    def _bars(self) -> None:
        plot = self._plot
        count, kinds = len(plot.x), len(plot.series)
        wide = (WIDTH - self.left - RIGHT) / max(count, 1)
        for number, (name, values) in enumerate(plot.series.items()):
            for index, value in enumerate(values):
                if value:
                    left, top = self.left + wide * (index + 0.1 + 0.8 * number / kinds), self._y(value)
                    told = f"{plot.x[index]}: {shown(value)} {plot.unit} {name}"
                    self.box(_colour(number), left, top, max(0.8 * wide / kinds, 0.5), HEIGHT - BOTTOM - top, told)
        fitting = max(min(int(wide / CHARACTER) - 2, NAME_MAX), NAME_MIN)
        names = [_shortened(str(name), fitting) for name in plot.x]
        if len(set(names)) < count:  # rather some names that tell a bar from others
            names = [_shortened(str(name), NAME_MAX) for name in plot.x]
        every = max(math.ceil((max(map(len, names), default=0) + 2) * CHARACTER / wide), 1)
        for index in range(0, count, every):
            self.text(self.left + wide * (index + 0.5), HEIGHT - 8, names[index], anchor="middle")


def _stretches(x: Sequence[Any], values: Sequence[float | None]) -> list[list[tuple[Any, float]]]:
    """The points between gaps."""
    found: list[list[tuple[Any, float]]] = [[]]
    for at, value in zip(x, values, strict=True):
        if value is None:
            found.append([])
        else:
            found[-1].append((at, value))
    return [stretch for stretch in found if stretch]


def _shortened(name: str, most: int) -> str:
    """A name whose end still tells it from others, as those of log files."""
    end = most // 2
    return name if len(name) <= most else f"{name[: most - 1 - end]}…{name[-end:]}"
