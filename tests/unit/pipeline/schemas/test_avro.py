"""Avro records as rows: every type there and back, and bodies that are none."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fastavro")

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from penstock.pipeline.schemas.avro import Avro
from penstock.pipeline.schemas.bodies import _reader
from penstock.proto.errors import ConfigError

ORDER: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "before", "type": ["null", "State"]},
        {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {
            "name": "items",
            "type": {
                "type": "array",
                "items": {"type": "record", "name": "Item", "fields": [{"name": "sku", "type": "string"}]},
            },
        },
        {"name": "extra", "type": {"type": "map", "values": "double"}},
    ],
}
ROW = {
    "id": 7,
    "count": -3,
    "note": None,
    "state": "PAID",
    "before": "NEW",
    "total": Decimal("12.50"),
    "at": datetime(2030, 1, 31, 12, 30, 0, 123456, tzinfo=UTC),
    "day": date(2030, 1, 31),
    "clock": 5,
    "mark": b"\0\xff",
    "items": [{"sku": "a"}, {"sku": "b"}],
    "extra": {"weight": 1.5},
}


def of(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)})


def test_a_record_has_every_type_there_and_back_through_arrow() -> None:
    codec = Avro(json.dumps(ORDER))
    assert codec.type.simpleString() == (
        "struct<id:bigint,count:int,note:string,state:string,before:string,total:decimal(9,2),at:timestamp,day:date,"
        "clock:bigint,mark:binary,items:array<struct<sku:string>>,extra:map<string,double>>"
    )
    assert [field.name for field in codec.type.fields if field.nullable] == ["note", "before"]
    body = codec.write(ROW)
    row = pa.array([codec.read(body)], to_arrow_type(codec.type, timezone="UTC"))
    assert row.to_pylist(maps_as_pydicts="strict") == [ROW]
    assert codec.write(codec.read(body)) == body


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ("{", "schema of avro: JSONDecodeError"),
        ('"string"', "a body is a record"),
        (of({"name": "a", "type": "nothing"}), "nothing"),
        (of({"name": "a", "type": ["int", "string"]}), "field 'a' is a union of 2 types: expected null and one"),
        (of({"name": "a", "type": "null"}), "field 'a' is 'null', which no column can be"),
        (of({"name": "a", "type": {"type": "array", "items": "null"}}), "an item of field 'a' is 'null'"),
        (of({"name": "next", "type": ["null", "R"]}), "field 'next' is R, which holds it"),
        (of(), "the record R without fields"),
        (of({"name": "a", "type": {"type": "fixed", "name": "F", "size": 0}}), "has 0 bytes"),
        (
            of({"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40}}),
            r"decimal\(40,0\): columns have 38 digits",
        ),
    ],
)
def test_a_schema_that_columns_cannot_have_is_refused_with_the_field(definition: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Avro(definition)


def test_a_body_with_bytes_behind_its_record_is_bad() -> None:
    codec = Avro(json.dumps(ORDER))
    with pytest.raises(ValueError, match="2 bytes behind the record"):
        codec.read(codec.write(ROW) + b"ab")


def test_a_number_beyond_its_type_makes_its_row_bad_and_no_other() -> None:
    narrow, wide = of({"name": "n", "type": "int"}), Avro(of({"name": "n", "type": "long"}))
    bodies = [wide.write({"n": number}) for number in (1, 1 << 40, 3)]
    found = read(narrow, bodies)
    assert [row["value"] for row in found] == [{"n": 1}, None, {"n": 3}]
    assert "out of its type's range" in found[1]["reason"]


@given(st.lists(st.binary(max_size=60) | st.none(), max_size=8))
def test_any_bytes_are_rows_or_have_a_reason(bodies: list[bytes | None]) -> None:
    for body, row in zip(bodies, read(json.dumps(ORDER), bodies), strict=True):
        assert (row["value"] is None) == (body is None or row["reason"] is not None)
        assert (row["reason"] is not None) <= (body is not None)


def read(definition: str, bodies: list[bytes | None] | list[bytes]) -> list[dict[str, Any]]:
    """What a worker makes of a batch of bodies."""
    from pyspark.sql.types import StringType, StructField, StructType

    answer = StructType([StructField("value", Avro(definition).type), StructField("reason", StringType())])
    made = _reader("avro", definition, "", answer)(pa.array(bodies, pa.binary()))
    found: list[dict[str, Any]] = made.to_pylist(maps_as_pydicts="strict")
    return found
