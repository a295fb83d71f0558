"""The broker's kernel: validate a batch and place it into the log, in one pass."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64

from ...intrinsics.crc import crc32_at
from ...intrinsics.kernel import BYTES, OUT_BYTES, OUT_INTS, OUT_LONGS, kernel
from ...intrinsics.memory import (
    address_of,
    copy_bytes,
    load_i32,
    load_i64,
    load_u8,
    store_i8,
    store_i64,
    zero_bytes,
)
from ...intrinsics.text import find_byte_at
from ..layout import BLANK_BYTES, CRC_MASK, MAGIC_V1, MAGIC_V2, SysFlag
from ..rows import PlaceStatus
from .scanning import MARK_BYTES, NEGATIVE_PROPERTIES, RECORD, is_mark, measure_at

_OK = int(PlaceStatus.OK)
_BAD_SIZE = int(PlaceStatus.BAD_SIZE)
_BAD_MAGIC = int(PlaceStatus.BAD_MAGIC)
_BAD_TOPIC = int(PlaceStatus.BAD_TOPIC)
_BAD_QUEUE = int(PlaceStatus.BAD_QUEUE)
_BAD_FLAGS = int(PlaceStatus.BAD_FLAGS)
_BODY_TOO_LARGE = int(PlaceStatus.BODY_TOO_LARGE)
_PROPERTIES_TOO_LARGE = int(PlaceStatus.PROPERTIES_TOO_LARGE)
_BAD_CRC = int(PlaceStatus.BAD_CRC)
_NO_SPACE = int(PlaceStatus.NO_SPACE)
_EMPTY_BATCH = int(PlaceStatus.EMPTY_BATCH)
_TOO_MANY_QUEUES = int(PlaceStatus.TOO_MANY_QUEUES)
_MISPLACED_MARK = int(PlaceStatus.MISPLACED_MARK)
_OTHER_COUNT = int(PlaceStatus.OTHER_COUNT)
_NUL_IN_PROPERTIES = int(PlaceStatus.NUL_IN_PROPERTIES)
_BORN_AT = 40
_BLANK = 0x20
_HEAD_BYTES = 112  # up to the body, whatever its hosts
_STORE_V6 = SysFlag.STORE_HOST_V6
_REFUSED_FLAGS = SysFlag.TRANSACTION_PREPARED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH  # COMMIT is a message's


@kernel(boolean, int64, int64, int64, int64)
def _is_topic(records, position, topic, topic_size):
    """True if the bytes at ``position`` are those of ``topic``; all addresses."""
    for i in range(topic_size):  # noqa: SIM110  kernels know no generators
        if load_u8(records, position + i) != load_u8(topic, i):
            return False
    return True


@kernel((int64,) * 4, int64, int64, int64, int64, int64, int64, int64, int64)
def _check(records, start, records_end, topic, expected_topic_size, queues, store_v6, body_bytes_max):
    """(PlaceStatus, end, position of the store time, of the first NUL in the properties) of the record at ``start``.

    Where there is no NUL, the last is the end.
    """
    kind, end, store, body, body_size, topic_position, topic_size, properties, properties_size = measure_at(
        records, start, records_end
    )
    if kind != RECORD:
        if kind == NEGATIVE_PROPERTIES:
            return _PROPERTIES_TOO_LARGE, start, start, start
        if records_end - start >= 8:
            magic = load_i32(records, start + 4)
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                return _BAD_MAGIC, start, start, start
        return _BAD_SIZE, start, start, start
    if topic_size != expected_topic_size or not _is_topic(records, topic_position, topic, topic_size):
        return _BAD_TOPIC, start, start, start
    queue_id = load_i32(records, start + 12)
    if queue_id < 0 or queue_id >= queues:
        return _BAD_QUEUE, start, start, start
    if start > 0 and properties_size > MARK_BYTES and is_mark(records, properties):
        return _MISPLACED_MARK, start, start, start
    sys_flag = load_i32(records, start + 36)
    if sys_flag & _REFUSED_FLAGS or sys_flag & _STORE_V6 != store_v6:
        return _BAD_FLAGS, start, start, start
    if body_size > body_bytes_max:
        return _BODY_TOO_LARGE, start, start, start
    if crc32_at(records, body, body + body_size) & CRC_MASK != load_i32(records, start + 8):
        return _BAD_CRC, start, start, start
    return _OK, end, store, find_byte_at(records, properties, properties + properties_size, records_end, 0)


@kernel((int64,) * 3, BYTES, BYTES, int64, int64, int64)
def check_batch(records, topic, queues, host_bytes, body_bytes_max):
    """What :func:`place_batch` says of ``records``, wherever there is room: (PlaceStatus, bad index, count).

    ``queues``: ids below it are legal. ``host_bytes``: what the store host takes. Nothing is written.
    """
    if len(records) == 0:
        return _EMPTY_BATCH, 0, 0
    store_v6 = _STORE_V6 if host_bytes == 20 else 0
    start, count = 0, 0
    while start < len(records):
        status, end, _, nul = _check(
            address_of(records), start, len(records), address_of(topic), len(topic), queues, store_v6, body_bytes_max
        )
        if status == _OK and nul < end:
            status = _NUL_IN_PROPERTIES
        if status != _OK:
            return status, count, 0
        start = end
        count += 1
    return _OK, -1, count


@kernel(
    (int64,) * 4,
    BYTES,
    OUT_BYTES,
    int64,
    int64,
    int64,
    BYTES,
    BYTES,
    OUT_LONGS,
    int64,
    OUT_LONGS,
    int64,
    OUT_INTS,
    OUT_LONGS,
    int64,
    boolean,
)
def place_batch(
    records,
    log,
    position,
    physical_base,
    store_timestamp,
    store_host,
    topic,
    next_offsets,
    stamp,
    seen,
    body_bytes_max,
    touched_queues,
    touched_offsets,
    expected_count,
    are_kept,
):
    """Place the batch ``records`` at ``log[position:]``; answers (PlaceStatus, bad index, count, touched queues).

    Every record is checked, copied and given its queue offset, physical offset (``physical_base`` is that of
    ``log[0]``), store time and store host; ``next_offsets``, one per queue id, move on. ``touched_queues`` and
    ``touched_offsets`` name the batch's queues in order of first appearance, and the offset of the batch's first
    record in each. ``seen``, one per queue id, is this function's own memory between calls: ``stamp`` must differ from
    call to call. ``expected_count``: how many records there must be, -1 for any number. ``are_kept``: they are in a
    log already, so a NUL in their properties, as another program may have written it, becomes a blank. A record
    without a time of birth is born now: zeros are what a torn write leaves. On any status but OK nothing is stored:
    ``next_offsets`` are as before, the bytes of the log zero.
    """
    if len(seen) < len(next_offsets) or (len(store_host) != 8 and len(store_host) != 20):
        raise ValueError("seen needs one element per queue, and a host takes 8 or 20 bytes")
    if position < 0 or position > len(log) or len(log) - position - BLANK_BYTES < len(records):
        return _NO_SPACE, 0, 0, 0
    if len(records) == 0:
        return _EMPTY_BATCH, 0, 0, 0
    store_v6 = _STORE_V6 if len(store_host) == 20 else 0
    records_address, topic_address, queues = address_of(records), address_of(topic), len(next_offsets)
    touched_max = min(len(touched_queues), len(touched_offsets))
    start, count, touched, status = 0, 0, 0, _OK
    while start < len(records):
        if count == expected_count:
            status = _OTHER_COUNT
            break
        status, end, store, nul = _check(
            records_address, start, len(records), topic_address, len(topic), queues, store_v6, body_bytes_max
        )
        if status == _OK and nul < end and not are_kept:
            status = _NUL_IN_PROPERTIES
        if status != _OK:
            break
        queue_id = load_i32(records, start + 12)
        queue_offset = next_offsets[np.uint64(queue_id)]
        if seen[np.uint64(queue_id)] != stamp:
            if touched == touched_max:
                status = _TOO_MANY_QUEUES
                break
            seen[np.uint64(queue_id)] = stamp
            touched_queues[np.uint64(touched)] = queue_id
            touched_offsets[np.uint64(touched)] = queue_offset
            touched += 1
        next_offsets[np.uint64(queue_id)] = queue_offset + 1
        # The head first: a process that is killed in the middle leaves a record that says how long it is. memcpy may
        # store its first bytes last.
        head = min(_HEAD_BYTES, end - start)
        copy_bytes(log, position + start, records, start, head)
        store_i64(log, position + start + 20, queue_offset)
        store_i64(log, position + start + 28, physical_base + position + start)
        store_i64(log, position + store, store_timestamp)
        copy_bytes(log, position + store + 8, store_host, 0, len(store_host))
        copy_bytes(log, position + start + head, records, start + head, end - start - head)
        if load_i64(records_address, start + _BORN_AT) == 0:
            store_i64(log, position + start + _BORN_AT, store_timestamp)
        while nul < end:
            store_i8(log, position + nul, _BLANK)
            nul = find_byte_at(records_address, nul + 1, end, len(records), 0)
        start = end
        count += 1
    if status == _OK and expected_count >= 0 and count != expected_count:
        status = _OTHER_COUNT
    if status == _OK:
        return _OK, -1, count, touched
    zero_bytes(log, position, start)
    for i in range(touched):
        next_offsets[touched_queues[i]] = touched_offsets[i]
    return status, count, 0, 0
