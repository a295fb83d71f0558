"""Receipts of a request that are read without an object each are those that are read one by one; the rest is left."""

from __future__ import annotations

import base64
import random
import zlib
from typing import Any

import pytest

from penstock.gateway.v2.consume.finishing import _response
from penstock.gateway.v2.consume.handles import Together, receipt_of, told_of
from penstock.gateway.v2.consume.plain import REQUEST_BYTES_MAX, answer, read
from penstock.gateway.v2.status import Refusal, ok
from penstock.gateway.v2.wire import definition_pb2 as v2
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.receipts import Receipt
from penstock.proto.requests import decoded
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, RECEIPT_OK
from tests.support.gateway import damaged

FIRST = Receipt("group", "topic", "broker-a", 7, 0, 1 << 40, 3, 1_700_000_000_000)
UNUSUAL: tuple[dict[str, Any], ...] = (
    {"queue_id": 8},
    {"queue_id": 1 << 31},
    {"check_point": 1},
    {"epoch": 4},
    {"visible_ms": 1},
    {"visible_ms": 10**18},
    {"offset": 0},
    {"offset": 10**18},
    {"group": "other"},
    {"topic": "中文"},
    {"topic": "a b"},
    {"broker_name": ""},
)


def encoded(said: str) -> str:
    """The handle of that text, whose checksum is right."""
    text = f"{said} {zlib.crc32(said.encode())}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def request(*handles: str, ids: str = "id") -> wire.AckMessageRequest:
    made = wire.AckMessageRequest(group=v2.Resource(name="group"), topic=v2.Resource(name="topic"))
    for number, handle in enumerate(handles):
        made.entries.add(message_id=f"{ids}{number}" if ids else "", receipt_handle=handle)
    return made


def together(count: int, start: int = 0) -> list[str]:
    return [FIRST._replace(offset=start + 3 * number).text() for number in range(count)]


def check_same(content: bytes) -> bool:
    """Make sure that it is read as one by one, if it is read as plain; True if it is."""
    plain = read(content)
    if plain is None:
        return False
    one_by_one = decoded(wire.AckMessageRequest, content, 1 << 30)
    assert (plain.group, plain.topic) == (one_by_one.group, one_by_one.topic)
    assert not any(entry.HasField("lite_topic") for entry in one_by_one.entries)
    mine = [plain.first._replace(offset=offset) for offset in plain.offsets]
    if plain.first.group == "group" and plain.first.topic == "topic":
        assert mine == [receipt_of(each.receipt_handle, "group", "topic") for each in one_by_one.entries]
    else:
        assert mine == [Receipt.parse(each.receipt_handle) for each in one_by_one.entries]
    told = wire.AckMessageResponse.FromString(answer(plain))
    assert told == _response(one_by_one, [ok()] * len(mine))
    return True


def test_requests_of_every_kind_are_read_as_one_by_one() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    plain = 0
    for _ in range(1500):
        handles = together(chance.choice([1, 1, 2, 5, 32]), chance.choice([0, 1, 9, 1 << 50]))
        is_ordinary = chance.random() < 0.3
        if not is_ordinary:
            index = chance.randrange(len(handles))
            changed = Receipt.parse(handles[index])._replace(**chance.choice(UNUSUAL))
            handles[index] = chance.choice(
                [changed.text(), handles[index][:-1], handles[0], "", "a", "ä", f"{handles[index]}=", "A" * 2049]
            )
        made = request(*handles, ids=chance.choice(["id", "", "ä"] if not is_ordinary else ["id", ""]))
        if chance.random() < 0.1 and not is_ordinary:
            made.entries[0].lite_topic = "l"
        content = made.SerializeToString()
        is_plain = check_same(content)
        assert is_plain or not is_ordinary
        plain += is_plain
        for _ in range(5):
            check_same(damaged(chance, content))
    assert plain > 450


@pytest.mark.parametrize(
    "said",
    [
        "v2 group topic broker-a 7 0 1 1 1",
        "v1 group topic broker-a 7 0 1 1",
        "v1 group topic broker-a 7 0 1 1 1 1",
        "v1 group topic broker-a 7 -1 1 1 1",
        "v1 group topic broker-a 7 0 1 1 x",
        "v1 group topic broker-a 7 0 1 1 ",
        "v1 group  topic broker-a 7 0 1 1 1",
        "7 0 1 1 1",
        " 7 0 1 1 1",
        "",
        " " * 20,
        "1 " * 900,
    ],
)
def test_texts_that_are_no_receipts_are_none(said: str) -> None:
    content = request(encoded(said)).SerializeToString()
    if check_same(content):
        receipt_of(encoded(said), "group", "topic")
    else:
        with pytest.raises(Refusal):
            receipt_of(encoded(said), "group", "topic")


def test_a_checksum_in_other_digits_is_wrong() -> None:
    said = "v1 group topic broker-a 7 0 1 1 1"
    forged = base64.urlsafe_b64encode(f"{said} 0{zlib.crc32(said.encode())}".encode()).decode().rstrip("=")
    assert read(request(encoded(said)).SerializeToString()) is not None
    assert read(request(forged).SerializeToString()) is None
    with pytest.raises(Refusal):
        receipt_of(forged, "group", "topic")


def test_a_request_of_too_many_entries_or_of_none_is_looked_at_closely() -> None:
    assert check_same(request(*together(1024)).SerializeToString())
    assert not check_same(request(*together(1025)).SerializeToString())
    assert not check_same(request().SerializeToString())
    large = request(*together(3))
    large.entries[1].message_id = "i" * REQUEST_BYTES_MAX
    assert not check_same(large.SerializeToString())
    with pytest.raises(InvalidArgument):
        decoded(wire.AckMessageRequest, b"\x0a", 10)
    assert read(b"\x0a") is None


def test_deliveries_of_one_check_point_are_asked_for_as_one_and_told_one_by_one() -> None:
    other = FIRST._replace(check_point=5)
    deliveries = [FIRST._replace(offset=offset) for offset in (9, 2, 5, 2)] + [other, FIRST]
    asked = Together.of(deliveries)
    assert [list(each.offsets) for each in asked.receipts] == [[0, 2, 5, 9], [0]]
    assert asked.asked == 5
    expired = [RECEIPT_EXPIRED if place == 1 else RECEIPT_OK for place in range(5)]
    once_more = Together.of([other])
    assert told_of([asked, once_more], [*expired, RECEIPT_EXPIRED]) == [[True, False, True, False, True, True], [False]]
    assert told_of([asked, once_more], []) == [[True] * 6, [True]]
    for wrong in (expired, [*expired, RECEIPT_OK, RECEIPT_OK]):
        with pytest.raises(PenstockError, match="answers to 6 receipts"):
            told_of([asked, once_more], wrong)
