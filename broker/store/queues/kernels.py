"""Kernels over queue entries and log bytes; each is compiled for one signature when this is imported.

Entries: :mod:`penstock.formats.queue_entry`. Slots are numbers for (topic, queue id) pairs, see :mod:`.slots`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import boolean, int64, types, uint64, void

from penstock.formats.intrinsics.crc import crc32_at
from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import (
    address_of,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    store_i32,
    store_i64,
)
from penstock.formats.intrinsics.text import equal_at
from penstock.formats.queue_entry import ENTRY_BYTES, FILLER_SIZE, HASH_MAX, HASH_MIN, SIZE_AT, TAGS_AT
from penstock.formats.record.kernels import measure_at
from penstock.formats.record.kernels.record_crc import WRONG as CRC_WRONG
from penstock.formats.record.kernels.record_crc import record_crc_at
from penstock.formats.record.kernels.scanning import RECORD, ROWS
from penstock.formats.record.layout import CRC_MASK, FIXED_BYTES, SysFlag

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.void]

PLANNED, SPARSE, RESTARTED, GAP = 0, 1, 2, 3

_GRID = types.Array(types.uint8, 2, "C")
TABLES = types.Tuple((OUT_BYTES, OUT_LONGS, OUT_INTS, uint64, OUT_LONGS, OUT_INTS))
"""What names are found through, see :attr:`.slots.Slots.tables`."""
_TRANSACTION = SysFlag.TRANSACTION_MASK
_PREPARED = SysFlag.TRANSACTION_PREPARED
_ROLLBACK = SysFlag.TRANSACTION_ROLLBACK
_INNER_BATCH = SysFlag.INNER_BATCH


@kernel(uint64, int64, int64, int64, uint64)
def hash_at(address, start, end, seed):
    """A 64-bit hash of the bytes ``[start, end)`` behind ``address``; only places in a table depend on it."""
    result = seed
    for i in range(start, end):
        result = (result ^ np.uint64(load_u8(address, i))) * np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(29)
    return result


@kernel(uint64, BYTES, uint64)
def topic_hash(topic, seed):
    """As :func:`hash_at`, of all bytes of ``topic``."""
    return hash_at(address_of(topic), 0, len(topic), seed)


@kernel(int64, int64)
def key_hash(key):
    """Where the search for (topic id << 32 | queue id) begins."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32))


@kernel(int64, int64, int64, int64, int64, OUT_LONGS, OUT_INTS, uint64)
def find_topic_at(address, start, size, names, name_ends, topic_table, seed):
    """The id of the topic whose name stands at ``start``, -1 if unknown."""
    mask = len(topic_table) - 1
    at = np.int64(hash_at(address, start, start + size, seed) & np.uint64(0x7FFFFFFFFFFFFFFF)) & mask
    while True:
        topic = np.int64(topic_table[np.uint64(at)])
        if topic < 0:
            return np.int64(-1)
        name = np.int64(0) if topic == 0 else name_ends[topic - 1]
        if name_ends[topic] - name == size and equal_at(address, start, names, name, size):
            return topic
        at = (at + 1) & mask


@kernel(int64, int64, int64, int64, int64, TABLES)
def find_slot_at(address, start, size, queue_id, tables):
    """The slot of a queue of the topic whose name stands at ``start`` behind ``address``; -1 without one."""
    names, name_ends, topic_table, seed, keys, key_slots = tables
    topic = find_topic_at(address, start, size, address_of(names), name_ends, topic_table, seed)
    if topic < 0:
        return np.int64(-1)
    key = topic << 32 | queue_id
    mask = len(keys) - 1
    at = key_hash(key) & mask
    while keys[np.uint64(at)] != key:
        if keys[np.uint64(at)] < 0:
            return np.int64(-1)
        at = (at + 1) & mask
    return np.int64(key_slots[np.uint64(at)])


@kernel(int64, BYTES, ROWS, int64, int64, TABLES, OUT_INTS)
def assign_slots(buffer, rows, start, end, tables, slots):
    """Put the slot of each of ``rows[start:end]`` into ``slots``; answers the first row without one, or ``end``.

    Records that get no queue entry (prepared and rolled back transactions, inner batches) have slot -1. Both
    tables are open-addressed, of a power of two in size and never full; a name is compared byte by byte.
    """
    names, name_ends, topic_table, seed, keys, key_slots = tables
    address, name_address = address_of(buffer), address_of(names)
    mask = len(keys) - 1
    topic, topic_start, topic_size = np.int64(-1), np.int64(0), np.int64(-1)
    queue_id, slot = np.int32(-1), np.int32(-1)  # of the row before: a batch often keeps to one queue
    for i in range(start, end):
        row = rows[np.uint64(i)]
        transaction = row.sys_flag & _TRANSACTION
        if transaction in (_PREPARED, _ROLLBACK) or row.sys_flag & _INNER_BATCH:
            slots[np.uint64(i)] = -1
            continue
        if row.topic_size != topic_size or not equal_at(address, row.topic_position, address, topic_start, topic_size):
            topic_start, topic_size = row.topic_position, np.int64(row.topic_size)
            topic = find_topic_at(address, topic_start, topic_size, name_address, name_ends, topic_table, seed)
            queue_id = np.int32(-1)
        if row.queue_id == queue_id and queue_id >= 0:
            slots[np.uint64(i)] = slot
            continue
        if topic < 0 or row.queue_id < 0:
            return i
        key = topic << 32 | np.int64(row.queue_id)
        at = key_hash(key) & mask
        while keys[np.uint64(at)] != key:
            if keys[np.uint64(at)] < 0:
                return i
            at = (at + 1) & mask
        queue_id, slot = row.queue_id, key_slots[np.uint64(at)]
        slots[np.uint64(i)] = slot
    return end


@kernel(
    (int64,) * 4,
    ROWS,
    int64,
    int64,
    OUT_INTS,
    OUT_LONGS,
    OUT_LONGS,
    OUT_INTS,
    OUT_INTS,
    OUT_INTS,
    int64,
    OUT_LONGS,
    OUT_INTS,
)
def plan_entries(
    rows, start, end, slots, next_offsets, ends, arena_counts, new_counts, touched, arena_max, run_starts, run_counts
):
    """Count the entries that ``rows[start:end]`` give each slot; answers (status, rows planned, touched, bytes).

    Rows whose entry a queue has already (they lie below its ``ends``, the end of its last record) become slot -1.
    Stops in front of a row that does not continue its queue: SPARSE begins an empty queue above 0, RESTARTED
    begins a queue anew at 0, GAP is an error. ``new_counts`` is zero on entry and holds the counts afterwards.
    A slot's run goes to ``run_starts`` of the output; it includes the slot's arena if both exceed ``arena_max``.
    """
    status, count = PLANNED, 0
    planned = end
    for i in range(start, end):
        slot = slots[np.uint64(i)]
        if slot < 0:
            continue
        slot = np.uint64(slot)
        row = rows[np.uint64(i)]
        if row.physical_offset < ends[slot]:
            slots[np.uint64(i)] = -1
            continue
        expected = next_offsets[slot] + new_counts[slot]
        if row.queue_offset != expected:
            planned = i
            if expected == 0 and ends[slot] == 0 and row.queue_offset > 0:
                status = SPARSE
            elif row.queue_offset == 0:
                status = RESTARTED
            else:
                status = GAP
            break
        if new_counts[slot] == 0:
            touched[np.uint64(count)] = slot
            count += 1
        new_counts[slot] += 1
    bytes_needed = np.int64(0)
    for t in range(count):
        slot = np.uint64(touched[np.uint64(t)])
        held = arena_counts[slot]
        total = new_counts[slot] + (held if held + new_counts[slot] > arena_max else 0)
        run_starts[np.uint64(t)] = bytes_needed
        run_counts[np.uint64(t)] = total
        bytes_needed += total * ENTRY_BYTES
    return status, planned, count, bytes_needed


@kernel(void, ROWS, int64, int64, OUT_INTS, OUT_INTS, OUT_INTS, int64, _GRID, OUT_LONGS, OUT_INTS, OUT_LONGS, OUT_BYTES)
def build_runs(rows, start, end, slots, new_counts, touched, count, arena, run_starts, run_counts, cursors, out):
    """Write the planned entries of ``rows[start:end]`` into ``out``, the entries of a slot end to end."""
    for t in range(count):
        slot = np.uint64(touched[np.uint64(t)])
        at = run_starts[np.uint64(t)]
        held = run_counts[np.uint64(t)] - new_counts[slot]
        if held > 0:
            copy_bytes(out, at, arena[slot], 0, held * ENTRY_BYTES)
        cursors[slot] = at + held * ENTRY_BYTES
    for i in range(start, end):
        slot = slots[np.uint64(i)]
        if slot >= 0:
            row = rows[np.uint64(i)]
            at = cursors[np.uint64(slot)]
            cursors[np.uint64(slot)] = at + ENTRY_BYTES
            store_i64(out, at, row.physical_offset)
            store_i32(out, at + SIZE_AT, row.size)
            store_i64(out, at + TAGS_AT, row.tags_code)


@kernel(void, OUT_INTS, int64, OUT_LONGS, OUT_INTS, OUT_INTS, int64, _GRID, OUT_INTS, OUT_LONGS, OUT_LONGS, OUT_BYTES)
def commit_runs(
    touched, count, run_starts, run_counts, new_counts, arena_max, arena, arena_counts, next_offsets, ends, out
):
    """Make the built runs part of their queues: short ones go to the arena, others are in the files already."""
    for t in range(count):
        slot = np.uint64(touched[np.uint64(t)])
        at, total = run_starts[np.uint64(t)], run_counts[np.uint64(t)]
        last = at + (total - 1) * ENTRY_BYTES
        ends[slot] = load_i64(out, last) + load_i32(out, last + SIZE_AT)
        next_offsets[slot] += new_counts[slot]
        if arena_counts[slot] + new_counts[slot] > arena_max:
            arena_counts[slot] = 0
        else:
            copy_bytes(arena[slot], arena_counts[slot] * ENTRY_BYTES, out, at, total * ENTRY_BYTES)
            arena_counts[slot] += total
        new_counts[slot] = 0


@kernel((int64,) * 3, BYTES, int64, int64, int64, boolean, OUT_INTS, int64, int64, OUT_LONGS, OUT_INTS)
def select_entries(entries, count, log_start, log_end, filtered, tags, bytes_max, count_max, positions, sizes):
    """Choose from ``count`` entries those to return; answers (entries looked at, chosen, their bytes).

    Entries below ``log_start`` and blank ones are passed over; at one that cannot be true it ends, with -1 chosen.
    ``tags`` are sorted. A tags code that
    is no 32-bit hash says nothing about the tag, so its record is chosen. Stops at the limits; one record
    is chosen whatever its size.
    """
    found, total = 0, np.int64(0)
    for i in range(count):
        at = i * ENTRY_BYTES
        physical = load_i64(entries, at)
        size = load_i32(entries, at + SIZE_AT)
        if physical < log_start or size == FILLER_SIZE:
            continue
        if size < FIXED_BYTES or physical + size > log_end:
            return i, -1, physical
        if filtered:
            code = load_i64(entries, at + TAGS_AT)
            if HASH_MIN <= code <= HASH_MAX:
                low, high = 0, len(tags)
                while low < high:
                    middle = (low + high) // 2
                    if tags[middle] < code:
                        low = middle + 1
                    else:
                        high = middle
                if low == len(tags) or tags[low] != code:
                    continue
        if found == count_max or (total + size > bytes_max and found > 0) or found == len(positions):
            return i, found, total
        positions[np.uint64(found)] = physical
        sizes[np.uint64(found)] = size
        found += 1
        total += size
    return count, found, total


@kernel(int64, BYTES, OUT_LONGS, OUT_INTS)
def touch_records(buffer, positions, sizes):
    """Read a byte of every page of the records that lie at ``positions`` of a log file; what lies outside is not."""
    total = np.int64(0)
    for i in range(len(positions)):
        at = positions[np.uint64(i)]
        end = min(at + sizes[np.uint64(i)], len(buffer))
        while 0 <= at < end:
            total += np.int64(buffer[np.uint64(at)])
            at += 4096 - at % 4096
    return total


@kernel(int64, BYTES, OUT_LONGS, OUT_INTS, int64, boolean)
def first_damaged(buffer, positions, sizes, base, whole):
    """The number of the first record that is not what its entry says, or -1: ``positions`` in a log file, and sizes.

    A record is only believed if its own size and PHYSICALOFFSET are those of the entry.

    ``whole``: lengths and checksums of the record are proved as well.
    """
    address = address_of(buffer)
    for i in range(len(positions)):
        at, size = positions[np.uint64(i)], np.int64(sizes[np.uint64(i)])
        if (
            at < 0
            or at + size > len(buffer)
            or load_i32(address, at) != size
            or load_i64(address, at + 28) != base + at
        ):
            return i
        if whole:
            kind, end, _, body, body_size, _, _, _, properties_size = measure_at(address, at, at + size)
            if kind != RECORD or (
                body_size > 0 and crc32_at(address, body, body + body_size) & CRC_MASK != load_i32(address, at + 8)
            ):
                return i
            if record_crc_at(address, at, end, properties_size) == CRC_WRONG:
                return i
    return -1


@kernel((int64,) * 2, BYTES, int64, int64, int64)
def count_valid_entries(entries, count, previous_end, log_end):
    """(entries that may be true, end of the last one's record): sizes positive, records behind each other."""
    end = previous_end
    for i in range(count):
        physical = load_i64(entries, i * ENTRY_BYTES)
        size = load_i32(entries, i * ENTRY_BYTES + SIZE_AT)
        if physical == 0 and size == FILLER_SIZE:
            continue
        if size < FIXED_BYTES or physical < end or physical + size > log_end:
            return i, end
        end = physical + size
    return count, end
