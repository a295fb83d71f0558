"""The whole-record checksum: written, checked by recovery, readers and verify, and as RocketMQ writes it."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from penstock.broker.store import ReadStatus, Store
from penstock.formats.record.kernels import ScanStatus, scan
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.formats.record.rows import ROW
from penstock.inspection import list_store
from penstock.inspection.verify import verify
from penstock.proto.errors import MessageTooLarge, WrongStore
from tests.support import golden
from tests.support.broker.stores import batch, bodies, dispatch_all, flush, patch, read_records, store_config

TAGGED = b"TAGS\x01a\x02"
PROPERTIES = [b"", TAGGED, b"TAGS\x01a", TAGGED + b"__CRC32#\x010000000000\x02"]


def _seal(record: bytes) -> bytes:
    crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
    return b"__CRC32#\x01" + f"{crc:010d}"[::-1].encode() + b"\x02"


def _filled(root: Path) -> Store:
    store = Store.open(store_config(root, append_record_crc=True))
    for number in range(20):
        some = [b"%d-%d" % (number, index) for index in range(4)]
        store.append("t", batch("t", some, [0, 1, 0, 1], properties=PROPERTIES), queues=2)
    dispatch_all(store)
    return store


def test_every_record_ends_with_its_checksum(tmp_path: Path) -> None:
    store = _filled(tmp_path)
    for queue_id in (0, 1):
        for number, raw in enumerate(read_records(store, "t", queue_id)):
            assert raw.endswith(_seal(raw))
            record = decode_record(raw, check_crc=True)
            assert (record.queue_offset, record.body) == (number, b"%d-%d" % (number // 2, number % 2 * 2 + queue_id))
            properties = decode_properties(record.properties)
            assert properties.pop("__CRC32#")
            assert properties == ({} if record.body.endswith(b"-0") else {"TAGS": "a"})
            assert raw.count(b"__CRC32#") == 1
    store.close()
    assert verify(list_store(tmp_path)).findings.ok
    store = Store.open(store_config(tmp_path, force_record_crc=True))
    assert len(bodies(store, "t", 1)) == 40
    store.close()


def test_a_checksum_that_a_producer_brings_is_not_stored_when_none_are_written(tmp_path: Path) -> None:
    forged = b"__CRC32#\x010000000000\x02"
    store = Store.open(store_config(tmp_path))
    some = [b"", forged, TAGGED + forged, forged + TAGGED, TAGGED + forged + forged, b"x\x01" + forged]
    sent = batch("t", [b"%d" % number for number in range(len(some))], properties=some)
    result = store.append("t", sent, queues=1)
    dispatch_all(store)
    stored = [decode_record(raw, check_crc=True).properties for raw in read_records(store, "t")]
    assert stored == [b"", b"", TAGGED, forged + TAGGED, TAGGED, b"x\x01"]
    assert store.changed_sizes(result.start, result.end, memoryview(sent)) == list(map(len, read_records(store, "t")))
    assert store.holds(result.start, result.end, memoryview(sent))
    for other in ([b"0", b"1", b"2", b"3", b"4"], [b"0", b"1", b"2", b"3", b"4", b"6"], [b"%d" % n for n in range(7)]):
        assert not store.holds(result.start, result.end, memoryview(batch("t", other)))
    flush(store)
    store.abandon()
    (tmp_path / "penstockCheckpoint").unlink()
    store = Store.open(store_config(tmp_path))
    assert store.recovery.truncated_from is None
    assert len(bodies(store, "t")) == len(some)
    store.close()


def test_properties_without_room_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path, append_record_crc=True, segment_bytes=1 << 20))
    large = [TAGGED, b"a\x01" + bytes(32767 - 22).replace(b"\0", b"b") + b"\x02"]
    assert store.append("t", batch("t", [b"1"], properties=[large[1][1:]]), queues=1).count == 1
    end = store.end_offset
    with pytest.raises(MessageTooLarge) as caught:
        store.append("t", batch("t", [b"1", b"2"], properties=large), queues=1)
    assert caught.value.details["index"] == 1
    assert store.end_offset == end
    store.close()


@pytest.mark.parametrize("name", ["direct-crc", "direct"])
def test_scans_check_rocketmqs_checksums(name: str) -> None:
    rows = np.zeros(1, ROW)
    for _, raw in golden.records(name):
        assert scan(np.frombuffer(raw, np.uint8), 0, len(raw), -1, True, rows)[2] == ScanStatus.END
        if name == "direct-crc":
            assert raw.endswith(_seal(raw))
            for place in (12, 40, len(raw) - 30, len(raw) - 5):
                changed = bytearray(raw)
                changed[place] ^= 1
                assert scan(np.frombuffer(changed, np.uint8), 0, len(raw), -1, True, rows)[2] == ScanStatus.BAD


def test_damage_that_the_bodys_checksum_does_not_cover_is_seen(tmp_path: Path) -> None:
    store = _filled(tmp_path)
    start = store.append("t", batch("t", [b"last"], properties=[TAGGED]), queues=1).start
    dispatch_all(store)
    patch(tmp_path, start + 16, b"\0\0\0\x63")  # the user's flag
    result = store.reader.read("t", 0, 40, 1 << 20)
    assert result.status is ReadStatus.FOUND
    assert store.reader.read("t", 0, 40, 1 << 20, verify=True).status is ReadStatus.DAMAGED
    store.abandon()
    store = Store.open(store_config(tmp_path))
    assert store.recovery.truncated_from == start
    store.close()


def test_forced_checking_refuses_records_without_one_and_changes_nothing(tmp_path: Path) -> None:
    store = Store.open(store_config(tmp_path))
    store.append("t", batch("t", [b"1"]), queues=1)
    flush(store)
    store.abandon()
    log = tmp_path / "commitlog" / f"{0:020d}"
    before = log.read_bytes()
    with pytest.raises(WrongStore, match="forceVerifyPropCRC"):
        Store.open(store_config(tmp_path, force_record_crc=True))
    assert log.read_bytes() == before
    store = Store.open(store_config(tmp_path))
    assert store.end_offset > 0
    store.close()
