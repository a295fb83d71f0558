"""Rows with a time: which are for later, and what their records say."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.formats.destination import LATER_PROPERTIES, Later, Ordinary
from penstock.formats.record.properties import decode_properties
from penstock.pipeline.topics.write.encoding import Rows
from penstock.pipeline.topics.write.routing import Piece, by_destination
from penstock.proto.errors import InvalidArgument, MessageTooLarge

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NOON_MS = 1_767_268_800_000
INSTANT = pa.timestamp("us", tz="UTC")


def batch(times: list[Any], of: Any = INSTANT, **more: Any) -> pa.RecordBatch:
    bodies = [b"%d" % number for number in range(len(times))]
    return pa.RecordBatch.from_pydict({"body": bodies, "deliverAt": pa.array(times, of)} | more)


def split(rows: pa.RecordBatch) -> dict[bool, list[bytes]]:
    found = {place: part.column("body").to_pylist() for place, part in by_destination(rows, "orders")}
    return {isinstance(place, Later): bodies for place, bodies in found.items()}


def test_rows_with_a_time_are_for_later_and_the_others_for_now() -> None:
    assert split(batch([None, NOON, None, NOON])) == {False: [b"0", b"2"], True: [b"1", b"3"]}
    assert split(batch([None, None])) == {False: [b"0", b"1"]}
    assert split(batch([NOON])) == {True: [b"0"]}
    assert split(pa.RecordBatch.from_pydict({"body": [b"0"]})) == {False: [b"0"]}
    for place, part in by_destination(batch([None, NOON]), "orders"):
        assert ("deliverAt" in part.schema.names) == (place != Ordinary("orders"))


@pytest.mark.parametrize(
    ("time", "of", "due_ms"),
    [
        (NOON, INSTANT, NOON_MS),
        (NOON + dt.timedelta(microseconds=1), INSTANT, NOON_MS + 1),  # never before its time
        (NOON, pa.timestamp("ns", tz="UTC"), NOON_MS),
        (NOON_MS, pa.int64(), NOON_MS),
        (dt.datetime(1969, 1, 1, tzinfo=dt.UTC), INSTANT, 0),
    ],
)
def test_a_record_for_later_says_where_it_belongs_and_when(time: Any, of: Any, due_ms: int) -> None:
    given = {"REAL_TOPIC": "a lie", "TIMER_OUT_MS": "1", "kept": "yes"}
    properties = pa.array([list(given.items())] * 2, pa.map_(pa.string(), pa.string()))
    rows = Rows(batch([time, time], of, properties=properties))
    piece = Piece(3, rows.bodies, rows.properties, np.array([7, 12], np.int32)).placed(Later("orders"))
    assert piece.target == 3
    assert piece.queue_ids.tolist() == [0, 0]
    for encoded, queue_id in zip(piece.properties, ("7", "12"), strict=True):
        assert decode_properties(encoded) == {
            "TIMER_DELIVER_MS": str(due_ms),
            "TIMER_OUT_MS": str(due_ms),
            "REAL_TOPIC": "orders",
            "REAL_QID": queue_id,
            "kept": "yes",
        }
        assert all(encoded.count(name.encode() + b"\x01") == 1 for name in LATER_PROPERTIES)


def test_properties_leave_room_for_what_delivery_needs() -> None:
    long = pa.array([[("x", "y" * 32_300)]], pa.map_(pa.string(), pa.string()))
    Rows(pa.RecordBatch.from_pydict({"body": [b"0"], "properties": long}))
    with pytest.raises(MessageTooLarge, match="at most 32127 are allowed"):
        Rows(batch([NOON], properties=long))


@pytest.mark.parametrize(
    "wish", [("DELAY", "3"), ("TIMER_DELAY_SEC", "5"), ("TIMER_DELIVER_MS", str(1 << 50)), ("TRAN_MSG", "true")]
)
def test_a_property_that_asks_for_later_is_refused_and_a_time_that_is_over_is_not(wish: tuple[str, str]) -> None:
    def rows(*properties: tuple[str, str]) -> Rows:
        column = pa.array([[("x", "y"), *properties]], pa.map_(pa.string(), pa.string()))
        return Rows(pa.RecordBatch.from_pydict({"body": [b"0"], "properties": column}))

    with pytest.raises(InvalidArgument, match=f"'{wish[0]}' would do nothing, .*: give a column deliverAt"):
        rows(wish)
    (encoded,) = rows(("TIMER_DELIVER_MS", "1000"), ("__STARTDELIVERTIME", "1000")).properties
    assert decode_properties(encoded)["TIMER_DELIVER_MS"] == "1000"


@pytest.mark.parametrize(("far", "of"), [(dt.datetime(2999, 1, 1, tzinfo=dt.UTC), INSTANT), (1 << 60, pa.int64())])
def test_a_row_that_no_broker_would_keep_so_long_is_refused_by_its_number(far: Any, of: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^row 1 of the batch: deliverAt .* is more than 31622400 s from now"):
        Rows(batch([0, far] if of == pa.int64() else [NOON, far], of))
