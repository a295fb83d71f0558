"""What a pass over a log hands out, what it keeps of what it meets besides records, and when it looks again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..directory import StoreDirectory

WINDOW_BYTES = 16 << 20
TIME_MIN = -(1 << 63)

Rows = npt.NDArray[np.void]
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
LOOK_AGAIN_S = 0.02
LOOKS_MAX = 50
"""A store that really is damaged, and was not closed, delays a check by no more than so many looks."""


class Batch(NamedTuple):
    """What a stretch of the log demands; good until the next one is asked for."""

    entries: Rows
    keys: Rows


class Damage(NamedTuple):
    """Bytes ``[start, end)`` of the log that are not what was written; ``end`` is where sound ones follow.

    ``lost``: whether records may be missing because of it. ``at_end``: the rest of the file is gone with it.
    """

    start: int
    end: int
    reason: str
    lost: bool
    at_end: bool = False


class Tail(NamedTuple):
    """Where the log ends, and what lies there if it is not zeros."""

    end: int
    reason: str = ""
    leftover_at: int | None = None  # bytes of something cut off earlier, behind a proper end
    full: bool = False  # a full file, and the one that must follow is not there


class OffsetJump(NamedTuple):
    """A record whose queue offset does not follow the queue's record before."""

    slot: int
    physical_offset: int
    size: int
    queue_offset: int
    expected: int


class SecondLooks:
    """Second looks of one reader: beside a running broker something may be seen half written.

    What looks wrong is read once more, a while later. A store that was closed needs none.
    """

    def __init__(self, store: StoreDirectory) -> None:
        self._left = LOOKS_MAX if store.aborted else 0
        self._last: object = None

    def is_due(self, place: object) -> bool:
        """True if what was just found wrong at ``place`` is to be read again; it has been waited for then."""
        if self._left == 0 or place == self._last:
            return False
        self._left -= 1
        self._last = place
        time.sleep(LOOK_AGAIN_S)
        return True
