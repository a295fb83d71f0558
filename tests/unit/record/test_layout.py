"""The reference codec: the golden record, and bytes that are none."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings

from penstock.formats.record.form import RecordForm
from penstock.formats.record.layout import (
    Host,
    PhysicalOffset,
    QueueOffset,
    Record,
    SysFlag,
    decode_record,
    encode_record,
    offset_message_id,
    parse_offset_message_id,
    record_bytes,
)
from penstock.formats.record.properties import encode_properties
from penstock.proto.errors import Corrupt, InvalidArgument
from tests.support.record.encoding import encode_messages
from tests.support.record.reference import record_crc_property, verify_record_crc
from tests.support.record.shapes import HOSTILE, HOSTS, INT64, RECORDS

EXAMPLE = Record(
    topic="TopicTest",
    body=b"hello",
    properties=b"TAGS\x01TagA\x02",
    queue_id=3,
    queue_offset=QueueOffset(7),
    physical_offset=PhysicalOffset(1024),
    born_timestamp_ms=1700000000000,
    born_host=Host.parse("10.0.0.1:50000"),
    store_timestamp_ms=1700000000123,
    store_host=Host.parse("10.0.0.2:10911"),
)
EXAMPLE_BYTES = bytes.fromhex(
    "00000073 daa320a7 3610a686 00000003 00000000 0000000000000007 0000000000000400 00000000 0000018bcfe56800"
    "0a000001 0000c350 0000018bcfe5687b 0a000002 00002a9f 00000000 0000000000000000 00000005 68656c6c6f"
    "09 546f70696354657374 000a 54414753 01 54616741 02"
)


def test_the_example_of_the_layout_is_what_is_written_and_read() -> None:
    assert encode_record(EXAMPLE) == EXAMPLE_BYTES
    assert decode_record(EXAMPLE_BYTES, check_crc=True) == EXAMPLE
    assert record_bytes(5, 9, 10) == len(EXAMPLE_BYTES)


def test_offset_message_id_is_store_host_and_position() -> None:
    text = offset_message_id(EXAMPLE.store_host, EXAMPLE.physical_offset)
    assert text == "0A00000200002A9F0000000000000400"
    assert parse_offset_message_id(text) == (EXAMPLE.store_host, 1024)


@given(HOSTS, INT64)
def test_offset_message_ids_come_back(host: Host, offset: int) -> None:
    assert parse_offset_message_id(offset_message_id(host, offset)) == (host, offset)


@pytest.mark.parametrize("text", ["", "0A", "0A00000200002A9F00000000000004", "x" * 32, "0A 0" * 8])
def test_other_texts_are_no_message_ids(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_offset_message_id(text)


@given(RECORDS)
def test_records_of_every_shape_come_back(record: Record) -> None:
    encoded = encode_record(record)
    assert decode_record(encoded, check_crc=True) == record
    assert decode_record(b"before" + encoded + b"behind", 6) == record
    v6 = [record.born_host.is_ipv6, record.store_host.is_ipv6]
    sizes = len(record.body), len(record.topic.encode()), len(record.properties)
    assert record_bytes(*sizes, born_v6=v6[0], store_v6=v6[1]) == len(encoded)


@hypothesis_settings(max_examples=150)
@given(HOSTILE)
def test_reading_any_bytes_gives_a_record_or_corrupt(data: bytes) -> None:
    try:
        record = decode_record(data)
    except Corrupt:
        return
    assert record.version in (1, 2)


def test_a_changed_body_is_found_by_its_checksum() -> None:
    changed = EXAMPLE_BYTES.replace(b"hello", b"hellO")
    assert decode_record(changed).body == b"hellO"
    with pytest.raises(Corrupt, match="checksum"):
        decode_record(changed, check_crc=True)


def test_topics_above_127_bytes_make_records_of_version_2() -> None:
    assert Record(topic="é" * 64, body=b"").version == 2
    assert Record(topic="x" * 127, body=b"").version == 1
    with pytest.raises(InvalidArgument):
        encode_record(Record(topic="x" * 128, body=b"", version=1))


def test_parts_that_their_length_fields_cannot_hold_are_refused() -> None:
    with pytest.raises(InvalidArgument):
        encode_record(Record(topic="t", body=b"", properties=b"x" * 32768))
    with pytest.raises(InvalidArgument):
        encode_record(Record(topic="t" * 32768, body=b""))


def test_host_bits_of_the_flags_follow_the_hosts() -> None:
    v6, v4 = Host.parse("[2001:db8::1]:1"), Host.parse("10.0.0.1:2")
    record = Record(topic="t", body=b"", born_host=v6, store_host=v4, sys_flag=SysFlag.STORE_HOST_V6)
    assert record.sys_flag == SysFlag.BORN_HOST_V6


@pytest.mark.parametrize("text", ["10.0.0.1:2", "[::1]:10911"])
def test_hosts_are_written_as_they_are_read(text: str) -> None:
    assert str(Host.parse(text)) == text


@pytest.mark.parametrize("text", ["", "localhost:1", "10.0.0.1", "10.0.0.1:", "1.2.3:4", "[::1]"])
def test_hosts_need_an_address_and_a_port(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Host.parse(text)


def test_the_checksum_of_a_whole_record_is_verified() -> None:
    room = encode_record(Record(topic="t", body=b"abc", properties=b"A\x01b\x02" + bytes(20)))
    record = room[:-20] + record_crc_property(room[:-20])
    assert verify_record_crc(record) is True
    assert verify_record_crc(record[:30] + b"\x07" + record[31:]) is False
    assert verify_record_crc(EXAMPLE_BYTES) is None
    assert verify_record_crc(b"") is None


def test_the_digits_of_a_record_checksum_run_backwards() -> None:
    covered = struct.pack(">i", 4711)
    digits = record_crc_property(covered)
    assert len(digits) == 20
    assert digits.startswith(b"__CRC32#\x01")
    assert digits.endswith(b"\x02")


@pytest.mark.parametrize("host", ["10.0.0.1:10911", "[2001:db8::1]:10911"])
def test_a_form_makes_what_the_kernels_make(host: str) -> None:
    born, text = Host.parse(host), encode_properties({"WAIT": "true"})
    for topic, body in (("ops", b"hello"), ("t" * 200, b"")):
        form = RecordForm(topic, born, is_store_v6=born.is_ipv6)
        made = decode_record(form.encode(body, text), check_crc=True)
        by_kernels = encode_messages(
            topic, [body], [text], born_host=born, store_v6=born.is_ipv6, born_timestamp_ms=made.born_timestamp_ms
        )
        assert encode_record(made) == by_kernels
        told = form.encode(body, text, body_crc=zlib.crc32(body))
        assert decode_record(told, check_crc=True).body == body
