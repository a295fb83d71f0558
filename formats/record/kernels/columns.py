"""Kernels over columns of byte strings: hashes of rows, rows picked out, a property appended to each row."""

from __future__ import annotations

import numpy as np
from numba import int64, void

from ...intrinsics.kernel import BYTES, LONGS, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from ...intrinsics.memory import copy_bytes, load_u64_native
from ...intrinsics.text import string_hash_utf8


@kernel(void, BYTES, LONGS, OUT_INTS)
def hash_rows(data, ends, out):
    """``out[i]`` = Java's string hash of row ``i``, UTF-8."""
    start = 0
    for row in range(len(ends)):
        out[row] = string_hash_utf8(data, start, ends[row])
        start = ends[row]


@kernel(void, BYTES, LONGS, LONGS, OUT_BYTES)
def gather_rows(data, ends, indexes, out):
    """Rows ``indexes`` of a column, laid end to end in ``out``, which has just their size."""
    position = 0
    for index in indexes:
        start = ends[index - 1] if index > 0 else 0
        size = ends[index] - start
        copy_bytes(out, position, data, start, size)
        position += size


@kernel(int64, BYTES, LONGS, BYTES, BYTES, LONGS, OUT_BYTES, OUT_LONGS)
def append_property(base, base_ends, name, values, value_ends, out, out_ends):
    """``out`` row = base row + ``name 0x01 value 0x02``; a row with an empty value stays as it is.

    ``out`` has room for all: ``len(base) + len(values) + rows * (len(name) + 2)``; answers the bytes written.
    """
    position = 0
    base_start = 0
    value_start = 0
    for row in range(len(out_ends)):
        size = base_ends[row] - base_start
        copy_bytes(out, position, base, base_start, size)
        position += size
        size = value_ends[row] - value_start
        if size > 0:
            copy_bytes(out, position, name, 0, len(name))
            position += len(name)
            out[position] = 1
            copy_bytes(out, position + 1, values, value_start, size)
            position += size + 1
            out[position] = 2
            position += 1
        base_start = base_ends[row]
        value_start = value_ends[row]
        out_ends[row] = position
    return position


@kernel(int64, int64, int64, OUT_LONGS, OUT_LONGS)
def locate_bytes(pointers, kind, addresses, ends):
    """Where the contents of ``bytes`` objects lie, and where each would end if they lay end to end; how many they are.

    ``pointers``: the address of as many as there are ``ends``, to objects of CPython: the address of their type, which
    is ``kind``, lies behind 8 bytes, the size behind 16, the contents behind 32 (``Include/cpython/bytesobject.h``). At
    the first object of another type the call ends.
    """
    end = np.int64(0)
    for i in range(len(ends)):
        place = np.int64(load_u64_native(pointers, 8 * i))
        if np.int64(load_u64_native(place, 8)) != kind:
            return i
        end += np.int64(load_u64_native(place, 16))
        addresses[i], ends[i] = place + 32, end
    return len(ends)
