"""The broker's kernels for whole-record checksums: make room for them in a batch, and write them into the log."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import boolean, int64, void

from ...intrinsics.crc import crc32_at
from ...intrinsics.kernel import BYTES, OUT_BYTES, kernel
from ...intrinsics.memory import address_of, copy_bytes, load_i32, load_i64, load_u8, store_i16, store_i32
from ..layout import CRC_MASK, FIXED_BYTES, RECORD_CRC_BYTES, RECORD_CRC_PREFIX
from .record_crc import ABSENT, record_crc_at
from .scanning import RECORD, measure_at

GROWTH_MAX = RECORD_CRC_BYTES + 1
"""A record grows by so much at most: properties that do not end with their separator get one."""
_PROPERTIES_MAX = 32767
_PREFIX = np.frombuffer(RECORD_CRC_PREFIX, np.uint8)
_PREFIX_BYTES = len(RECORD_CRC_PREFIX)
_HEAD = int.from_bytes(RECORD_CRC_PREFIX[:8], "big", signed=True)
_DIGITS = RECORD_CRC_BYTES - _PREFIX_BYTES - 1

Bytes = npt.NDArray[np.uint8]


@kernel((int64,) * 2, BYTES, BYTES, OUT_BYTES)
def reserve_seals(records, prefix, out):
    """Copy a batch with room for the checksum at the end of each record; answers (bytes written, -1).

    ``out`` has room for GROWTH_MAX bytes more per record. A checksum that a record brings is replaced. At a record
    that is no record the copy ends with (0, its number), at one whose properties leave no room with (-1, its number).
    """
    address = address_of(records)
    start, at, number = np.int64(0), np.int64(0), np.int64(0)
    while start < len(records):
        kind, end, _, _, _, _, _, properties, properties_size = measure_at(address, start, len(records))
        if kind != RECORD:
            return np.int64(0), number
        kept = end
        if record_crc_at(address, start, end, properties_size) != ABSENT:
            kept = end - RECORD_CRC_BYTES
        separated = kept == properties or load_u8(address, kept - 1) == 2
        size = kept - start + RECORD_CRC_BYTES + (0 if separated else 1)
        if kept - properties + RECORD_CRC_BYTES + (0 if separated else 1) > _PROPERTIES_MAX:
            return np.int64(-1), number
        copy_bytes(out, at, records, start, kept - start)
        store_i32(out, at, size)
        length = properties_size + size - (end - start)
        store_i16(out, at + properties - start - 2, length)
        if not separated:
            out[np.uint64(at + kept - start)] = 2
        at += size
        copy_bytes(out, at - RECORD_CRC_BYTES, prefix, 0, _PREFIX_BYTES)
        for i in range(1, _DIGITS + 1):
            out[np.uint64(at - 1 - i)] = 48
        out[np.uint64(at - 1)] = 2
        start = end
        number += 1
    return at, np.int64(-1)


@kernel(boolean, BYTES)
def has_seals(records):
    """True if a record of the batch ends as with a checksum of the whole record; safe on any bytes."""
    address = address_of(records)
    start = np.int64(0)
    while start + FIXED_BYTES <= len(records):
        end = start + load_i32(address, start)
        if end - start < FIXED_BYTES or end > len(records):
            break
        if load_i64(address, end - RECORD_CRC_BYTES) == _HEAD:
            return True
        start = end
    return False


@kernel(int64, BYTES, OUT_BYTES)
def drop_seals(records, out):
    """Copy a batch without the checksums of whole records; the bytes written, 0 when not all are whole records."""
    address = address_of(records)
    start, at = np.int64(0), np.int64(0)
    while start < len(records):
        kind, end, _, _, _, _, _, properties, properties_size = measure_at(address, start, len(records))
        if kind != RECORD:
            return np.int64(0)
        kept = end
        while record_crc_at(address, start, kept, properties_size - (end - kept)) != ABSENT:
            kept -= RECORD_CRC_BYTES
        copy_bytes(out, at, records, start, kept - start)
        store_i32(out, at, kept - start)
        store_i16(out, at + properties - start - 2, kept - properties)
        at += kept - start
        start = end
    return at


@kernel(void, OUT_BYTES, int64, int64)
def write_seals(log, start, end):
    """Write the checksum of each record of ``log[start:end]``, which :func:`reserve_seals` made room for."""
    address = address_of(log)
    while start < end:
        kind, record_end, _, _, _, _, _, _, _ = measure_at(address, start, end)
        if kind != RECORD:
            return
        left = crc32_at(address, start, record_end - RECORD_CRC_BYTES) & CRC_MASK
        for i in range(_DIGITS):
            log[np.uint64(record_end - 1 - _DIGITS + i)] = 48 + left % 10
            left //= 10
        start = record_end


def make_room(records: Bytes, count: int) -> tuple[Bytes, int, int]:
    """As :func:`reserve_seals`, into an array of its own: (batch, status as there, number of the record)."""
    out: Bytes = np.empty(len(records) + GROWTH_MAX * count, np.uint8)
    size, number = reserve_seals(records, _PREFIX, out)
    return out[: max(size, 0)], int(size), int(number)


def without_seals(records: Bytes) -> Bytes:
    """The batch without checksums of whole records; itself when it has none, or is not made of whole records.

    A producer that sends on what it has read may send one: it is that of another place, and recovery would take the
    record for damaged.
    """
    if not has_seals(records):
        return records
    out: Bytes = np.empty(len(records), np.uint8)
    size = int(drop_seals(records, out))
    return out[:size] if size else records
