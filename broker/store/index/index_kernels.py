"""The kernel that puts keys into an index file's tables."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, uint32

from penstock.formats.index.index_file import INDEX_ENTRY_BYTES, SECONDS_MAX
from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, load_i32, load_i64, load_u8, store_i32, store_i64
from penstock.formats.intrinsics.text import carry_hash_at, equal_at, find_byte_at, key_hash_at
from penstock.formats.record.kernels.scanning import ROWS
from penstock.formats.record.layout import SysFlag

BEGIN_MS, END_MS, BEGIN_OFFSET, END_OFFSET, USED_SLOTS, COUNT = range(6)
"""Places in the array of header values."""
PAGE_SLOTS = 1024
"""Slots of 4 KiB: what is written at once."""

_KEYS = int.from_bytes(b"KEYS", "big", signed=True)
_UNIQ = int.from_bytes(b"UNIQ", "big", signed=True)
_REST = int.from_bytes(b"_KEY", "big", signed=True)
_SEPARATOR = 0x20
_HASH = 0x23
_TRANSACTION, _ROLLBACK = SysFlag.TRANSACTION_MASK, SysFlag.TRANSACTION_ROLLBACK


@kernel((int64,) * 4, int64, int64, int64, int64)
def _find_keys(address, start, end, readable):
    """(start, end) of the last UNIQ_KEY and of the last KEYS with a value in the property string; empty if absent."""
    unique, unique_end, keys, keys_end = end, end, end, end
    while end - start > 5:
        pair_end = find_byte_at(address, start, end, readable, 2)
        size = pair_end - start
        if size > 5 and load_i32(address, start) == _KEYS and load_u8(address, start + 4) == 1:
            keys, keys_end = start + 5, pair_end
        elif (
            size > 9
            and load_i32(address, start) == _UNIQ
            and load_i32(address, start + 4) == _REST
            and load_u8(address, start + 8) == 1
        ):
            unique, unique_end = start + 9, pair_end
        start = pair_end + 1
    return unique, unique_end, keys, keys_end


@kernel(boolean, int64, int64, int64, uint32, int64, int64, OUT_INTS, OUT_BYTES, OUT_BYTES, int64, OUT_LONGS, int64)
def _put(address, start, end, prefix, physical, stored_ms, slots, dirty, entries, entries_first, header, count_max):
    """Add the key ``[start, end)`` of a topic whose hash with the sign behind it is ``prefix``; false without room."""
    number = header[COUNT]
    at = (number - entries_first) * INDEX_ENTRY_BYTES
    if number >= count_max or at + INDEX_ENTRY_BYTES > len(entries):
        return False
    key_hash = key_hash_at(address, start, end, prefix)
    slot = np.uint64(key_hash % len(slots))
    previous = np.int64(slots[slot])
    if previous <= 0 or previous > number:
        previous = np.int64(0)
        header[USED_SLOTS] += 1
    seconds = (stored_ms - header[BEGIN_MS]) // 1000 if header[BEGIN_MS] > 0 and stored_ms > header[BEGIN_MS] else 0
    store_i32(entries, at, key_hash)
    store_i64(entries, at + 4, physical)
    store_i32(entries, at + 12, min(seconds, SECONDS_MAX))
    store_i32(entries, at + 16, previous)
    slots[slot] = number
    dirty[slot // np.uint64(PAGE_SLOTS)] = 1
    if number <= 1:
        header[BEGIN_OFFSET], header[BEGIN_MS] = physical, stored_ms
    header[END_OFFSET], header[END_MS] = physical, stored_ms
    header[COUNT] = number + 1
    return True


@kernel((int64,) * 2, BYTES, ROWS, int64, int64, int64, int64, OUT_INTS, OUT_BYTES, OUT_BYTES, int64, OUT_LONGS, int64)
def put_keys(buffer, rows, row_first, key_first, count, below, slots, dirty, entries, entries_first, header, count_max):
    """Index ``rows[row_first:count]``, from the ``key_first``-th key of the first one on.

    Records below log offset ``below`` are passed over. Answers the (row, key) that found no room, or (count, 0).
    """
    address = address_of(buffer)
    topic, topic_size, prefix = np.int64(0), np.int64(-1), np.uint32(0)
    for i in range(row_first, count):
        row = rows[np.uint64(i)]
        if row.properties_size < 6 or row.physical_offset < below or row.sys_flag & _TRANSACTION == _ROLLBACK:
            continue
        properties = row.properties_position
        unique, unique_end, keys, keys_end = _find_keys(
            address, properties, properties + row.properties_size, len(buffer)
        )
        if unique == unique_end and keys == keys_end:
            continue
        if row.topic_size != topic_size or not equal_at(address, topic, address, row.topic_position, topic_size):
            topic, topic_size = row.topic_position, np.int64(row.topic_size)
            prefix = carry_hash_at(address, topic, topic + topic_size, np.uint32(0))
            prefix = np.uint32(prefix * np.uint32(31) + np.uint32(_HASH))
        skipped = key_first if i == row_first else 0
        number = 0
        start, end = unique, unique_end
        while True:
            if start < end:
                if number >= skipped and not _put(
                    address,
                    start,
                    end,
                    prefix,
                    row.physical_offset,
                    row.store_timestamp,
                    slots,
                    dirty,
                    entries,
                    entries_first,
                    header,
                    count_max,
                ):
                    return i, number
                number += 1
            if keys >= keys_end:
                break
            start = keys
            end = find_byte_at(address, keys, keys_end, len(buffer), _SEPARATOR)
            keys = end + 1
    return count, 0


@kernel(int64, BYTES, int64, int64, OUT_INTS)
def rebuild_slots(entries, first, count, slots):
    """Enter ``count`` entries, the first of which has number ``first``, into ``slots``; answers slots newly used.

    -1 when an entry was never written, or does not continue its chain.
    """
    used = 0
    for i in range(count):
        at = i * INDEX_ENTRY_BYTES
        key_hash = load_i32(entries, at)
        slot = np.uint64(key_hash % len(slots))
        if (
            key_hash < 0
            or load_i32(entries, at + 16) != slots[slot]
            or (key_hash == 0 and load_i64(entries, at + 4) == 0)
        ):
            return -1
        if slots[slot] == 0:
            used += 1
        slots[slot] = first + i
    return used
