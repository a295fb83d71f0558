"""Kernels for messages that a consumer could not take: the records that come again, and dead letters.

A message that comes again is a message for later (:mod:`.timers`) whose ``REAL_TOPIC`` is the group's retry topic; a
dead letter is a record of the group's dead-letter topic. Both are the record that failed, body and all, with one more
in ``RECONSUMETIMES``, and say where their group found it for the first time:

| Property | Of | Value |
|---|---|---|
| ``RETRY_TOPIC`` | both | the topic that it was consumed from |
| ``ORIGIN_MESSAGE_ID`` | both | store host and physical offset there, upper-case hex |
| ``REAL_TOPIC``, ``REAL_QID``, ``TIMER_OUT_MS`` | later | where it belongs, and when |
| ``DLQ_ORIGIN_TOPIC``, ``DLQ_ORIGIN_MESSAGE_ID`` | dead | the first two, as RocketMQ names them there |

Source: RocketMQ ``AbstractSendMessageProcessor#consumerSendMsgBack``; differs: a time in place of a delay level, and no
light queue gets the message again; a record that is no retry is what its group found, whatever it says of a time
before: who consumes a dead letter gets that again, and not a message of the topic that it was sent to.
"""

from __future__ import annotations

import numpy as np
from numba import boolean, int64, void

from ...intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, OUT_INTS, kernel
from ...intrinsics.memory import address_of, copy_bytes, load_i32, load_u8, store_i8, store_i16, store_i32, store_i64
from ...intrinsics.text import find_byte_at
from ..kernels.pairs import PAIR_END, begins_with, pair_name, value_at
from ..kernels.scanning import MARK_BYTES, RECORD, is_mark, measure_at
from ..layout import RECORD_CRC_PREFIX, SysFlag
from ..producer_mark import MARK_BYTES_MAX
from ..properties import (
    DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ORIGIN_TOPIC,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    ORIGIN_MESSAGE_ID,
    PROPERTIES_BYTES_MAX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TIMER_OUT_MS,
)
from .rewriting import put_time, put_topic

PROPERTIES_GROWTH_MAX = 1024
"""What is added to a record's properties takes less, the mark of its batch included."""
GROWTH_MAX = PROPERTIES_GROWTH_MAX + 256
"""By so much a record grows at most: the topic's name may be longer too."""

_BYTES_MAX = PROPERTIES_BYTES_MAX
_TOPIC_MAX = 255
_ID_MAX = 64  # a longer value is no id: whoever sent it has made it up

_RETRY_TOPIC, _ORIGIN_ID = pair_name(RETRY_TOPIC), pair_name(ORIGIN_MESSAGE_ID)
_DEAD_TOPIC, _DEAD_ID = pair_name(DLQ_ORIGIN_TOPIC), pair_name(DLQ_ORIGIN_MESSAGE_ID)
_REAL_TOPIC, _REAL_QUEUE, _TIME = pair_name(REAL_TOPIC), pair_name(REAL_QUEUE_ID), pair_name(TIMER_OUT_MS)
_LIGHTS, _LIGHT_OFFSETS = pair_name(INNER_MULTI_DISPATCH), pair_name(INNER_MULTI_QUEUE_OFFSET)
_CRC = np.frombuffer(RECORD_CRC_PREFIX, np.uint8)
_KEPT_FLAGS = ~SysFlag.TRANSACTION_MASK

assert (
    MARK_BYTES_MAX
    + len(_RETRY_TOPIC)
    + len(_DEAD_TOPIC)
    + len(_ORIGIN_ID)
    + len(_DEAD_ID)
    + 2 * _TOPIC_MAX
    + 2 * _ID_MAX
    < PROPERTIES_GROWTH_MAX - 8
)


@kernel(void, BYTES, LONGS, INTS, OUT_INTS, OUT_INTS)
def tries_of(records, positions, sizes, reconsume_times, properties_sizes):
    """RECONSUMETIMES of each record, and the size of its properties; -1 for what is no record."""
    address = address_of(records)
    for i in range(len(positions)):
        reconsume_times[i] = properties_sizes[i] = -1
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(records):
            continue
        kind, _, _, body, _, _, _, _, size = measure_at(address, start, end)
        if kind == RECORD:
            reconsume_times[i] = load_i32(address, body - 16)
            properties_sizes[i] = size


@kernel(int64, OUT_BYTES, int64, BYTES, int64, int64, int64)
def _put(out, at, name, address, start, end):
    """Write a pair whose value is ``[start, end)`` behind ``address``; the new end."""
    copy_bytes(out, at, name, 0, len(name))
    at += len(name)
    copy_bytes(out, at, address, start, end - start)
    at += end - start
    store_i8(out, at, PAIR_END)
    return at + 1


@kernel(int64, OUT_BYTES, int64, BYTES, int64, int64, int64)
def _put_id(out, at, name, record, store, body):
    """The same with the id that the record behind the address ``record`` has from its place in the log."""
    copy_bytes(out, at, name, 0, len(name))
    at += len(name)
    host_end = body - 16
    for i in range(store + 8, host_end + 8):
        byte = load_u8(record, i if i < host_end else i - host_end + 28)
        for digit in (byte >> 4, byte & 15):
            store_i8(out, at, digit + (48 if digit < 10 else 55))
            at += 1
    store_i8(out, at, PAIR_END)
    return at + 1


@kernel(int64, OUT_BYTES, int64, int64, int64, int64, boolean)
def _copy_kept(out, at, address, start, end, has_origin):
    """The properties ``[start, end)`` without what a copy says anew, or must not say again; the new end.

    ``has_origin``: where it comes from it says anew too.
    """
    if end - start > MARK_BYTES and is_mark(address, start):
        start = find_byte_at(address, start, end, end, PAIR_END) + 1
    while start < end:
        pair_end = find_byte_at(address, start, end, end, PAIR_END)
        if not (
            begins_with(address, start, pair_end, _REAL_TOPIC)
            or begins_with(address, start, pair_end, _REAL_QUEUE)
            or begins_with(address, start, pair_end, _TIME)
            or begins_with(address, start, pair_end, _LIGHTS)
            or begins_with(address, start, pair_end, _LIGHT_OFFSETS)
            or begins_with(address, start, pair_end, _DEAD_TOPIC)
            or begins_with(address, start, pair_end, _DEAD_ID)
            or begins_with(address, start, pair_end, _CRC)
            or (has_origin and begins_with(address, start, pair_end, _RETRY_TOPIC))
            or (has_origin and begins_with(address, start, pair_end, _ORIGIN_ID))
        ):
            copy_bytes(out, at, address, start, pair_end - start)
            at += pair_end - start
            store_i8(out, at, PAIR_END)
            at += 1
        start = pair_end + 1
    return at


@kernel(int64, OUT_BYTES, int64, int64, int64, int64, int64, int64, int64, int64, boolean, boolean)
def _put_origin(out, at, record, store, body, topic, topic_end, properties, properties_end, is_again, is_dead):
    """Write where a message comes from; the new end. ``record``: its address. ``is_again``: it says that itself."""
    value = value_end = id_start = id_end = np.int64(0)
    if is_again:
        value, value_end = value_at(record, properties, properties_end, _RETRY_TOPIC)
        id_start, id_end = value_at(record, properties, properties_end, _ORIGIN_ID)
    if value == value_end or value_end - value > _TOPIC_MAX:
        value, value_end = topic, topic_end
    at = _put(out, at, _RETRY_TOPIC, record, value, value_end)
    if is_dead:
        at = _put(out, at, _DEAD_TOPIC, record, value, value_end)
    if 0 < id_end - id_start <= _ID_MAX:
        at = _put(out, at, _ORIGIN_ID, record, id_start, id_end)
        return _put(out, at, _DEAD_ID, record, id_start, id_end) if is_dead else at
    at = _put_id(out, at, _ORIGIN_ID, record, store, body)
    return _put_id(out, at, _DEAD_ID, record, store, body) if is_dead else at


@kernel(int64, BYTES, LONGS, INTS, INTS, LONGS, BYTES, BYTES, BYTES, boolean, OUT_BYTES)
def sent_back(records, positions, sizes, reconsume_times, due, topic, where, mark, are_again, out):
    """Write the records at ``positions`` as records of ``topic``, queue 0, to ``out``; its new length.

    ``reconsume_times``: what each says from now on. ``due``: when each comes again, ms, and ``where`` the properties
    that say where; a negative one: at once. Without any time they are dead letters. ``mark``: a property, with its
    name and both separators, for the first. ``are_again``: they have failed before, and say where they come from;
    otherwise that is where they lie. Where a dead letter's properties have no room for its origin it goes without.
    -1 less the index of one that is no record, or has no room for what must be said.
    """
    at = 0
    is_dead = len(due) == 0
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(records) or at + sizes[i] + GROWTH_MAX > len(out):
            return np.int64(-1 - i)
        record = address_of(records) + start
        kind, _, store, body, body_size, origin, origin_size, properties, size = measure_at(record, 0, sizes[i])
        if kind != RECORD:
            return np.int64(-1 - i)
        fixed = body + body_size
        copy_bytes(out, at, record, 0, fixed)
        store_i32(out, at + 12, 0)
        store_i32(out, at + 36, load_i32(record, 36) & _KEPT_FLAGS)
        store_i32(out, at + body - 16, reconsume_times[i])
        store_i64(out, at + body - 12, 0)
        first = behind = put_topic(out, at, at + fixed, topic)
        if i == 0:
            copy_bytes(out, behind, mark, 0, len(mark))
            behind += len(mark)
        end, has_origin = properties + size, size + PROPERTIES_GROWTH_MAX <= _BYTES_MAX
        behind = _copy_kept(out, behind, record, properties, end, has_origin)
        if has_origin:
            behind = _put_origin(
                out, behind, record, store, body, origin, origin + origin_size, properties, end, are_again, is_dead
            )
        elif not is_dead:
            return np.int64(-1 - i)
        if not is_dead:
            copy_bytes(out, behind, where, 0, len(where))
            behind += len(where)
            if due[i] >= 0:
                behind = put_time(out, behind, _TIME, due[i])
        if behind - first > _BYTES_MAX:
            return np.int64(-1 - i)
        store_i16(out, first - 2, behind - first)
        store_i32(out, at, behind - at)
        at = behind
    return np.int64(at)
