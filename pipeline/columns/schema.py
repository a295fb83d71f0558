"""The columns of a message as a table, and what a user may ask of them.

One row per message. ``brokerName``, ``topic``, ``queueId`` and ``queueOffset`` are a row's identity. Times are UTC with
the millisecond resolution of the record, null where the record's number is no time of the years 1 to 9999. The body is
null where it cannot be decompressed and ``onCorrupt`` is not ``fail``. No other column but tags and keys is ever null,
and the schema of messages says so, unless ``onCorrupt=emit`` adds rows for damage, which have nulls anywhere. The
checkpoint of a stateful stream keeps what the schema says.

| Column | Type | Meaning |
|---|---|---|
| topic, brokerName | string | |
| queueId, queueOffset | int, long | |
| physicalOffset, size | long, int | position and length in the CommitLog |
| messageId | string | the producer's id (``UNIQ_KEY``), else the broker's offset id |
| tags | string | null without one |
| keys | array of string | null without one; split at blanks |
| body | binary | decompressed, unless ``decompress`` is off |
| properties | map of string to string, string, or absent | as the option ``properties`` says |
| bornTimestamp, storeTimestamp | timestamp | |
| bornHost, storeHost | string | ``1.2.3.4:5`` or ``[::1]:5`` |
| flag, sysFlag, reconsumeTimes | int | |
| bodyCrc, preparedTransactionOffset | long | in stores only |
| corrupt | string | in stores with ``onCorrupt=emit`` only: why these bytes are no message, else null |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from penstock.proto.errors import ConfigError
from penstock.runtime.nearest import hint


def columns(ddl: str) -> dict[str, str]:
    """The columns of a schema in Spark's words, ``name type`` with commas and blanks between: types by name."""
    return dict(column.split(" ") for column in ddl.split(", "))


MESSAGE_COLUMNS = columns(
    "topic string, brokerName string, queueId int, queueOffset bigint, physicalOffset bigint, size int, "
    "messageId string, tags string, keys array<string>, body binary, properties map<string,string>, "
    "bornTimestamp timestamp, storeTimestamp timestamp, bornHost string, storeHost string, flag int, sysFlag int, "
    "reconsumeTimes int"
)
STORE_COLUMNS = MESSAGE_COLUMNS | columns("bodyCrc bigint, preparedTransactionOffset bigint")
TIME_MS_MIN, TIME_MS_MAX = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which is what Python and SQL know."""
HIDDEN_COLUMNS = columns("tagsCode bigint, keyHashes array<int>")
"""In stores, where a schema asks for them: the hash of the tag, as consume queues hold it, and those of the message's
id and keys, as the index holds them."""
CORRUPT_COLUMN = {"corrupt": "string"}

NEVER_NULL = frozenset(STORE_COLUMNS) - {"tags", "keys", "body", "bornTimestamp", "storeTimestamp"}
"""Of a message; a row that stands for damage has nulls in any column."""

_JSON_TYPES: Mapping[str, Any] = {
    "int": "integer",
    "bigint": "long",
    "array<string>": {"type": "array", "elementType": "string", "containsNull": False},
    "array<int>": {"type": "array", "elementType": "integer", "containsNull": False},
    "array<bigint>": {"type": "array", "elementType": "long", "containsNull": False},
    "map<string,string>": {"type": "map", "keyType": "string", "valueType": "string", "valueContainsNull": False},
}
"""As Spark writes a schema down; other types have the same name there."""

PROPERTIES_TYPES = {"map": "map<string,string>", "raw": "string", "none": None}


def with_properties(columns: Mapping[str, str], form: str) -> dict[str, str]:
    """``columns`` with the type of ``properties`` that the option of that name asks for."""
    kind = PROPERTIES_TYPES[form]
    changed = {name: (kind or "") if name == "properties" else of for name, of in columns.items()}
    return {name: of for name, of in changed.items() if of}


def as_struct(columns: Mapping[str, str], never_null: Collection[str] = ()) -> Any:
    """The columns as Spark's ``StructType``. Java looks for nulls value by value, unless told that there are none."""
    from pyspark.sql.types import StructType

    fields = [
        {"name": name, "type": _JSON_TYPES.get(of, of), "nullable": name not in never_null, "metadata": {}}
        for name, of in columns.items()
    ]
    return StructType.fromJson({"fields": fields})


def check_schema(
    schema: Any,
    columns: Mapping[str, str],
    source: str,
    never_null: Collection[str],
    words: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Nothing, if ``schema`` (a ``StructType``) is a selection of ``columns`` with their types.

    ``words``: another system's names of columns, and what is the same here.
    Raises ConfigError: a column that is unknown, asked for twice, of another type, or not null where it may be: Java
    would take a null for some value.
    """
    seen: set[str] = set()
    for field in schema.fields:
        wanted = columns.get(field.name)
        if wanted is None:
            close = f": it is {words[field.name]} here" if field.name in words else hint(field.name, columns)
            raise ConfigError(f"{source}: no column {field.name!r}{close or '; there are ' + ', '.join(columns)}")
        given = field.dataType.simpleString()
        if given != wanted:
            raise ConfigError(f"{source}: column {field.name!r} is of type {wanted}, the schema says {given}")
        if field.name in seen:
            raise ConfigError(f"{source}: the schema names column {field.name!r} twice")
        seen.add(field.name)
        if not field.nullable and field.name not in never_null:
            raise ConfigError(f"{source}: column {field.name!r} may be null: leave NOT NULL out of the schema")
