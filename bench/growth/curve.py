"""A curve: what some work costs at growing sizes, and whether that is flat, linear or worse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..rig import Rig
from ..runner import Figures

FLAT, LINEAR = 0.2, 1.2
"""Up to such exponents: what a doubling adds to cost, 15 % and 130 %, is within what turns differ by."""
_LEAST = 1e-9


@dataclass(frozen=True, slots=True)
class Curve:
    """What ``measure`` yields for one size after the other: costs by name, so that larger is worse.

    ``units`` names all that it yields, in the order of the page. ``sizes`` are the usual ones, ``most`` is what the
    design is for.
    """

    name: str
    title: str
    axis: str
    measure: Callable[[Rig, Sequence[int]], Iterator[Figures]]
    units: Mapping[str, str]
    sizes: Sequence[int]
    most: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """``exponent``: cost grows as size to this power. ``words`` are those of the page."""

    exponent: float
    words: str

    @property
    def is_worse(self) -> bool:
        """True if twice the size costs clearly more than twice as much."""
        return self.exponent > LINEAR


def judge(sizes: Sequence[float], costs: Sequence[float]) -> Verdict:
    """The verdict on costs at two or more growing sizes.

    The exponent is the slope of a line through the logarithms, through all points or through those of the upper half
    of the sizes' logarithms if these are three or more, whichever is steeper: a constant cost hides for long what grows
    beneath it.
    """
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.maximum(np.asarray(costs, dtype=float), _LEAST))
    if len(x) < 2 or x[0] == x[-1]:
        return Verdict(math.nan, "one size only")
    upper = x >= (x[0] + x[-1]) / 2
    exponent = _slope(x, y)
    if upper.sum() >= 3:
        exponent = max(exponent, _slope(x[upper], y[upper]))
    if exponent > LINEAR:
        words = "worse than linear"
    elif exponent >= 1 - FLAT:
        words = "linear"
    elif exponent > FLAT:
        words = "less than linear"
    else:
        words = "flat" if exponent >= -FLAT else "falls"
    return Verdict(round(exponent, 2), words)


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.polyfit(x, y, 1)[0])
