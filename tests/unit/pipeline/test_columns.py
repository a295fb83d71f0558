"""Records of any shape as columns: what a reader of each record alone sees, and no byte beside the memory given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.formats.hashing import string_hash
from penstock.formats.intrinsics.memory import LANES
from penstock.formats.record.kernels import ROW, ScanStatus, scan
from penstock.formats.record.layout import PhysicalOffset, Record, encode_record
from penstock.pipeline.columns import column_kernels as kernels
from penstock.pipeline.columns.columns import ColumnWriter
from penstock.pipeline.columns.schema import NEVER_NULL, STORE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from tests.support.record.guarded import GuardedMemory
from tests.support.record.shapes import RECORDS, property_strings

fast = hypothesis_settings(deadline=None, max_examples=200)
memory, other_memory = GuardedMemory(1 << 17), GuardedMemory(1 << 17)
rooms = [GuardedMemory(1 << 17) for _ in range(3)]
LONG_VALUES = b"UNIQ_KEY\x01" + b"u" * 64 + b"\x02KEYS\x01" + b"k" * 65 + b"  l \x02a\x01" + "é".encode() * 400


def as_pairs(properties: bytes) -> dict[bytes, bytes]:
    found = {}
    for pair in properties.split(b"\x02"):
        name, _, value = pair.partition(b"\x01")
        if name and value:
            found[name] = value
    return found


def as_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def wanted_row(record: Record) -> dict[str, Any]:
    pairs = as_pairs(record.properties)
    keys = pairs.get(b"KEYS")
    return {
        "topic": record.topic,
        "brokerName": "b",
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": record.physical_offset,
        "tags": as_text(pairs.get(b"TAGS")),
        "keys": None if keys is None else [as_text(word) for word in keys.split(b" ") if word],
        "body": record.body,
        "properties": [(as_text(name), as_text(value)) for name, value in pairs.items()],
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        **({"messageId": as_text(pairs[b"UNIQ_KEY"])} if b"UNIQ_KEY" in pairs else {}),
    }


@fast
@given(st.lists(RECORDS, min_size=1, max_size=8))
@example([Record(topic="t", body=b"", properties=LONG_VALUES)])
@example([Record(topic="t", body=b"z" * 65, properties=LONG_VALUES[:140]), Record(topic="u", body=b"", properties=b"")])
def test_columns_hold_what_a_reader_of_each_record_sees(records: list[Record]) -> None:
    encoded, placed = b"", []
    for record in records:
        placed.append(replace(record, physical_offset=PhysicalOffset(len(encoded))))
        encoded += encode_record(placed[-1])
    buffer = memory.before_the_wall(encoded)
    rows = np.empty(len(records), ROW)
    assert scan(buffer, 0, len(buffer), 0, True, rows) == (len(records), len(buffer), ScanStatus.END)
    (batch,) = ColumnWriter(arrow_schema(STORE_COLUMNS), broker_name="b", decompress=False).batches(buffer, rows)
    batch.validate(full=True)
    assert [name for name in sorted(NEVER_NULL) if batch.column(name).null_count] == []
    for row, record in zip(batch.to_pylist(), placed, strict=True):
        wanted = wanted_row(record)
        assert {name: row[name] for name in wanted} == wanted
    raw = pa.schema([pa.field("properties", pa.string())])
    (batch,) = ColumnWriter(raw, broker_name="b", decompress=False).batches(buffer, rows)
    assert batch.column(0).to_pylist() == [as_text(record.properties) for record in placed]


def numbers(place: GuardedMemory, count: int, kind: Any = np.int32) -> Any:
    """Room for ``count`` numbers, and not a byte more."""
    return place.before_the_wall(b"\0" * (count * np.dtype(kind).itemsize)).view(kind)


def pieces_of(texts: list[bytes]) -> tuple[Any, Any]:
    sizes = np.array([len(text) for text in texts], np.int32)
    return np.cumsum(sizes, dtype=np.int64) - sizes, sizes


@fast
@given(st.lists(property_strings(), min_size=1, max_size=20))
@example([LONG_VALUES])
@example([b"a\x01b\x02" * 8191 + b"a\x01b"])
def test_splitting_stays_inside_the_room_that_is_asked_for(strings: list[bytes]) -> None:
    starts, sizes = pieces_of(strings)
    room = (int(sizes.sum()) + len(strings)) // 4 + 1
    ends = [numbers(place, count) for place, count in zip(rooms, (len(strings) + 1, room, room), strict=True)]
    buffer = np.frombuffer(b"".join(strings), np.uint8)
    names, values = (each.before_the_wall(b"\0" * (len(buffer) + LANES)) for each in (memory, other_memory))
    count = kernels.split_properties(buffer, starts, sizes, ends[0], ends[1], names, ends[2], values)
    pairs = [pair for string in strings for pair in as_pairs(string).items()]
    found = [
        (names[ends[1][k] : ends[1][k + 1]].tobytes(), values[ends[2][k] : ends[2][k + 1]].tobytes())
        for k in range(count)
    ]
    assert found == pairs
    assert np.diff(ends[0]).tolist() == [len(as_pairs(string)) for string in strings]


@fast
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_pieces_are_laid_end_to_end(texts: list[bytes]) -> None:
    starts, sizes = pieces_of(texts)
    data = b"".join(texts)
    out = other_memory.before_the_wall(b"\0" * (len(data) + LANES))
    offsets = numbers(rooms[0], len(texts) + 1)
    assert not kernels.lay_out(sizes, offsets)
    assert offsets.tolist() == [*starts.tolist(), len(data)]
    assert kernels.gather_pieces(memory.before_the_wall(data), starts, sizes, out)
    assert out[: len(data)].tobytes() == data
    assert kernels.all_ascii(memory.before_the_wall(data), starts, sizes) == data.isascii()
    if data:
        assert not kernels.gather_pieces(memory.before_the_wall(data[:-1]), starts, sizes, out)
        assert not kernels.gather_pieces(memory.before_the_wall(data), starts, sizes, out[1:])
    sizes[0] = -1
    assert kernels.lay_out(sizes, offsets)
    assert offsets[1] == 0


blanks = st.text(st.sampled_from(" ab"), max_size=12).map(str.encode)


@fast
@given(st.lists(st.one_of(st.none(), blanks), min_size=1, max_size=20))
@example([b"a b c d e", None, b" ", b"a"])
def test_words_stay_inside_the_room_that_is_asked_for(texts: list[bytes | None]) -> None:
    present = [text or b"" for text in texts]
    starts, sizes = pieces_of(present)
    sizes[[text is None for text in texts]] = -1
    buffer = memory.before_the_wall(b"".join(present))
    words = [[word for word in text.split(b" ") if word] for text in present]
    room = (len(buffer) + len(texts)) // 2
    offsets = numbers(rooms[0], len(texts) + 1)
    at, found_sizes = numbers(rooms[1], room, np.int64), numbers(rooms[2], room)
    count = kernels.split_at_blanks(buffer, starts, sizes, offsets, at, found_sizes)
    flat = [word for each in words for word in each]
    assert [buffer[at[k] : at[k] + found_sizes[k]].tobytes() for k in range(count)] == flat
    assert np.diff(offsets).tolist() == [len(each) for each in words]


@fast
@given(st.lists(st.tuples(st.sampled_from([b"t", b"orders"]), blanks, st.one_of(st.none(), blanks)), min_size=1))
@example([(b"t", b"u", b"a b c d e")])
def test_hashes_stay_inside_the_room_that_is_asked_for(messages: list[tuple[bytes, bytes, bytes | None]]) -> None:
    parts = [(topic, unique.replace(b" ", b""), keys) for topic, unique, keys in messages]
    starts, sizes = pieces_of([part or b"" for each in parts for part in each])
    buffer = memory.before_the_wall(b"".join(part or b"" for each in parts for part in each))
    topics, unique, keys = ((starts[k::3].copy(), sizes[k::3].copy()) for k in range(3))
    room = (int(keys[1].sum()) + len(parts)) // 2 + len(parts)
    keys[1][[each[2] is None for each in parts]] = -1
    offsets, hashes = numbers(rooms[0], len(parts) + 1), numbers(rooms[1], room)
    count = kernels.hash_index_keys(buffer, *topics, *unique, *keys, offsets, hashes)
    wanted = [
        [abs(string_hash(f"{topic.decode()}#{key.decode()}")) for key in (unique, *(keys or b"").split(b" ")) if key]
        for topic, unique, keys in parts
    ]
    assert [hashes[offsets[k] : offsets[k + 1]].tolist() for k in range(len(parts))] == wanted
    assert count == offsets[-1]
