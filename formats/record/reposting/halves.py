"""Kernels for transactions: halves, and what becomes of them.

A half is a record of the topic ``names.HALF_TOPIC``, queue 0, whose properties say where it belongs once it is decided:

| Property | Value |
|---|---|
| ``TRAN_MSG`` | ``true`` |
| ``PGROUP`` | the producers' group, any member of which may be asked |
| ``REAL_TOPIC``, ``REAL_QID`` | the topic and queue of the message |
| ``CHECK_IMMUNITY_TIME_IN_SECONDS`` | so long nobody is asked; without it the broker's ``transactionTimeOut`` |
| ``TRANSACTION_CHECK_TIMES`` | of a half that was stored anew: how often somebody was asked |
| ``TRAN_PREPARED_QUEUE_OFFSET`` | of the same: the queue offset of its first record |

Which halves are decided stands in records of ``names.OP_TOPIC``: tag ``d``, body the halves' queue offsets, a comma
behind each.
Source: RocketMQ ``TransactionalMessageBridge``, ``EndTransactionProcessor``; differs: every half that is stored anew
names its first record, and a committed message has the mark of its batch among its properties.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import boolean, int64, void

from ...intrinsics.kernel import BYTES, INTS, LONGS, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from ...intrinsics.memory import (
    address_of,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
)
from ...intrinsics.text import equal_at, find_byte_at, put_digits
from ..kernels.pairs import PAIR_END, begins_with, hash_at, number_at, pair_name, value_at
from ..kernels.scanning import MARK_BYTES, RECORD, is_mark, measure_at
from ..layout import RECORD_CRC_PREFIX, SysFlag
from ..properties import (
    CHECK_IMMUNITY_SECONDS,
    PREPARED_QUEUE_OFFSET,
    PRODUCER_GROUP,
    PROPERTIES_BYTES_MAX,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TRANSACTION_CHECK_TIMES,
    TRANSACTION_PREPARED,
    UNIQ_KEY,
)
from .rewriting import put_topic


class HalfStatus(IntEnum):
    """How :func:`check_halves` ends."""

    OK = 0
    NO_RECORD = 1
    OTHER_TOPIC = 2
    BAD_QUEUE = 3
    NOT_PREPARED = 4
    NO_GROUP = 5
    PROPERTIES_TOO_LARGE = 6


class Becomes(IntEnum):
    """What :func:`restated` makes of halves that are not committed."""

    PARKED = 1  # records for whoever looks after what nobody decides
    ASKED = 2  # halves again, about which somebody was asked once more
    RENEWED = 3  # halves again


PROPERTIES_GROWTH_MAX = 256
"""What is added to a record's properties takes less, the mark of its batch included."""
GROWTH_MAX = PROPERTIES_GROWTH_MAX + 256
"""By so much a record grows at most: the topic's name may be longer too."""
_OK, _NO_RECORD, _OTHER_TOPIC, _BAD_QUEUE, _NOT_PREPARED, _NO_GROUP, _TOO_LARGE = map(int, HalfStatus)
_, _ASKED, _RENEWED = map(int, Becomes)
_BYTES_MAX = PROPERTIES_BYTES_MAX
_PROPERTIES_MAX = _BYTES_MAX - PROPERTIES_GROWTH_MAX
_GROUP_MAX = 255
_QUEUE_MAX = (1 << 31) - 1
_COMMIT, _KEPT_FLAGS = SysFlag.TRANSACTION_COMMIT, ~SysFlag.TRANSACTION_MASK
_COMMA = ord(",")

_TOPIC, _QUEUE, _GROUP = pair_name(REAL_TOPIC), pair_name(REAL_QUEUE_ID), pair_name(PRODUCER_GROUP)
_TIMES, _FIRST = pair_name(TRANSACTION_CHECK_TIMES), pair_name(PREPARED_QUEUE_OFFSET)
_IMMUNITY, _KEY = pair_name(CHECK_IMMUNITY_SECONDS), pair_name(UNIQ_KEY)
_PREPARED = np.frombuffer(f"{TRANSACTION_PREPARED}\x01true".encode(), np.uint8)
_CRC = np.frombuffer(RECORD_CRC_PREFIX, np.uint8)
_R, _T, _P, _C = map(ord, "RTPC")
_NONE = -1


@kernel((int64,) * 13, int64, int64, int64)
def _values(address, start, end):
    """Where values of the properties ``[start, end)`` begin and end, in one pass: of the last pair with each name.

    Real topic, its queue, group, check times, first record's offset; then True for ``TRAN_MSG=true``, where the
    immunity's pair begins, 0 without one, and True if there is a checksum of the whole record.
    """
    topic, topic_end, queue, queue_end, group, group_end = end, end, end, end, end, end
    times, times_end, first, first_end, is_prepared, immunity, is_sealed = end, end, end, end, 0, 0, 0
    while start < end:
        pair_end = find_byte_at(address, start, end, end, PAIR_END)
        initial = load_u8(address, start)
        if initial == _R:
            if begins_with(address, start, pair_end, _TOPIC):
                topic, topic_end = start + len(_TOPIC), pair_end
            elif begins_with(address, start, pair_end, _QUEUE):
                queue, queue_end = start + len(_QUEUE), pair_end
        elif initial == _T:
            if pair_end - start == len(_PREPARED) and begins_with(address, start, pair_end, _PREPARED):
                is_prepared = 1
            elif begins_with(address, start, pair_end, _TIMES):
                times, times_end = start + len(_TIMES), pair_end
            elif begins_with(address, start, pair_end, _FIRST):
                first, first_end = start + len(_FIRST), pair_end
        elif initial == _P and begins_with(address, start, pair_end, _GROUP):
            group, group_end = start + len(_GROUP), pair_end
        elif initial == _C and begins_with(address, start, pair_end, _IMMUNITY):
            immunity = start
        elif initial == _CRC[0] and begins_with(address, start, pair_end, _CRC):
            is_sealed = 1
        start = pair_end + 1
    return (
        *(topic, topic_end, queue, queue_end, group, group_end),
        *(times, times_end, first, first_end, is_prepared, immunity, is_sealed),
    )


@kernel((int64,) * 2, BYTES, BYTES, int64)
def check_halves(records, topic, queues):
    """(HalfStatus, index of the bad record) of records that are to be halves of messages of ``topic``.

    ``queues``: ids below it are legal.
    """
    address, position, index = address_of(records), 0, 0
    sound, sound_size = 0, 0  # properties of the record before
    while position < len(records):
        kind, end, _, _, _, _, _, properties, size = measure_at(address, position, len(records))
        if kind != RECORD:
            return _NO_RECORD, index
        if size == sound_size > 0 and equal_at(address, properties, address, sound, size):
            position = end
            index += 1
            continue
        if size > _PROPERTIES_MAX:
            return _TOO_LARGE, index
        start, stop, queue, queue_end, group, group_end, _, _, first, first_end, is_prepared, _, _ = _values(
            address, properties, properties + size
        )
        if stop - start != len(topic) or not begins_with(address, start, stop, topic):
            return _OTHER_TOPIC, index
        queue_id = number_at(address, queue, queue_end)
        if queue_id < 0 or queue_id >= queues:
            return _BAD_QUEUE, index
        if not is_prepared or first != first_end:
            return _NOT_PREPARED, index
        if group == group_end or group_end - group > _GROUP_MAX:
            return _NO_GROUP, index
        sound, sound_size = properties, size
        position = end
        index += 1
    return _OK, index


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_LONGS)
def facts_of(log, positions, sizes, stored, immunity, times, firsts, groups, keys):
    """What the halves at ``positions`` of ``log`` say of themselves; ``stored`` is -1 for what is no record.

    Store time in ms, ``CHECK_IMMUNITY_TIME_IN_SECONDS``, ``TRANSACTION_CHECK_TIMES`` and
    ``TRAN_PREPARED_QUEUE_OFFSET`` (-1 without), hashes of group and ``UNIQ_KEY`` (0 without).
    """
    address = address_of(log)
    for i in range(len(positions)):
        stored[i], immunity[i], times[i], firsts[i], groups[i], keys[i] = -1, -1, -1, -1, 0, 0
        start, limit = positions[i], positions[i] + sizes[i]
        if start < 0 or limit > len(log):
            continue
        kind, _, store, _, _, _, _, properties, size = measure_at(address, start, limit)
        if kind != RECORD:
            continue
        end = properties + size
        _, _, _, _, group, group_end, asked, asked_end, first, first_end, _, told, _ = _values(address, properties, end)
        stored[i] = load_i64(address, store)
        if told > 0:
            value, value_end = value_at(address, told, end, _IMMUNITY)
            immunity[i] = number_at(address, value, value_end)
        times[i] = number_at(address, asked, asked_end)
        firsts[i] = number_at(address, first, first_end)
        groups[i] = hash_at(address, group, group_end)
        value, value_end = value_at(address, properties, end, _KEY)
        keys[i] = hash_at(address, value, value_end)


@kernel(int64, int64, int64, int64)
def _behind_mark(address, start, end):
    """Where the properties ``[start, end)`` begin without the mark of their batch."""
    if end - start > MARK_BYTES and is_mark(address, start):
        return min(find_byte_at(address, start, end, end, PAIR_END) + 1, end)
    return start


@kernel(void, BYTES, LONGS, INTS, OUT_LONGS, OUT_LONGS, OUT_LONGS, OUT_INTS, OUT_INTS)
def homes_of(records, positions, sizes, topics, hashes, groups, queues, kept):
    """Where each half belongs once it is decided.

    Where the name of its real topic begins in ``records`` (-1 without one), hashes of topic and group, and its queue (0
    without one). ``kept``: where in the record its properties begin without the mark, if a committed message has them
    as they are; -1 otherwise.
    """
    address = address_of(records)
    before, before_size, topic, keeps = 0, 0, 0, 0  # the properties of the record before, and places in them
    for i in range(len(positions)):
        topics[i], hashes[i], groups[i], queues[i], kept[i] = -1, 0, 0, 0, _NONE
        begin = positions[i]
        kind, _, _, _, _, _, _, properties, size = measure_at(address, begin, begin + sizes[i])
        if kind != RECORD:
            before_size = 0
            continue
        if size == before_size > 0 and equal_at(address, properties, address, before, size):
            hashes[i], groups[i], queues[i] = hashes[i - 1], groups[i - 1], queues[i - 1]
        else:
            end = properties + size
            start, stop, queue, queue_end, group, group_end, _, _, _, _, _, _, is_sealed = _values(
                address, properties, end
            )
            topic = start - properties if start != stop else _NONE
            keeps = _NONE if is_sealed else _behind_mark(address, properties, end) - properties
            hashes[i], groups[i] = hash_at(address, start, stop), hash_at(address, group, group_end)
            queues[i] = min(max(number_at(address, queue, queue_end), np.int64(0)), _QUEUE_MAX)
        if topic >= 0:
            topics[i] = properties + topic
        if keeps >= 0:
            kept[i] = properties + keeps - begin
        before, before_size = properties, size


@kernel(int64, OUT_BYTES, int64, BYTES, int64)
def _put_number(out, at, name, number):
    """Write a pair with a number; the new end."""
    copy_bytes(out, at, name, 0, len(name))
    at = put_digits(address_of(out), at + len(name), number)
    store_i8(out, at, PAIR_END)
    return at + 1


@kernel(int64, OUT_BYTES, int64, int64, int64, int64)
def _copy_to_the_end(out, at, address, start, end):
    """The properties ``[start, end)`` as they are, with a separator at their end; the new end."""
    if start >= end:
        return at
    copy_bytes(out, at, address, start, end - start)
    at += end - start
    if load_u8(address, end - 1) != PAIR_END:
        store_i8(out, at, PAIR_END)
        at += 1
    return at


@kernel(int64, OUT_BYTES, int64, int64, int64, int64, boolean)
def _copy_properties(out, at, address, start, end, is_renewed):
    """The properties ``[start, end)`` without the mark, the checksum and what a renewed half says anew; the new end."""
    start = _behind_mark(address, start, end)
    kept = start  # all from here on to `start` is copied at once
    while start < end:
        pair_end = find_byte_at(address, start, end, end, PAIR_END)
        initial = load_u8(address, start)
        is_left = initial == _CRC[0] and begins_with(address, start, pair_end, _CRC)
        if is_renewed and initial == _T:
            is_left = begins_with(address, start, pair_end, _TIMES) or begins_with(address, start, pair_end, _FIRST)
        if is_left:
            copy_bytes(out, at, address, kept, start - kept)
            at += start - kept
            kept = pair_end + 1
        start = pair_end + 1
    return _copy_to_the_end(out, at, address, kept, end)


@kernel(int64, OUT_BYTES, int64, int64, int64, int64, int64, int64, int64, BYTES)
def _put_head(out, at, record, fixed, body, queue_id, committed_flag, prepared_offset, topic):
    """Write a record up to its properties: that at the address ``record``, of ``topic``; where they begin."""
    copy_bytes(out, at, record, 0, fixed)
    store_i32(out, at + 12, queue_id)
    store_i32(out, at + 36, load_i32(record, 36) & _KEPT_FLAGS | committed_flag)
    store_i64(out, at + body - 12, prepared_offset)
    return put_topic(out, at, at + fixed, topic)


@kernel(int64, BYTES, LONGS, INTS, INTS, INTS, BYTES, int64, BYTES, OUT_BYTES)
def committed(records, positions, sizes, own_queues, kept, topic, queues, mark, out):
    """Write the halves at ``positions`` as committed messages of ``topic``, which has ``queues``, to ``out``.

    ``own_queues`` and ``kept``: as :func:`homes_of` tells them. ``mark``: a property, with its name and both
    separators, for the first record. Answers the new length; -1 less the index of one that is no record, or has no
    room for what must be said.
    """
    at = 0
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(records) or at + sizes[i] + GROWTH_MAX > len(out):
            return np.int64(-1 - i)
        record = address_of(records) + start
        kind, _, _, body, body_size, _, _, properties, size = measure_at(record, 0, sizes[i])
        if kind != RECORD or size + PROPERTIES_GROWTH_MAX > _BYTES_MAX:
            return np.int64(-1 - i)
        first = behind = _put_head(
            out, at, record, body + body_size, body, own_queues[i] % queues, _COMMIT, load_i64(record, 28), topic
        )
        if i == 0:
            copy_bytes(out, behind, mark, 0, len(mark))
            behind += len(mark)
        if properties <= kept[i] <= properties + size:
            behind = _copy_to_the_end(out, behind, record, kept[i], properties + size)
        else:
            behind = _copy_properties(out, behind, record, properties, properties + size, False)
        store_i16(out, first - 2, behind - first)
        store_i32(out, at, behind - at)
        at = behind
    return np.int64(at)


@kernel(int64, BYTES, LONGS, INTS, int64, BYTES, BYTES, OUT_BYTES)
def restated(records, positions, sizes, becomes, topic, mark, out):
    """Write the halves at ``positions`` as records of ``topic``, queue 0, to ``out``; its new length.

    ``becomes``: a :class:`Becomes`. A renewed half names its first record, which it may be itself, and says how often
    somebody was asked. ``mark``, and the answer: as of :func:`committed`.
    """
    at = 0
    is_renewed = becomes in (_ASKED, _RENEWED)
    for i in range(len(positions)):
        start, end = positions[i], positions[i] + sizes[i]
        if start < 0 or end > len(records) or at + sizes[i] + GROWTH_MAX > len(out):
            return np.int64(-1 - i)
        record = address_of(records) + start
        kind, _, _, body, body_size, _, _, properties, size = measure_at(record, 0, sizes[i])
        if kind != RECORD or size + PROPERTIES_GROWTH_MAX > _BYTES_MAX:
            return np.int64(-1 - i)
        properties_end = properties + size
        first = behind = _put_head(out, at, record, body + body_size, body, 0, 0, 0, topic)
        if i == 0:
            copy_bytes(out, behind, mark, 0, len(mark))
            behind += len(mark)
        behind = _copy_properties(out, behind, record, properties, properties_end, is_renewed)
        if is_renewed:
            _, _, _, _, _, _, asked, asked_end, origin, origin_end, _, _, _ = _values(
                record, properties, properties_end
            )
            times = max(number_at(record, asked, asked_end), np.int64(0)) + (1 if becomes == _ASKED else 0)
            if times > 0:
                behind = _put_number(out, behind, _TIMES, times)
            first_offset = number_at(record, origin, origin_end)
            behind = _put_number(out, behind, _FIRST, first_offset if first_offset >= 0 else load_i64(record, 20))
        store_i16(out, first - 2, behind - first)
        store_i32(out, at, behind - at)
        at = behind
    return np.int64(at)


@kernel(int64, LONGS, OUT_BYTES)
def write_offsets(offsets, out):
    """Write the body of an op to ``out``, 20 bytes for each at most; its length."""
    at = np.int64(0)
    for offset in offsets:
        at = put_digits(address_of(out), at, offset)
        store_i8(out, at, _COMMA)
        at += 1
    return at


@kernel(int64, BYTES, OUT_LONGS)
def read_offsets(body, offsets):
    """The offsets in the body of an op; how many. What is no number is passed over."""
    address, start, count = address_of(body), 0, 0
    while start < len(body) and count < len(offsets):
        end = find_byte_at(address, start, len(body), len(body), _COMMA)
        number = number_at(address, start, end)
        if number >= 0:
            offsets[count] = number
            count += 1
        start = end + 1
    return np.int64(count)
