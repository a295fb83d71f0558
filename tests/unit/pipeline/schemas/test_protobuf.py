"""Messages of Protobuf as rows: every type there and back, presence, and sets that are none."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type

from penstock.pipeline.schemas.protobuf import Protobuf
from penstock.proto.errors import ConfigError

Field = descriptor_pb2.FieldDescriptorProto


def descriptors(with_imports: bool = True) -> bytes:
    """The set of a file with ``shop.Order``, which has every kind of field, and ``shop.Tree``, which holds itself."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="PAID", number=1)
    file.message_type.add(name="Item").field.add(name="sku", number=1, type=Field.TYPE_STRING, label=1)
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=Field.TYPE_INT64, label=1)
    order.field.add(name="large", number=2, type=Field.TYPE_UINT64, label=1)
    order.field.add(name="small", number=3, type=Field.TYPE_UINT32, label=1)
    order.field.add(name="state", number=4, type=Field.TYPE_ENUM, type_name=".shop.State", label=1)
    order.field.add(name="mark", number=5, type=Field.TYPE_BYTES, label=1)
    at = {"type": Field.TYPE_MESSAGE, "type_name": ".google.protobuf.Timestamp"}
    order.field.add(name="at", number=6, label=1, **at)
    order.field.add(name="items", number=7, type=Field.TYPE_MESSAGE, type_name=".shop.Item", label=3)
    order.field.add(name="first", number=8, type=Field.TYPE_MESSAGE, type_name=".shop.Item", label=1)
    entry = order.nested_type.add(name="TimesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, label=1, **at)
    order.field.add(name="times", number=9, type=Field.TYPE_MESSAGE, type_name=".shop.Order.TimesEntry", label=3)
    order.oneof_decl.add(name="_note")
    order.field.add(name="note", number=10, type=Field.TYPE_STRING, label=1, oneof_index=0, proto3_optional=True)
    order.field.add(name="states", number=11, type=Field.TYPE_ENUM, type_name=".shop.State", label=3)
    counts = order.nested_type.add(name="CountsEntry")
    counts.options.map_entry = True
    for number, name in enumerate(("key", "value"), start=1):
        counts.field.add(name=name, number=number, type=Field.TYPE_UINT64, label=1)
    order.field.add(name="counts", number=12, type=Field.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=3)
    tree = file.message_type.add(name="Tree")
    tree.field.add(name="children", number=1, type=Field.TYPE_MESSAGE, type_name=".shop.Tree", label=3)
    file.message_type.add(name="Empty")
    made = descriptor_pb2.FileDescriptorSet()
    if with_imports:
        timestamp_pb2.DESCRIPTOR.CopyToProto(made.file.add())
    made.file.append(file)
    return made.SerializeToString()


WHEN = datetime(2030, 1, 31, 12, 30, 0, 123456, tzinfo=UTC)
ROW = {
    "id": -7,
    "large": Decimal((1 << 64) - 1),
    "small": (1 << 32) - 1,
    "state": "PAID",
    "mark": b"\0\xff",
    "at": WHEN,
    "items": [{"sku": "a"}, {"sku": "b"}],
    "first": {"sku": ""},
    "times": {"sent": WHEN},
    "note": "",
    "states": ["PAID", "77"],
    "counts": {Decimal((1 << 64) - 1): Decimal(1), Decimal(2): Decimal(0)},
}
UNSET = {
    "id": 0,
    "large": Decimal(0),
    "small": 0,
    "state": "NEW",
    "mark": b"",
    "at": None,
    "items": [],
    "first": None,
    "times": {},
    "note": None,
    "states": [],
    "counts": {},
}


@pytest.mark.parametrize("row", [ROW, UNSET])
def test_a_message_has_every_type_there_and_back_through_arrow(row: dict[str, object]) -> None:
    codec = Protobuf(descriptors(), "shop.Order")
    assert codec.type.simpleString() == (
        "struct<id:bigint,large:decimal(20,0),small:bigint,state:string,mark:binary,at:timestamp,"
        "items:array<struct<sku:string>>,first:struct<sku:string>,times:map<string,timestamp>,note:string,"
        "states:array<string>,counts:map<decimal(20,0),decimal(20,0)>>"
    )
    body = codec.write(row)
    found = pa.array([codec.read(body)], to_arrow_type(codec.type, timezone="UTC"))
    assert found.to_pylist(maps_as_pydicts="strict") == [row]


def test_a_message_without_any_field_set_is_an_empty_body() -> None:
    assert Protobuf(descriptors(), "shop.Order").write(UNSET) == b""


@pytest.mark.parametrize(
    ("definition", "message", "told"),
    [
        (b"\xff\xff", "shop.Order", "protoc --include_imports"),
        (descriptors(with_imports=False), "shop.Order", "protoc --include_imports"),
        (descriptors(), "shop.Ordr", "it has no message 'shop.Ordr'"),
        (descriptors(), "", "it has no message ''"),
        (descriptors(), "shop.Tree", "shop.Tree holds itself"),
        (descriptors(), "shop.Empty", "shop.Empty has no fields"),
    ],
)
def test_a_set_without_such_a_message_is_refused(definition: bytes, message: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Protobuf(definition, message)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_row_or_an_exception(body: bytes) -> None:
    codec = Protobuf(descriptors(), "shop.Order")
    try:
        found = codec.read(body)
    except Exception:  # the library raises what it likes
        return
    assert list(found) == list(ROW)
