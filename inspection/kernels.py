"""Kernels that check log bytes, queue entries and index entries; compiled when this is imported.

:func:`check_records` is the one pass over the log: it proves every record and tells which queue entries and index
keys must exist for it, as rows of :data:`ENTRY_ROW` and of the formats' ``KEY_ROW``.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import boolean, int64

from penstock.formats.index.index_file import INDEX_ENTRY_BYTES, SECONDS_MAX
from penstock.formats.index.index_kernels import KEY_ROW
from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel, rows_of
from penstock.formats.intrinsics.memory import address_of, load_i32, load_i64, load_u8
from penstock.formats.intrinsics.text import find_byte_at, key_hash_at
from penstock.formats.record.kernels import ScanStatus, crc32_at, measure_at, string_hash_at
from penstock.formats.record.kernels.record_crc import WRONG, record_crc_at
from penstock.formats.record.kernels.scanning import RECORD
from penstock.formats.record.layout import CRC_MASK, SysFlag

ENTRY_ROW = np.dtype(
    [
        ("physical_offset", np.int64),
        ("queue_offset", np.int64),
        ("tags_code", np.int64),  # as the queue entry must hold it: the delivery time in the schedule topic
        ("store_timestamp", np.int64),
        ("slot", np.int32),
        ("size", np.int32),
    ],
    align=True,
)


class Check(IntEnum):
    """Why :func:`check_records` stopped; up to 5 as :class:`ScanStatus`."""

    END = int(ScanStatus.END)
    ROWS_FULL = int(ScanStatus.ROWS_FULL)
    BLANK = int(ScanStatus.BLANK)
    EMPTY = int(ScanStatus.EMPTY)
    BAD = int(ScanStatus.BAD)
    INCOMPLETE = int(ScanStatus.INCOMPLETE)
    NEW_QUEUE = 10  # the record's queue has no slot yet
    OFFSET = 11  # the record says another physical offset than the one it has
    BODY = 12  # the body does not match its checksum
    RECORD = 13  # the record does not match its __CRC32# property
    QUEUE_OFFSET = 14  # the queue offset does not follow that of the queue's record before
    SPECIAL = 15  # more or other queue entries than one: multi-dispatch, inner batch
    ZEROS = 16  # its properties end in a zero byte, as those of a record that is being written


PASS_OFFSET, PASS_BODY, PASS_RECORD, PASS_QUEUE_OFFSET, PASS_SPECIAL, PASS_ZEROS = 1, 2, 4, 8, 16, 32
"""What not to stop for again at the first record, when it has been dealt with."""

SLOT_SCHEDULE, SLOT_BATCH = 1, 2
"""Kinds of slots: the queue entries hold delivery times; inner batches go to a queue of their own format."""


_ENTRIES = rows_of(ENTRY_ROW)
_KEYS = rows_of(KEY_ROW)
_TRANSACTION, _PREPARED, _ROLLBACK = (
    SysFlag.TRANSACTION_MASK,
    SysFlag.TRANSACTION_PREPARED,
    SysFlag.TRANSACTION_ROLLBACK,
)
_INNER_BATCH = SysFlag.INNER_BATCH
_SIGN = ord("#")
_BAD, _ROWS_FULL = int(Check.BAD), int(Check.ROWS_FULL)
_NEW_QUEUE, _OFFSET, _BODY, _WHOLE = int(Check.NEW_QUEUE), int(Check.OFFSET), int(Check.BODY), int(Check.RECORD)
_QUEUE_OFFSET, _SPECIAL, _ZEROS = int(Check.QUEUE_OFFSET), int(Check.SPECIAL), int(Check.ZEROS)
_TAGS_NAME = int.from_bytes(b"TAGS", "big", signed=True)
_KEYS_NAME = int.from_bytes(b"KEYS", "big", signed=True)
_UNIQ_NAME = int.from_bytes(b"UNIQ_KEY", "big", signed=True)
_DELA_NAME = int.from_bytes(b"DELA", "big", signed=True)
_MULTI_NAME = int.from_bytes(b"INNER_MU", "big", signed=True)
_MULTI_DISPATCH_BYTES = len(b"INNER_MULTI_DISPATCH")
_D = ord("D")
_KEY_MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel((int64,) * 8, int64, int64, int64, int64)
def _properties_at(address, start, end, readable):
    """(tags start, end, keys start, end, unique key start, end, delay level, whether multi-dispatch) of a record.

    Of a repeated name the last value counts, and a pair without a value does not exist, as for every reader.
    """
    tags_start = tags_end = keys_start = keys_end = unique_start = unique_end = end
    delay, multi = np.int64(0), np.int64(0)
    while end - start > 5:
        pair_end = find_byte_at(address, start, end, readable, 2)
        if pair_end - start > 5:
            name = load_i32(address, start)
            if name == _TAGS_NAME and load_u8(address, start + 4) == 1:
                tags_start, tags_end = start + 5, pair_end
            elif name == _KEYS_NAME and load_u8(address, start + 4) == 1:
                keys_start, keys_end = start + 5, pair_end
            elif name == _DELA_NAME and load_u8(address, start + 4) == 89 and load_u8(address, start + 5) == 1:
                delay = np.int64(0)
                for i in range(start + 6, min(pair_end, start + 12)):
                    digit = load_u8(address, i) - 48
                    if digit < 0 or digit > 9:
                        delay = np.int64(0)
                        break
                    delay = delay * 10 + digit
            elif pair_end - start > 9:
                long_name = load_i64(address, start)
                if long_name == _UNIQ_NAME and load_u8(address, start + 8) == 1:
                    unique_start, unique_end = start + 9, pair_end
                elif (
                    long_name == _MULTI_NAME
                    and pair_end - start > _MULTI_DISPATCH_BYTES + 1
                    and load_u8(address, start + _MULTI_DISPATCH_BYTES) == 1
                    and load_u8(address, start + 12) == _D
                ):
                    multi = np.int64(1)
        start = pair_end + 1
    return tags_start, tags_end, keys_start, keys_end, unique_start, unique_end, delay, multi


@kernel(int64, int64, int64)
def _place(topic_hash, queue_id):
    """Where the search for a slot begins."""
    mixed = np.uint64(topic_hash & 0xFFFFFFFF | queue_id << 32) * _KEY_MIX
    return np.int64(mixed >> np.uint64(33))


@kernel(int64, BYTES, int64)
def slot_place(topic, queue_id):
    """As :func:`check_records` searches: the place of a queue in a table of infinite size."""
    return _place(string_hash_at(address_of(topic), 0, len(topic)), queue_id)


@kernel(int64, int64, int64, int64, int64, int64, OUT_INTS, BYTES, OUT_LONGS, OUT_INTS)
def _find_slot(address, topic, topic_size, topic_hash, queue_id, table, names, name_ends, slot_queues):
    mask = len(table) - 1
    at = _place(topic_hash, queue_id) & mask
    name_address = address_of(names)
    while True:
        slot = np.int64(table[np.uint64(at)])
        if slot < 0:
            return slot
        if slot_queues[np.uint64(slot)] == queue_id:
            name_start = name_ends[np.uint64(slot)]
            size = name_ends[np.uint64(slot + 1)] - name_start
            if size == topic_size:
                same = np.int64(0)
                while same < size and load_u8(name_address, name_start + same) == load_u8(address, topic + same):
                    same += 1
                if same == size:
                    return slot
        at = (at + 1) & mask


_QUEUE_TABLE = (OUT_INTS, BYTES, OUT_LONGS, OUT_INTS, OUT_LONGS, OUT_INTS, OUT_LONGS)
"""The arrays of a ``QueueTable``, and its delays."""


@kernel((int64,) * 6, BYTES, int64, int64, int64, int64, boolean, *_QUEUE_TABLE, _ENTRIES, int64, _KEYS, int64)
def check_records(
    buffer,
    start,
    end,
    base,
    passed,
    check_crc,
    table,
    names,
    name_ends,
    slot_queues,
    slot_next,
    slot_kinds,
    delays,
    entries,
    entry_count,
    keys,
    key_count,
):
    """Prove the records of ``buffer[start:end]``; answers (Check, position, entries, keys, records, last store time).

    ``base`` is the log position of ``buffer[0]``. ``table`` … ``slot_kinds`` are those of a ``QueueTable``;
    ``slot_next`` holds the queue offset that each queue continues with, -1 where that is not known, and is kept up
    to date. ``delays`` are the milliseconds of the delay levels, level 1 at index 1. Rows are added behind
    ``entry_count`` and ``key_count``. A stop leaves the position in front of the record in question; ``passed``
    says what of the first record has been dealt with.
    """
    address = address_of(buffer)
    position = start
    records, last_time = np.int64(0), np.int64(-1)
    while True:
        kind, record_end, store, body, body_size, topic, topic_size, properties, properties_size = measure_at(
            address, position, end
        )
        if kind != RECORD:
            status = kind if kind < RECORD else _BAD
            return status, position, entry_count, key_count, records, last_time
        bits = passed if position == start else 0
        if entry_count == len(entries) or key_count + properties_size // 2 + 2 > len(keys):
            return _ROWS_FULL, position, entry_count, key_count, records, last_time
        if bits & PASS_ZEROS == 0 and properties_size > 0 and buffer[np.uint64(record_end - 1)] == 0:
            return _ZEROS, position, entry_count, key_count, records, last_time
        physical = base + position
        if bits & PASS_OFFSET == 0 and load_i64(address, position + 28) != physical:
            return _OFFSET, position, entry_count, key_count, records, last_time
        queue_id = load_i32(address, position + 12)
        topic_hash = string_hash_at(address, topic, topic + topic_size)
        slot = _find_slot(address, topic, topic_size, topic_hash, queue_id, table, names, name_ends, slot_queues)
        if slot < 0:
            return _NEW_QUEUE, position, entry_count, key_count, records, last_time
        if check_crc:
            if (
                bits & PASS_BODY == 0
                and body_size > 0
                and crc32_at(address, body, body + body_size) & CRC_MASK != load_i32(address, position + 8) & CRC_MASK
            ):
                return _BODY, position, entry_count, key_count, records, last_time
            if bits & PASS_RECORD == 0 and record_crc_at(address, position, record_end, properties_size) == WRONG:
                return _WHOLE, position, entry_count, key_count, records, last_time
        tags, tags_end, key, keys_end, unique, unique_end, delay, multi = _properties_at(
            address, properties, properties + properties_size, len(buffer)
        )
        sys_flag = load_i32(address, position + 36)
        inner = sys_flag & _INNER_BATCH != 0 and slot_kinds[np.uint64(slot)] & SLOT_BATCH != 0
        if (multi != 0 or inner) and bits & PASS_SPECIAL == 0:
            return _SPECIAL, position, entry_count, key_count, records, last_time
        store_time = load_i64(address, store)
        transaction = sys_flag & _TRANSACTION
        if transaction != _PREPARED and transaction != _ROLLBACK and not inner:
            queue_offset = load_i64(address, position + 20)
            expected = slot_next[np.uint64(slot)]
            if expected >= 0 and queue_offset != expected and bits & PASS_QUEUE_OFFSET == 0:
                return _QUEUE_OFFSET, position, entry_count, key_count, records, last_time
            slot_next[np.uint64(slot)] = queue_offset + 1
            tags_code = string_hash_at(address, tags, tags_end)
            if delay > 0 and slot_kinds[np.uint64(slot)] & SLOT_SCHEDULE != 0:
                tags_code = store_time + delays[np.uint64(min(delay, len(delays) - 1))]
            row = entries[np.uint64(entry_count)]
            row.physical_offset = physical
            row.queue_offset = queue_offset
            row.tags_code = tags_code
            row.store_timestamp = store_time
            row.slot = slot
            row.size = record_end - position
            entry_count += 1
        if transaction != _ROLLBACK:
            prefix = np.uint32(topic_hash) * np.uint32(31) + np.uint32(_SIGN)
            part, part_end = unique, unique_end
            while part < part_end or key < keys_end:
                if part < part_end:
                    found = keys[np.uint64(key_count)]
                    found.physical_offset = physical
                    found.store_timestamp = store_time
                    found.size = record_end - position
                    found.key_hash = key_hash_at(address, part, part_end, np.uint32(prefix))
                    key_count += 1
                part, part_end = key, find_byte_at(address, key, keys_end, len(buffer), 32) if key < keys_end else key
                key = part_end + 1
        records += 1
        last_time = store_time
        position = record_end


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
