"""Kernels over the bytes of the log: producer marks, first offsets of queues, and what is left after damage."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, void

from penstock.formats.intrinsics.kernel import BYTES, INTS, LONGS, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, load_i32, load_u8
from penstock.formats.record.kernels.pairs import number_at, pair_name, value_at
from penstock.formats.record.kernels.record_crc import ABSENT, record_crc_at
from penstock.formats.record.kernels.scanning import MARK_BYTES, ROWS, is_mark
from penstock.formats.record.layout import CRC_MASK, FIXED_BYTES
from penstock.formats.record.properties import DELAY

from ..queues.kernels import key_hash

_SECTOR = 512
_LEVEL = pair_name(DELAY)


@kernel(int64, BYTES, ROWS, int64, OUT_INTS)
def find_marks(buffer, rows, count, found):
    """Numbers of the rows whose first property is a producer mark, into ``found``; answers how many."""
    address = address_of(buffer)
    marks = 0
    for i in range(count):
        row = rows[np.uint64(i)]
        if row.properties_size > MARK_BYTES and is_mark(address, row.properties_position):
            found[np.uint64(marks)] = i
            marks += 1
    return marks


@kernel(void, BYTES, ROWS, int64, INTS, INTS, LONGS)
def set_delivery_times(buffer, rows, count, slots, schedule, levels):
    """Give rows whose slot is one of ``schedule`` the time of their delivery in place of a tag's hash.

    ``slots``: one for each row; ``schedule`` ascends. ``levels``: milliseconds of each delay level; one above them is
    the last. A record that names no level keeps its hash.
    """
    address = address_of(buffer)
    for i in range(count):
        slot = slots[np.uint64(i)]
        if slot < schedule[0] or slot > schedule[len(schedule) - 1]:
            continue
        at = np.searchsorted(schedule, slot)
        if schedule[at] != slot:
            continue
        row = rows[np.uint64(i)]
        end = row.properties_position + row.properties_size
        start, stop = value_at(address, row.properties_position, end, _LEVEL)
        level = number_at(address, start, stop)
        if level > 0:
            row.tags_code = row.store_timestamp + levels[min(level, len(levels)) - 1]


@kernel(boolean, BYTES, int64, int64, BYTES)
def same_messages(buffer, start, stop, sent):
    """True if the records of ``buffer[start:stop]``, which are sound, have the bodies and queues of those in ``sent``.

    Bodies are compared by their checksums. Other properties may differ: a batch that is sent again is encoded again.
    """
    address, other = address_of(buffer), address_of(sent)
    at, position, end = start, np.int64(0), len(sent)
    while at < stop and position + FIXED_BYTES <= end:
        size, sent_size = load_i32(address, at), load_i32(other, position)
        if size < FIXED_BYTES or sent_size < FIXED_BYTES or sent_size > end - position:
            return False
        if (load_i32(address, at + 8) ^ load_i32(other, position + 8)) & CRC_MASK != 0:
            return False
        if load_i32(address, at + 12) != load_i32(other, position + 12):
            return False
        at += size
        position += sent_size
    return at == stop and position == end


@kernel(int64, ROWS, int64, int64, OUT_INTS, OUT_INTS, OUT_LONGS)
def first_offsets(rows, start, end, table, queue_ids, queue_offsets):
    """Queues of ``rows[start:end]`` in order of first appearance, and the first offset in each; answers how many.

    ``table`` is filled with -1, of a power of two in size and larger than the number of rows.
    """
    mask = len(table) - 1
    count = 0
    for i in range(start, end):
        queue_id = rows[np.uint64(i)].queue_id
        at = key_hash(np.int64(queue_id)) & mask
        while table[np.uint64(at)] >= 0 and queue_ids[table[np.uint64(at)]] != queue_id:
            at = (at + 1) & mask
        if table[np.uint64(at)] < 0:
            table[np.uint64(at)] = count
            queue_ids[np.uint64(count)] = queue_id
            queue_offsets[np.uint64(count)] = rows[np.uint64(i)].queue_offset
            count += 1
    return count


@kernel(int64, BYTES, ROWS, int64)
def first_unsealed(buffer, rows, count):
    """The first row whose record has no whole-record checksum, ``count`` without one."""
    address = address_of(buffer)
    for i in range(count):
        row = rows[np.uint64(i)]
        start = row.position
        if record_crc_at(address, start, start + row.size, np.int64(row.properties_size)) == ABSENT:
            return i
    return count


@kernel(int64, BYTES, ROWS, int64, int64)
def first_torn(buffer, rows, count, synced):
    """The first row behind ``synced``, all of it or its end, with other parts than its body that nobody wrote so.

    ``count`` without one. The checksum covers the body alone. What was never written is zero: a time of the header, a
    byte of the topic, the last byte of the properties, or the last byte of a sector among them (a sector may have
    been written out when the record was there in part, as a slave's may be).
    """
    address = address_of(buffer)
    stored = np.int64(0)
    for i in range(count):
        row = rows[np.uint64(i)]
        if row.physical_offset + row.size <= synced:
            continue
        boundary = row.position + (-row.position) % _SECTOR
        in_header = 48 <= boundary - row.position <= FIXED_BYTES
        if row.store_timestamp < stored or (
            in_header and row.born_timestamp == 0 and load_u8(address, boundary - 1) == 0
        ):
            return i
        stored = row.store_timestamp
        for at in range(row.topic_position, row.topic_position + row.topic_size):
            if load_u8(address, at) == 0:
                return i
        start = row.properties_position
        end = start + row.properties_size
        if end > start and load_u8(address, end - 1) == 0:
            return i
        sector_end = start + (-start) % _SECTOR
        while sector_end <= end:
            if sector_end > start and load_u8(address, sector_end - 1) == 0:
                return i
            sector_end += _SECTOR
    return count
