"""A picture as inline SVG: boxes, lines, dots and words, coloured by the classes of ``picture.css``."""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup, escape

CHARACTER = 6.5
"""Width of one of a label, about."""


class Picture:
    """A picture that shapes are put into, the later ones above the earlier ones. ``kind`` is a class of the style."""

    def __init__(self, width: float, height: float, label: str) -> None:
        self._head = f'viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(label)}"'
        self._shapes: list[str] = []

    def box(self, kind: str, left: float, top: float, width: float, height: float, told: str) -> None:
        """A rectangle; ``told`` is shown to who points at it."""
        self._put("rect", f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"', kind, told)

    def dot(self, kind: str, x: float, y: float, radius: float = 2.5, told: str = "") -> None:
        """A small circle."""
        self._put("circle", f'cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"', kind, told)

    def line(self, kind: str, left: float, top: float, right: float, bottom: float) -> None:
        """A straight line."""
        self._shapes.append(f'<line class="{kind}" x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>')

    def path(self, kind: str, points: Iterable[tuple[float, float]]) -> None:
        """A line through points."""
        told = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._shapes.append(f'<polyline class="{kind}" points="{told}"/>')

    def text(self, x: float, y: float, words: str, kind: str = "faint", anchor: str = "start") -> None:
        """Words on the line ``y``, which begin, end or have their middle at ``x``."""
        place = f'class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._shapes.append(f"<text {place}>{escape(words)}</text>")

    def markup(self) -> Markup:
        """The picture, for a page."""
        return Markup(f"<svg {self._head}>{''.join(self._shapes)}</svg>")  # noqa: S704  words are escaped above

    def _put(self, name: str, place: str, kind: str, told: str) -> None:
        inner = f"<title>{escape(told)}</title>" if told else ""
        self._shapes.append(f'<{name} class="{kind}" {place}>{inner}</{name}>')


def room_for(words: Iterable[str]) -> float:
    """The width that the longest of these labels needs."""
    return max((len(each) for each in words), default=0) * CHARACTER


def round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)
