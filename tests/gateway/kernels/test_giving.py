"""What records become without an object each is what they become with one."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from penstock.formats.record.layout import Host, PhysicalOffset, QueueOffset, Record, SysFlag, encode_record
from penstock.formats.record.properties import BORN_HOST, BORN_TIMESTAMP, KEYS, SHARDING_KEY, TAGS, UNIQ_KEY
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.http2.frames import MESSAGE_HEAD
from penstock.gateway.v2.consume.giving import AT_ONCE_BYTES, Given, Giving
from penstock.gateway.v2.kernels.md5 import HEX_BYTES, ROOM_BYTES, put_md5
from penstock.gateway.v2.messages import SYSTEM_NAMES
from penstock.gateway.v2.wire.definition_pb2 import Resource
from penstock.gateway.v2.wire.service_pb2 import ReceiveMessageResponse
from penstock.proto.errors import Corrupt
from penstock.proto.receipts import Receipt

TOPIC = Resource(name="topic", resource_namespace="space")
FIRST = Receipt("group", "space%topic", "broker-a", 7, 0, 1 << 40, 3, 1_700_000_000_000)
NAMES = (UNIQ_KEY, TAGS, KEYS, SHARDING_KEY, BORN_HOST, BORN_TIMESTAMP, "TRACE_CONTEXT", "user", "n", "x" * 130)
VALUES = (
    "a",
    "two words",
    " ",
    "  a  b ",
    "中文",
    "0",
    "1700000000000",
    "253402300800000",
    "9" * 15,
    "9" * 16,
    "-1",
    "",
)
HOSTS = (Host(b"\x7f\0\0\1", 80), Host(b"\xff" * 4, (1 << 31) - 1), Host(bytes(4), -1), Host(b"\1" * 16, 9))


def random_record(chance: random.Random, *, is_plain: bool) -> Record:
    names = NAMES if is_plain else (*NAMES, *SYSTEM_NAMES, "")
    values = [value for value in VALUES if value.isascii()] if is_plain else [*VALUES, "\x7f\0", "v" * 3000]
    pairs = [f"{chance.choice(names)}\x01{chance.choice(values)}" for _ in range(chance.choice([0, 1, 3, 10]))]
    text = "\x02".join(pairs) + chance.choice(["\x02", "", "\x02\x02", "\x01\x02"])
    properties = text.encode()
    if properties and not is_plain and chance.random() < 0.3:
        damaged = bytearray(properties)
        for _ in range(2):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 2, 0x80, 0xC3, 0xFF])
        properties = bytes(damaged)
    return Record(
        topic="space%topic",
        body=chance.randbytes(chance.choice([0, 1, 55, 56, 64, 1000, 3000])),
        properties=properties,
        queue_id=chance.choice([0, 7, (1 << 31) - 1]),
        queue_offset=QueueOffset(chance.choice([0, 1, 1 << 20, (1 << 63) - 1])),
        physical_offset=PhysicalOffset(chance.choice([0, 1 << 45])),
        sys_flag=0 if is_plain else chance.choice([0, 0, 0, SysFlag.TRANSACTION_COMMIT, SysFlag.MULTI_TAGS]),
        born_timestamp_ms=chance.choice([0, 1, 999, 1000, 1_700_000_000_001]) if is_plain else chance.choice([-1, 5]),
        born_host=chance.choice(HOSTS[:2] if is_plain else HOSTS),
        store_timestamp_ms=chance.choice([0, 1, 1_700_000_000_001]),
        store_host=HOSTS[0] if is_plain else chance.choice(HOSTS),
        reconsume_times=chance.choice([0, 16]) if is_plain else chance.choice([-1, -2, 0]),
    )


def answers(given: list[Given]) -> list[ReceiveMessageResponse]:
    content, at, found = b"".join(each.content for each in given), 0, []
    while at < len(content):
        zero, size = MESSAGE_HEAD.unpack_from(content, at)
        assert zero == 0
        at += MESSAGE_HEAD.size
        found.append(ReceiveMessageResponse.FromString(content[at : at + size]))
        at += size
    return found


def one_by_one(giving: Giving, batch: RecordBatch, again: list[int]) -> list[ReceiveMessageResponse | None]:
    made = []
    for index, offset in enumerate(batch.values("queue_offset")):
        answer = giving._one(batch, index, FIRST._replace(offset=offset), again[index] if again else 0)
        made.append(None if answer is None else ReceiveMessageResponse.FromString(answer[MESSAGE_HEAD.size :]))
    return made


def batch_of(records: list[Record]) -> RecordBatch:
    content = b"".join(map(encode_record, records))
    return RecordBatch(memoryview(b"in front" + content)[8:])


def test_records_of_every_kind_are_given_as_one_by_one() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain = 0
    for _ in range(400):
        is_plain = chance.random() < 0.5
        records = [random_record(chance, is_plain=is_plain) for _ in range(chance.choice([1, 2, 32]))]
        tags = chance.choice([(), (), ("a",), ("two words", "0")])
        giving = Giving(TOPIC, "space", tags, chance.choice([0, 10_000, 3_600_001]))
        batch = batch_of(records)
        again = [chance.choice([0, 1, 200]) for _ in records] if chance.random() < 0.3 else []
        expected = one_by_one(giving, batch, again)
        unwanted: list[Receipt] = []
        given = list(giving.given(batch, FIRST, again, unwanted))
        assert answers(given) == [answer for answer in expected if answer is not None]
        offsets = batch.values("queue_offset")
        wanted = [offset for offset, answer in zip(offsets, expected, strict=True) if answer is not None]
        assert [receipt.offset for each in given for receipt in each.receipts] == wanted
        assert len(unwanted) == expected.count(None)
        if is_plain:
            _, _, kinds = giving._written(batch, FIRST, range(len(records)), again)
            assert 2 not in kinds, "looked at closely"
            plain += len(records)
    assert plain > 500


def test_what_is_not_plain_keeps_its_place_between_plain_ones() -> None:
    texts = ["n\x011\x02", "n\x01二\x02", "DELAY\x013\x02n\x013\x02", "n\x014\x02", "n\x01五\x02"]
    records = [
        Record(topic="t", body=b"b", properties=text.encode(), queue_offset=QueueOffset(number))
        for number, text in enumerate(texts)
    ]
    given = list(Giving(Resource(name="t"), "", (), 10_000).given(batch_of(records), FIRST, [], []))
    assert [each.message.user_properties["n"] for each in answers(given)] == ["1", "二", "3", "4", "五"]
    assert [receipt.offset for each in given for receipt in each.receipts] == [0, 1, 2, 3, 4]


def test_large_ones_are_given_some_at_a_time() -> None:
    sizes = [10, AT_ONCE_BYTES * 2, 10, AT_ONCE_BYTES // 2, AT_ONCE_BYTES // 2, 10]
    records = [
        Record(topic="t", body=bytes(size), queue_offset=QueueOffset(number)) for number, size in enumerate(sizes)
    ]
    given = list(Giving(Resource(name="t"), "", (), 10_000).given(batch_of(records), FIRST, [], []))
    assert [len(each.receipts) for each in given] == [1, 1, 2, 2]
    assert [len(each.message.body) for each in answers(given)] == sizes


@pytest.mark.parametrize("text", ["n\x011\x02", "n\x01一\x02"])
def test_attempts_beyond_what_a_field_holds_take_no_other_along(text: str) -> None:
    times = [0, (1 << 31) - 1, 1]
    records = [Record(topic="t", body=b"b", properties=text.encode(), reconsume_times=each) for each in times]
    given = list(Giving(Resource(name="t"), "", (), 10_000).given(batch_of(records), FIRST, [], []))
    attempts = [each.message.system_properties.delivery_attempt for each in answers(given)]
    assert attempts == [1, (1 << 31) - 1, 2]


def test_counts_of_deliveries_that_are_not_of_these_records_are_refused() -> None:
    batch = batch_of([Record(topic="t", body=b"b")] * 3)
    giving = Giving(Resource(name="t"), "", (), 10_000)
    for again in ([1], [1] * 4):
        with pytest.raises(Corrupt, match="3 records"):
            list(giving.given(batch, FIRST, again, []))
    assert len(answers(list(giving.given(batch, FIRST, [1 << 40, 0, 1], [])))) == 3


def test_dead_letters_tell_where_they_come_from() -> None:
    giving = Giving(Resource(name="%DLQ%g"), "", (), 10_000)
    origin = b"DLQ_ORIGIN_TOPIC\x01topic\x02DLQ_ORIGIN_MESSAGE_ID\x01id\x02"
    record = Record(topic="%DLQ%g", body=b"b", properties=origin, reconsume_times=17)
    first = FIRST._replace(topic="%DLQ%g")
    (answer,) = answers(list(giving.given(batch_of([record]), first, [], [])))
    assert answer.message.system_properties.dead_letter_queue.topic == "topic"


def test_attempts_at_a_dead_letter_are_those_of_who_consumes_it() -> None:
    giving = Giving(Resource(name="%DLQ%g"), "", (), 10_000)
    attempts = []
    for topic, times, again in (("%DLQ%g", 17, 0), ("%DLQ%g", 17, 2), ("%RETRY%readers", 1, 0)):
        batch = batch_of([Record(topic=topic, body=b"b", reconsume_times=times)])
        (answer,) = answers(list(giving.given(batch, FIRST._replace(topic=topic), [again], [])))
        attempts.append(answer.message.system_properties.delivery_attempt)
    assert attempts == [1, 3, 2]


@pytest.mark.parametrize("size", [0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000])
def test_md5_is_md5(size: int) -> None:
    content = random.Random(size).randbytes(size)
    source, out = np.frombuffer(content or b"-", np.uint8), np.empty(HEX_BYTES, np.uint8)
    put_md5(source.ctypes.data, 0, size, out.ctypes.data, 0, np.full(ROOM_BYTES, 0xAA, np.uint8))
    assert out.tobytes().decode() == hashlib.md5(content, usedforsecurity=False).hexdigest().upper()
