"""A report as one HTML file without references to anything else: verdict, figures, problems, plots, tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 960, 220, 84, 12, 14, 26
COLOURS = ("#2f6f9f", "#c4622d", "#4c8c4a", "#8a5aa8", "#a0902c", "#5b6770")
SHOWN_MAX = 200
CHARACTER = 6.5
"""Width of one of a label, about."""
NAME_MAX = 24
MARK_LINES = 3
"""Labels of faults that follow each other stand in so many lines, so that they do not cover each other."""
_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1d2429;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}
.ok{color:#2f7a3a}.bad{color:#b3261e}.faint{color:#5b6770}
table{border-collapse:collapse;font-size:.9rem;display:block;overflow-x:auto}
td,th{padding:.2rem .7rem;border-bottom:1px solid #dde2e6;text-align:left;white-space:nowrap}
td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:#5b6770}.grid{stroke:#dde2e6}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1rem}dt{color:#5b6770}dd{margin:0}
"""


def render(report: dict[str, Any]) -> str:
    """The page of a report's document."""
    problems = report["problem_count"]
    verdict = "passed" if report["ok"] else f"failed: {problems:,} problem{'' if problems == 1 else 's'}"
    kind = "ok" if report["ok"] else "bad"
    began = datetime.fromtimestamp(report["began_ms"] / 1000, UTC)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<title>{escape(report['job'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(report['job'])}: <span class={kind}>{verdict}</span></h1>",
        f"<p class=faint>{began:%Y-%m-%d %H:%M:%S} UTC, {report['seconds']:,.1f} s. {_settings(report['config'])}</p>",
        _figures(report["figures"]),
    ]
    if report["problems"]:
        columns = list(dict.fromkeys(key for problem in report["problems"][:SHOWN_MAX] for key in problem))
        rows = [[problem.get(column) for column in columns] for problem in report["problems"][:SHOWN_MAX]]
        parts.append(_table({"title": "Problems", "columns": columns, "rows": rows}))
    parts += [f"<h2>{escape(plot['title'])}</h2>{_plot(plot)}" for plot in report["plots"] if plot["x"]]
    parts += [_table(table) for table in report["tables"]]
    return "\n".join(parts) + "\n"


def _settings(config: dict[str, Any]) -> str:
    shown = [
        f"{escape(name)} = {escape(_text(value))}" for name, value in config.items() if value not in (None, (), "")
    ]
    return ", ".join(shown)


def _figures(figures: dict[str, Any]) -> str:
    lines = [
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(_text(value))}</dd>" for name, value in figures.items()
    ]
    return f"<dl>{''.join(lines)}</dl>"


def _table(table: dict[str, Any]) -> str:
    head = "".join(f"<th>{escape(str(column))}</th>" for column in table["columns"])
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in table["rows"][:SHOWN_MAX])
    left = len(table["rows"]) - SHOWN_MAX
    more = f"<p class=faint>and {left:,} more rows</p>" if left > 0 else ""
    return f"<h2>{escape(table['title'])}</h2><table><tr>{head}</tr>{body}</table>{more}"


def _cell(value: Any) -> str:
    kind = " class=n" if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
    return f"<td{kind}>{escape(_text(value))}</td>"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3f}" if abs(value) < 100 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items())
    return str(value)


def _plot(plot: dict[str, Any]) -> str:
    known = [value for values in plot["series"].values() for value in values if value is not None]
    most = _round_up(max([*known, 1e-9]))
    body = _bars(plot, most) if plot["kind"] == "bars" else _lines(plot, most)
    legend = " ".join(
        f'<span style="color:{COLOURS[number % len(COLOURS)]}">&#9632;</span> {escape(name)}'
        for number, name in enumerate(plot["series"])
    )
    scale = [
        f'<line class=grid x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{escape(text)}</text>'
        for y, text in ((TOP, f"{_text(most)} {plot['unit']}"), (HEIGHT - BOTTOM, "0"))
    ]
    title = escape(plot["title"], quote=True)
    picture = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">{"".join(scale)}{body}</svg>'
    return f"<p>{legend}</p>{picture}"


def _lines(plot: dict[str, Any], most: float) -> str:
    first, last = float(plot["x"][0]), float(plot["x"][-1])

    def x(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((value - first) / (last - first) if last > first else 0.5)

    parts = []
    for number, (start, end, text) in enumerate(plot["marks"]):
        start, end = max(float(start), first), min(float(end), last)
        if start > end:
            continue
        told, middle = escape(text), (x(start) + x(end)) / 2
        anchor = "start" if middle < WIDTH / 4 else "end" if middle > WIDTH * 3 / 4 else "middle"
        at = {"start": x(start), "middle": middle, "end": x(end)}[anchor]
        parts.append(
            f'<rect x="{x(start):.1f}" y="{TOP}" width="{max(x(end) - x(start), 1.5):.1f}" '
            f'height="{HEIGHT - BOTTOM - TOP}" fill="#b3261e" opacity=".12"><title>{told}</title></rect>'
            f'<text x="{at:.1f}" y="{TOP + 12 * (1 + number % MARK_LINES)}" text-anchor="{anchor}">{told}</text>'
        )
    for number, values in enumerate(plot["series"].values()):
        colour = COLOURS[number % len(COLOURS)]
        for stretch in _stretches(plot["x"], values):
            points = [(x(float(at)), _y(value, most)) for at, value in stretch]
            if len(points) == 1:
                ((left, top),) = points
                parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="2.5" fill="{colour}"/>')
                continue
            line = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    if first == last:
        parts.append(f'<text x="{x(first):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{_axis(plot, first)}</text>')
        return "".join(parts)
    for value in (first, last):
        anchor = "start" if value == first else "end"
        parts.append(f'<text x="{x(value):.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{_axis(plot, value)}</text>')
    return "".join(parts)


def _stretches(x: Sequence[Any], values: Sequence[float | None]) -> list[list[tuple[Any, float]]]:
    """The points between gaps."""
    found: list[list[tuple[Any, float]]] = [[]]
    for at, value in zip(x, values, strict=True):
        if value is None:
            found.append([])
        else:
            found[-1].append((at, value))
    return [stretch for stretch in found if stretch]


def _bars(plot: dict[str, Any], most: float) -> str:
    count, kinds = len(plot["x"]), len(plot["series"])
    wide = (WIDTH - LEFT - RIGHT) / max(count, 1)
    parts = []
    for number, (name, values) in enumerate(plot["series"].items()):
        for index, value in enumerate(values):
            if value:
                left = LEFT + wide * (index + 0.1 + 0.8 * number / kinds)
                top = _y(value, most)
                told = escape(f"{plot['x'][index]}: {_text(value)} {plot['unit']} {name}")
                parts.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{max(0.8 * wide / kinds, 0.5):.1f}" '
                    f'height="{HEIGHT - BOTTOM - top:.1f}" fill="{COLOURS[number % len(COLOURS)]}">'
                    f"<title>{told}</title></rect>"
                )
    names = [_shortened(str(name)) for name in plot["x"]]
    every = math.ceil((max(map(len, names), default=0) + 2) * CHARACTER / wide)
    for index in range(0, count, max(every, 1)):
        text = escape(names[index])
        parts.append(f'<text x="{LEFT + wide * (index + 0.5):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{text}</text>')
    return "".join(parts)


def _shortened(name: str) -> str:
    """A name whose end still tells it from others, as those of log files."""
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 13]}…{name[-12:]}"


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * min(value / most, 1.0)


def _axis(plot: dict[str, Any], value: float) -> str:
    if plot["kind"] != "times":
        return _text(value)
    return f"{datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
