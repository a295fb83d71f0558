"""Bodies with a schema as typed columns, and columns as such bodies.

JSON is Spark's own, in Java. Avro and Protobuf are read and written in Python workers, row by row: Spark's functions
for them are in jars that pyspark does not bring. A body is as its schema says, without a head before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructField, StructType

from penstock.proto.errors import ConfigError, InvalidArgument

FORMATS = ("json", "avro", "protobuf")
_ON_BAD = ("error", "column")
_PLACE = ("topic", "brokerName", "queueId", "queueOffset")
_CAUSE_CHARACTERS_MAX = 300
_SPARKS_RAW = "__PENSTOCK_RAW__"
"""Where Spark's reader of JSON puts what is none; a name that no schema has."""

Schema: TypeAlias = str | bytes | Path | StructType


class Codec(Protocol):
    """Bodies of one schema."""

    type: StructType

    def read(self, body: bytes) -> dict[str, Any]:
        """What ``body`` says, by field; any exception if that is nothing of the schema."""

    def write(self, row: dict[str, Any]) -> bytes:
        """The body of these values; any exception if they do not fit."""


def decoded(frame: Any, schema: Schema, *, format: str = "json", message: str = "", on_bad: str = "error") -> Any:
    """``frame`` with a typed column for each field of ``schema`` in the place of ``body``; its other columns stay.

    ``schema``: of JSON, a ``StructType`` or its DDL (``"id long, total decimal(9,2)"``); of Avro, a record's schema as
    JSON; of Protobuf, a descriptor set (``protoc --include_imports --descriptor_set_out``), of which ``message`` names
    a message in full. A ``Path`` names a file that has it, which only the driver reads.

    ``on_bad``: ``error`` ends the query at a body that is none of the schema, once one of its fields is asked for, and
    names the message. With ``column`` such a row has nulls, and the column ``bad`` has its ``body`` and the ``reason``;
    it is null in all other rows. A null body is nulls, and not bad.
    Raises ConfigError: a text that is no schema or has no columns' types, a name that ``frame`` has already, no column
    ``body``, or a package that is missing.
    Raises InvalidArgument: of the query, see ``on_bad``.
    """
    _require(format, FORMATS, "format")
    _require(on_bad, _ON_BAD, "on_bad")
    wanted, parsed = _json_parsed(schema) if format == "json" else _parsed_in_python(format, schema, message)
    made = [field.name for field in wanted.fields] + (["bad"] if on_bad == "column" else [])
    others = [name for name in frame.columns if name != "body"]
    if "body" not in frame.columns:
        raise ConfigError("decoded: the frame has no column body, which is what is decoded")
    if both := [name for name in made if name.lower() in {other.lower() for other in others}]:
        raise ConfigError(f"decoded: column {both[0]!r} is in the frame and would be made: drop or rename it before")
    body = functions.col("body").cast("binary")
    part = "_body"
    while part in {*others, *made}:
        part += "_"
    value, reason = functions.col(part)["value"], functions.col(part)["reason"]
    if on_bad == "error":
        place = [functions.col(name).cast("string") for name in _PLACE if name in others]
        named = functions.concat_ws("/", *place) if place else functions.lit("")
        told = functions.concat(
            functions.lit(f"{InvalidArgument.__module__}.{InvalidArgument.__name__}: message "),
            named,
            functions.lit(": "),
            reason,
        )
        value = functions.when(reason.isNull(), value).otherwise(functions.raise_error(told).cast(wanted))
    columns = [value[field.name].alias(field.name) for field in wanted.fields]
    if on_bad == "column":
        both_told = functions.struct(functions.col("body").cast("binary").alias("body"), reason.alias("reason"))
        columns.append(functions.when(reason.isNotNull(), both_told).alias("bad"))
    return frame.withColumn(part, parsed(body)).select(*[functions.col(f"`{name}`") for name in others], *columns)


def encoded(frame: Any, schema: Schema, *, format: str = "json", message: str = "") -> Any:
    """``frame`` with a ``body`` in the place of the columns that ``schema`` names; its other columns stay.

    ``schema``, ``format`` and ``message`` are those of :func:`decoded`. Simple columns are cast to the schema's types;
    JSON leaves nulls out.
    Raises ConfigError: as :func:`decoded`; or a column is missing or, with fields or items of its own, of another type.
    Raises InvalidArgument: of the query: a value that the schema does not allow.
    """
    _require(format, FORMATS, "format")
    codec = None if format == "json" else _codec(format, _definition(format, schema), message)
    wanted = _json_type(schema) if codec is None else codec.type
    there = {field.name: field.dataType for field in frame.schema.fields}
    for field in wanted.fields:
        if field.name not in there:
            raise ConfigError(f"encoded: the frame has no column {field.name!r}, which the schema names")
        _require_castable(field, there[field.name])
    others = [name for name in there if name not in {field.name for field in wanted.fields}]
    if "body" in others:
        raise ConfigError("encoded: the frame has a column body, which would be made: drop or rename it before")
    row = functions.struct(
        *[functions.col(f"`{field.name}`").cast(field.dataType).alias(field.name) for field in wanted.fields]
    )
    if codec is None:
        body = functions.to_json(row).cast("binary")
    else:
        write = _writer(format, _definition(format, schema), message)
        body = functions.arrow_udf(write, BinaryType())(row)
    return frame.select(*[functions.col(f"`{name}`") for name in others], body.alias("body"))


def _require(value: str, known: tuple[str, ...], name: str) -> None:
    if value not in known:
        raise ConfigError(f"{name} is {value!r}: expected {', '.join(known)}")


def _require_castable(field: StructField, there: DataType) -> None:
    """Spark casts the fields within a column by place: what was named ``a`` would be ``b``."""
    wanted = field.dataType
    if isinstance(wanted, (StructType, ArrayType, MapType)) and wanted.simpleString() != there.simpleString():
        raise ConfigError(
            f"encoded: column {field.name!r} is {there.simpleString()}, the schema has {wanted.simpleString()}"
        )


def _json_type(schema: Schema) -> StructType:
    if isinstance(schema, Path):
        schema = schema.read_text()
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except PySparkException as error:
            raise ConfigError(f"schema of JSON is {schema!r:.200}: {' '.join(str(error).split())[:200]}") from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise ConfigError(f"schema of JSON is {type(schema).__name__}: expected columns, as 'id long, name string'")
    return schema


def _json_parsed(schema: Schema) -> tuple[StructType, Callable[[Any], Any]]:
    """The type, and what makes ``struct<value, reason>`` of a column of bodies."""
    wanted = _json_type(schema)
    raw = StructType([StructField("value", wanted), StructField(_SPARKS_RAW, StringType())])
    alone = ArrayType(StructType([StructField(_SPARKS_RAW, StringType())]))

    def parsed(body: Any) -> Any:
        # Spark stops behind the first document. What follows it breaks either the object or the list around it.
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _SPARKS_RAW, "allowSingleQuotes": "false"}
        text = body.cast("string")
        field = functions.concat(functions.lit('{"value":'), text, functions.lit("}"))
        listed = functions.concat(functions.lit("["), text, functions.lit("]"))
        found = functions.from_json(field, raw, options)
        # The first counts fast, and knows no NaN.
        is_one = (functions.json_array_length(listed) == 1) | (
            functions.size(functions.from_json(listed, alone, options)) == 1
        )
        is_good = found["value"].isNotNull() & found[_SPARKS_RAW].isNull() & functions.is_valid_utf8(text) & is_one
        is_bad = body.isNotNull() & ~functions.coalesce(is_good, functions.lit(False))
        return functions.struct(
            functions.when(~is_bad, found["value"]).alias("value"),
            functions.when(is_bad, functions.lit("the body is no JSON of the schema")).alias("reason"),
        )

    return wanted, parsed


def _parsed_in_python(format: str, schema: Schema, message: str) -> tuple[StructType, Callable[[Any], Any]]:
    definition = _definition(format, schema)
    wanted = _codec(format, definition, message).type
    answer = StructType([StructField("value", wanted), StructField("reason", StringType())])
    read = _reader(format, definition, message, answer)
    return wanted, lambda body: functions.arrow_udf(read, answer)(body)


def _definition(format: str, schema: Schema) -> str | bytes:
    if isinstance(schema, Path):
        return schema.read_bytes() if format == "protobuf" else schema.read_text()
    if format == "avro" and isinstance(schema, str):
        return schema
    if format == "protobuf" and isinstance(schema, bytes):
        return schema
    expected = "JSON in a text" if format == "avro" else "a descriptor set in bytes"
    raise ConfigError(f"schema of {format} is {type(schema).__name__}: expected {expected}, or a Path")


@functools.lru_cache(maxsize=64)
def _codec(format: str, definition: Any, message: str) -> Codec:
    """In the driver and, once for many batches, in each worker."""
    if format == "avro":
        from .avro import Avro

        return Avro(definition)
    from .protobuf import Protobuf

    return Protobuf(definition, message)


def _reader(format: str, definition: str | bytes, message: str, answer: StructType) -> Callable[[pa.Array], pa.Array]:
    kind = to_arrow_type(answer, timezone="UTC")

    def read(bodies: pa.Array) -> pa.Array:
        codec = _codec(format, definition, message)
        values: list[Any] = []
        reasons: list[str | None] = []
        for body in bodies:
            value, reason = None, None
            if body.is_valid:
                try:
                    value = codec.read(body.as_py())
                except Exception as error:  # noqa: BLE001  a body is anything, and libraries raise what they like
                    reason = f"the body is no {format} of the schema: {_cause(error)}"
            values.append(value)
            reasons.append(reason)
        return _as_struct(values, reasons, kind)

    return read


def _as_struct(values: list[Any], reasons: list[str | None], kind: Any) -> pa.Array:
    """Of ``kind``; rows whose numbers are too large for it are bad ones."""
    of = kind.field("value").type
    try:
        made = pa.array(values, of)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        for place, value in enumerate(values):
            try:
                pa.array([value], of)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                values[place], reasons[place] = None, f"the body has a value out of its type's range: {_cause(error)}"
        made = pa.array(values, of)
    return pa.StructArray.from_arrays([made, pa.array(reasons, pa.string())], fields=list(kind))


def _writer(format: str, definition: str | bytes, message: str) -> Callable[[pa.Array], pa.Array]:
    def write(rows: pa.Array) -> pa.Array:
        codec = _codec(format, definition, message)
        made: list[bytes] = []
        for row in rows.to_pylist(maps_as_pydicts="strict"):
            try:
                made.append(codec.write(row))
            except Exception as error:  # noqa: BLE001  values are anything, and libraries raise what they like
                raise InvalidArgument(f"a row does not fit the {format} schema: {_cause(error)}") from None
        return pa.array(made, pa.binary())

    return write


def _cause(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:_CAUSE_CHARACTERS_MAX]
