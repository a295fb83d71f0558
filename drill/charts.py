"""The timeline of one shard: throughput, outcomes, slowest send, and the role of each broker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from penstock.pages.pictures import CHARACTER, Picture, room_for, round_up

Document = dict[str, Any]

WIDTH, RIGHT, TOP = 1060, 12, 22
THROUGHPUT, OUTCOMES, LATENCY, LANE, GAP = 96, 34, 62, 18, 20
_TICKS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600)
_LANES = ("messages/s", "failed/s", "(all shards)", "slowest send")


def timeline(document: Document, shard: Document) -> Markup:
    """The shard's lanes under each other, on one time axis."""
    return _Timeline(document, shard).markup()


def timeline_rows(document: Document, shard: Document) -> tuple[list[str], list[list[Any]]]:
    """The figures behind the picture: names of columns, and a row for each step."""
    told = document["timeline"]
    names = ["from, s", "acknowledged", "received", "slowest send, ms", "refused, all shards", "unknown, all shards"]
    steps = [f"{index * told['bin_s']:.2f}" for index in range(len(shard["acknowledged"]))]
    columns = (steps, shard["acknowledged"], shard["received"], shard["latency_ms"], told["refused"], told["unknown"])
    return names, [list(row) for row in zip(*columns, strict=True)]


class _Timeline(Picture):
    def __init__(self, document: Document, shard: Document) -> None:
        told, brokers = document["timeline"], shard["brokers"]
        outcomes_top = TOP + THROUGHPUT + GAP
        latency_top = outcomes_top + OUTCOMES + GAP
        roles_top = latency_top + LATENCY + GAP
        bottom = roles_top + LANE * len(brokers) + 6
        super().__init__(WIDTH, bottom + 22, f"timeline of {shard['name']}")
        self._seconds = max(float(told["seconds"]), 1e-9)
        self._step_s = told["bin_s"]
        # A lane's name stands left of its largest value.
        names = room_for([*_LANES, *(broker["name"] for broker in brokers)])
        self._left = names + room_for(["10,000 ms"]) + 16
        self.text(self._left, 14, shard["name"], "strong")
        after_name = self._left + room_for([shard["name"]]) + 24
        for number, window in enumerate(document["windows"]):
            left, words = self._x(window["start_s"]), f"{window['what']} {window['target']}"
            self.box("fault", left, TOP, max(self._x(window["end_s"]) - left, 1.5), bottom - TOP, words)
            if number == 0:  # others would stand above each other; pointing at them tells
                ends = left + room_for([words]) > WIDTH - RIGHT
                self.text(max(left, after_name), 14, words, anchor="end" if ends and left > after_name else "start")
        self._time_axis(bottom)
        rates, received = ([count / self._step_s for count in shard[name]] for name in ("acknowledged", "received"))
        most = round_up(max([*rates, *received, 1.0]))
        self._scale(TOP, THROUGHPUT, "messages/s", f"{most:,.0f}")
        self._bars("s0", rates, most, TOP, THROUGHPUT, "acknowledged/s")
        self.path(
            "s1",
            (
                (self._x((i + 0.5) * self._step_s), TOP + THROUGHPUT * (1 - value / most))
                for i, value in enumerate(received)
            ),
        )
        unknown = [count / self._step_s for count in told["unknown"]]
        failed = [a / self._step_s + b for a, b in zip(told["refused"], unknown, strict=True)]
        most = round_up(max([*failed, 1.0]))
        self._scale(outcomes_top, OUTCOMES, "failed/s", f"{most:,.0f}", "(all shards)")
        self._bars("s2", failed, most, outcomes_top, OUTCOMES, "refused or unknown/s")
        self._bars("s3", unknown, most, outcomes_top, OUTCOMES, "unknown/s")
        self._latency(shard["latency_ms"], latency_top)
        for number, broker in enumerate(brokers):
            self._roles(broker, roles_top + LANE * number)

    def _x(self, at_s: float) -> float:
        return self._left + (WIDTH - self._left - RIGHT) * min(max(at_s / self._seconds, 0.0), 1.0)

    def _time_axis(self, bottom: int) -> None:
        step = next((tick for tick in _TICKS if self._seconds / tick <= 14), 1200)
        for number in range(int(self._seconds / step) + 1):
            at = self._x(number * step)
            self.line("grid", at, TOP, at, bottom)
            near_end = at > WIDTH - RIGHT - 3 * CHARACTER
            self.text(at, bottom + 14, f"{number * step} s", anchor="end" if near_end else "middle")

    def _scale(self, top: int, height: int, name: str, most: str, more: str = "") -> None:
        for y in (top, top + height):
            self.line("grid", self._left, y, WIDTH - RIGHT, y)
        self.text(self._left - 6, top + 9, most, anchor="end")
        self.text(2, top + height / 2 + 4, name, "ink")
        if more:
            self.text(2, top + height / 2 + 17, more)

    def _bars(self, kind: str, values: Sequence[float], most: float, top: int, height: int, name: str) -> None:
        for index, value in enumerate(values):
            if value:
                left, right = self._x(index * self._step_s), self._x((index + 1) * self._step_s)
                tall = max(height * value / most, 1.0)
                told = f"{index * self._step_s:.2f} s: {value:,.0f} {name}"
                self.box(kind, left, top + height - tall, max(right - left - 0.4, 0.6), tall, told)

    def _latency(self, values: Sequence[float | None], top: int) -> None:
        """The slowest acknowledged send of each step, on a logarithmic scale from 1 ms."""
        known = [value for value in values if value is not None]
        decades = math.ceil(math.log10(max([*known, 10.0])))
        self._scale(top, LATENCY, "slowest send", f"{10**decades:,} ms")
        self.text(self._left - 6, top + LATENCY, "1 ms", anchor="end")
        for decade in range(1, decades):
            y = top + LATENCY * (1 - decade / decades)
            self.line("grid decade", self._left, y, WIDTH - RIGHT, y)
        for index, value in enumerate(values):
            if value is not None:
                y = top + LATENCY * (1 - math.log10(max(value, 1.0)) / decades)
                middle = self._x((index + 0.5) * self._step_s)
                self.dot("s0", middle, y, 2, f"{index * self._step_s:.2f} s: {value:,.1f} ms")

    def _roles(self, broker: Document, top: int) -> None:
        self.text(2, top + 12, broker["name"], "ink")
        for each in broker["stretches"]:
            kind = {"MASTER": "master", "SLAVE": "slave"}.get(each["role"], "silent")
            left, right = self._x(each["start_s"]), self._x(each["end_s"])
            text = each["role"].lower() + (f", epoch {each['epoch']}" if each["epoch"] else "")
            told = f"{text}, {each['start_s']:.1f} to {each['end_s']:.1f} s"
            self.box(kind, left, top + 2, max(right - left, 0.8), LANE - 4, told)
            if right - left > 6 * len(text):
                self.text(left + 4, top + 12.5, text, "onmaster" if kind == "master" else "onother")
