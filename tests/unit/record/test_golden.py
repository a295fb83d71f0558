"""Every record of every golden store: codec, kernels and batch agree with what RocketMQ reads."""

from __future__ import annotations

import hashlib
import zlib

import numpy as np
import pytest

from penstock.formats.hashing import tags_code
from penstock.formats.record.kernels import ROW, PlaceStatus, ScanStatus, place_batch, scan
from penstock.formats.record.layout import (
    BLANK_BYTES,
    MAGIC_BLANK,
    Host,
    SysFlag,
    decode_record,
    encode_record,
    offset_message_id,
)
from penstock.formats.record.properties import TAGS, UNIQ_KEY, decode_properties
from penstock.formats.record.reading import RecordBatch
from tests.support import golden
from tests.support.record.reference import verify_record_crc

every_set = pytest.mark.parametrize("name", golden.SETS)
DELAYED = "SCHEDULE_TOPIC_XXXX"  # its tag codes are delivery times, which only a broker can tell


@every_set
def test_the_codec_reads_every_golden_record_and_writes_the_same_bytes(name: str) -> None:
    for message, encoded in golden.records(name):
        assert hashlib.sha256(encoded).hexdigest() == message["recordSha256"]
        record = decode_record(encoded, check_crc=True)
        assert encode_record(record) == encoded
        assert record.version == message["version"]
        assert record.topic == message["topic"]
        assert record.body_crc == message["bodyCRC"]
        assert zlib.crc32(record.body) == message["storedBodyCrc32"]
        assert record.born_host == Host.parse(message["bornHost"])
        assert record.store_host == Host.parse(message["storeHost"])
        assert offset_message_id(record.store_host, record.physical_offset) == message["offsetMsgId"]
        properties = decode_properties(record.properties)
        assert list(properties.items()) == list(message["properties"].items())
        assert properties.get(UNIQ_KEY, message["offsetMsgId"]) == message["msgId"]
        assert message["topic"] == DELAYED or tags_code(properties.get(TAGS, "")) == message["tagsCode"]
        if "rawProperties" in message:
            assert record.properties == message["rawProperties"].encode()
        assert verify_record_crc(encoded) is (True if name == "direct-crc" else None)


@every_set
def test_scanning_golden_files_finds_every_record_field_and_blank(name: str) -> None:
    files = golden.log_files(name)
    described = {int(entry["file"]): entry for entry in golden.expected(name)["commitLogFiles"]}
    messages = {message["physicalOffset"]: message for message in golden.expected(name)["messages"]}
    for start, content in files.items():
        rows = np.zeros(len(content) // 91 + 1, ROW)
        count, position, status = scan(np.frombuffer(content, np.uint8), 0, len(content), start, True, rows)
        if start not in described:  # allocated ahead and never written
            assert (count, position, status) == (0, 0, ScanStatus.EMPTY)
            continue
        entry = described[start]
        assert count == entry["records"]
        assert status == (ScanStatus.BLANK if entry["blank"] else ScanStatus.EMPTY)
        assert position == (len(content) if entry["blank"] else entry["endPosition"])
        for row in rows[:count]:
            _check_row(row, messages.pop(int(row["physical_offset"])))
    assert not messages


def _check_row(row: np.void, message: dict[str, object]) -> None:
    fields = {
        "size": "totalSize",
        "queue_id": "queueId",
        "queue_offset": "queueOffset",
        "flag": "flag",
        "sys_flag": "sysFlag",
        "born_timestamp": "bornTimestamp",
        "store_timestamp": "storeTimestamp",
        "reconsume_times": "reconsumeTimes",
        "prepared_transaction_offset": "preparedTransactionOffset",
        "body_crc": "bodyCRC",
        "body_size": "storedBodyLength",
        "properties_size": "propertiesLength",
        "tags_code": "tagsCode",
    }
    if message["topic"] == DELAYED:
        del fields["tags_code"]
    assert {field: int(row[field]) for field in fields} == {field: message[key] for field, key in fields.items()}


@every_set
def test_a_batch_over_golden_records_shows_bodies_properties_and_ids(name: str) -> None:
    messages, encoded = zip(*golden.records(name), strict=True)
    batch = RecordBatch(b"".join(encoded), check_crc=True)
    assert len(batch) == len(messages)
    for index, message in enumerate(messages):
        assert batch.record_bytes(index) == encoded[index]
        assert hashlib.sha256(batch.record(index).body).hexdigest() == message["storedBodySha256"]
        body = batch.body(index)
        assert len(body) == message["bodyLength"]
        assert hashlib.sha256(body).hexdigest() == message.get("bodySha256", message["storedBodySha256"])
        assert batch.topic(index) == message["topic"]
        assert batch.properties(index) == message["properties"]
        assert batch.born_host(index) == Host.parse(message["bornHost"])
        assert batch.offset_message_id(index) == message["offsetMsgId"]


@every_set
def test_placing_golden_records_again_gives_the_same_bytes(name: str) -> None:
    """Offsets, store time and host are wiped, and come back when the record is placed where it was."""
    wiped = 0
    refused = SysFlag.TRANSACTION_PREPARED | SysFlag.NEED_UNWRAP | SysFlag.INNER_BATCH
    for message, encoded in golden.records(name):
        if message["sysFlag"] & refused or message["queueId"] > 1000:
            continue
        record = np.frombuffer(encoded, np.uint8).copy()
        store = 56 + (12 if message["sysFlag"] & SysFlag.BORN_HOST_V6 else 0)
        host = Host.parse(message["storeHost"])
        record[20:36] = 0
        record[store : store + 8 + len(host.encode())] = 0
        next_offsets = np.full(1001, message["queueOffset"], np.int64)
        log = np.zeros(len(record) + BLANK_BYTES, np.uint8)
        status, *_ = place_batch(
            record,
            log,
            0,
            message["physicalOffset"],
            message["storeTimestamp"],
            np.frombuffer(host.encode(), np.uint8),
            np.frombuffer(message["topic"].encode(), np.uint8),
            next_offsets,
            1,
            np.zeros(1001, np.int64),
            1 << 22,
            np.zeros(1001, np.int32),
            np.zeros(1001, np.int64),
            1,
            True,
        )
        assert status == PlaceStatus.OK
        if not message["bornTimestamp"]:
            encoded = encoded[:40] + message["storeTimestamp"].to_bytes(8, "big") + encoded[48:]
        assert log[: len(record)].tobytes() == encoded
        wiped += 1
    assert wiped > 0


def test_every_blank_of_the_golden_files_is_a_size_and_the_magic() -> None:
    for start, content in golden.log_files("direct").items():
        entry = next(e for e in golden.expected("direct")["commitLogFiles"] if int(e["file"]) == start)
        if entry["blank"]:
            at, size = entry["blank"]["position"], entry["blank"]["size"]
            assert content[at : at + 8] == size.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
