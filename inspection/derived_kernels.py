"""Kernels over what is derived from the log: consume queue entries and index entries.

The rows are those of :func:`penstock.inspection.kernels.check_records`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import int64, void

from penstock.formats.index_file import INDEX_ENTRY_BYTES, SECONDS_MAX
from penstock.formats.index_kernels import KEY_ROW
from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_LONGS, kernel, rows_of
from penstock.formats.intrinsics.memory import address_of, load_i32, load_i64, store_i32, store_i64
from penstock.formats.queue_entry import ENTRY_BYTES, FILLER_SIZE, SIZE_AT, TAGS_AT

from .kernels import ENTRY_ROW


class Match(IntEnum):
    """What :func:`compare_entries` says of an entry."""

    EQUAL = 0
    MISSING = 1  # nothing is there
    BLANK = 2  # the filling in front of a queue that begins late
    OTHER = 3  # it points to another record
    TAGS = 4  # it points to the right record, with another tags code


_ENTRIES = rows_of(ENTRY_ROW)
_KEYS = rows_of(KEY_ROW)
_EQUAL, _MISSING, _BLANK_ENTRY = int(Match.EQUAL), int(Match.MISSING), int(Match.BLANK)
_OTHER, _TAGS_DIFFER = int(Match.OTHER), int(Match.TAGS)


@kernel(int64, _ENTRIES, OUT_LONGS, int64, int64, BYTES, OUT_BYTES)
def compare_entries(rows, order, first, last, found, matches):
    """Compare rows ``order[first:last]``, of consecutive queue offsets, with the entries ``found``; how many differ.

    ``matches[i]`` becomes the :class:`Match` of the i-th. ``found`` holds as many entries.
    """
    address = address_of(found)
    different = 0
    for i in range(last - first):
        row = rows[np.uint64(order[np.uint64(first + i)])]
        at = i * ENTRY_BYTES
        physical, size = load_i64(address, at), load_i32(address, at + SIZE_AT)
        match = _EQUAL
        if physical != row.physical_offset or size != row.size:
            if size == 0 and physical == 0:
                match = _MISSING
            elif size == FILLER_SIZE and physical == 0:
                match = _BLANK_ENTRY
            else:
                match = _OTHER
        elif load_i64(address, at + TAGS_AT) != row.tags_code:
            match = _TAGS_DIFFER
        matches[np.uint64(i)] = match
        different += match != _EQUAL
    return different


@kernel(void, _ENTRIES, OUT_LONGS, int64, int64, OUT_BYTES)
def pack_entries(rows, order, first, last, out):
    """The queue entries of the rows ``order[first:last]``, end to end."""
    for i in range(last - first):
        row = rows[np.uint64(order[np.uint64(first + i)])]
        store_i64(out, i * ENTRY_BYTES, row.physical_offset)
        store_i32(out, i * ENTRY_BYTES + SIZE_AT, row.size)
        store_i64(out, i * ENTRY_BYTES + TAGS_AT, row.tags_code)


@kernel((int64,) * 2, _KEYS, int64, int64, BYTES, int64, int64, int64, int64, OUT_BYTES, OUT_BYTES)
def match_keys(keys, key, key_end, entries, entry, entry_end, first_index, begin, key_found, entry_found):
    """Walk log keys and index entries, both in the log's order, until one side ends; (next key, next entry).

    ``key_found[i]`` becomes 1 where an entry exists. ``entry_found[i]`` becomes 1 where the key exists, 2 where only
    the entry's time is wrong: whole seconds after ``begin``. (An index file's first entry is relative to the end of
    the file before, and not compared.)
    """
    address = address_of(entries)
    while key < key_end and entry < entry_end:
        at = entry * INDEX_ENTRY_BYTES
        physical = load_i64(address, at + 4)
        row = keys[np.uint64(key)]
        if physical < row.physical_offset:
            entry += 1
        elif physical > row.physical_offset:
            if entry + 1 < entry_end and load_i64(address, at + INDEX_ENTRY_BYTES + 4) <= row.physical_offset:
                entry += 1  # out of order: a damaged entry must not hide the ones behind it
            else:
                key += 1
        elif load_i32(address, at) == row.key_hash:
            seconds = (row.store_timestamp - begin) // 1000
            seconds = min(max(seconds, 0), SECONDS_MAX)
            right = first_index + entry <= 1 or load_i32(address, at + 12) == seconds
            key_found[np.uint64(key)] = 1
            entry_found[np.uint64(entry)] = 1 if right else 2
            key += 1
            entry += 1
        else:
            ahead = key + 1
            while ahead < key_end and keys[np.uint64(ahead)].physical_offset == physical:
                if keys[np.uint64(ahead)].key_hash == load_i32(address, at):
                    break
                ahead += 1
            if ahead < key_end and keys[np.uint64(ahead)].physical_offset == physical:
                key += 1
            else:
                entry += 1
    return key, entry
