"""Kernels for light queues (LMQ): their offsets at the append, their entries at dispatch.

How a record names them: :mod:`penstock.formats.record.lights`.
Source: RocketMQ ``LmqDispatch``, ``MultiDispatchUtils``; differs: a queue named twice by one record counts once, where
RocketMQ skips an offset.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64

from penstock.formats.intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from penstock.formats.intrinsics.memory import address_of, copy_bytes, load_u8, store_i16, store_i32
from penstock.formats.intrinsics.text import find_byte_at
from penstock.formats.record.kernels import measure_at
from penstock.formats.record.kernels.scanning import RECORD, ROWS
from penstock.formats.record.lights import (
    COMMA,
    CRC_PAIR,
    END_OF_PAIR,
    OFFSET_PAIR,
    allows_lights_at,
    equally_long_at,
    is_light_name_at,
    kind_at,
    lists_at,
    offset_at,
)
from penstock.formats.record.properties import INNER_MULTI_QUEUE_OFFSET

from .kernels import TABLES, find_slot_at

ASSIGNED, NEW_NAME, BAD_NAME, TOO_LARGE, NO_RECORD = 0, 1, 2, 3, 4
"""How :func:`assign_lights` ends."""
GROWTH_MAX = len(INNER_MULTI_QUEUE_OFFSET) + 3
"""A record grows by so much, and by at most 20 bytes per queue that it names."""
_PROPERTIES_MAX = 32767
_OFFSETS_PAIR = np.frombuffer(INNER_MULTI_QUEUE_OFFSET.encode() + b"\x01", np.uint8)


@kernel(int64, BYTES, ROWS, int64, OUT_INTS)
def count_lights(buffer, rows, count, slots):
    """How many entries in light queues ``rows[:count]`` may have; rows without an entry (slot -1) have none."""
    address = address_of(buffer)
    total = np.int64(0)
    for i in range(count):
        if slots[np.uint64(i)] < 0:
            continue
        row = rows[np.uint64(i)]
        end = row.properties_position + row.properties_size
        names, names_end, offsets, offsets_end = lists_at(address, row.properties_position, end, len(buffer))
        if names < names_end and offsets < offsets_end:
            total += 1
            for at in range(names, names_end):
                if load_u8(address, at) == COMMA:
                    total += 1
    return total


@kernel(
    (int64,) * 4,
    BYTES,
    ROWS,
    int64,
    int64,
    OUT_INTS,
    TABLES,
    OUT_LONGS,
    int64,
    ROWS,
    OUT_INTS,
    int64,
)
def expand_lights(
    buffer,
    rows,
    start,
    end,
    slots,
    tables,
    seen,
    stamp,
    out_rows,
    out_slots,
    out_count,
):
    """Copy ``rows[start:end]`` and their slots, with a row for each light queue behind its record's own.

    Answers (row, rows written, name start, name size): a row below ``end`` is one whose light queue of that name has
    no slot; it is to be made, and the copy goes on there. ``seen``, one per slot, is this function's own memory:
    ``stamp`` + ``end`` must stay below the next call's ``stamp``. Lists that do not fit each other, and what is no
    name of a light queue, are passed over.
    """
    address = address_of(buffer)
    for i in range(start, end):
        row = rows[np.uint64(i)]
        slot = slots[np.uint64(i)]
        written = out_count
        out_rows[np.uint64(out_count)] = row
        out_slots[np.uint64(out_count)] = slot
        out_count += 1
        if slot < 0:
            continue
        properties_end = row.properties_position + row.properties_size
        name, list_end, offset, offsets_end = lists_at(address, row.properties_position, properties_end, len(buffer))
        if name == list_end or offset == offsets_end:
            continue
        if not allows_lights_at(address, row.topic_position, row.topic_size):
            continue
        if not equally_long_at(address, name, list_end, offset, offsets_end):
            continue
        while name < list_end:
            name_end = find_byte_at(address, name, list_end, len(buffer), COMMA)
            queue_offset, offset_end = offset_at(address, offset, offsets_end)
            if queue_offset >= 0 and is_light_name_at(address, name, name_end):
                light = find_slot_at(address, name, name_end - name, 0, tables)
                if light < 0:
                    return i, written, name, name_end - name
                if seen[np.uint64(light)] != stamp + i:
                    seen[np.uint64(light)] = stamp + i
                    out_rows[np.uint64(out_count)] = row
                    out_rows[np.uint64(out_count)].queue_offset = queue_offset
                    out_slots[np.uint64(out_count)] = light
                    out_count += 1
            name, offset = name_end + 1, offset_end + 1
    return end, out_count, np.int64(0), np.int64(0)


@kernel(int64, BYTES)
def names_lights(records):
    """How many records of the batch name light queues; up to the first that is no record."""
    address = address_of(records)
    position, found = np.int64(0), np.int64(0)
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            return found
        names, names_end, _, _ = lists_at(address, properties, properties + size, len(records))
        found += names < names_end
        position = end
    return found


@kernel(int64, OUT_BYTES, int64, int64)
def _write_number(out, at, number):
    """Write ``number`` in decimal; the position behind it."""
    digits, left = 1, number // 10
    while left > 0:
        digits += 1
        left //= 10
    for i in range(digits):
        out[np.uint64(at + digits - 1 - i)] = 48 + number % 10
        number //= 10
    return at + digits


@kernel(
    (int64,) * 7,
    BYTES,
    int64,
    OUT_BYTES,
    int64,
    int64,
    BYTES,
    TABLES,
    OUT_LONGS,
    OUT_LONGS,
    OUT_LONGS,
    int64,
    OUT_INTS,
    int64,
)
def assign_lights(
    records,
    position,
    out,
    at,
    number,
    pair,
    tables,
    assigned,
    next_offsets,
    seen,
    stamp,
    touched,
    touched_count,
):
    """Copy the records from ``position`` on, each with its offsets in the light queues that it names.

    Answers (status, position, position in ``out``, number of the record, touched, name start, name size): for
    NEW_NAME the copy goes on there when the queue has a slot. ``assigned``: the next offset of each slot, where -1
    stands for that of ``next_offsets``; it moves on, ``touched`` collects the slots, once for each step. Offsets and
    checksums that a record brings are left out. ``seen`` and ``stamp`` (which grows by the number of records) as for
    :func:`expand_lights`. ``pair`` is the name of the property with its separator.
    """
    address, out_address = address_of(records), address_of(out)
    while position < len(records):
        kind, end, _, _, _, _, _, properties, _properties_size = measure_at(address, position, len(records))
        if kind != RECORD:
            return NO_RECORD, position, at, number, touched_count, position, np.int64(0)
        list_start, list_end, _, _ = lists_at(address, properties, end, len(records))
        if list_start == list_end:
            copy_bytes(out, at, records, position, end - position)
            position, at, number = end, at + end - position, number + 1
            continue
        name = list_start
        while name < list_end:  # all of them first, so that nothing is assigned when one is missing
            name_end = find_byte_at(address, name, list_end, len(records), COMMA)
            if not is_light_name_at(address, name, name_end):
                return BAD_NAME, position, at, number, touched_count, name, name_end - name
            slot = find_slot_at(address, name, name_end - name, 0, tables)
            if slot < 0:
                return NEW_NAME, position, at, number, touched_count, name, name_end - name
            name = name_end + 1
        begin = at
        copy_bytes(out, at, records, position, properties - position)
        at += properties - position
        start = properties
        while start < end:
            pair_end = find_byte_at(address, start, end, len(records), END_OF_PAIR)
            kind = kind_at(address, start, pair_end)
            if kind != OFFSET_PAIR and kind != CRC_PAIR:
                copy_bytes(out, at, records, start, pair_end - start)
                at += pair_end - start
                out[np.uint64(at)] = END_OF_PAIR
                at += 1
            start = pair_end + 1
        copy_bytes(out, at, pair, 0, len(pair))
        at += len(pair)
        name = list_start
        while name < list_end:
            name_end = find_byte_at(address, name, list_end, len(records), COMMA)
            slot = np.uint64(find_slot_at(address, name, name_end - name, 0, tables))
            if seen[slot] != stamp + number:
                seen[slot] = stamp + number
                assigned[slot] = (next_offsets[slot] if assigned[slot] < 0 else assigned[slot]) + 1
                touched[np.uint64(touched_count)] = slot
                touched_count += 1
            at = _write_number(out, at, assigned[slot] - 1)
            out[np.uint64(at)] = COMMA
            at += 1
            name = name_end + 1
        out[np.uint64(at - 1)] = END_OF_PAIR
        size = at - begin - (properties - position)
        if size > _PROPERTIES_MAX:
            return TOO_LARGE, position, at, number, touched_count, list_start, np.int64(0)
        store_i32(out_address, begin, at - begin)
        store_i16(out_address, begin + properties - position - 2, size)
        position, number = end, number + 1
    return ASSIGNED, position, at, number, touched_count, np.int64(0), np.int64(0)


OFFSETS_PAIR = _OFFSETS_PAIR


@kernel(boolean, BYTES)
def allows_lights(topic):
    """As :func:`allows_lights_at`, of the name ``topic``."""
    return allows_lights_at(address_of(topic), 0, len(topic))
