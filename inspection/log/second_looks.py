"""Beside a running broker something may be seen half written: what looks wrong is read once more, a while later."""

from __future__ import annotations

import time

from ..directory import StoreDirectory

LOOK_AGAIN_S = 0.02
LOOKS_MAX = 50
"""A store that really is damaged, and was not closed, delays a check by no more than so many looks."""


class SecondLooks:
    """The second looks of one reader; a store that was closed needs none."""

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
