"""Turns beside another system.

A turn is a pair: ours and theirs on fresh processes and data, whose order alternates, each on a synced disk. Figures
that decide are ratios of one pair, larger is better: of rates ours by theirs, of times theirs by ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import count

from ..rig import Rig
from ..runner import RATIO, Figures, Turns
from . import rooms

Side = Callable[[Rig], Figures]


def pairs(
    ours: Side, theirs: Side, ratios: Sequence[tuple[str, str]], room: Callable[[], rooms.Room]
) -> Callable[[Rig], Turns]:
    """Turns of both sides with their figures, and of each of ``ratios`` the first figure divided by the second.

    ``room`` is the other system, which is fetched before anything is measured; its versions are told to the rig.
    """

    def turns(rig: Rig) -> Turns:
        rig.progress("looking for the other system, or fetching it")
        rig.versions.update(room().versions)
        for turn in count():
            found: Figures = {}
            for side in (ours, theirs) if turn % 2 == 0 else (theirs, ours):
                os.sync()
                found |= side(rig)
            yield {f"{a}{RATIO}{b}": found[a] / found[b] for a, b in ratios} | found

    return turns
