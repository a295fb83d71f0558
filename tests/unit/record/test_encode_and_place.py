"""Encoding at the producer and placing at the broker, against the reference."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from penstock.formats.columns import Column
from penstock.formats.record.framing import NOWHERE
from penstock.formats.record.kernels import PlaceStatus, check_batch, encode_batch, encoded_bytes, place_batch
from penstock.formats.record.layout import Host, Record, SysFlag, decode_record, encode_record
from tests.support.record import reference
from tests.support.record.guarded import GuardedMemory
from tests.support.record.shapes import BODIES, HOSTS, INT32, TOPICS, damaged, property_strings

V4 = Host.parse("10.0.0.2:10911")
V6 = Host.parse("[2001:db8::2]:10911")
QUEUES = 5
log_memory = GuardedMemory(1 << 17)
record_memory = GuardedMemory(1 << 17)
few = hypothesis_settings(deadline=None, max_examples=150)

MESSAGES = st.lists(st.tuples(BODIES, property_strings(), st.integers(0, QUEUES - 1)), max_size=6)


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def encode(
    topic: str,
    messages: list[tuple[bytes, bytes, int]],
    *,
    born_host: Host = V4,
    sys_flags: int = 0,
    flag: int = 0,
    born: int = 5,
    is_listed: bool = False,
) -> bytes:
    listed = Column.listed([m[0] for m in messages])
    assert listed is not None
    bodies, properties = b"".join(m[0] for m in messages), b"".join(m[1] for m in messages)
    size = encoded_bytes(
        len(messages), len(bodies), len(properties), len(topic.encode()), sys_flags, len(born_host.encode())
    )
    out = log_memory.before_the_wall(bytes([0xEE]) * size)
    written = encode_batch(
        out,
        as_array(b"" if is_listed else bodies),
        listed.addresses if is_listed else NOWHERE,
        listed.ends,
        as_array(properties),
        np.cumsum([len(m[1]) for m in messages], dtype=np.int64),
        as_array(topic.encode()),
        np.array([m[2] for m in messages], np.int32),
        sys_flags,
        flag,
        born,
        as_array(born_host.encode()),
    )
    assert written == size
    return out.tobytes()


@few
@given(TOPICS, MESSAGES, HOSTS, st.booleans(), INT32, INT32)
def test_encoding_a_batch_writes_what_the_reference_writes(
    topic: str, messages: list[tuple[bytes, bytes, int]], born_host: Host, store_v6: bool, flag: int, born: int
) -> None:
    store_host = Host(bytes(16 if store_v6 else 4), 0)
    sys_flags = SysFlag.STORE_HOST_V6 if store_v6 else 0
    expected = b"".join(
        encode_record(
            Record(
                topic=topic,
                body=body,
                properties=properties,
                queue_id=queue_id,
                flag=flag,
                born_timestamp_ms=born,
                born_host=born_host,
                store_host=store_host,
            )
        )
        for body, properties, queue_id in messages
    )
    for is_listed in (False, True):
        settings = {"born_host": born_host, "sys_flags": sys_flags, "flag": flag, "born": born}
        assert encode(topic, messages, is_listed=is_listed, **settings) == expected


def encode_raw(
    body_ends: list[int], property_ends: list[int], *, room: int = 10_000, properties: int = 40_000, addresses: int = 0
) -> int:
    return encode_batch(
        np.zeros(room, np.uint8),
        np.zeros(20, np.uint8),
        np.zeros(addresses, np.int64),
        np.array(body_ends, np.int64),
        np.zeros(properties, np.uint8),
        np.array(property_ends, np.int64),
        as_array(b"t"),
        np.zeros(len(body_ends), np.int32),
        0,
        0,
        0,
        as_array(V4.encode()),
    )


def test_encoding_names_the_record_that_cannot_be_laid_out() -> None:
    assert encode_raw([10, 20], [5, 5]) == 2 * 92 + 25
    assert encode_raw([10, 5], [0, 0]) == -2
    assert encode_raw([-1, 5], [0, 0]) == -1
    assert encode_raw([10, 21], [0, 0]) == -2
    assert encode_raw([1, 2], [0, 40_001]) == -2
    assert encode_raw([1, 2], [1, 0]) == -2
    assert encode_raw([1, 2], [0, 32_768], room=50_000) == -2
    assert encode_raw([1, 2], [0, 32_767], room=50_000) == 2 * 92 + 2 + 32_767
    assert encode_raw([10, 20], [0, 0], room=2 * 92 + 19) == -2


def test_encoding_refuses_arrays_of_different_lengths() -> None:
    with pytest.raises(ValueError, match="per body"):
        encode_raw([1, 2], [0])
    for addresses in (1, 3):
        with pytest.raises(ValueError, match="address"):
            encode_raw([1, 2], [0, 0], addresses=addresses)


class Log:
    """A log file that ends at a wall, and the queues' next offsets."""

    def __init__(self, room: int, queues: int = QUEUES) -> None:
        self.bytes = log_memory.before_the_wall(bytes(room))
        self.next_offsets = np.arange(100, 100 + queues, dtype=np.int64)
        self.seen = np.full(queues, -1, np.int64)
        self.touched_queues = np.zeros(queues, np.int32)
        self.touched_offsets = np.zeros(queues, np.int64)
        self.stamp = 0

    def place(
        self,
        records: bytes,
        topic: str,
        *,
        position: int = 0,
        host: Host = V4,
        body_max: int = 1 << 22,
        expected_count: int = -1,
        are_kept: bool = False,
    ) -> tuple[int, int, int, int]:
        self.stamp += 1
        placed = place_batch(
            record_memory.before_the_wall(records),
            self.bytes,
            position,
            1 << 40,
            1234,
            as_array(host.encode()),
            as_array(topic.encode()),
            self.next_offsets,
            self.stamp,
            self.seen,
            body_max,
            self.touched_queues,
            self.touched_offsets,
            expected_count,
            are_kept,
        )
        if not are_kept and placed[0] not in (PlaceStatus.NO_SPACE, PlaceStatus.TOO_MANY_QUEUES):
            checked = check_batch(
                record_memory.before_the_wall(records),
                as_array(topic.encode()),
                len(self.next_offsets),
                len(host.encode()),
                body_max,
            )
            assert checked == placed[:3] or placed[0] == PlaceStatus.OTHER_COUNT
        return placed


def check_against_reference(log: Log, records: bytes, topic: str, host: Host, body_max: int, position: int) -> None:
    before = log.next_offsets.tolist()
    status, bad_index, count, touched = log.place(records, topic, position=position, host=host, body_max=body_max)
    base = (1 << 40) + position
    expected = reference.place(records, base, 1234, host, topic.encode(), before, body_max)
    if status == PlaceStatus.PROPERTIES_TOO_LARGE:  # for the reference one length among others
        status = PlaceStatus.BAD_SIZE
    assert (status, bad_index) == (expected.status, expected.bad_index)
    assert log.next_offsets.tolist() == expected.next_offsets
    assert log.bytes[position:].tobytes().rstrip(b"\0") == expected.log.rstrip(b"\0")
    found = dict(zip(log.touched_queues[:touched].tolist(), log.touched_offsets[:touched].tolist(), strict=True))
    assert found == expected.touched
    assert list(found) == list(expected.touched)
    assert status != PlaceStatus.OK or count == sum(expected.next_offsets) - sum(before)


@few
@given(TOPICS, st.lists(MESSAGES, min_size=1, max_size=3), st.sampled_from([V4, V6]))
def test_placing_batches_patches_each_record_and_counts_its_queue(
    topic: str, batches: list[list[tuple[bytes, bytes, int]]], host: Host
) -> None:
    sys_flags = SysFlag.STORE_HOST_V6 if host.is_ipv6 else 0
    encoded = [encode(topic, messages, sys_flags=sys_flags) for messages in batches]
    log = Log(sum(map(len, encoded)) + 8)
    position = 0
    for records in encoded:
        check_against_reference(log, records, topic, host, 1 << 22, position)
        position += len(records)


@hypothesis_settings(deadline=None, max_examples=250)
@given(
    st.one_of(
        damaged(MESSAGES.map(lambda messages: encode("TopicTest", messages))),
        st.binary(max_size=200),
    ),
    st.sampled_from([V4, V6]),
    st.sampled_from([0, 5, 1 << 22]),
)
def test_placing_any_bytes_agrees_with_the_reference_and_leaves_nothing_behind(
    records: bytes, host: Host, body_max: int
) -> None:
    log = Log(len(records) + 8)
    check_against_reference(log, records, "TopicTest", host, body_max, 0)


GOOD = encode("TopicTest", [(b"hello", b"TAGS\x01TagA\x02", 0), (b"again", b"", 1)])
SECOND = encode("TopicTest", [(b"again", b"", 1)])


def bad_second(at: int, new: bytes) -> bytes:
    start = len(GOOD) - len(SECOND)
    changed = bytearray(GOOD)
    changed[start + at : start + at + len(new)] = new
    return bytes(changed)


@pytest.mark.parametrize(
    ("records", "status"),
    [
        (bad_second(0, struct.pack(">i", 91)), PlaceStatus.BAD_SIZE),
        (bad_second(0, struct.pack(">i", -5)), PlaceStatus.BAD_SIZE),
        (bad_second(0, struct.pack(">i", 1 << 30)), PlaceStatus.BAD_SIZE),
        (GOOD[:-1], PlaceStatus.BAD_SIZE),
        (GOOD + b"\0", PlaceStatus.BAD_SIZE),
        (bad_second(4, b"\0\0\0\0"), PlaceStatus.BAD_MAGIC),
        (bad_second(4, bytes.fromhex("CBD43194")), PlaceStatus.BAD_MAGIC),
        (bad_second(94, b"topic"), PlaceStatus.BAD_TOPIC),
        (bad_second(12, struct.pack(">i", QUEUES)), PlaceStatus.BAD_QUEUE),
        (bad_second(12, struct.pack(">i", -1)), PlaceStatus.BAD_QUEUE),
        (bad_second(36, struct.pack(">i", SysFlag.TRANSACTION_PREPARED)), PlaceStatus.BAD_FLAGS),
        (bad_second(36, struct.pack(">i", SysFlag.TRANSACTION_ROLLBACK)), PlaceStatus.BAD_FLAGS),
        (bad_second(36, struct.pack(">i", SysFlag.INNER_BATCH)), PlaceStatus.BAD_FLAGS),
        (bad_second(8, b"\0\0\0\0"), PlaceStatus.BAD_CRC),
        (bad_second(88, b"A"), PlaceStatus.BAD_CRC),
        (bad_second(len(SECOND) - 2, b"\x80\x00"), PlaceStatus.PROPERTIES_TOO_LARGE),
        (b"", PlaceStatus.EMPTY_BATCH),
    ],
)
def test_a_bad_record_refuses_the_whole_batch_and_says_which(records: bytes, status: PlaceStatus) -> None:
    log = Log(len(GOOD) + 100)
    found, bad_index, count, _ = log.place(records, "TopicTest")
    assert PlaceStatus(found) is status
    assert count == 0
    assert not log.bytes.any()
    assert log.next_offsets.tolist() == [100, 101, 102, 103, 104]
    assert bad_index == (0 if status is PlaceStatus.EMPTY_BATCH else 2 if len(records) > len(GOOD) else 1)


@pytest.mark.parametrize("properties", [b"k\x01\0v\x02", b"k\x01" + b"v" * 600 + b"\0\0\x02", b"k\x01v\0"])
def test_nul_in_properties_is_refused_and_a_blank_in_a_copy_of_what_another_program_wrote(properties: bytes) -> None:
    records = encode("TopicTest", [(b"hello", b"", 0), (b"again\0", properties, 1)])
    second = len(records) - len(encode("TopicTest", [(b"again\0", properties, 1)]))
    log = Log(len(records) + 8)
    assert log.place(records, "TopicTest")[:2] == (PlaceStatus.NUL_IN_PROPERTIES, 1)
    assert not log.bytes.any()
    assert log.place(records, "TopicTest", are_kept=True)[0] == PlaceStatus.OK
    placed = decode_record(log.bytes[second:].tobytes())
    assert (placed.body, placed.properties) == (b"again\0", properties.replace(b"\0", b" "))


def test_a_record_without_a_time_of_birth_is_born_as_it_is_stored() -> None:
    record = encode_record(Record(topic="TopicTest", body=b"hello", born_timestamp_ms=0, store_host=V4))
    log = Log(len(record) + 8)
    assert log.place(record, "TopicTest")[0] == PlaceStatus.OK
    assert decode_record(log.bytes.tobytes()).born_timestamp_ms == 1234


def test_a_body_above_the_limit_is_refused() -> None:
    assert Log(1000).place(GOOD, "TopicTest", body_max=4)[:2] == (PlaceStatus.BODY_TOO_LARGE, 0)
    assert Log(1000).place(GOOD, "TopicTest", body_max=5)[0] == PlaceStatus.OK


def test_a_batch_leaves_room_for_the_blank_that_ends_the_file() -> None:
    assert Log(len(GOOD) + 7).place(GOOD, "TopicTest")[0] == PlaceStatus.NO_SPACE
    assert Log(len(GOOD) + 8).place(GOOD, "TopicTest")[0] == PlaceStatus.OK
    for position in (-1, 1, 1 << 62):
        assert Log(len(GOOD) + 8).place(GOOD, "TopicTest", position=position)[0] == PlaceStatus.NO_SPACE


def test_a_refused_batch_takes_no_offsets_and_the_next_one_gets_them() -> None:
    log = Log(1000)
    assert log.place(bad_second(88, b"A"), "TopicTest")[0] == PlaceStatus.BAD_CRC
    assert log.place(GOOD, "TopicTest")[0] == PlaceStatus.OK
    assert log.next_offsets.tolist() == [101, 102, 102, 103, 104]


def test_more_queues_than_the_caller_has_room_for_refuse_the_batch() -> None:
    log = Log(1000)
    log.touched_queues = np.zeros(1, np.int32)
    assert log.place(GOOD, "TopicTest")[:2] == (PlaceStatus.TOO_MANY_QUEUES, 1)
    assert log.next_offsets.tolist() == [100, 101, 102, 103, 104]


def test_placing_demands_a_memory_as_long_as_the_queues() -> None:
    log = Log(1000)
    log.seen = np.zeros(QUEUES - 1, np.int64)
    with pytest.raises(ValueError, match="per queue"):
        log.place(GOOD, "TopicTest")
