"""Searching the entries of a queue, of which some may be blank.

Blank entries (fillers) fill a queue in front of its first message, and stand for records that its log has
lost (``penstock store rebuild``). What is searched by grows over the others: position in the log, store time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.formats.queue_entry import ENTRY, FILLER_SIZE

from ..disk import Bytes

_AT_ONCE = 2048

EntryReader = Callable[[int, int], Bytes]
"""Entries from a queue offset on: at most so many, at least one."""


def next_used(read: EntryReader, offset: int, end: int) -> tuple[int, int, int] | None:
    """(offset, physical offset, size) of the first entry of ``[offset, end)`` that is not blank; None without one."""
    count = 1
    while offset < end:
        entries = read(offset, min(count, end - offset)).view(ENTRY)
        used = np.flatnonzero(entries["size"] != FILLER_SIZE)
        if len(used):
            first = int(used[0])
            return offset + first, int(entries["physical_offset"][first]), int(entries["size"][first])
        offset += len(entries)
        count = _AT_ONCE
    return None


def last_used(read: EntryReader, start: int, end: int) -> int | None:
    """The last entry of ``[start, end)`` that is not blank; None without one."""
    count = 1
    while end > start:
        at = first = max(start, end - count)
        last = None
        while at < end:
            entries = read(at, end - at).view(ENTRY)
            used = np.flatnonzero(entries["size"] != FILLER_SIZE)
            last = at + int(used[-1]) if len(used) else last
            at += len(entries)
        if last is not None:
            return last
        end = first
        count = _AT_ONCE
    return None


def first_offset(read: EntryReader, low: int, high: int, is_enough: Callable[[int], bool]) -> int:
    """The first entry of ``[low, high)`` that is not blank and whose physical offset ``is_enough``; ``high`` without.

    ``is_enough`` stays true from there on.
    """
    end = high
    while low < high:
        middle = (low + high) // 2
        found = next_used(read, middle, high)
        if found is None or is_enough(found[1]):
            high = middle
        else:
            low = found[0] + 1
    left = next_used(read, low, end)
    return end if left is None else left[0]
