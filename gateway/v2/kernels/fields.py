"""Inside kernels: the fields of a protobuf message, at addresses.

Source of the format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import boolean, int64

from penstock.formats.intrinsics.kernel import kernel
from penstock.formats.intrinsics.memory import copy_bytes, load_u8, store_i8

NUMBER, CONTENT = 0, 2
"""How fields are written: the low three bits of what each begins with; the rest is the field's number."""
NUMBER_BYTES_MAX: Final = 9
LENGTH_BYTES_MAX: Final = 5
_SPACE, _TILDE, _ASCII_END = 0x20, 0x7E, 0x80


@kernel((int64, int64), int64, int64, int64)
def number_at(address, at, end):
    """The number at ``at`` and where what follows begins; (-1, -1): none that ends before ``end`` and is >= 0."""
    value, shift = np.int64(0), np.int64(0)
    while at < end and shift < 7 * NUMBER_BYTES_MAX:
        byte = load_u8(address, at)
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return np.int64(-1), np.int64(-1)


@kernel((int64, int64), int64, int64, int64)
def content_at(address, at, end):
    """Where the content begins and ends whose length is at ``at``; (-1, -1): it would not end before ``end``."""
    size, start = number_at(address, at, end)
    if size < 0 or size > end - start or start - at > LENGTH_BYTES_MAX:
        return np.int64(-1), np.int64(-1)
    return start, start + size


@kernel(boolean, int64, int64, int64)
def is_visible(address, start, end):
    """True if all of it are ASCII's visible characters, or spaces."""
    for at in range(start, end):
        byte = load_u8(address, at)
        if byte < _SPACE or byte > _TILDE:
            return False
    return True


@kernel(boolean, int64, int64, int64)
def is_ascii(address, start, end):
    """True if all of it are ASCII's characters."""
    for at in range(start, end):  # noqa: SIM110  kernels know no generators
        if load_u8(address, at) >= _ASCII_END:
            return False
    return True


@kernel(boolean, int64, int64, int64, int64)
def has_byte(address, start, end, byte):
    """True if ``byte`` is in it."""
    for at in range(start, end):  # noqa: SIM110  kernels know no generators
        if load_u8(address, at) == byte:
            return True
    return False


@kernel(int64, int64)
def number_bytes(value):
    """How many bytes a number takes that is not negative."""
    size = 1
    while value > 127:
        value >>= 7
        size += 1
    return size


@kernel(int64, int64, int64, int64)
def put_number(address, at, value):
    """Write a number that is not negative; where the next byte goes."""
    while value > 127:
        store_i8(address, at, value & 127 | 128)
        value >>= 7
        at += 1
    store_i8(address, at, value)
    return at + 1


@kernel(int64, int64, int64, int64, int64, int64, int64)
def put_content(address, at, number, source, start, end):
    """Write the field ``number`` with the bytes ``[start, end)`` at ``source``; where the next byte goes."""
    at = put_number(address, at, number << 3 | CONTENT)
    at = put_number(address, at, end - start)
    copy_bytes(address, at, source, start, end - start)
    return at + end - start
