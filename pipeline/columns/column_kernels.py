"""Kernels between record bytes and columns: where the variable parts are, and pieces laid end to end.

Positions and sizes are those that :func:`penstock.formats.record.kernels.scan` has proved to lie inside the buffer.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, types, void

from penstock.formats.intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import (
    LANES,
    address_of,
    copy_bytes,
    copy_lanes,
    high_mask,
    load_i32,
    load_i64,
    load_u8,
    match_mask,
)
from penstock.formats.intrinsics.text import carry_hash_at, equal_at, find_byte_at, key_hash_at
from penstock.formats.record.kernels.scanning import RECORD, measure_at
from penstock.formats.record.layout import FIXED_BYTES, MAGIC_V1, MAGIC_V2
from penstock.formats.record.rows import ScanStatus

_TAGS = int.from_bytes(b"TAGS", "big", signed=True)
_KEYS = int.from_bytes(b"KEYS", "big", signed=True)
_UNIQ_KEY = int.from_bytes(b"UNIQ_KEY", "big", signed=True)
_HASH_SIGN = ord("#")
_MAGIC_FIRST = 0xDA  # of both versions
_PAIRS_MAX = (1 << 15) // 4 + 1
"""In one property string, whose length is of 16 bits, signed."""
_INCOMPLETE = int(ScanStatus.INCOMPLETE)
_FLAGS = types.Array(types.boolean, 1, "C")
_TABLE_OF_LONGS = types.Array(types.int64, 2, "A", readonly=True)
_TABLE_OF_INTS = types.Array(types.int32, 2, "A", readonly=True)
_OUT_LONGS_TABLE = types.Array(types.int64, 2, "C")
_OUT_INTS_TABLE = types.Array(types.int32, 2, "C")
_TURNED_AT_ONCE = 128


_SHORT_BYTES = 4 * LANES
"""Up to this size a loop over lanes copies faster than a call of ``memcpy``."""


@kernel(void, OUT_BYTES, int64, int64, int64, int64, int64)
def _copy_piece(out, to, address, start, size, readable):
    """Copy a piece to ``out[to:]``, where LANES bytes more may be overwritten; memory to ``readable`` may be read."""
    if size <= _SHORT_BYTES and start + size + LANES <= readable:
        copied = 0
        while copied < size:
            copy_lanes(out, to + copied, address, start + copied)
            copied += LANES
    else:
        copy_bytes(out, to, address, start, size)


@kernel(boolean, BYTES, LONGS, INTS)
def all_ascii(buffer, starts, sizes):
    """True if no byte of the pieces is 128 or more."""
    address = address_of(buffer)
    readable = len(buffer)
    for i in range(len(starts)):
        at, end = starts[i], starts[i] + sizes[i]
        while at < end:
            if at + LANES <= readable:
                mask = high_mask(address, at)
                if end - at < LANES:
                    mask &= (1 << (end - at)) - 1
                if mask != 0:
                    return False
                at += LANES
            else:
                if load_u8(address, at) >= 0x80:
                    return False
                at += 1
    return True


@kernel(boolean, BYTES, LONGS, INTS)
def all_equal(buffer, starts, sizes):
    """True if all pieces, of which there is one at least, are the same bytes."""
    address = address_of(buffer)
    for i in range(1, len(starts)):
        if sizes[i] != sizes[0] or not equal_at(address, starts[0], address, starts[i], np.int64(sizes[0])):
            return False
    return True


_WELL_KNOWN = (OUT_LONGS, OUT_INTS, OUT_LONGS, OUT_INTS, OUT_LONGS, OUT_INTS)


@kernel(void, BYTES, LONGS, INTS, *_WELL_KNOWN)
def find_well_known(buffer, starts, sizes, tags, tags_sizes, keys, keys_sizes, unique, unique_sizes):
    """Where the values of TAGS, KEYS and UNIQ_KEY are in each property string; size -1 without one.

    Of a repeated name the last with a value counts, as for
    :func:`penstock.formats.record.properties.decode_properties`.
    """
    address = address_of(buffer)
    readable = len(buffer)
    for i in range(len(starts)):
        start, end = starts[i], starts[i] + sizes[i]
        tags[i] = keys[i] = unique[i] = 0
        tags_sizes[i] = keys_sizes[i] = unique_sizes[i] = -1
        while end - start > 5:
            pair_end = find_byte_at(address, start, end, readable, 2)
            size = pair_end - start
            if size > 5 and load_u8(address, start + 4) == 1:
                name = load_i32(address, start)
                if name == _TAGS:
                    tags[i], tags_sizes[i] = start + 5, size - 5
                elif name == _KEYS:
                    keys[i], keys_sizes[i] = start + 5, size - 5
            elif size > 9 and load_u8(address, start + 8) == 1 and load_i64(address, start) == _UNIQ_KEY:
                unique[i], unique_sizes[i] = start + 9, size - 9
            start = pair_end + 1


@kernel(int64, BYTES, LONGS, INTS, OUT_INTS, OUT_INTS, OUT_BYTES, OUT_INTS, OUT_BYTES)
def split_properties(buffer, starts, sizes, offsets, name_offsets, names, value_offsets, values):
    """The pairs of each property string: pairs ``offsets[i]`` to ``offsets[i + 1]`` belong to string i.

    Name k is ``names[name_offsets[k]:name_offsets[k + 1]]``, values likewise. There is room for a pair per four bytes
    begun, and for all bytes and LANES more, in each. Pairs without name or value are dropped; a repeated name keeps
    its first place and gets its last value. Answers the number of pairs.
    """
    address = address_of(buffer)
    readable = len(buffer)
    name_starts, value_starts = np.empty(_PAIRS_MAX, np.int64), np.empty(_PAIRS_MAX, np.int64)
    name_sizes, value_sizes = np.empty(_PAIRS_MAX, np.int64), np.empty(_PAIRS_MAX, np.int64)
    total = 0
    offsets[0] = name_offsets[0] = value_offsets[0] = 0
    name_to = value_to = np.int64(0)
    for i in range(len(starts)):
        start, end = starts[i], starts[i] + sizes[i]
        count = 0
        while start < end:
            pair_end = find_byte_at(address, start, end, readable, 2)
            name_end = find_byte_at(address, start, pair_end, readable, 1)
            name_size, value_size = name_end - start, pair_end - name_end - 1
            if name_size > 0 and value_size > 0:
                at = 0
                while at < count and not (
                    name_sizes[at] == name_size and equal_at(address, name_starts[at], address, start, name_size)
                ):
                    at += 1
                if at == count:
                    name_starts[at], name_sizes[at] = start, name_size
                    count += 1
                value_starts[at], value_sizes[at] = name_end + 1, value_size
            start = pair_end + 1
        for at in range(count):
            _copy_piece(names, name_to, address, name_starts[at], name_sizes[at], readable)
            _copy_piece(values, value_to, address, value_starts[at], value_sizes[at], readable)
            name_to += name_sizes[at]
            value_to += value_sizes[at]
            total += 1
            name_offsets[total] = name_to
            value_offsets[total] = value_to
        offsets[i + 1] = total
    return total


@kernel(void, _TABLE_OF_LONGS, _TABLE_OF_INTS, _OUT_LONGS_TABLE, _OUT_INTS_TABLE)
def turn(longs, ints, long_columns, int_columns):
    """Copy column k of a table to row k of ``long_columns`` or ``int_columns``; a stretch that stays near at a time."""
    for first in range(0, len(longs), _TURNED_AT_ONCE):
        end = min(first + _TURNED_AT_ONCE, len(longs))
        for k in range(len(long_columns)):
            for i in range(first, end):
                long_columns[k, i] = longs[i, k]
        for k in range(len(int_columns)):
            for i in range(first, end):
                int_columns[k, i] = ints[i, k]


@kernel(boolean, INTS, OUT_INTS)
def lay_out(sizes, offsets):
    """Offsets of pieces laid end to end, empty ones where the size is negative. True if a size is negative.

    All together they have less than 2 GiB.
    """
    some_missing = False
    end = np.int64(0)
    offsets[0] = 0
    for i in range(len(sizes)):
        some_missing |= sizes[i] < 0
        end += max(sizes[i], 0)
        offsets[i + 1] = end
    return some_missing


@kernel(boolean, BYTES, LONGS, INTS, OUT_BYTES)
def gather_pieces(buffer, starts, sizes, out):
    """Copy the pieces with sizes above 0 one behind the other to ``out``, which has LANES bytes more than they.

    False if one is not inside the buffer, or does not fit.
    """
    address = address_of(buffer)
    readable = len(buffer)
    to = np.int64(0)
    for i in range(len(starts)):
        start, size = starts[i], np.int64(sizes[i])
        if size > 0:
            if start < 0 or start > readable - size or to > len(out) - LANES - size:
                return False
            _copy_piece(out, to, address, start, size, readable)
            to += size
    return True


@kernel(int64, BYTES, LONGS, INTS, OUT_INTS, OUT_LONGS, OUT_INTS)
def split_at_blanks(buffer, starts, sizes, offsets, pieces, piece_sizes):
    """The words of each text (size -1: none): words ``offsets[i]`` to ``offsets[i + 1]`` belong to text i.

    There is room for a word per two bytes begun. Answers the number of words.
    """
    address = address_of(buffer)
    readable = len(buffer)
    count = 0
    offsets[0] = 0
    for i in range(len(starts)):
        start, end = starts[i], starts[i] + sizes[i]
        while start < end:
            word_end = find_byte_at(address, start, end, readable, 0x20)
            if word_end > start:
                pieces[count], piece_sizes[count] = start, word_end - start
                count += 1
            start = word_end + 1
        offsets[i + 1] = count
    return count


@kernel(void, BYTES, LONGS, INTS, LONGS, OUT_BYTES)
def scatter(buffer, starts, sizes, targets, out):
    """Copy piece i to ``out[targets[i]:]``; a piece that does not fit stays out."""
    for i in range(len(starts)):
        size = np.int64(sizes[i])
        if size > 0 and targets[i] >= 0 and targets[i] <= len(out) - size and starts[i] <= len(buffer) - size:
            copy_bytes(out, targets[i], buffer, starts[i], size)


@kernel(void, BYTES, LONGS, INTS, LONGS, OUT_BYTES)
def scatter_hex(buffer, starts, sizes, targets, out):
    """As :func:`scatter`, each byte as two upper-case hexadecimal digits."""
    for i in range(len(starts)):
        at = targets[i]
        for position in range(starts[i], starts[i] + sizes[i]):
            byte = buffer[np.uint64(position)]
            high, low = byte >> 4, byte & 15
            out[np.uint64(at)] = high + (48 if high < 10 else 55)
            out[np.uint64(at + 1)] = low + (48 if low < 10 else 55)
            at += 2


@kernel(int64, BYTES, LONGS, INTS, LONGS, INTS, LONGS, INTS, OUT_INTS, OUT_INTS)
def hash_index_keys(buffer, topics, topic_sizes, unique, unique_sizes, keys, keys_sizes, offsets, hashes):
    """What RocketMQ's index holds of each message: the hash of its ``UNIQ_KEY``, then of each word of its ``KEYS``.

    A hash is that of ``topic#key``, never negative; hashes ``offsets[i]`` to ``offsets[i + 1]`` are message i's, and
    empty keys have none. Answers the number of hashes. Source: RocketMQ ``IndexService#buildIndex``,
    ``IndexFile#indexKeyHashMethod``.
    """
    address = address_of(buffer)
    readable = len(buffer)
    count = 0
    offsets[0] = 0
    for i in range(len(topics)):
        prefix = carry_hash_at(address, topics[i], topics[i] + topic_sizes[i], np.uint32(0))
        prefix = np.uint32(prefix * np.uint32(31) + np.uint32(_HASH_SIGN))
        if unique_sizes[i] > 0:
            hashes[count] = key_hash_at(address, unique[i], unique[i] + unique_sizes[i], prefix)
            count += 1
        start, end = keys[i], keys[i] + max(keys_sizes[i], 0)
        while start < end:
            word_end = find_byte_at(address, start, end, readable, 0x20)
            if word_end > start:
                hashes[count] = key_hash_at(address, start, word_end, prefix)
                count += 1
            start = word_end + 1
        offsets[i + 1] = count
    return count


@kernel(void, BYTES, LONGS, INTS, BYTES, LONGS, _FLAGS)
def match_any(buffer, starts, sizes, wanted, wanted_ends, out):
    """Whether piece i equals one of the texts in ``wanted``, which end at ``wanted_ends``."""
    for i in range(len(starts)):
        found = False
        begin = 0
        for k in range(len(wanted_ends)):
            size = wanted_ends[k] - begin
            if size == sizes[i]:
                at = 0
                while at < size and buffer[np.uint64(starts[i] + at)] == wanted[np.uint64(begin + at)]:
                    at += 1
                if at == size:
                    found = True
                    break
            begin = wanted_ends[k]
        out[i] = found


@kernel(boolean, int64, int64, int64, int64)
def _plausible(address, position, end, physical_base):
    """True if a log may go on like this at ``position``."""
    if end - position < 36:
        return True
    size = load_i32(address, position)
    if size == 0:
        return True
    magic = load_i32(address, position + 4)
    if magic != MAGIC_V1 and magic != MAGIC_V2:
        return True  # a blank, or damage: the record before it is none the worse
    return load_i64(address, position + 28) == physical_base + position


@kernel(int64, BYTES, int64, int64, int64)
def find_record(buffer, start, end, physical_base):
    """First position in ``[start, end)`` where a whole record stands that names its own place; -1 without one.

    ``physical_base`` is the log position of ``buffer[0]``. One that seems to go on behind the buffer is answered as
    -2 - position. A record behind which one with a wrong place of its own stands does not count: a body may hold the
    bytes of other records.
    """
    address = address_of(buffer)
    size = len(buffer)
    position = start
    while position < end and position + FIXED_BYTES <= size:
        if position + 4 + 16 <= size:
            mask = match_mask(address, position + 4, _MAGIC_FIRST)
            if mask == 0:
                position += 16
                continue
            while mask & 1 == 0:
                mask >>= 1
                position += 1
            if position >= end or position + FIXED_BYTES > size:
                return -1
        magic = load_i32(address, position + 4)
        is_magic = magic in (MAGIC_V1, MAGIC_V2)
        if is_magic and load_i64(address, position + 28) == physical_base + position:
            measured = measure_at(address, position, size)
            if measured[0] == _INCOMPLETE:
                return -2 - position
            if measured[0] == RECORD and _plausible(address, measured[1], size, physical_base):
                return position
        position += 1
    return -1
