"""Kernels over the entries of index files (:mod:`.index_file`): linking them, and following the links."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import int64, void

from ..intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, kernel, rows_of
from ..intrinsics.memory import address_of, load_i32, store_i32, store_i64
from .index_file import INDEX_ENTRY_BYTES, SECONDS_MAX

KEY_ROW = np.dtype(
    [("physical_offset", np.int64), ("store_timestamp", np.int64), ("key_hash", np.int32), ("size", np.int32)],
    align=True,
)
"""A key of a record, of ``size`` bytes in the log."""

_KEYS = rows_of(KEY_ROW)


@kernel(void, _KEYS, OUT_INTS, int64, int64, OUT_BYTES)
def _link(keys, newest, number, begin, out):
    for i in range(len(keys)):
        row = keys[np.uint64(i)]
        slot = np.uint64(row.key_hash % len(newest))
        seconds = 0
        if begin > 0:
            seconds = min(max((row.store_timestamp - begin) // 1000, 0), SECONDS_MAX)
        at = i * INDEX_ENTRY_BYTES
        store_i32(out, at, row.key_hash)
        store_i64(out, at + 4, row.physical_offset)
        store_i32(out, at + 12, seconds)
        store_i32(out, at + 16, newest[slot])
        newest[slot] = number + i


def link_keys(
    keys: npt.NDArray[np.void], newest: npt.NDArray[np.int32], number: int, begin_ms: int
) -> npt.NDArray[np.uint8]:
    """Entries of ``keys``, the first of which gets the number ``number``, linked through ``newest``, one per slot.

    ``begin_ms``: the file's beginTimestamp; for its first entry the endTimestamp of the file before (0: none).
    """
    out: npt.NDArray[np.uint8] = np.empty(len(keys) * INDEX_ENTRY_BYTES, np.uint8)
    _link(keys, newest, number, begin_ms, out)
    return out


@kernel(int64, BYTES, int64, int64, OUT_INTS, OUT_BYTES)
def check_chains(entries, first_index, count, newest, wrong):
    """Follow ``count`` index entries in order of writing; how many do not link to the one before them in their slot.

    ``newest`` holds the number of each slot's last entry so far. ``wrong[i]`` becomes 1 for a bad link.
    """
    address = address_of(entries)
    bad = 0
    for i in range(count):
        at = i * INDEX_ENTRY_BYTES
        key_hash = load_i32(address, at)
        wrong[np.uint64(i)] = 1
        if key_hash < 0:
            bad += 1
            continue
        slot = np.uint64(key_hash % len(newest))
        if load_i32(address, at + 16) == newest[slot]:
            wrong[np.uint64(i)] = 0
        else:
            bad += 1
        newest[slot] = first_index + i
    return bad
