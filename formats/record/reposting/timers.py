"""Kernels for messages that are delivered later: what such records say, and the records that are delivered.

Such a message is a record of one of two topics, and its properties say where it belongs and when:

| Topic | Where | When |
|---|---|---|
| ``names.TIMER_TOPIC``, queue 0 | ``REAL_TOPIC``, ``REAL_QID`` | ``TIMER_OUT_MS`` |
| ``names.SCHEDULE_TOPIC``, queue level - 1 | the same | ``DELAY``, the level (:mod:`penstock.formats.delay_levels`) |

When it is due, the broker appends it as a record of its real topic. A record of the timer topic with
``TIMER_DEL_UNIQKEY`` is no message: the one whose ``UNIQ_KEY`` that is, of the same topic, is not to be delivered.
Source: RocketMQ ``HookUtils#handleScheduleMessage``, ``TimerMessageStore#convertMessage``; differs: these brokers get
the records from their clients in that form.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import boolean, int64, void

from ...intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, OUT_LONGS, kernel
from ...intrinsics.memory import address_of, copy_bytes, load_i32, store_i8, store_i16, store_i32
from ...intrinsics.text import find_byte_at
from ..kernels.pairs import PAIR_END, begins_with, hash_at, number_at, pair_name, value_at
from ..kernels.scanning import MARK_BYTES, RECORD, is_mark, measure_at
from ..layout import RECORD_CRC_PREFIX
from ..properties import (
    DELAY,
    PROPERTIES_BYTES_MAX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETED_KEY,
    TIMER_OUT_MS,
    UNIQ_KEY,
)
from .rewriting import put_time, put_topic


class TimerStatus(IntEnum):
    """How :func:`check_waiting` ends."""

    OK = 0
    NO_RECORD = 1
    OTHER_TOPIC = 2
    BAD_QUEUE = 3
    BAD_TIME = 4
    TOO_LATE = 5
    PROPERTIES_TOO_LARGE = 6
    BAD_LEVEL = 7


GROWTH_MAX = 96
"""A batch that is delivered is longer by so much, for its mark; each record by at most :data:`TOPIC_GROWTH_MAX`."""
TOPIC_GROWTH_MAX = 256
_PROPERTIES_MAX = 32767 - GROWTH_MAX
_OK, _NO_RECORD, _OTHER_TOPIC, _BAD_QUEUE, _BAD_TIME, _TOO_LATE, _TOO_LARGE, _BAD_LEVEL = map(int, TimerStatus)


_TOPIC, _QUEUE, _TIME = pair_name(REAL_TOPIC), pair_name(REAL_QUEUE_ID), pair_name(TIMER_OUT_MS)
_LEVEL, _KEY, _DELETED_KEY = pair_name(DELAY), pair_name(UNIQ_KEY), pair_name(TIMER_DELETED_KEY)
_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX
_CRC = np.frombuffer(RECORD_CRC_PREFIX, np.uint8)


@kernel(int64, int64, int64, int64, BYTES, int64)
def _check_place(address, properties, end, topic, queues):
    """OK, or what is wrong with the place that the properties ``[properties, end)`` name."""
    start, stop = value_at(address, properties, end, _TOPIC)
    if stop - start != len(topic) or not begins_with(address, start, stop, topic):
        return np.int64(_OTHER_TOPIC)
    start, stop = value_at(address, properties, end, _QUEUE)
    queue_id = number_at(address, start, stop)
    return np.int64(_OK if 0 <= queue_id < queues else _BAD_QUEUE)


@kernel((int64,) * 2, BYTES, BYTES, int64, int64, boolean)
def check_waiting(records, topic, queues, most, by_level):
    """(TimerStatus, index of the bad record) of records that are to become messages of ``topic`` later.

    ``queues``: ids below it are legal. ``most``: ms since 1970, after which no message may be due; ``by_level``: how
    many delay levels there are, for one of which each waits in the queue of its level.
    """
    address, position, index = address_of(records), 0, 0
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            return _NO_RECORD, index
        if size > _PROPERTIES_MAX:
            return _TOO_LARGE, index
        status = _check_place(address, properties, properties + size, topic, queues)
        if status != _OK:
            return status, index
        if by_level:
            start, stop = value_at(address, properties, properties + size, _LEVEL)
            level = number_at(address, start, stop)
            if level < 1 or level > most or load_i32(address, position + 12) != level - 1:
                return _BAD_LEVEL, index
        else:
            start, stop = value_at(address, properties, properties + size, _TIME)
            due = number_at(address, start, stop)
            if due < 0:
                return _BAD_TIME, index
            if due > most:
                return _TOO_LATE, index
        position = end
        index += 1
    return _OK, index


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS, OUT_BYTES)
def due_times(log, positions, sizes, due, recalls):
    """When the records at ``positions`` of ``log`` are due, ms; -1 for what is no such record.

    ``recalls``: 1 for those that take a message back, else 0.
    """
    address = address_of(log)
    for i in range(len(positions)):
        due[i], recalls[i] = -1, 0
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(log):
            continue
        kind, _, _, _, _, _, _, properties, size = measure_at(address, start, end)
        if kind == RECORD:
            value, value_end = value_at(address, properties, properties + size, _TIME)
            due[i] = number_at(address, value, value_end)
            value, value_end = value_at(address, properties, properties + size, _DELETED_KEY)
            recalls[i] = value < value_end


@kernel(int64, BYTES)
def text_hash(text):
    """The hash of a text by which :func:`real_topics` and :func:`unique_keys` tell records apart."""
    return hash_at(address_of(text), 0, len(text))


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS, OUT_LONGS, OUT_BYTES)
def real_topics(records, positions, sizes, topics, hashes, recalls):
    """Where the name of each record's real topic begins in ``records``, and its hash; -1 without one.

    ``recalls``: 1 for those that take a message back, in the timer topic; else 0.
    """
    address = address_of(records)
    for i in range(len(positions)):
        topics[i], hashes[i], recalls[i] = -1, 0, 0
        kind, _, _, _, _, _, _, properties, size = measure_at(address, positions[i], positions[i] + sizes[i])
        if kind != RECORD:
            continue
        start, end = value_at(address, properties, properties + size, _DELETED_KEY)
        recalls[i] = start < end
        start, end = value_at(address, properties, properties + size, _TOPIC)
        if start == end:
            continue
        topics[i] = start
        hashes[i] = hash_at(address, start, end)


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS)
def unique_keys(records, positions, sizes, hashes):
    """The hash of each record's UNIQ_KEY; 0 without one."""
    address = address_of(records)
    for i in range(len(positions)):
        hashes[i] = 0
        kind, _, _, _, _, _, _, properties, size = measure_at(address, positions[i], positions[i] + sizes[i])
        if kind == RECORD:
            start, end = value_at(address, properties, properties + size, _KEY)
            hashes[i] = hash_at(address, start, end)


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


@kernel(int64, BYTES, LONGS, INTS, BYTES, int64, BYTES, boolean, LONGS, OUT_BYTES)
def delivered_records(records, positions, sizes, topic, queues, mark, keep, due, out):
    """Write the records at ``positions`` as messages of ``topic``, with ``queues`` queues, to ``out``; its new length.

    ``mark``: a property, with its name and both separators, for the first record. A queue that is not there any more
    is replaced by another. ``keep``: they go on waiting, and say where they belong; ``due``: and when from now on, one
    for each, or none. -1: ``out`` is too small, something is no record, or what must be said has no room.
    """
    address, at = address_of(records), 0
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
        store_i32(out, at + 12, max(queue_id, 0) % queues)
        first = behind = put_topic(out, at, at + fixed, topic)
        if i == 0:
            copy_bytes(out, behind, mark, 0, len(mark))
            behind += len(mark)
        behind = _copy_properties(out, behind, address, properties, properties + size, keep)
        if len(due) > 0:
            behind = put_time(out, behind, _TIME, due[i])
        if behind - first > _PROPERTIES_BYTES_MAX:
            return np.int64(-1)
        store_i16(out, first - 2, behind - first)
        store_i32(out, at, behind - at)
        at = behind
    return np.int64(at)
