"""What the kernels must do, in plain Python, one record at a time."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from penstock.formats.hashing import tags_code
from penstock.formats.record.layout import (
    CRC_MASK,
    FIXED_BYTES,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_BYTES,
    RECORD_CRC_PREFIX,
    Host,
    PhysicalOffset,
    QueueOffset,
    Record,
    SysFlag,
    decode_record,
    encode_record,
)
from penstock.formats.record.properties import TAGS, decode_properties
from penstock.formats.record.rows import PlaceStatus, ScanStatus
from penstock.proto.errors import Corrupt


def tags_code_of(properties: bytes) -> int:
    return tags_code(decode_properties(properties).get(TAGS, ""))


def scan_one(buffer: bytes, at: int) -> tuple[ScanStatus | None, int]:
    """(None, size) of the record at ``at``, or why there is none and the size of the blank."""
    left = buffer[at:]
    if len(left) < 4:
        return (ScanStatus.INCOMPLETE if left else ScanStatus.END), 0
    (size,) = struct.unpack_from(">i", left)
    if size == 0:
        return ScanStatus.EMPTY, 0
    if len(left) < 8:
        return (ScanStatus.INCOMPLETE if size > 0 else ScanStatus.BAD), 0
    (magic,) = struct.unpack_from(">i", left, 4)
    if magic == MAGIC_BLANK and size >= 8:
        return (ScanStatus.BLANK, size) if size <= len(left) else (ScanStatus.INCOMPLETE, 0)
    if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_BYTES:
        return ScanStatus.BAD, 0
    if size > len(left):
        return ScanStatus.INCOMPLETE, 0
    try:
        decode_record(left)
    except Corrupt:
        return ScanStatus.BAD, 0
    return None, size


def scan(buffer: bytes, physical_base: int, check_crc: bool, rows: int) -> tuple[list[Record], int, ScanStatus]:
    found: list[Record] = []
    at = 0
    while True:
        status, size = scan_one(buffer, at)
        if status is not None:
            return found, at + size, status
        if len(found) == rows:
            return found, at, ScanStatus.ROWS_FULL
        record = decode_record(buffer, at)
        if physical_base >= 0 and record.physical_offset != physical_base + at:
            return found, at, ScanStatus.BAD
        if check_crc and record.body and zlib.crc32(record.body) & CRC_MASK != record.body_crc:
            return found, at, ScanStatus.BAD
        found.append(record)
        at += size


@dataclass
class Placed:
    status: PlaceStatus
    bad_index: int
    log: bytes
    next_offsets: list[int]
    touched: dict[int, int]


def place(
    records: bytes, base: int, timestamp: int, host: Host, topic: bytes, next_offsets: list[int], body_max: int
) -> Placed:
    """The batch as it must lie in the log from physical offset ``base`` on."""
    offsets = list(next_offsets)
    touched: dict[int, int] = {}
    log = b""
    at = index = 0
    if not records:
        return Placed(PlaceStatus.EMPTY_BATCH, 0, b"", offsets, {})
    while at < len(records):
        status = _check(records, at, host, topic, len(offsets), body_max)
        if status is not PlaceStatus.OK:
            return Placed(status, index, b"", list(next_offsets), {})
        record = decode_record(records, at)
        touched.setdefault(record.queue_id, offsets[record.queue_id])
        size = struct.unpack_from(">i", records, at)[0]
        patched = replace(
            record,
            queue_offset=QueueOffset(offsets[record.queue_id]),
            physical_offset=PhysicalOffset(base + at),
            born_timestamp_ms=record.born_timestamp_ms or timestamp,
            store_timestamp_ms=timestamp,
            store_host=host,
        )
        offsets[record.queue_id] += 1
        log += encode_record(patched)
        at += size
        index += 1
    return Placed(PlaceStatus.OK, -1, log, offsets, touched)


def _check(records: bytes, at: int, host: Host, topic: bytes, queues: int, body_max: int) -> PlaceStatus:
    found, _ = scan_one(records, at)
    if found is not None:
        magic = struct.unpack_from(">i", records, at + 4)[0] if len(records) - at >= 8 else MAGIC_V1
        return PlaceStatus.BAD_SIZE if magic in (MAGIC_V1, MAGIC_V2) else PlaceStatus.BAD_MAGIC
    record = decode_record(records, at)
    refused = SysFlag.TRANSACTION_PREPARED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    if record.topic.encode() != topic:
        return PlaceStatus.BAD_TOPIC
    if not 0 <= record.queue_id < queues:
        return PlaceStatus.BAD_QUEUE
    if record.sys_flag & refused or record.store_host.is_ipv6 != host.is_ipv6:
        return PlaceStatus.BAD_FLAGS
    if len(record.body) > body_max:
        return PlaceStatus.BODY_TOO_LARGE
    if zlib.crc32(record.body) & CRC_MASK != record.body_crc:
        return PlaceStatus.BAD_CRC
    return PlaceStatus.NUL_IN_PROPERTIES if b"\0" in record.properties else PlaceStatus.OK


def record_crc_property(covered: bytes | bytearray | memoryview) -> bytes:
    """The 20 bytes of the ``__CRC32#`` property that ends a record whose other bytes are ``covered``."""
    digits = f"{zlib.crc32(covered) & CRC_MASK:010d}"[::-1]
    return RECORD_CRC_PREFIX + digits.encode() + b"\x02"


def verify_record_crc(record: bytes | bytearray | memoryview) -> bool | None:
    """Whether the ``__CRC32#`` property that ends ``record`` matches all bytes before it; None without it."""
    view = memoryview(record)
    if len(view) < FIXED_BYTES + RECORD_CRC_BYTES or view[-20:-11] != RECORD_CRC_PREFIX:
        return None
    return bytes(view[-20:]) == record_crc_property(view[:-20])
