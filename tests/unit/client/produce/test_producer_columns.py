"""Columns, property strings, the accumulator, the buffer and failures: what messages are before and after records."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.message import SYSTEM_PROPERTIES, FailedDelivery
from penstock.client.produce.buffer import Buffer
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.drafts import PartMaker
from penstock.client.produce.keys import checked_body, property_bytes, property_column
from penstock.client.produce.parts import RECORD_COST, Kind, limited, new_part
from penstock.client.produce.receipts import FAILED_BODIES_BYTES_MAX, FAILURES_MAX, Failures
from penstock.formats.columns import Column, column_of, hashes_of
from penstock.formats.hashing import string_hash
from penstock.formats.record.properties import LATER_WISHES, MARK_ROOM, PROPERTIES_ROOM, decode_properties
from penstock.proto.errors import (
    BufferFull,
    DeliveryFailed,
    InvalidArgument,
    MessageTooLarge,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
)

VALUES = st.lists(st.binary(max_size=20), min_size=1, max_size=30)


@settings(max_examples=50)
@given(VALUES, st.data())
def test_a_column_holds_its_values_and_gives_parts_and_choices_of_them(
    values: list[bytes], data: st.DataObject
) -> None:
    column = Column.of(values)
    assert list(column) == values
    start = data.draw(st.integers(0, len(values) - 1))
    stop = data.draw(st.integers(start + 1, len(values)))
    assert list(column.part(start, stop)) == values[start:stop]
    indexes = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=10))
    assert list(column.take(np.array(indexes, dtype=np.int64))) == [values[index] for index in indexes]
    assert list(Column.joined([column, column.part(start, stop)])) == values + values[start:stop]


def test_bodies_may_be_lists_and_arrays() -> None:
    assert list(column_of([b"a", bytearray(b"bc"), memoryview(b"d")])) == [b"a", b"bc", b"d"]
    assert list(column_of(np.array([b"abc", b"d"]))) == [b"abc", b"d"]
    assert list(column_of(np.array([b"ab", b"cd"]))) == [b"ab", b"cd"]
    assert list(column_of(np.array([[1, 2], [3, 4]], dtype=np.uint8))) == [b"\1\2", b"\3\4"]
    assert list(column_of(np.array([b"a", b"bcd"], dtype=object))) == [b"a", b"bcd"]


class ArrowArray:
    """The parts of an Arrow array that are looked at."""

    def __init__(self, kind: str, buffers: list[bytes | None], length: int, offset: int = 0, nulls: int = 0) -> None:
        self.type = kind
        self.null_count = nulls
        self.offset = offset
        self._buffers, self._length = buffers, length

    def buffers(self) -> list[bytes | None]:
        return self._buffers

    def __len__(self) -> int:
        return self._length


@pytest.mark.parametrize(
    "shown", [lambda rows: rows, lambda rows: rows.view("S4").reshape(-1), lambda rows: rows[:, :3]]
)
def test_an_array_may_be_written_again_when_it_is_taken(shown: Callable[[Any], Any]) -> None:
    rows = np.full((100, 4), ord("a"), np.uint8)
    expected = [bytes(row) for row in shown(rows)]
    maker = PartMaker(ProducerConfig(batch_count_max=30), None)
    taken = list(maker.columnar("t", shown(rows), None, None, None))
    rows[:] = ord("Z")
    assert len(taken) == 4
    assert [body for part in taken for body in part.bodies] == expected


def test_arrow_buffers_are_read_in_place_with_their_offset() -> None:
    ends = np.array([0, 1, 3, 6], dtype=np.int32).tobytes()
    assert list(column_of(ArrowArray("binary", [None, ends, b"abbccc"], 3))) == [b"a", b"bb", b"ccc"]
    assert list(column_of(ArrowArray("string", [None, ends, b"abbccc"], 2, offset=1))) == [b"bb", b"ccc"]
    with pytest.raises(InvalidArgument, match="1 nulls"):
        column_of(ArrowArray("binary", [None, ends, b"abbccc"], 3, nulls=1))
    with pytest.raises(InvalidArgument, match="int64"):
        column_of(ArrowArray("int64", [None, ends], 3))


@pytest.mark.parametrize("wrong", ["text", b"bytes", 7, ["text"], np.zeros(3), None])
def test_anything_else_is_no_column_of_bodies(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match="bodies must be"):
        column_of(wrong)


@settings(max_examples=50)
@given(st.lists(st.text(max_size=10), min_size=1, max_size=20))
def test_hashes_of_keys_are_javas(keys: list[str]) -> None:
    assert hashes_of(Column.of([key.encode() for key in keys])).tolist() == [string_hash(key) for key in keys]


def test_properties_of_one_message() -> None:
    encoded = property_bytes("paid", ["k1", "k2"], {"region": "eu"}, "customer-3", "ID")
    assert encoded is not None
    expected = {"TAGS": "paid", "KEYS": "k1 k2", "UNIQ_KEY": "ID", "__SHARDINGKEY": "customer-3", "region": "eu"}
    assert decode_properties(encoded) == expected
    assert property_bytes(None, None, None, None) is None


def test_properties_of_many_messages_equal_those_of_one() -> None:
    tags, keys, sharding = ["a", None, "c"], ["k", ["x", "y"], None], ["s1", "s2", "s3"]
    column = property_column(3, tags, keys, Column.of([key.encode() for key in sharding]))
    assert column is not None
    for index, encoded in enumerate(column):
        single = property_bytes(tags[index], keys[index], None, sharding[index])
        assert single is not None
        assert decode_properties(encoded) == decode_properties(single)
    same = property_column(2, "t", "k", None)
    assert same is not None
    assert list(same) == [b"TAGS\x01t\x02KEYS\x01k\x02"] * 2
    assert property_column(2, None, None, None) is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        *((name, "would not delay the message here: use send, ") for name in sorted(LATER_WISHES)),
        ("TIMER_DEL_UNIQKEY", "a message is taken back by recall"),
        ("TRAN_MSG", "is the system's mark of a message in a transaction: leave it out, and send by Trans"),
        ("UNIQ_KEY", "is reserved: give tag, keys and sharding_key as arguments"),
    ],
)
def test_a_property_that_asks_for_what_would_not_happen_is_refused_by_name(name: str, told: str) -> None:
    with pytest.raises(InvalidArgument, match=f"property '{name}':? {told}"):
        property_bytes(None, None, {"a": "b", name: "3"}, None)


def test_a_message_for_later_says_when_and_may_be_sent_on_with_its_own_properties() -> None:
    encoded = property_bytes("paid", None, {"region": "eu", "WAIT": "false"}, None, None, 7000)
    found = decode_properties(encoded or b"")
    assert (found["TIMER_DELIVER_MS"], found["TIMER_OUT_MS"]) == ("7000", "7000")
    own = {name: value for name, value in found.items() if name not in SYSTEM_PROPERTIES}
    assert own == {"region": "eu"}
    assert property_bytes(None, None, own, None) == b"region\x01eu\x02"


@pytest.mark.parametrize(
    "arguments",
    [
        {"tag": "a\x01"},
        {"tag": ""},
        {"tag": "a||b"},
        {"tag": 7},
        {"keys": ["a b"]},
        {"keys": ["\x02"]},
        {"properties": {"TAGS": "x"}},
        {"properties": {"__PSEQ": "x"}},
        {"properties": {"a\x02": "x"}},
        {"properties": {"a": "\x01"}},
        {"properties": {"a": 1}},
        {"properties": {"": "x"}},
        {"properties": {"a": "x" * PROPERTIES_ROOM}},
        {"sharding_key": ""},
    ],
)
def test_properties_that_would_break_the_record_are_refused(arguments: dict[str, object]) -> None:
    given: dict[str, object] = {"tag": None, "keys": None, "properties": None, "sharding_key": None, **arguments}
    with pytest.raises(InvalidArgument):
        property_bytes(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tag": "a\ud800"}, r"property 'TAGS' 'a\ud800': not valid Unicode text"),
        ({"tag": "paid", "keys": ["k", "\ud800"]}, r"property 'KEYS' 'k \ud800': not valid Unicode text"),
        ({"sharding_key": "\ud800"}, r"property '__SHARDINGKEY' '\ud800': not valid Unicode text"),
        ({"properties": {"a": "b", "c": "\ud800"}}, r"property 'c' '\ud800': not valid Unicode text"),
        ({"keys": 5}, "keys must be text or a list of texts, not 5"),
        ({"properties": [("a", "b")]}, "properties must be a mapping of texts to texts, not [('a', 'b')]"),
        ({"unique_key": b"ab"}, "message_id must be text, not b'ab'"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named_with_its_value(arguments: dict[str, Any], told: str) -> None:
    given: dict[str, Any] = {"tag": None, "keys": None, "properties": None, "sharding_key": None, **arguments}
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        property_bytes(**given)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tags": 5}, "tags must be one text for all, or a text or None for each, not 5"),
        ({"tags": ["\ud800"]}, r"tag '\ud800': not valid Unicode text"),
        ({"tags": "\ud800"}, r"tag '\ud800': not valid Unicode text"),
        ({"keys": 5}, "keys must be texts, one per message, not 5"),
        ({"keys": ["\ud800"]}, r"key '\ud800': not valid Unicode text"),
        ({"keys": np.array(["\ud800"])}, r"key '\ud800': not valid Unicode text"),
        ({"sharding_keys": ["\ud800"]}, r"sharding key '\ud800': not valid Unicode text"),
        ({"sharding_keys": "x"}, "sharding keys 'x': must be a list with a text for each message"),
        ({"sharding_keys": [5]}, "keys must be text or a list of texts, not 5"),
    ],
)
def test_a_column_of_a_wrong_type_is_named_with_its_value(arguments: dict[str, Any], told: str) -> None:
    given = {"tags": None, "keys": None, "sharding_keys": None, **arguments}
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        PartMaker(ProducerConfig()).columnar("orders", [b"x"], **given)


def test_a_property_string_leaves_room_for_the_mark() -> None:
    value = "x" * (PROPERTIES_ROOM - 3)
    assert len(property_bytes(None, None, {"a": value}, None) or b"") == PROPERTIES_ROOM
    assert PROPERTIES_ROOM + MARK_ROOM == 32767


def test_bodies_are_checked() -> None:
    assert checked_body(bytearray(b"x"), 10) == b"x"
    for wrong in ("text", None, b""):
        with pytest.raises(InvalidArgument):
            checked_body(wrong, 10)
    with pytest.raises(MessageTooLarge):
        checked_body(b"x" * 11, 10)


def test_properties_that_all_messages_share_are_a_column_at_the_same_cost() -> None:
    tag, bodies = b"TAGS\x01paid\x02", [b"x" * 10] * 3
    shared, others = (new_part(Kind.PRODUCE, bodies, [tag, *rest], 0.0) for rest in ([tag, tag], [tag[:], b"" + tag]))
    assert isinstance(shared.properties, Column)
    assert list(shared.properties) == [tag] * 3
    assert shared.cost == 3 * (10 + len(tag) + RECORD_COST)
    mixed = new_part(Kind.PRODUCE, bodies, [tag, None, tag], 0.0)
    assert mixed.properties == [tag, None, tag]
    assert (others.cost, mixed.cost) == (shared.cost, shared.cost - len(tag))


def test_parts_are_cut_at_the_limits_and_their_costs_add_up() -> None:
    part = new_part(Kind.PRODUCE, [b"x" * 100] * 10, [b"p" * 10] * 10, 0.0)
    assert part.cost == 10 * (110 + RECORD_COST)
    pieces = limited(part, 3 * (110 + RECORD_COST), 100)
    assert [piece.count for piece in pieces] == [3, 3, 3, 1]
    assert sum(piece.cost for piece in pieces) == part.cost
    assert [piece.count for piece in limited(part, 1 << 20, 4)] == [4, 4, 2]
    assert [piece.count for piece in limited(part, 10, 4)] == [1] * 10


def test_a_full_buffer_refuses_and_names_its_size() -> None:
    buffer = Buffer(1000)
    woken = []
    held = new_part(Kind.PRODUCE, [b"x" * 800], None, 0.0)
    held.ticket = buffer.hold(held.cost, 1)
    with pytest.raises(BufferFull, match="912 of 1000"):
        buffer.wait_for_room(100, 0.01, lambda: woken.append(1))
    assert woken == [1]
    buffer.settle(held)
    buffer.wait_for_room(5000, 0.0, lambda: None)  # more than the whole buffer fits an empty one


def test_a_flush_waits_for_what_was_there_and_not_for_what_came_later() -> None:
    buffer = Buffer(1 << 20)
    first, second = (new_part(Kind.PRODUCE, [b"x"], None, 0.0) for _ in range(2))
    first.ticket = buffer.hold(first.cost, 1)
    assert not buffer.wait_settled(0.01)
    waiter_is_done = threading.Event()
    waiter = threading.Thread(target=lambda: buffer.wait_settled(3600) and waiter_is_done.set())
    waiter.start()
    second.ticket = buffer.hold(second.cost, 1)
    buffer.settle(first)
    waiter.join(timeout=0.2)
    buffer.settle(second)
    waiter.join()
    assert waiter_is_done.is_set()
    assert buffer.used == 0


def test_failures_that_nobody_asks_for_are_counted_and_keep_few_bodies() -> None:
    failures, body = Failures(), b"x" * (1 << 20)
    for number in range(FAILURES_MAX + 50):
        error: PenstockError = NotMaster("no") if number % 5 else OutcomeUnknown("perhaps")
        failures.add(FailedDelivery(f"t{number % 2}", 3, error, (body,) if number % 3 else (b"small",)))
    for _ in range(2 * FAILURES_MAX):
        failures.add(FailedDelivery("t0", 2, NotMaster("no"), (body,)))
    with pytest.raises(DeliveryFailed) as caught:
        failures.raise_all()
    refused, unknown = caught.value.refused, caught.value.unknown
    assert sum(each.count for each in unknown) == 3 * (FAILURES_MAX + 50) // 5
    assert sum(each.count for each in refused) == 3 * (FAILURES_MAX + 50) * 4 // 5 + 2 * 2 * FAILURES_MAX
    assert len(refused) == FAILURES_MAX + 1
    assert refused[-1] == FailedDelivery("t0", refused[-1].count, refused[-1].error)
    kept = [len(each) for failed in (*refused, *unknown) for each in failed.bodies]
    assert FAILED_BODIES_BYTES_MAX - len(body) < sum(kept) <= FAILED_BODIES_BYTES_MAX
    failures.raise_all()
    failures.add(FailedDelivery("t0", 1, NotMaster("no"), (body,)))
    with pytest.raises(DeliveryFailed) as caught:
        failures.raise_all()
    assert [each.bodies for each in caught.value.refused] == [(body,)]
