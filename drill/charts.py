"""The timeline of one shard as inline SVG: throughput, outcomes, slowest send, and the role of each broker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

Document = dict[str, Any]

WIDTH, LEFT, RIGHT = 1060, 86, 12
THROUGHPUT, OUTCOMES, LATENCY, LANE, GAP = 96, 34, 62, 18, 20
_TICKS = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600)


def shard_chart(document: Document, shard: Document) -> str:
    """One shard's lanes under each other, on one time axis."""
    timeline = document["timeline"]
    seconds = max(float(timeline["seconds"]), 1e-9)
    bin_s = timeline["bin_s"]
    brokers = shard["brokers"]
    top = 22
    outcomes_top = top + THROUGHPUT + GAP
    latency_top = outcomes_top + OUTCOMES + GAP
    roles_top = latency_top + LATENCY + GAP
    bottom = roles_top + LANE * len(brokers) + 6
    height = bottom + 22

    def x(at_s: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at_s / seconds, 0.0), 1.0)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="timeline of {escape(shard["name"], quote=True)}">',
        f'<text x="{LEFT}" y="14" font-weight="bold">{escape(shard["name"])}</text>',
    ]
    for window in document["windows"]:
        left = x(window["start_s"])
        told = f"{window['what']} {window['target']}"
        parts.append(_box("fault", left, top, max(x(window["end_s"]) - left, 1.5), bottom - top, told))
        if window is document["windows"][0]:
            parts.append(f'<text class="faint" x="{left + 3:.1f}" y="{top - 4}">{escape(told)}</text>')
    parts += _time_axis(seconds, x, top, bottom)
    rates = [count / bin_s for count in shard["acknowledged"]]
    received = [count / bin_s for count in shard["received"]]
    most = _round_up(max([*rates, *received, 1.0]))
    parts += _scale(top, THROUGHPUT, "messages/s", f"{most:,.0f}")
    parts += _bars("ack", rates, most, bin_s, x, top, THROUGHPUT, "acknowledged/s")
    points = " ".join(
        f"{x((i + 0.5) * bin_s):.1f},{top + THROUGHPUT * (1 - value / most):.1f}" for i, value in enumerate(received)
    )
    parts.append(f'<polyline class="recv" points="{points}"/>')
    failures = [(a + b) / bin_s for a, b in zip(timeline["refused"], timeline["unknown"], strict=True)]
    most = _round_up(max([*failures, 1.0]))
    parts += _scale(outcomes_top, OUTCOMES, "failed/s", f"{most:,.0f}", "(all shards)")
    parts += _bars("refused", failures, most, bin_s, x, outcomes_top, OUTCOMES, "refused or unknown/s")
    unknown = [count / bin_s for count in timeline["unknown"]]
    parts += _bars("unknown", unknown, most, bin_s, x, outcomes_top, OUTCOMES, "unknown/s")
    parts += _latency(shard["latency_ms"], bin_s, x, latency_top)
    for index, broker in enumerate(brokers):
        parts += _roles(broker, x, roles_top + LANE * index)
    parts.append("</svg>")
    return "".join(parts)


def _time_axis(seconds: float, x: Callable[[float], float], top: int, bottom: int) -> list[str]:
    step = next((tick for tick in _TICKS if seconds / tick <= 14), 1200)
    parts = []
    for number in range(int(seconds / step) + 1):
        at = x(number * step)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}" stroke-width="0.6"/>')
        parts.append(
            f'<text class="faint" x="{at:.1f}" y="{bottom + 14}" text-anchor="middle">{number * step} s</text>'
        )
    return parts


def _scale(top: int, height: int, name: str, most: str, more: str = "") -> list[str]:
    lines = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke-width="0.6"/>'
        for y in (top, top + height)
    ]
    lines.append(f'<text class="faint" x="{LEFT - 6}" y="{top + 9}" text-anchor="end">{most}</text>')
    lines.append(f'<text x="2" y="{top + height / 2 + 4:.0f}">{name}</text>')
    if more:
        lines.append(f'<text class="faint" x="2" y="{top + height / 2 + 17:.0f}">{more}</text>')
    return lines


def _bars(
    kind: str,
    values: Sequence[float],
    most: float,
    bin_s: float,
    x: Callable[[float], float],
    top: int,
    height: int,
    name: str,
) -> list[str]:
    parts = []
    for index, value in enumerate(values):
        if value:
            left, right = x(index * bin_s), x((index + 1) * bin_s)
            tall = max(height * value / most, 1.0)
            told = f"{index * bin_s:.2f} s: {value:,.0f} {name}"
            wide = max(right - left - 0.4, 0.6)
            parts.append(_box(kind, left, top + height - tall, wide, tall, told))
    return parts


def _latency(values: Sequence[float | None], bin_s: float, x: Callable[[float], float], top: int) -> list[str]:
    """The slowest acknowledged send of each step, on a logarithmic scale from 1 ms."""
    known = [value for value in values if value is not None]
    most = 10.0 ** math.ceil(math.log10(max([*known, 10.0])))
    parts = _scale(top, LATENCY, "slowest send", f"{most:,.0f} ms")
    decades = math.log10(most)
    parts.append(f'<text class="faint" x="{LEFT - 6}" y="{top + LATENCY}" text-anchor="end">1 ms</text>')
    for decade in range(1, int(decades)):
        y = top + LATENCY * (1 - decade / decades)
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke-width="0.4" '
            'stroke-dasharray="2 3"/>'
        )
    for index, value in enumerate(values):
        if value is not None:
            y = top + LATENCY * (1 - math.log10(max(value, 1.0)) / decades)
            told = f"{index * bin_s:.2f} s: {value:,.1f} ms"
            middle = x((index + 0.5) * bin_s)
            parts.append(f'<circle class="slow" cx="{middle:.1f}" cy="{y:.1f}" r="2"><title>{told}</title></circle>')
    return parts


def _roles(broker: Document, x: Callable[[float], float], top: int) -> list[str]:
    parts = [f'<text x="2" y="{top + 12}">{escape(broker["name"])}</text>']
    for each in broker["stretches"]:
        role = each["role"]
        kind = role if role in ("MASTER", "SLAVE") else "silent"
        left, right = x(each["start_s"]), x(each["end_s"])
        epoch = f", epoch {each['epoch']}" if each["epoch"] else ""
        told = f"{role.lower()}{epoch}, {each['start_s']:.1f} to {each['end_s']:.1f} s"
        parts.append(_box(kind, left, top + 2, max(right - left, 0.8), LANE - 4, told))
        text = f"{role.lower()}{epoch}"
        if right - left > 6 * len(text):
            on = "onmaster" if kind == "MASTER" else "onother"
            parts.append(f'<text class="{on}" x="{left + 4:.1f}" y="{top + 12.5}">{escape(text)}</text>')
    return parts


def _box(kind: str, left: float, top: float, width: float, height: float, told: str) -> str:
    place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="{kind}" {place}><title>{escape(told)}</title></rect>'


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
