"""Inside kernels: the pairs of a property string, found by name."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64

from ...intrinsics.kernel import BYTES, LONGS, kernel
from ...intrinsics.memory import load_u8
from ...intrinsics.text import find_byte_at

PAIR_END = 2
_DIGITS_MAX = 18
_NOT_A_NUMBER = -1
_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


def pair_name(text: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """What a pair of that name begins with, for the kernels here."""
    return np.frombuffer(text.encode() + b"\x01", np.uint8)


def name_hash(name: str) -> int:
    """The 64-bit FNV-1a hash of a name, signed, as :func:`hash_at` tells it of a value."""
    result = int(_FNV_START)
    for byte in name.encode():
        result = (result ^ byte) * int(_FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return result - (1 << 64) if result >> 63 else result


@kernel(boolean, int64, int64, int64, BYTES)
def begins_with(address, start, end, name):
    """True if the pair ``[start, end)`` begins with ``name``, separator included."""
    if end - start < len(name):
        return False
    for i in range(len(name)):  # noqa: SIM110  kernels know no generators
        if load_u8(address, start + i) != name[i]:
            return False
    return True


@kernel((int64,) * 2, int64, int64, int64, BYTES)
def value_at(address, start, end, name):
    """Where the value of a property is in the properties ``[start, end)``, the last one; empty without one."""
    found, found_end = end, end
    while start < end:
        pair_end = find_byte_at(address, start, end, end, PAIR_END)
        if begins_with(address, start, pair_end, name) and pair_end - start > len(name):
            found, found_end = start + len(name), pair_end
        start = pair_end + 1
    return found, found_end


@kernel(int64, int64, int64, int64)
def number_at(address, start, end):
    """The decimal number in ``[start, end)``, -1 if there is none."""
    if end == start or end - start > _DIGITS_MAX:
        return np.int64(_NOT_A_NUMBER)
    number = np.int64(0)
    while start < end:
        digit = load_u8(address, start) - 48
        if digit < 0 or digit > 9:
            return np.int64(_NOT_A_NUMBER)
        number = number * 10 + digit
        start += 1
    return number


@kernel(int64, int64, int64, int64)
def hash_at(address, start, end):
    """The hash of the bytes ``[start, end)``; 0 without any."""
    if start == end:
        return np.int64(0)
    result = _FNV_START
    for at in range(start, end):
        result = (result ^ np.uint64(load_u8(address, at))) * _FNV_PRIME
    return np.int64(result)


@kernel(int64, LONGS, int64)
def place_of(hashes, wanted):
    """Where a hash is in ascending ones; -1: it is not there."""
    low, high = np.int64(0), np.int64(len(hashes))
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    if low < len(hashes) and hashes[low] == wanted:
        return low
    return np.int64(-1)
