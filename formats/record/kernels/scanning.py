"""Kernels that read records: where they begin and end, and every field of each."""

from __future__ import annotations

import numpy as np
from numba import boolean, int64

from ...intrinsics.crc import crc32_at
from ...intrinsics.kernel import BYTES, INTS, LONGS, kernel, rows_of
from ...intrinsics.memory import address_of, copy_to_address, load_i8, load_i16, load_i32, load_i64, load_u8
from ...intrinsics.text import tags_code_at
from ..layout import BLANK_BYTES, CRC_MASK, FIXED_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, SysFlag
from ..producer_mark import MARK_PREFIX
from ..rows import ROW, ScanStatus
from .record_crc import WRONG, record_crc_at

_END = int(ScanStatus.END)
_ROWS_FULL = int(ScanStatus.ROWS_FULL)
_BLANK = int(ScanStatus.BLANK)
_EMPTY = int(ScanStatus.EMPTY)
_BAD = int(ScanStatus.BAD)
_INCOMPLETE = int(ScanStatus.INCOMPLETE)
RECORD = 16
"""What :func:`measure_at` answers for a whole record."""
NEGATIVE_PROPERTIES = 17
_BORN_V6 = SysFlag.BORN_HOST_V6
_STORE_V6 = SysFlag.STORE_HOST_V6
ROWS = rows_of(ROW)
MARK_BYTES = len(MARK_PREFIX)
"""Properties that are not longer than this hold no producer mark."""
_MARK_HEAD = int.from_bytes(MARK_PREFIX[:4], "big", signed=True)
_MARK_4, _MARK_5, _MARK_6 = MARK_PREFIX[4:]

_NOTHING = (0, 0, 0, 0, 0, 0, 0, 0)


@kernel((int64,) * 9, int64, int64, int64)
def measure_at(address, start, end):
    """Whether a record begins at ``start`` behind ``address``, and where its parts are; it reads only ``[start, end)``.

    ``0 <= start <= end``, and that these bytes are memory, is the caller's promise. Answers (kind, record end,
    position of the store time, body, body size, topic, topic size, properties, properties size). Kind is RECORD,
    NEGATIVE_PROPERTIES or a ScanStatus; the record end counts for RECORD and BLANK, all else for RECORD alone.
    Every length that the bytes claim is compared with what is left before it is used; all sums are of 64 bits and
    cannot overflow.
    """
    if end - start < 4:
        return (_END if start == end else _INCOMPLETE, *_NOTHING)
    size = load_i32(address, start)
    if size == 0:
        return (_EMPTY, *_NOTHING)
    if end - start < 8:
        return (_INCOMPLETE if size > 0 else _BAD, *_NOTHING)
    magic = load_i32(address, start + 4)
    if magic == MAGIC_BLANK:
        if size < BLANK_BYTES:
            return (_BAD, *_NOTHING)
        return (_BLANK if size <= end - start else _INCOMPLETE, start + size, *_NOTHING[1:])
    if size < FIXED_BYTES or (magic != MAGIC_V1 and magic != MAGIC_V2):
        return (_BAD, *_NOTHING)
    if size > end - start:
        return (_INCOMPLETE, *_NOTHING)
    record_end = start + size
    sys_flag = load_i32(address, start + 36)
    store = start + 56 + (12 if sys_flag & _BORN_V6 else 0)
    body = store + 32 + (12 if sys_flag & _STORE_V6 else 0)
    topic_prefix = 1 if magic == MAGIC_V1 else 2
    left = record_end - body - topic_prefix - 2
    if left < 0:
        return (_BAD, *_NOTHING)
    body_size = load_i32(address, body - 4)
    if body_size < 0 or body_size > left:
        return (_BAD, *_NOTHING)
    left -= body_size
    topic = body + body_size + topic_prefix
    topic_size = load_i8(address, topic - 1) if topic_prefix == 1 else load_i16(address, topic - 2)
    if topic_size < 0 or topic_size > left:
        return (_BAD, *_NOTHING)
    left -= topic_size
    properties = topic + topic_size + 2
    properties_size = load_i16(address, properties - 2)
    if properties_size < 0:
        return (NEGATIVE_PROPERTIES, *_NOTHING)
    if properties_size != left:
        return (_BAD, *_NOTHING)
    return (RECORD, record_end, store, body, body_size, topic, topic_size, properties, properties_size)


@kernel(boolean, int64, int64)
def is_mark(address, at):
    """True if :data:`~.producer_mark.MARK_PREFIX` stands at ``at`` behind ``address``; reads MARK_BYTES bytes."""
    if load_i32(address, at) != _MARK_HEAD:
        return False
    four, five, six = load_u8(address, at + 4), load_u8(address, at + 5), load_u8(address, at + 6)
    return four == _MARK_4 and five == _MARK_5 and six == _MARK_6


@kernel((int64,) * 3, BYTES, int64, int64, int64, boolean, ROWS)
def scan(buffer, start, end, physical_base, check_crc, rows):
    """Fill one row for each record of ``buffer[start:end]``; answers (count, next position, ScanStatus).

    ``physical_base`` is the log position of ``buffer[0]``; each record's own offset must agree with it, unless it
    is -1. ``check_crc``: checksums too, of bodies (an empty one has none, as for RocketMQ) and, where there are any, of
    whole records (:mod:`.record_crc`). Safe on any bytes: what is
    no record stops the scan in front of it. The next position is behind the last record, or behind a blank.
    """
    if start < 0 or end > len(buffer) or start > end:
        return 0, start, _BAD
    address = address_of(buffer)
    position = start
    for count in range(len(rows) + 1):
        kind, record_end, store, body, body_size, topic, topic_size, properties, properties_size = measure_at(
            address, position, end
        )
        if kind != RECORD:
            if kind == NEGATIVE_PROPERTIES:
                kind = _BAD
            return count, record_end if kind == _BLANK else position, kind
        if count == len(rows):
            return count, position, _ROWS_FULL
        physical_offset = load_i64(address, position + 28)
        body_crc = load_i32(address, position + 8)
        if physical_base >= 0 and physical_offset != physical_base + position:
            return count, position, _BAD
        if check_crc:
            if body_size > 0 and crc32_at(address, body, body + body_size) & CRC_MASK != body_crc:
                return count, position, _BAD
            if record_crc_at(address, position, record_end, properties_size) == WRONG:
                return count, position, _BAD
        row = rows[np.uint64(count)]
        row.position = position
        row.physical_offset = physical_offset
        row.queue_offset = load_i64(address, position + 20)
        row.born_timestamp = load_i64(address, position + 40)
        row.store_timestamp = load_i64(address, store)
        row.tags_code = tags_code_at(address, properties, properties + properties_size, len(buffer))
        row.prepared_transaction_offset = load_i64(address, body - 12)
        row.body_position = body
        row.topic_position = topic
        row.properties_position = properties
        row.size = record_end - position
        row.magic = load_i32(address, position + 4)
        row.queue_id = load_i32(address, position + 12)
        row.flag = load_i32(address, position + 16)
        row.sys_flag = load_i32(address, position + 36)
        row.reconsume_times = load_i32(address, body - 16)
        row.body_crc = body_crc
        row.body_size = body_size
        row.topic_size = topic_size
        row.properties_size = properties_size
        position = record_end
    return len(rows), position, _ROWS_FULL


@kernel(int64, BYTES, int64, int64, int64)
def count_records(buffer, start, end, count_max):
    """Number of whole records at the beginning of ``buffer[start:end]``, at most ``count_max``; for sizing rows."""
    if start < 0 or end > len(buffer) or start > end:
        return 0
    count = 0
    while count < count_max:
        left = end - start
        size = load_i32(buffer, start) if left >= FIXED_BYTES else 0
        if size < FIXED_BYTES or size > left:
            break
        start += size
        count += 1
    return count


@kernel(int64, BYTES, LONGS, INTS, int64)
def gather(source, positions, sizes, out_address):
    """Copy ``source[positions[i]:][:sizes[i]]`` one behind the other to ``out_address``; answers the bytes copied.

    The memory behind the address must hold the sum of ``sizes``. A piece that is not inside ``source`` ends the
    copy with -1 - i. Neighbouring pieces are copied at once.
    """
    if len(sizes) < len(positions):
        return np.int64(-1)
    out = out_address
    run_start = np.int64(0)
    run_size = np.int64(0)
    for i in range(len(positions)):
        position, size = positions[i], np.int64(sizes[i])
        if position < 0 or size < 0 or position > len(source) - size:
            return -1 - i
        if position != run_start + run_size:
            copy_to_address(out, source, run_start, run_size)
            out += run_size
            run_start, run_size = position, np.int64(0)
        run_size += size
    copy_to_address(out, source, run_start, run_size)
    return out + run_size - out_address


@kernel(int64, BYTES, int64, int64, int64, int64)
def find_record(buffer, start, stop, physical_base, store_timestamp_min):
    """The position of the first sound record in ``buffer[start:stop]``, or -1.

    The record may end anywhere in ``buffer``. Sound: its own physical offset, its lengths and its checksum are right,
    and it is not older than ``store_timestamp_min``: an older one is a leftover of something cut off before.
    """
    address = address_of(buffer)
    position, end = start, len(buffer)
    last = min(stop - 1, end - FIXED_BYTES)
    while position <= last:
        magic = load_i32(address, position + 4)
        right = magic in (MAGIC_V1, MAGIC_V2) and load_i64(address, position + 28) == physical_base + position
        if right:
            kind, record_end, store, body, body_size, _, _, _, properties_size = measure_at(address, position, end)
            if kind == RECORD and load_i64(address, store) >= store_timestamp_min:
                crc = crc32_at(address, body, body + body_size) & CRC_MASK if body_size > 0 else np.int64(0)
                if (body_size == 0 or crc == load_i32(address, position + 8) & CRC_MASK) and (
                    record_crc_at(address, position, record_end, properties_size) != WRONG
                ):
                    return position
        # Of eight zero bytes none begins a record, nor do the next four: a size is not zero.
        position += 5 if load_i64(address, position) == 0 else 1
    return np.int64(-1)
