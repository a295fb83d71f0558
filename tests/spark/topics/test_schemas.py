"""``decoded`` and ``encoded`` in a real session: JSON by Spark, Avro and Protobuf in its workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("fastavro")

from penstock.pipeline import decoded, encoded
from penstock.proto.errors import ConfigError, InvalidArgument
from tests.unit.pipeline.schemas.test_protobuf import descriptors

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "total", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "items", "type": {"type": "array", "items": "string"}},
        ],
    }
)
JSON = "id bigint, total decimal(9,2), items array<string>"
BAD = {"json": b'{"id": "no number"', "avro": b"\x02", "protobuf": b"\x08"}


def orders(spark: Any) -> Any:
    return spark.range(200).selectExpr(
        "id", "cast(id / 4 as decimal(9,2)) as total", "array(cast(id as string), 'x') as items", "'paid' as tags"
    )


def rows(frame: Any) -> list[Any]:
    return sorted(tuple(row) for row in frame.collect())


@pytest.mark.parametrize(("format", "schema"), [("json", JSON), ("avro", AVRO)])
def test_columns_become_bodies_and_the_same_columns_again(spark: Any, format: str, schema: str, errors: Any) -> None:
    bodies = encoded(orders(spark), schema, format=format)
    assert bodies.columns == ["tags", "body"]
    assert rows(decoded(bodies, schema, format=format).select("id", "total", "items", "tags")) == rows(orders(spark))
    place = ("'t' as topic", "'broker-a' as brokerName", "3 as queueId", "17L as queueOffset")
    bad = spark.createDataFrame(pa.table({"body": [BAD[format]], "tags": ["bad"]}))
    mixed = bodies.unionByName(bad).selectExpr("*", *place)
    asked = decoded(mixed, schema, format=format).select("id")
    errors(InvalidArgument, f"(?i)message t/broker-a/3/17: the body is no {format} of the schema", asked.collect)
    told = decoded(mixed, schema, format=format, on_bad="column")
    assert rows(told.where("bad is null").select("id", "total", "items", "tags")) == rows(orders(spark))
    (row,) = told.where("bad is not null").collect()
    assert bytes(row["bad"]["body"]) == BAD[format]
    assert f"no {format} of the schema" in row["bad"]["reason"].lower()
    assert (row["id"], row["items"], row["topic"], row["tags"]) == (None, None, "t", "bad")


def test_a_body_of_json_is_one_whole_document_of_it(spark: Any) -> None:
    good = [b'{"id": 1}', b' {"id": 1, "other": {"a": [1, {}]}}\n', b'{"id": 1, "ratio": NaN}']
    bad = [b'{"id": 1} x', b'{"id": 1}{"id": 2}', b'{"id": 1}\n{"id": 2}', b'{"id": 1}, {"id": 2}', b'{"id": 1}] x']
    bad += [b'{"id": 1}} x', b'{"id": 1}, "value": {"id": 2}', b'[{"id": 1}]', b"{'id': 1}", b'{"id": 1, "x": "\xff"}']
    bad += [b"", b"null", b"1"]
    bodies = spark.createDataFrame(pa.table({"body": [*good, *bad]}))
    told = decoded(bodies, "id long, ratio double", on_bad="column").collect()
    assert [row["id"] for row in told] == [1] * len(good) + [None] * len(bad)
    assert [bytes(row["bad"]["body"]) for row in told if row["bad"]] == bad


def test_messages_of_protobuf_are_columns_by_a_descriptor_file(spark: Any, tmp_path: Path) -> None:
    file = tmp_path / "shop.desc"
    file.write_bytes(descriptors())
    frame = spark.range(20).selectExpr(
        "id",
        "cast(id as decimal(20,0)) as large",
        "id as small",
        "'PAID' as state",
        "cast(cast(id as string) as binary) as mark",
        "timestamp_seconds(id) as at",
        "array(named_struct('sku', 'a')) as items",
        "if(id % 2 = 0, named_struct('sku', 'b'), null) as first",
        "map('sent', timestamp_seconds(id)) as times",
        "map(cast(id as decimal(20,0)), cast(7 as decimal(20,0))) as counts",
        "if(id % 2 = 0, 'note', null) as note",
        "array('NEW') as states",
        "concat('t', id) as tags",
    )
    bodies = encoded(frame, file, format="protobuf", message="shop.Order")
    others = spark.createDataFrame(pa.table({"body": [BAD["protobuf"], None]}))
    bodies = bodies.unionByName(others, allowMissingColumns=True)
    told = decoded(bodies, file, format="protobuf", message="shop.Order", on_bad="column")
    good = told.where("tags is not null").select(*frame.columns)
    assert [row.asDict(True) for row in good.orderBy("id").collect()] == [
        row.asDict(True) for row in frame.orderBy("id").collect()
    ]
    bad = told.where("tags is null").select("id", "bad.body", "bad.reason").collect()
    found = {(row["id"], row["body"] and bytes(row["body"]), bool(row["reason"])) for row in bad}
    assert found == {(None, None, False), (None, BAD["protobuf"], True)}  # no body is not a bad one


def test_a_row_that_the_schema_does_not_allow_ends_the_job_with_the_reason(spark: Any, errors: Any) -> None:
    frame = orders(spark).selectExpr("if(id = 7, null, id) as id", "total", "items")
    errors(InvalidArgument, "a row does not fit the avro schema", encoded(frame, AVRO, format="avro").collect)


def test_what_cannot_be_is_told_before_a_job(spark: Any) -> None:
    bodies = spark.createDataFrame(pa.table({"body": [b"{}"], "tags": ["t"]}))
    with pytest.raises(ConfigError, match="format is 'xml': expected json, avro, protobuf"):
        decoded(bodies, JSON, format="xml")
    with pytest.raises(ConfigError, match="on_bad is 'drop': expected error, column"):
        decoded(bodies, JSON, on_bad="drop")
    with pytest.raises(ConfigError, match=r"schema of JSON is 'id lng': .*Unsupported data type \"LNG\""):
        decoded(bodies, "id lng")
    with pytest.raises(ConfigError, match="column 'Tags' is in the frame and would be made"):
        decoded(bodies, "Tags string")
    with pytest.raises(ConfigError, match="no column body"):
        decoded(bodies.drop("body"), JSON)
    with pytest.raises(ConfigError, match="schema of protobuf is str: expected a descriptor set in bytes, or a Path"):
        decoded(bodies, "x", format="protobuf")
    with pytest.raises(ConfigError, match="no column 'items', which the schema names"):
        encoded(orders(spark).drop("items"), JSON)
    with pytest.raises(ConfigError, match=r"column 'items' is array<int>, the schema has array<string>"):
        encoded(orders(spark).selectExpr("id", "total", "array(1) as items"), JSON)
    with pytest.raises(ConfigError, match="has a column body"):
        encoded(orders(spark).selectExpr("*", "'x' as body"), JSON)
