"""Kernels for light queues (LMQ): which records also stand in others, and at which offsets.

Two properties of a record say it, lists of the same length with ``,`` between: ``INNER_MULTI_DISPATCH`` names light
queues (``%LMQ%…``, queue 0 each), which a producer writes; ``INNER_MULTI_QUEUE_OFFSET`` holds the record's offset in
each of them, which the broker writes when it appends.
Source: RocketMQ ``LmqDispatch``, ``MultiDispatchUtils``, ``MixAll#topicAllowsLMQ``; differs: a queue named twice by one
record counts once, where RocketMQ skips an offset.
"""

# Kernels are typed by their Numba signatures.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import from_dtype, njit, types

from penstock.proto.record.freshness import drop_stale_kernels
from penstock.proto.record.kernels import ROW, measure_at
from penstock.proto.record.layout import RECORD_CRC_PREFIX
from penstock.proto.record.memory import (
    address_of,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    store_i16,
    store_i32,
)
from penstock.proto.record.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET
from penstock.proto.record.scanning import RECORD
from penstock.proto.record.text import find_byte_at

from .kernels import find_slot_at

drop_stale_kernels(__file__)

ASSIGNED, NEW_NAME, BAD_NAME, TOO_LARGE, NO_RECORD = 0, 1, 2, 3, 4
"""How :func:`assign_lights` ends."""
GROWTH_MAX = len(INNER_MULTI_QUEUE_OFFSET) + 3
"""A record grows by so much, and by at most 20 bytes per queue that it names."""
_NAME_MAX = 255
_DIGITS_MAX = 18
_PROPERTIES_MAX = 32767


def _number(text: bytes) -> int:
    return int.from_bytes(text, "big", signed=True)


_DISPATCH, _OFFSETS = INNER_MULTI_DISPATCH.encode(), INNER_MULTI_QUEUE_OFFSET.encode()
_DISPATCH_BYTES, _OFFSETS_BYTES = len(_DISPATCH), len(_OFFSETS)
assert (_DISPATCH_BYTES, _OFFSETS_BYTES) == (20, 24)
_HEAD = _number(_DISPATCH[:8])
_DISPATCH_2, _DISPATCH_3 = _number(_DISPATCH[8:16]), _number(_DISPATCH[16:])
_OFFSETS_2, _OFFSETS_3 = _number(_OFFSETS[8:16]), _number(_OFFSETS[16:])
_CRC_HEAD = _number(RECORD_CRC_PREFIX[:8])
_PREFIX_HEAD, _PREFIX_TAIL = _number(b"%LMQ"), ord("%")
_SYSTEM_HEAD = _number(b"rmq_sys_")
_RETRY_HEAD, _RETRY_TAIL = _number(b"%RET"), _number(b"TRY%")
_SCHEDULE = b"SCHEDULE_TOPIC_XXXX"
_SCHEDULE_BYTES = len(_SCHEDULE)
_SCHEDULE_1, _SCHEDULE_2, _SCHEDULE_3 = _number(_SCHEDULE[:8]), _number(_SCHEDULE[8:16]), _number(_SCHEDULE[11:])
_OFFSETS_PAIR = np.frombuffer(_OFFSETS + b"\x01", np.uint8)
_COMMA, _END_OF_PAIR = ord(","), 2

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_BYTES = types.Array(types.uint8, 1, "C")
_LONGS = types.Array(types.int64, 1, "C")
_INTS = types.Array(types.int32, 1, "C")
_ROWS = types.Array(from_dtype(ROW), 1, "C")
_NO_PAIR, _OTHER_PAIR, _DISPATCH_PAIR, _OFFSET_PAIR, _CRC_PAIR = 0, 1, 2, 3, 4


@njit([types.int64(types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _kind_of(address, start, pair_end):
    """Which property stands in ``[start, pair_end)``; its name and separator at least are there."""
    size = pair_end - start
    if size <= 9:
        return _OTHER_PAIR
    head = load_i64(address, start)
    if head == _HEAD and size > _DISPATCH_BYTES:
        if (
            load_i64(address, start + 8) == _DISPATCH_2
            and load_i32(address, start + 16) == _DISPATCH_3
            and load_u8(address, start + _DISPATCH_BYTES) == 1
        ):
            return _DISPATCH_PAIR
        if (
            size > _OFFSETS_BYTES
            and load_i64(address, start + 8) == _OFFSETS_2
            and load_i64(address, start + 16) == _OFFSETS_3
            and load_u8(address, start + _OFFSETS_BYTES) == 1
        ):
            return _OFFSET_PAIR
    if head == _CRC_HEAD and load_u8(address, start + 8) == 1:
        return _CRC_PAIR
    return _OTHER_PAIR


@njit([types.UniTuple(types.int64, 4)(types.int64, types.int64, types.int64, types.int64)], nogil=True, cache=True)
def lists_at(address, start, end, readable):
    """(names start, end, offsets start, end) in the properties ``[start, end)``; empty where there are none.

    Of a repeated property the last with a value counts. Separators at a list's end separate nothing, as in Java.
    """
    names = names_end = offsets = offsets_end = end
    while end - start > _DISPATCH_BYTES + 1:
        pair_end = find_byte_at(address, start, end, readable, _END_OF_PAIR)
        kind = _kind_of(address, start, pair_end)
        if kind == _DISPATCH_PAIR and pair_end - start > _DISPATCH_BYTES + 1:
            names, names_end = start + _DISPATCH_BYTES + 1, pair_end
        elif kind == _OFFSET_PAIR and pair_end - start > _OFFSETS_BYTES + 1:
            offsets, offsets_end = start + _OFFSETS_BYTES + 1, pair_end
        start = pair_end + 1
    while names_end > names and load_u8(address, names_end - 1) == _COMMA:
        names_end -= 1
    while offsets_end > offsets and load_u8(address, offsets_end - 1) == _COMMA:
        offsets_end -= 1
    return names, names_end, offsets, offsets_end


@njit([types.boolean(types.int64, types.int64, types.int64)], nogil=True, cache=True)
def allows_lights_at(address, topic, size):
    """Whether records of that topic may stand in light queues: not retry topics, nor those of the broker."""
    if size >= 8:
        head = load_i64(address, topic)
        if head == _SYSTEM_HEAD or (
            load_i32(address, topic) == _RETRY_HEAD and load_i32(address, topic + 3) == _RETRY_TAIL
        ):
            return False
        if size == _SCHEDULE_BYTES and head == _SCHEDULE_1:
            return load_i64(address, topic + 8) != _SCHEDULE_2 or load_i64(address, topic + 11) != _SCHEDULE_3
    return True


@njit([types.boolean(types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _is_light_name(address, start, end):
    """Whether ``[start, end)`` is ``%LMQ%`` and more, of the signs that a topic may have."""
    if not 5 < end - start <= _NAME_MAX:
        return False
    if load_i32(address, start) != _PREFIX_HEAD or load_u8(address, start + 4) != _PREFIX_TAIL:
        return False
    for i in range(start + 5, end):
        byte = load_u8(address, i)
        letter = 97 <= byte | 32 <= 122
        # digits and % - _ |
        if not (letter or 48 <= byte <= 57 or byte == 37 or byte == 45 or byte == 95 or byte == 124):
            return False
    return True


@njit([types.int64(_BYTES, _ROWS, types.int64, _INTS)], nogil=True, cache=True)
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
                if load_u8(address, at) == _COMMA:
                    total += 1
    return total


@njit([types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _offset_at(address, start, end):
    """(the number in ``[start, list end)`` up to its separator, where that is); -1 for what is none."""
    at, number = start, np.int64(0)
    while at < end and load_u8(address, at) != _COMMA:
        digit = load_u8(address, at) - 48
        if digit < 0 or digit > 9 or at - start >= _DIGITS_MAX:
            number = np.int64(-1)
        elif number >= 0:
            number = number * 10 + digit
        at += 1
    return (number if at > start else np.int64(-1)), at


@njit([types.boolean(types.int64, types.int64, types.int64, types.int64, types.int64)], nogil=True, cache=True)
def _equally_long(address, names, names_end, offsets, offsets_end):
    difference = np.int64(0)
    for at in range(names, names_end):
        difference += load_u8(address, at) == _COMMA
    for at in range(offsets, offsets_end):
        difference -= load_u8(address, at) == _COMMA
    return difference == 0


@njit(
    [
        types.UniTuple(types.int64, 4)(
            _BYTES,
            _ROWS,
            types.int64,
            types.int64,
            _INTS,
            _BYTES,
            _LONGS,
            _INTS,
            types.uint64,
            _LONGS,
            _INTS,
            _LONGS,
            types.int64,
            _ROWS,
            _INTS,
            types.int64,
        )
    ],
    nogil=True,
    cache=True,
)
def expand_lights(
    buffer,
    rows,
    start,
    end,
    slots,
    names,
    name_ends,
    topic_table,
    seed,
    keys,
    key_slots,
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
        if not _equally_long(address, name, list_end, offset, offsets_end):
            continue
        while name < list_end:
            name_end = find_byte_at(address, name, list_end, len(buffer), _COMMA)
            queue_offset, offset_end = _offset_at(address, offset, offsets_end)
            if queue_offset >= 0 and _is_light_name(address, name, name_end):
                light = find_slot_at(
                    address, name, name_end - name, 0, names, name_ends, topic_table, seed, keys, key_slots
                )
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


@njit([types.int64(_BYTES)], nogil=True, cache=True)
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


@njit([types.int64(_OUT_BYTES, types.int64, types.int64)], nogil=True, cache=True)
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


@njit(
    [
        types.UniTuple(types.int64, 7)(
            _BYTES,
            types.int64,
            _OUT_BYTES,
            types.int64,
            types.int64,
            _BYTES,
            _BYTES,
            _LONGS,
            _INTS,
            types.uint64,
            _LONGS,
            _INTS,
            _LONGS,
            _LONGS,
            _LONGS,
            types.int64,
            _INTS,
            types.int64,
        )
    ],
    nogil=True,
    cache=True,
)
def assign_lights(
    records,
    position,
    out,
    at,
    number,
    pair,
    names,
    name_ends,
    topic_table,
    seed,
    keys,
    key_slots,
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
            name_end = find_byte_at(address, name, list_end, len(records), _COMMA)
            if not _is_light_name(address, name, name_end):
                return BAD_NAME, position, at, number, touched_count, name, name_end - name
            slot = find_slot_at(address, name, name_end - name, 0, names, name_ends, topic_table, seed, keys, key_slots)
            if slot < 0:
                return NEW_NAME, position, at, number, touched_count, name, name_end - name
            name = name_end + 1
        begin = at
        copy_bytes(out, at, records, position, properties - position)
        at += properties - position
        start = properties
        while start < end:
            pair_end = find_byte_at(address, start, end, len(records), _END_OF_PAIR)
            kind = _kind_of(address, start, pair_end)
            if kind != _OFFSET_PAIR and kind != _CRC_PAIR:
                copy_bytes(out, at, records, start, pair_end - start)
                at += pair_end - start
                out[np.uint64(at)] = _END_OF_PAIR
                at += 1
            start = pair_end + 1
        copy_bytes(out, at, pair, 0, len(pair))
        at += len(pair)
        name = list_start
        while name < list_end:
            name_end = find_byte_at(address, name, list_end, len(records), _COMMA)
            slot = np.uint64(
                find_slot_at(address, name, name_end - name, 0, names, name_ends, topic_table, seed, keys, key_slots)
            )
            if seen[slot] != stamp + number:
                seen[slot] = stamp + number
                assigned[slot] = (next_offsets[slot] if assigned[slot] < 0 else assigned[slot]) + 1
                touched[np.uint64(touched_count)] = slot
                touched_count += 1
            at = _write_number(out, at, assigned[slot] - 1)
            out[np.uint64(at)] = _COMMA
            at += 1
            name = name_end + 1
        out[np.uint64(at - 1)] = _END_OF_PAIR
        size = at - begin - (properties - position)
        if size > _PROPERTIES_MAX:
            return TOO_LARGE, position, at, number, touched_count, list_start, np.int64(0)
        store_i32(out_address, begin, at - begin)
        store_i16(out_address, begin + properties - position - 2, size)
        position, number = end, number + 1
    return ASSIGNED, position, at, number, touched_count, np.int64(0), np.int64(0)


OFFSETS_PAIR = _OFFSETS_PAIR


@njit([types.boolean(_BYTES)], nogil=True, cache=True)
def allows_lights(topic):
    """As :func:`allows_lights_at`, of the name ``topic``."""
    return allows_lights_at(address_of(topic), 0, len(topic))
