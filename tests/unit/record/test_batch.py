"""What clients use: encoding batches, marks, and looking into fetched records."""

from __future__ import annotations

import random
import sys
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.formats.record.compression import EXPANDED_BYTES_MAX
from penstock.formats.record.layout import Host, Record, SysFlag, encode_record
from penstock.formats.record.reading import RecordBatch
from penstock.formats.record.rows import ScanStatus
from penstock.proto.errors import Corrupt, CorruptBatch, InvalidArgument, MessageTooLarge, PenstockError
from tests.support.record import reference
from tests.support.record.encoding import encode_messages
from tests.support.record.shapes import HOSTILE, RECORDS

HOST = Host.parse("10.0.0.1:5")


def test_bodies_and_properties_are_laid_out_as_records() -> None:
    for count in (1, 3, 2000, 2):
        bodies = [b"body %d" % i for i in range(count)]
        properties = [b"TAGS\x01t%d\x02" % i for i in range(count)]
        queue_ids = np.arange(count, dtype=np.int32)
        batch = RecordBatch(
            encode_messages(
                *("orders", bodies, properties, queue_ids),
                born_host=HOST,
                flag=7,
                sys_flag=SysFlag.MULTI_TAGS,
                born_timestamp_ms=99,
            ),
            check_crc=True,
        )
        assert batch.bodies() == bodies
        assert [batch.properties(i) for i in range(count)] == [{"TAGS": f"t{i}"} for i in range(count)]
        assert batch.values("queue_id") == list(range(count))
        assert batch.values("flag") == [7] * count
        assert batch.values("sys_flag") == [SysFlag.MULTI_TAGS] * count
        assert batch.values("born_timestamp") == [99] * count
        assert batch.values("queue_offset") == batch.values("store_timestamp") == [0] * count
        assert batch.topic(0) == "orders"
        assert batch.born_host(0) == HOST


def test_an_empty_batch_is_no_bytes() -> None:
    assert encode_messages("orders", [], born_host=HOST, mark=b"x") == b""
    assert len(RecordBatch(b"")) == 0
    assert RecordBatch(b"").bodies() == []
    assert RecordBatch(b"").body_array()[1].tolist() == []


def test_room_for_an_ipv6_store_host_is_kept_when_asked_for() -> None:
    batch = RecordBatch(encode_messages("t", [b"x"], born_host=Host.parse("[::1]:9"), store_v6=True))
    assert batch.store_host(0).is_ipv6
    assert batch.born_host(0) == Host.parse("[::1]:9")


def test_properties_that_are_too_long_name_their_record() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        encode_messages("t", [b"a", b"b"], [b"", b"x" * 32768], born_host=HOST)
    assert caught.value.details == {"index": 1}


def test_property_strings_must_be_as_many_as_bodies() -> None:
    with pytest.raises(InvalidArgument):
        encode_messages("t", [b"a", b"b"], [b""], born_host=HOST)


def test_long_topics_make_version_2_and_longer_ones_are_refused() -> None:
    assert RecordBatch(encode_messages("é" * 100, [b"a"], born_host=HOST)).record(0).version == 2
    with pytest.raises(InvalidArgument):
        encode_messages("x" * 32768, [b"a"], born_host=HOST)


@hypothesis_settings(deadline=None, max_examples=80)
@given(st.lists(RECORDS, max_size=4), st.sampled_from([bytes, bytearray, memoryview]), st.integers(0, 9))
def test_a_batch_shows_each_record_from_any_kind_of_buffer(records: list[Record], kind: type, before: int) -> None:
    encoded = [encode_record(record) for record in records]
    buffer = bytes([7]) * before + b"".join(encoded) + b"behind"
    batch = RecordBatch(kind(buffer), before, len(buffer) - 6)
    assert list(batch) == records
    assert [batch.record_bytes(i) for i in range(len(batch))] == encoded
    assert [batch.record(i).body for i in range(len(batch))] == [record.body for record in records]
    assert [batch.store_host(i) for i in range(len(batch))] == [record.store_host for record in records]
    view_of_view = memoryview(buffer)[before : len(buffer) - 6]
    inner = RecordBatch(view_of_view)
    assert list(inner) == records
    if not any(record.sys_flag & SysFlag.COMPRESSED for record in records):
        data, ends = batch.body_array()
        assert np.split(data, ends[:-1])[0].tobytes() == (records[0].body if records else b"")
        assert data.tobytes() == b"".join(record.body for record in records)
        assert batch.bodies() == inner.bodies() == [record.body for record in records]


@hypothesis_settings(deadline=None, max_examples=150)
@given(HOSTILE)
def test_a_batch_of_any_bytes_holds_the_records_before_the_bad_ones_or_is_refused(data: bytes) -> None:
    records, end, status = reference.scan(data, -1, False, 1000)
    batch = RecordBatch(data, 0, end)
    assert len(batch) == len(records)
    for index in range(len(batch)):
        batch.properties(index), batch.topic(index), batch.record(index), batch.born_host(index)
        try:
            batch.body(index)
        except (Corrupt, MessageTooLarge):
            assert records[index].sys_flag & SysFlag.COMPRESSED
    if status is ScanStatus.END:
        assert len(RecordBatch(data)) == len(records)
    else:
        with pytest.raises(CorruptBatch) as caught:
            RecordBatch(data)
        assert caught.value.details == {"index": len(records)}
        assert caught.value.message.startswith(f"records: {status.name} at byte {end} of {len(data)}, ")


def test_checksums_are_verified_when_asked_for() -> None:
    encoded = encode_messages("t", [b"good", b"evil"], born_host=HOST).replace(b"evil", b"EVIL")
    assert RecordBatch(encoded).bodies() == [b"good", b"EVIL"]
    with pytest.raises(CorruptBatch) as caught:
        RecordBatch(encoded, check_crc=True)
    assert caught.value.details == {"index": 1}


def test_compressed_bodies_are_expanded_up_to_the_limit() -> None:
    plain = random.Random(3).randbytes(50) * 100
    bodies = [zlib.compress(plain), zlib.compress(b"x")]
    encoded = encode_messages("t", bodies, born_host=HOST, sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    batch = RecordBatch(encoded)
    assert batch.bodies() == [plain, b"x"]
    assert batch.record(0).body == bodies[0]
    data, ends = batch.body_array()
    assert data.tobytes() == plain + b"x"
    assert ends.tolist() == [5000, 5001]
    bodies[1] = zlib.compress(bytes(EXPANDED_BYTES_MAX + 1))
    encoded = encode_messages("t", bodies, born_host=HOST, sys_flag=SysFlag.COMPRESSED | SysFlag.COMPRESSION_ZLIB)
    with pytest.raises(MessageTooLarge):
        RecordBatch(encoded).bodies()


def test_ranges_outside_the_buffer_are_the_callers_mistake() -> None:
    for start, end in ((-1, 0), (0, 4), (3, 2)):
        with pytest.raises(ValueError, match="not inside"):
            RecordBatch(b"abc", start, end)


def test_arrow_is_made_or_its_absence_named(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = RecordBatch(encode_messages("t", [b"one", b"", b"three"], born_host=HOST))
    try:
        import pyarrow
    except ImportError:
        pyarrow = None
    if pyarrow is not None:
        assert batch.to_arrow().column("body").to_pylist() == [b"one", b"", b"three"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(PenstockError, match="pip install pyarrow"):
        batch.to_arrow()
