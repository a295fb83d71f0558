"""The scanning kernels: what the reference finds, and nothing read beyond the bytes."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.formats.record.kernels import ROW, ScanStatus, count_records, gather, scan
from penstock.formats.record.layout import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PhysicalOffset,
    Record,
    encode_record,
)
from tests.support.record import reference
from tests.support.record.guarded import GuardedMemory
from tests.support.record.shapes import HOSTILE, RECORDS

memory = GuardedMemory(1 << 16)


def check_rows(rows: np.ndarray, records: list[Record], buffer: bytes) -> None:
    at = 0
    for row, record in zip(rows, records, strict=True):
        encoded = buffer[at : at + int(row["size"])]
        assert row["position"] == at
        assert buffer[at:].startswith(encoded)
        assert len(encoded) == struct.unpack_from(">i", buffer, at)[0]
        assert row["magic"] == (MAGIC_V1 if record.version == 1 else MAGIC_V2)
        assert row["physical_offset"] == record.physical_offset
        assert row["queue_offset"] == record.queue_offset
        assert row["born_timestamp"] == record.born_timestamp_ms
        assert row["store_timestamp"] == record.store_timestamp_ms
        assert row["prepared_transaction_offset"] == record.prepared_transaction_offset
        assert row["queue_id"] == record.queue_id
        assert row["flag"] == record.flag
        assert row["sys_flag"] == struct.unpack_from(">i", buffer, at + 36)[0]
        assert row["reconsume_times"] == record.reconsume_times
        assert row["body_crc"] == record.body_crc
        assert row["tags_code"] == reference.tags_code_of(record.properties)
        assert _part(buffer, row, "body") == record.body
        assert _part(buffer, row, "properties") == record.properties
        assert str(_part(buffer, row, "topic"), "utf-8", "replace") == record.topic
        at += len(encoded)


def _part(buffer: bytes, row: np.void, name: str) -> bytes:
    return buffer[row[f"{name}_position"] :][: row[f"{name}_size"]]


@hypothesis_settings(deadline=None, max_examples=150)
@given(st.lists(RECORDS, max_size=5), st.integers(0, 6))
def test_scanning_fills_a_row_with_every_field_of_each_record(records: list[Record], room: int) -> None:
    buffer = b"".join(encode_record(record) for record in records)
    rows = np.zeros(room, ROW)
    array = memory.before_the_wall(buffer)
    count, position, status = scan(array, 0, len(array), -1, True, rows)
    assert count == min(room, len(records))
    assert status == (ScanStatus.END if room >= len(records) else ScanStatus.ROWS_FULL)
    assert position == sum(len(encode_record(record)) for record in records[:count])
    check_rows(rows[:count], records[:count], buffer)
    assert count_records(array, 0, len(array), 100) == len(records)


@hypothesis_settings(deadline=None, max_examples=250)
@given(HOSTILE, st.booleans(), st.sampled_from([-1, 0, 1024]), st.integers(0, 5))
def test_scanning_any_bytes_agrees_with_the_reference_and_stays_inside(
    data: bytes, check_crc: bool, physical_base: int, room: int
) -> None:
    for placed in (memory.before_the_wall, memory.behind_the_wall):
        array = placed(data)
        rows = np.zeros(room, ROW)
        count, position, status = scan(array, 0, len(array), physical_base, check_crc, rows)
        records, expected_position, expected_status = reference.scan(data, physical_base, check_crc, room)
        assert (count, position, status) == (len(records), expected_position, expected_status)
        check_rows(rows[:count], records, data)
        assert not rows[count:]["size"].any()
        assert 0 <= count_records(array, 0, len(array), 100) <= len(data) // 91


EXAMPLE = encode_record(Record(topic="TopicTest", body=b"hello", properties=b"TAGS\x01TagA\x02"))
SIZES = [-(1 << 31), -1, 0, 1, 7, 8, 90, 91, 114, 116, 1 << 20, (1 << 31) - 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("at", [0, 84, len(EXAMPLE) - 10 - 2 - 2])
def test_lengths_that_lie_are_never_believed(at: int, size: int) -> None:
    data = bytearray(EXAMPLE)
    data[at : at + 4] = struct.pack(">i", size)
    array = memory.before_the_wall(bytes(data))
    count, position, status = scan(array, 0, len(array), -1, False, np.zeros(2, ROW))
    assert (count, position) == (0, 0) or (at == 84 and size == 5)
    assert status in (ScanStatus.BAD, ScanStatus.INCOMPLETE, ScanStatus.EMPTY)


@pytest.mark.parametrize("cut", range(len(EXAMPLE)))
def test_every_beginning_of_a_record_is_incomplete(cut: int) -> None:
    array = memory.before_the_wall(EXAMPLE[:cut])
    count, position, status = scan(array, 0, cut, -1, False, np.zeros(1, ROW))
    assert (count, position) == (0, 0)
    assert status == (ScanStatus.INCOMPLETE if cut else ScanStatus.END)


def test_a_blank_ends_the_scan_behind_it() -> None:
    blank = struct.pack(">ii", 40, MAGIC_BLANK) + bytes(32)
    array = np.frombuffer(EXAMPLE + blank + EXAMPLE, np.uint8)
    rows = np.zeros(3, ROW)
    assert scan(array, 0, len(array), -1, True, rows) == (1, len(EXAMPLE) + 40, ScanStatus.BLANK)
    assert scan(array, 0, len(EXAMPLE) + 39, -1, True, rows) == (1, len(EXAMPLE), ScanStatus.INCOMPLETE)


def test_a_record_of_another_place_ends_the_scan_when_places_are_checked() -> None:
    first = encode_record(Record(topic="t", body=b"", physical_offset=PhysicalOffset(4096)))
    moved = encode_record(Record(topic="t", body=b"", physical_offset=PhysicalOffset(4096)))
    array = np.frombuffer(first + moved, np.uint8)
    assert scan(array, 0, len(array), 4096, True, np.zeros(3, ROW)) == (1, len(first), ScanStatus.BAD)


@pytest.mark.parametrize(("start", "end"), [(-1, 10), (0, len(EXAMPLE) + 1), (5, 4), (1 << 62, 1 << 62)])
def test_ranges_outside_the_buffer_are_bad(start: int, end: int) -> None:
    array = memory.before_the_wall(EXAMPLE)
    assert scan(array, start, end, -1, False, np.zeros(1, ROW)) == (0, start, ScanStatus.BAD)
    assert count_records(array, start, end, 10) == 0


@hypothesis_settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(-2, 210), st.integers(-2, 60)), max_size=8))
def test_gathering_copies_pieces_in_order_and_refuses_those_outside(data: bytes, pieces: list[tuple[int, int]]) -> None:
    positions = np.array([position for position, _ in pieces], np.int64)
    sizes = np.array([size for _, size in pieces], np.int32)
    out = GATHERED.before_the_wall(bytes(max(0, sum(size for _, size in pieces if size > 0))))
    copied = gather(memory.before_the_wall(data), positions, sizes, out.ctypes.data)
    inside = [position >= 0 and size >= 0 and position + size <= len(data) for position, size in pieces]
    if all(inside):
        expected = b"".join(data[position : position + size] for position, size in pieces)
        assert copied == len(expected)
        assert out[:copied].tobytes() == expected
    else:
        assert copied == -1 - inside.index(False)


GATHERED = GuardedMemory(1024)


def test_gathering_neighbours_and_far_numbers() -> None:
    array = np.frombuffer(b"abcdefgh", np.uint8)
    out = np.zeros(8, np.uint8)
    pieces = np.array([0, 2, 4, 0], np.int64), np.array([2, 2, 1, 1], np.int32)
    assert gather(array, *pieces, out.ctypes.data) == 6
    assert out.tobytes() == b"abcdea\0\0"
    far = np.array([(1 << 63) - 1], np.int64), np.array([5], np.int32)
    assert gather(array, *far, out.ctypes.data) == -1
