"""Messages that wait for their time: a wheel of two gears, so that a step touches only what is due soon.

Source: hierarchical timing wheels (Varghese and Lauck, 1987); differs: slots hold arrays, not lists of timers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import numpy as np

Longs = np.ndarray[Any, np.dtype[np.int64]]

FINE_MS: Final = 4_096
COARSE_MS: Final = FINE_MS * 1_024
"""About 70 minutes: three days are 62 coarse slots, and at most 1,024 fine ones are in use."""
_PARTS_MAX: Final = 32
"""Arrays of one slot; then they become one."""

_Slots = dict[int, list[tuple[Longs, Longs]]]


class TimerWheel:
    """Due times (ms) and offsets of waiting messages; 16 bytes each. Offsets come in ascending order."""

    def __init__(self) -> None:
        self._coarse: _Slots = defaultdict(list)
        self._fine: _Slots = defaultdict(list)
        self._fine_until = 0  # coarse slots below this are in the fine ones
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, due: Longs, offsets: Longs) -> None:
        """Messages that came."""
        self._count += len(due)
        coarse = due // COARSE_MS
        near = coarse < self._fine_until
        _sort_in(self._fine, due[near] // FINE_MS, due[near], offsets[near])
        far = ~near
        _sort_in(self._coarse, coarse[far], due[far], offsets[far])

    def take(self, until_ms: int) -> tuple[Longs, Longs]:
        """(due, offsets) of all that is due at ``until_ms`` or before, and not waiting any more."""
        now = until_ms // COARSE_MS
        if now >= self._fine_until:
            self._fine_until = now + 1
            for slot in [slot for slot in self._coarse if slot <= now]:
                for due, offsets in self._coarse.pop(slot):
                    _sort_in(self._fine, due // FINE_MS, due, offsets)
        last = until_ms // FINE_MS
        taken: list[tuple[Longs, Longs]] = []
        for slot in [slot for slot in self._fine if slot <= last]:
            for due, offsets in self._fine.pop(slot):
                is_due = due <= until_ms
                if is_due.any():
                    taken.append((due[is_due], offsets[is_due]))
                if not is_due.all():
                    self._fine[slot].append((due[~is_due], offsets[~is_due]))
        return self._gone(taken)

    def take_below(self, offset: int) -> tuple[Longs, Longs]:
        """(due, offsets) of all with lower offsets, and not waiting any more."""
        taken: list[tuple[Longs, Longs]] = []
        for slots in (self._coarse, self._fine):
            for slot in list(slots):
                kept = []
                for due, offsets in slots.pop(slot):
                    is_below = offsets < offset
                    taken += [(due[is_below], offsets[is_below])] if is_below.any() else []
                    kept += [(due[~is_below], offsets[~is_below])] if not is_below.all() else []
                if kept:
                    slots[slot] = kept
        return self._gone(taken)

    def _gone(self, taken: list[tuple[Longs, Longs]]) -> tuple[Longs, Longs]:
        if not taken:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        due, offsets = (np.concatenate(parts) for parts in zip(*taken, strict=True))
        self._count -= len(due)
        return due, offsets

    def first_offset(self) -> int | None:
        """The lowest offset that waits."""
        slots = [*self._coarse.values(), *self._fine.values()]
        return min((int(offsets[0]) for parts in slots for _, offsets in parts), default=None)


def _sort_in(slots: _Slots, numbers: Longs, due: Longs, offsets: Longs) -> None:
    if not len(due):
        return
    order = np.argsort(numbers, kind="stable")
    numbers, due, offsets = numbers[order], due[order], offsets[order]
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(numbers)], strict=True):
        parts = slots[int(numbers[start])]
        parts.append((due[start:end].copy(), offsets[start:end].copy()))
        if len(parts) > _PARTS_MAX:
            parts[:] = [(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]))]
