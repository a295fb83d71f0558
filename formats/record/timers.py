"""Kernels for messages that are delivered later: what such records say, and the records that are delivered.

A message for later is a record of the topic ``names.TIMER_TOPIC`` whose properties say where it belongs and when:
``REAL_TOPIC``, ``REAL_QID``, ``TIMER_OUT_MS``. When it is due, the broker appends it as a record of that topic.
Source: RocketMQ ``HookUtils#handleScheduleMessage``, ``TimerMessageStore#convertMessage``; differs: these brokers get
the records from their clients in that form.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import boolean, int64, types, void

from ..intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, OUT_LONGS, kernel
from ..intrinsics.memory import address_of, copy_bytes, load_u8, store_i8, store_i16, store_i32
from ..intrinsics.text import find_byte_at
from .kernels.pairs import PAIR_END, begins_with, number_at, pair_name, value_at
from .kernels.scanning import MARK_BYTES, RECORD, is_mark, measure_at
from .layout import MAGIC_V1, MAGIC_V2, RECORD_CRC_PREFIX
from .properties import REAL_QUEUE_ID, REAL_TOPIC, TIMER_OUT_MS


class TimerStatus(IntEnum):
    """How :func:`check_timers` ends."""

    OK = 0
    NO_RECORD = 1
    OTHER_TOPIC = 2
    BAD_QUEUE = 3
    BAD_TIME = 4
    TOO_LATE = 5
    PROPERTIES_TOO_LARGE = 6


GROWTH_MAX = 96
"""A batch that is delivered is longer by so much, for its mark; each record by at most :data:`TOPIC_GROWTH_MAX`."""
TOPIC_GROWTH_MAX = 256
_PROPERTIES_MAX = 32767 - GROWTH_MAX
_OK, _NO_RECORD, _OTHER_TOPIC, _BAD_QUEUE, _BAD_TIME, _TOO_LATE, _TOO_LARGE = map(int, TimerStatus)
_FNV_START, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


_TOPIC, _QUEUE, _TIME = pair_name(REAL_TOPIC), pair_name(REAL_QUEUE_ID), pair_name(TIMER_OUT_MS)
_CRC = np.frombuffer(RECORD_CRC_PREFIX, np.uint8)

_WRITABLE_HASHES = types.Array(types.uint64, 1, "C")


@kernel((int64,) * 2, BYTES, BYTES, int64, int64)
def check_timers(records, topic, queues, latest_ms):
    """(TimerStatus, index of the bad record) of records that are to become messages of ``topic`` later.

    ``queues``: ids below it are legal. ``latest_ms``: no message may be due after it.
    """
    address, position, index = address_of(records), 0, 0
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            return _NO_RECORD, index
        if size > _PROPERTIES_MAX:
            return _TOO_LARGE, index
        start, stop = value_at(address, properties, properties + size, _TOPIC)
        if stop - start != len(topic):
            return _OTHER_TOPIC, index
        for i in range(len(topic)):
            if load_u8(address, start + i) != topic[i]:
                return _OTHER_TOPIC, index
        start, stop = value_at(address, properties, properties + size, _QUEUE)
        queue_id = number_at(address, start, stop)
        if queue_id < 0 or queue_id >= queues:
            return _BAD_QUEUE, index
        start, stop = value_at(address, properties, properties + size, _TIME)
        due = number_at(address, start, stop)
        if due < 0:
            return _BAD_TIME, index
        if due > latest_ms:
            return _TOO_LATE, index
        position = end
        index += 1
    return _OK, index


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS)
def due_times(log, positions, sizes, due):
    """When the records at ``positions`` of ``log`` are due, ms; -1 for what is no such record."""
    address = address_of(log)
    for i in range(len(positions)):
        due[i] = -1
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(log):
            continue
        kind, _, _, _, _, _, _, properties, size = measure_at(address, start, end)
        if kind == RECORD:
            value, value_end = value_at(address, properties, properties + size, _TIME)
            due[i] = number_at(address, value, value_end)


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS, _WRITABLE_HASHES)
def real_topics(records, positions, sizes, topics, hashes):
    """Where the name of each record's real topic begins in ``records``, and its 64-bit FNV-1a hash; -1 without one."""
    address = address_of(records)
    for i in range(len(positions)):
        topics[i], hashes[i] = -1, 0
        kind, _, _, _, _, _, _, properties, size = measure_at(address, positions[i], positions[i] + sizes[i])
        if kind != RECORD:
            continue
        start, end = value_at(address, properties, properties + size, _TOPIC)
        if start == end:
            continue
        topics[i] = start
        result = _FNV_START
        for at in range(start, end):
            result = (result ^ np.uint64(load_u8(address, at))) * _FNV_PRIME
        hashes[i] = result


@kernel(int64, OUT_BYTES, int64, int64, int64, int64, boolean)
def _copy_properties(out, at, address, start, end, keep):
    """The properties ``[start, end)`` without the mark and the checksum; the new end.

    Without the real topic and queue as well, unless ``keep``.
    """
    if end - start > MARK_BYTES and is_mark(address, start):
        start = find_byte_at(address, start, end, end, PAIR_END) + 1
    while start < end:
        pair_end = find_byte_at(address, start, end, end, PAIR_END)
        is_place = begins_with(address, start, pair_end, _TOPIC) or begins_with(address, start, pair_end, _QUEUE)
        if (keep or not is_place) and not begins_with(address, start, pair_end, _CRC):
            copy_bytes(out, at, address, start, pair_end - start)
            at += pair_end - start
            store_i8(out, at, PAIR_END)
            at += 1
        start = pair_end + 1
    return at


@kernel(int64, BYTES, LONGS, INTS, BYTES, int64, BYTES, boolean, OUT_BYTES)
def delivered_records(records, positions, sizes, topic, queues, mark, keep, out):
    """Write the records at ``positions`` as messages of ``topic``, with ``queues`` queues, to ``out``; its new length.

    ``mark``: a property, with its name and both separators, for the first record. A queue that is not there any more
    is replaced by another. ``keep``: they go on waiting, and say where they belong. -1: ``out`` is too small, or
    something is no record.
    """
    address, at = address_of(records), 0
    prefix = 1 if len(topic) <= 127 else 2
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(records) or at + sizes[i] + TOPIC_GROWTH_MAX + GROWTH_MAX > len(out):
            return np.int64(-1)
        kind, _, _, body, body_size, _, _, properties, size = measure_at(address, start, end)
        if kind != RECORD:
            return np.int64(-1)
        value, value_end = value_at(address, properties, properties + size, _QUEUE)
        queue_id = number_at(address, value, value_end)
        fixed = body + body_size - start
        copy_bytes(out, at, records, start, fixed)
        store_i32(out, at + 4, MAGIC_V1 if prefix == 1 else MAGIC_V2)
        store_i32(out, at + 12, max(queue_id, 0) % queues)
        behind = at + fixed
        if prefix == 1:
            store_i8(out, behind, len(topic))
        else:
            store_i16(out, behind, len(topic))
        behind += prefix
        copy_bytes(out, behind, topic, 0, len(topic))
        behind += len(topic)
        first = behind + 2
        behind = first
        if i == 0:
            copy_bytes(out, behind, mark, 0, len(mark))
            behind += len(mark)
        behind = _copy_properties(out, behind, address, properties, properties + size, keep)
        store_i16(out, first - 2, behind - first)
        store_i32(out, at, behind - at)
        at = behind
    return np.int64(at)
