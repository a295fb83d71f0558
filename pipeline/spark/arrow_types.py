"""The Arrow types of our columns, for where no session tells them."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

_TYPES = {
    "string": pa.string(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<string>": pa.list_(pa.field("element", pa.string())),
    "array<int>": pa.list_(pa.field("element", pa.int32())),
    "map<string,string>": pa.map_(pa.string(), pa.field("value", pa.string())),
}


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """What Spark's ``to_arrow_schema`` makes of a user's schema with such columns; a test compares the two."""
    return pa.schema([pa.field(name, _TYPES[of]) for name, of in columns.items()])
