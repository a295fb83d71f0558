"""Avro's binary form of one record, by the package fastavro.

| Avro | Spark |
|---|---|
| boolean, int, long, float, double, string, bytes | boolean, int, bigint, float, double, string, binary |
| fixed; enum | binary; string |
| record, array, map | struct, array, map |
| union of null and one other | that one, may be null |
| date; timestamp-millis, timestamp-micros; decimal | date; timestamp; decimal |

Other logical types are the types below them. Other unions and records that hold themselves are refused: columns have no
such type. An array's items have a byte at least, so no short body stands for an endless list.
Source: Apache Avro 1.12, "Specification".
"""

from __future__ import annotations

import io
import json
from typing import Any

from pyspark.sql import types as t

from penstock.proto.distribution import DISTRIBUTION
from penstock.proto.errors import ConfigError

_SIMPLE: dict[str, t.DataType] = {
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "string": t.StringType(),
    "bytes": t.BinaryType(),
}
_LOGICAL: dict[str, t.DataType] = {
    "date": t.DateType(),
    "timestamp-millis": t.TimestampType(),
    "timestamp-micros": t.TimestampType(),
}
_DECIMAL_DIGITS_MAX = 38


class Avro:
    """Bodies that are records of one schema."""

    def __init__(self, definition: str) -> None:
        """Of a record's schema in JSON.

        Raises ConfigError: the text is no Avro schema, it has what columns cannot be, or fastavro is missing.
        """
        try:
            import fastavro
        except ImportError as error:
            raise ConfigError(f"Avro needs the package fastavro: pip install '{DISTRIBUTION}[spark]'") from error
        try:
            loaded = json.loads(definition)
            fastavro.parse_schema(loaded)
        except Exception as error:  # the schema is anything, and the library raises what it likes
            raise ConfigError(f"schema of avro: {type(error).__name__} {error}") from error
        kept, self.type = _Types().record(loaded)
        self._schema = fastavro.parse_schema(kept)
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer

    def read(self, body: bytes) -> dict[str, Any]:
        """The record that is all of ``body``."""
        file = io.BytesIO(body)
        found: dict[str, Any] = self._read(file, self._schema, None)
        if left := len(body) - file.tell():
            raise ValueError(f"{left} bytes behind the record")
        return found

    def write(self, row: dict[str, Any]) -> bytes:
        """The record, which has every field."""
        file = io.BytesIO()
        self._write(file, self._schema, row, strict=True)
        return file.getvalue()


class _Types:
    """Avro's types as Spark's, with the schema again in which only the logical types are left that columns have."""

    def __init__(self) -> None:
        self._named: dict[str, t.DataType] = {}
        self._open: set[str] = set()

    def record(self, schema: Any) -> tuple[Any, t.StructType]:
        kept, of, _ = self._type(schema, "the schema", "")
        if not isinstance(of, t.StructType):
            raise ConfigError(f"schema of avro: a body is a record, this is {of.simpleString()}")
        return kept, of

    def _type(self, schema: Any, where: str, space: str) -> tuple[Any, t.DataType, bool]:
        """The schema, its type in Spark, and whether it may be null."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            if len(others) != 1:
                raise ConfigError(f"schema of avro: {where} is a union of {len(others)} types: expected null and one")
            kept, of, _ = self._type(others[0], where, space)
            return [each if each == "null" else kept for each in schema], of, len(schema) > 1
        if isinstance(schema, str):
            schema = {"type": schema}
        kind = schema["type"]
        if isinstance(kind, (dict, list)):
            return self._type(kind, where, space)
        if kind in ("record", "enum", "fixed"):
            return (*self._of_a_name(schema, kind, where, space), False)
        if kind == "array":
            kept, of, may_be_null = self._type(schema["items"], f"an item of {where}", space)
            return {"type": "array", "items": kept}, t.ArrayType(of, may_be_null), False
        if kind == "map":
            kept, of, may_be_null = self._type(schema["values"], f"a value of {where}", space)
            return {"type": "map", "values": kept}, t.MapType(t.StringType(), of, may_be_null), False
        if kind not in _SIMPLE:
            full = kind if "." in kind or not space else f"{space}.{kind}"
            full = full if full in self._named or full in self._open else kind
            if full in self._open:
                raise ConfigError(f"schema of avro: {where} is {full}, which holds it: columns cannot hold themselves")
            if full not in self._named:
                raise ConfigError(f"schema of avro: {where} is {kind!r}, which no column can be")
            return full, self._named[full], False
        return (*_simple(schema, kind, where), False)

    def _of_a_name(self, schema: dict[str, Any], kind: str, where: str, space: str) -> tuple[Any, t.DataType]:
        name, space = schema["name"], schema.get("namespace", space)
        if "." in name:
            space, _, name = name.rpartition(".")
        full = f"{space}.{name}" if space else name
        if kind == "enum":
            self._named[full] = t.StringType()
            return {"type": "enum", "name": full, "symbols": schema["symbols"]}, t.StringType()
        if kind == "fixed":
            if schema["size"] < 1:
                raise ConfigError(f"schema of avro: {where} has {schema['size']} bytes: expected one at least")
            kept, of = _simple(schema, kind, where)
            self._named[full] = of
            return {**kept, "name": full, "size": schema["size"]}, of
        if not schema["fields"]:
            raise ConfigError(f"schema of avro: {where} is the record {full} without fields: columns need one")
        self._open.add(full)
        fields, columns = [], []
        for field in schema["fields"]:
            kept, of, may_be_null = self._type(field["type"], f"field {field['name']!r}", space)
            fields.append({"name": field["name"], "type": kept})
            columns.append(t.StructField(field["name"], of, may_be_null))
        self._open.discard(full)
        self._named[full] = t.StructType(columns)
        return {"type": "record", "name": full, "fields": fields}, self._named[full]


def _simple(schema: dict[str, Any], kind: str, where: str) -> tuple[dict[str, Any], t.DataType]:
    logical = schema.get("logicalType")
    base = {"type": kind}
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = schema["precision"], schema.get("scale", 0)
        if not 0 <= scale <= digits <= _DECIMAL_DIGITS_MAX:
            raise ConfigError(f"schema of avro: {where} is a decimal({digits},{scale}): columns have 38 digits at most")
        return {**base, "logicalType": logical, "precision": digits, "scale": scale}, t.DecimalType(digits, scale)
    if logical in _LOGICAL and kind == ("int" if logical == "date" else "long"):
        return {**base, "logicalType": logical}, _LOGICAL[logical]
    return base, _SIMPLE.get(kind, t.BinaryType())
