"""The kernel that makes copies of failed messages, against the same in plain Python."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from penstock.formats.record.layout import Host, Record, decode_record, encode_record, offset_message_id
from penstock.formats.record.producer_mark import mark_property
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.formats.record.reposting.retries import GROWTH_MAX, PROPERTIES_GROWTH_MAX, sent_back, tries_of

MARK = mark_property(7, 0, 0, 3, 2, 17)
WHERE = b"REAL_TOPIC\x01%RETRY%billing\x02REAL_QID\x010\x02"
TIMER, DEAD = "rmq_sys_wheel_timer", "%DLQ%billing"
DROPPED = frozenset(
    {
        *("REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS", "__CRC32#", "__PSEQ"),
        *("INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID"),
    }
)
V4, V6 = Host.parse("10.1.2.3:10911"), Host.parse("[fe80::9]:10911")


def plainly(record: Record, times: int, topic: str, due: int | None, mark: bytes, *, is_again: bool) -> Record:
    """What a copy has to be."""
    found = decode_properties(record.properties)
    kept = {name: value for name, value in found.items() if name not in DROPPED}
    origin = {
        "RETRY_TOPIC": record.topic,
        "ORIGIN_MESSAGE_ID": offset_message_id(record.store_host, record.physical_offset),
    }
    if is_again:
        origin |= {name: kept[name] for name in origin if name in kept}
    if due is None:
        more = {"DLQ_ORIGIN_TOPIC": origin["RETRY_TOPIC"], "DLQ_ORIGIN_MESSAGE_ID": origin["ORIGIN_MESSAGE_ID"]}
    else:
        more = decode_properties(WHERE) | {"TIMER_OUT_MS": str(due)}
    properties = mark + encode_properties(dict(sorted((kept | origin | more).items())))
    flags = record.sys_flag & ~12
    return replace(
        record,
        topic=topic,
        queue_id=0,
        reconsume_times=times,
        prepared_transaction_offset=0,
        sys_flag=flags,
        properties=properties,
        version=0,
    )


def copied(
    records: Sequence[Record],
    times: Sequence[int],
    topic: str,
    due: Sequence[int] | None,
    *,
    are_again: bool = True,
    room: int = GROWTH_MAX,
) -> list[Record] | None:
    encoded = [encode_record(record) for record in records]
    sizes = np.array([len(each) for each in encoded], np.int32)
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    out = np.empty(int(sizes.sum()) + len(encoded) * room, np.uint8)
    length = sent_back(
        np.frombuffer(b"".join(encoded), np.uint8),
        positions,
        sizes,
        np.array(times, np.int32),
        np.array(due or [], np.int64),
        np.frombuffer(topic.encode(), np.uint8),
        np.frombuffer(b"" if due is None else WHERE, np.uint8),
        np.frombuffer(MARK, np.uint8),
        are_again,
        out,
    )
    if length < 0:
        return None
    made, at = [], 0
    while at < length:
        made.append(_sorted(decode_record(out[:length].data, at, check_crc=True)))
        at += int.from_bytes(out[at : at + 4].tobytes(), "big")
    return made


def _sorted(record: Record) -> Record:
    """The same with its properties in the order of their names, behind the mark."""
    mark = MARK if record.properties.startswith(MARK) else b""
    assert record.properties.endswith(b"\x02")
    properties = {name: v for name, v in decode_properties(record.properties).items() if name != "__PSEQ"}
    return replace(record, properties=mark + encode_properties(dict(sorted(properties.items()))))


def record_of(chance: random.Random) -> Record:
    properties = {"TAGS": "t", "KEYS": "k"} if chance.random() < 0.5 else {}
    for name in [*sorted(DROPPED - {"__PSEQ", "__CRC32#"}), "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "region"]:
        if chance.random() < 0.4:
            properties[name] = "v" * chance.randrange(1, 40)
    encoded = encode_properties(properties)
    if chance.random() < 0.3:
        encoded = mark_property(9, 0, 1, 5, 1) + encoded
    if encoded and chance.random() < 0.3:
        encoded = encoded[:-1]
    return Record(
        topic="t" * chance.choice([1, 20, 127, 200]),
        body=chance.randbytes(chance.randrange(0, 200)),
        properties=encoded,
        queue_id=chance.randrange(9),
        flag=chance.randrange(99),
        queue_offset=chance.randrange(1 << 40),  # type: ignore[arg-type]
        physical_offset=chance.randrange(1 << 50),  # type: ignore[arg-type]
        sys_flag=chance.choice([0, 1, 8]),
        born_timestamp_ms=chance.randrange(1 << 40),
        born_host=chance.choice([V4, V6]),
        store_timestamp_ms=chance.randrange(1 << 40),
        store_host=chance.choice([V4, V6]),
        reconsume_times=chance.randrange(20),
        prepared_transaction_offset=chance.choice([0, 77]),
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_copy_is_the_record_with_where_it_came_from_and_where_it_goes(seed: int) -> None:
    chance = random.Random(seed)
    records = [record_of(chance) for _ in range(chance.randrange(1, 6))]
    times = [record.reconsume_times + 1 for record in records]
    marks = [MARK] + [b""] * (len(records) - 1)
    due = [1_700_000_000_000 + chance.randrange(10_000_000) for _ in records]
    is_again = chance.random() < 0.5
    assert copied(records, times, TIMER, due, are_again=is_again) == [
        plainly(*each, TIMER, at, mark, is_again=is_again)
        for *each, at, mark in zip(records, times, due, marks, strict=True)
    ]
    dead = DEAD if chance.random() < 0.5 else "%DLQ%" + "g" * 120
    assert copied(records, times, dead, None, are_again=is_again) == [
        plainly(*each, dead, None, mark, is_again=is_again) for *each, mark in zip(records, times, marks, strict=True)
    ]


def test_tries_and_sizes_of_properties_are_told_and_what_is_no_record_too() -> None:
    records = [encode_record(Record(topic="t", body=b"", properties=b"a\x01b\x02", reconsume_times=3)), b"\0" * 100]
    sizes = np.array([len(each) for each in records], np.int32)
    positions = np.cumsum(sizes, dtype=np.int64) - sizes
    times, properties = np.zeros(2, np.int32), np.zeros(2, np.int32)
    tries_of(np.frombuffer(b"".join(records), np.uint8), positions, sizes, times, properties)
    assert (times.tolist(), properties.tolist()) == ([3, -1], [4, -1])


def test_where_there_is_no_room_a_dead_letter_goes_without_its_origin_and_nothing_is_written_behind_the_end() -> None:
    full = Record(topic="orders", body=b"x", properties=encode_properties({"p": "v" * (32767 - 200)}))
    (dead,) = copied([full], [1], DEAD, None) or []
    assert decode_properties(dead.properties).keys() == {"p", "__PSEQ"}
    assert copied([full], [1], TIMER, [1]) is None
    overfull = Record(topic="orders", body=b"x", properties=encode_properties({"p": "v" * (32767 - 50)}))
    assert copied([overfull], [1], DEAD, None) is None
    assert copied([replace(full, properties=b"")], [1], DEAD, None, room=GROWTH_MAX - 1) is None


@pytest.mark.parametrize("name", ["RETRY_TOPIC", "ORIGIN_MESSAGE_ID"])
def test_an_origin_that_somebody_made_up_at_length_does_not_grow_with_each_copy(name: str) -> None:
    made_up = Record(topic="orders", body=b"", properties=encode_properties({name: "x" * 10_000}))
    (dead,) = copied([made_up], [1], DEAD, None) or []
    assert len(dead.properties) < PROPERTIES_GROWTH_MAX
    assert decode_properties(dead.properties)["DLQ_ORIGIN_TOPIC"] == "orders"
    assert len(decode_properties(dead.properties)["DLQ_ORIGIN_MESSAGE_ID"]) == 32
