"""Searching bytes and hashing text inside kernels.

Functions that end in ``_at`` are for other kernels and take the address of the bytes in place of the array: Numba
counts references with atomic instructions around calls that take arrays, which costs more than a hash does.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int32, int64, uint32

from .kernel import BYTES, kernel
from .memory import LANES, address_of, load_i32, load_i64, load_u8, lowest_bit, match_mask, store_i8

_TAGS = int.from_bytes(b"TAGS", "big", signed=True)
_TAGS_BYTES = 5  # with the separator
_REPLACEMENT = 0xFFFD
_ZERO = 0x30


@kernel(int64, int64, int64, int64, int64, int64)
def find_byte_at(address, start, end, readable, byte):
    """Position of the first ``byte`` in ``[start, end)``, ``end`` without one.

    Memory up to ``readable`` (not below ``end``) may be looked at.
    """
    while start < end:
        if start + LANES <= readable:
            mask = match_mask(address, start, byte)
            if mask != 0:
                return min(start + lowest_bit(mask), end)
            start += LANES
        else:
            if load_u8(address, start) == byte:
                return start
            start += 1
    return end


@kernel(boolean, int64, int64, int64, int64, int64)
def equal_at(left, left_start, right, right_start, size):
    """True if the same ``size`` bytes stand at two places; both addresses."""
    whole = size & ~7
    for i in range(0, whole, 8):
        if load_i64(left, left_start + i) != load_i64(right, right_start + i):
            return False
    for i in range(whole, size):  # noqa: SIM110  kernels know no generators
        if load_u8(left, left_start + i) != load_u8(right, right_start + i):
            return False
    return True


@kernel(int64, int64, int64, int64)
def put_digits(out, at, value):
    """Write a number that is not negative in decimal digits, at an address; where the next byte goes."""
    size, rest = 1, value
    while rest > 9:
        rest //= 10
        size += 1
    for i in range(size):
        store_i8(out, at + size - 1 - i, _ZERO + value % 10)
        value //= 10
    return at + size


@kernel(int64, BYTES, int64, int64)
def first_nonzero(buffer, start, end):
    """Position of the first byte in ``buffer[start:end]`` that is not zero, ``end`` without one."""
    address = address_of(buffer)
    position = start
    while position + 8 <= end and load_i64(address, position) == 0:
        position += 8
    while position < end and load_u8(address, position) == 0:
        position += 1
    return position


@kernel(uint32, int64, int64, int64, uint32)
def carry_hash_at(address, start, end, result):
    """``result``, the hash of the text before, carried on over UTF-8 in ``[start, end)`` behind ``address``."""
    factor = np.uint32(31)
    while start < end:
        lead = load_u8(address, start)
        start += 1
        if lead < 0x80:
            result = np.uint32(result * factor + np.uint32(lead))
            continue
        low, high, following, code = 0x80, 0xBF, 0, _REPLACEMENT
        if 0xC2 <= lead <= 0xDF:
            following, code = 1, lead & 0x1F
        elif 0xE0 <= lead <= 0xEF:
            following, code = 2, lead & 0x0F
            low = 0xA0 if lead == 0xE0 else 0x80  # shorter forms are not allowed
            high = 0x9F if lead == 0xED else 0xBF  # nor are surrogates
        elif 0xF0 <= lead <= 0xF4:
            following, code = 3, lead & 0x07
            low = 0x90 if lead == 0xF0 else 0x80
            high = 0x8F if lead == 0xF4 else 0xBF  # at most U+10FFFF
        while following > 0:
            byte = load_u8(address, start) if start < end else 0
            if byte < low or byte > high:
                code = _REPLACEMENT
                break
            code = code << 6 | (byte & 0x3F)
            low, high = 0x80, 0xBF
            start += 1
            following -= 1
        if code > 0xFFFF:
            code -= 0x10000
            result = np.uint32(result * factor + np.uint32(0xD800 | code >> 10))
            code = 0xDC00 | (code & 0x3FF)
        result = np.uint32(result * factor + np.uint32(code))
    return result


@kernel(int64, int64, int64, int64, uint32)
def key_hash_at(address, start, end, prefix):
    """What an index file holds of the key ``[start, end)``; ``prefix``: the hash of its topic and ``#``.

    Source: RocketMQ ``IndexFile#indexKeyHashMethod``.
    """
    found = np.int64(np.int32(carry_hash_at(address, start, end, prefix)))
    return np.int64(0) if found == -2147483648 else abs(found)


@kernel(int64, int64, int64, int64)
def string_hash_at(address, start, end):
    """As :func:`string_hash_utf8`, of the bytes ``[start, end)`` behind ``address``."""
    result = np.uint32(0)
    while start < end:
        byte = load_u8(address, start)
        if byte >= 0x80:
            return np.int64(np.int32(carry_hash_at(address, start, end, result)))
        result = np.uint32(result * np.uint32(31) + np.uint32(byte))
        start += 1
    return np.int64(np.int32(result))


@kernel(int32, BYTES, int64, int64)
def string_hash_utf8(buffer, start, end):
    """Java's ``String.hashCode`` of the UTF-8 text ``buffer[start:end]``, which must lie inside the buffer.

    Equals ``string_hash(bytes.decode("utf-8", "replace"))`` for any bytes: each broken sequence counts as U+FFFD.
    """
    return np.int32(string_hash_at(address_of(buffer), start, end))


@kernel(int64, int64, int64, int64, int64)
def tags_code_at(address, start, end, readable):
    """Hash of the tag in the property string ``[start, end)``, sign-extended; 0 without a tag.

    Of several TAGS the last with a value counts, as for a reader that puts the properties into a map. Memory up to
    ``readable`` (not below ``end``) may be looked at.
    """
    value_start, value_end = end, end
    while end - start > _TAGS_BYTES:
        pair_end = find_byte_at(address, start, end, readable, 2)
        if pair_end - start > _TAGS_BYTES and load_i32(address, start) == _TAGS and load_u8(address, start + 4) == 1:
            value_start, value_end = start + _TAGS_BYTES, pair_end
        start = pair_end + 1
    return string_hash_at(address, value_start, value_end)
