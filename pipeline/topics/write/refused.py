"""Rows that cannot be messages, for the option ``deadLetterTopic``: each becomes a message of that topic.

| Part of the dead letter | Is |
|---|---|
| body | the row's; its first 64 KiB if it is too long, the reason if there is none |
| property ``REFUSED_REASON`` | why it was refused |
| property ``REFUSED_BODY_BYTES`` | the length of a body that was cut |
| property ``DLQ_ORIGIN_TOPIC`` | the topic that it was for, if there is one |
| tags, keys, sharding key, properties | the row's, without what no message may have |

The same rows are refused whenever the batch comes again, unless meanwhile a topic that a column names is made, or a
time that was too far ahead has come near enough. A topic does not exist as far as the nameservers know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.formats.record.properties import (
    DLQ_ORIGIN_TOPIC,
    NAME_VALUE_SEPARATOR,
    NUL,
    PROPERTY_SEPARATOR,
    RECORD_CRC,
    SHARDING_KEY,
    UNKEPT,
)
from penstock.proto.errors import InvalidArgument, MessageTooLarge
from penstock.proto.names import PRODUCER_PROPERTY

from ...columns.schema import columns
from ...spark.arrow_types import arrow_schema

REFUSALS = (InvalidArgument, MessageTooLarge)
REASON, BODY_BYTES = "REFUSED_REASON", "REFUSED_BODY_BYTES"
CUT_BYTES = 64 << 10
TEXT_BYTES_MAX = 1000
"""Of each text of a dead letter, and so many bytes of all properties eight times: far below what a message may have."""
_TAKEN = ("body", "topic", "tags", "keys", "shardingKey", "properties")
_LETTERS = arrow_schema(columns("body binary, tags string, keys string, properties map<string,string>"))


def without_refused(
    batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], object], topic: str
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows that ``encode`` takes, and dead letters of those for which it raises, both in order.

    ``topic``: which these rows are for, where no column says so.
    """
    refused = dict(_refused(batch, encode, 0))
    kept = batch.take(pa.array([row for row in range(batch.num_rows) if row not in refused], pa.int64()))
    letters = [_letter(_row(batch.slice(row, 1)), reason, topic) for row, reason in refused.items()]
    return kept, pa.RecordBatch.from_pylist(letters, _LETTERS)


def _refused(
    batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], object], first: int
) -> Iterator[tuple[int, str]]:
    """The numbers of the refused rows, each with its reason: by halves, as few are refused."""
    try:
        encode(batch)
    except REFUSALS as error:
        if batch.num_rows == 1:
            yield first, error.message.removeprefix("row 0 of the batch: ")
            return
        half = batch.num_rows // 2
        yield from _refused(batch.slice(0, half), encode, first)
        yield from _refused(batch.slice(half), encode, first + half)


def _row(batch: pa.RecordBatch) -> dict[str, Any]:
    """What a dead letter has of its row: bytes, as Spark does not see to it that texts are UTF-8."""
    names = [name for name in _TAKEN if name in batch.schema.names]
    columns = [batch.column(name) for name in names]
    return {name: each.cast(_as_bytes(each.type)).to_pylist()[0] for name, each in zip(names, columns, strict=True)}


def _as_bytes(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_map(kind):
        return pa.map_(pa.binary(), pa.binary())
    return pa.list_(pa.binary()) if pa.types.is_list(kind) else pa.binary()


def _letter(row: dict[str, Any], reason: str, topic: str) -> dict[str, Any]:
    body: bytes = row.get("body") or b""
    keys = row.get("keys")
    given = {DLQ_ORIGIN_TOPIC: topic.encode() or row.get("topic"), SHARDING_KEY: row.get("shardingKey")}
    texts = {REASON: _text(reason.encode())} | {name: _text(value) for name, value in given.items() if value}
    is_cut = len(body) > BODY_BYTES_MAX
    if is_cut:
        texts[BODY_BYTES] = str(len(body))
    room = 8 * TEXT_BYTES_MAX
    for name, value in ((_text(name), _text(value or b"")) for name, value in row.get("properties") or ()):
        room -= len(f"{name}={value};".encode())
        if name and value and room > 0 and name not in (PRODUCER_PROPERTY, RECORD_CRC, *UNKEPT):
            texts.setdefault(name, value)
    return {
        "body": (body or reason.encode())[: CUT_BYTES if is_cut else BODY_BYTES_MAX],
        "tags": _text(row.get("tags") or b""),
        "keys": _text(b" ".join(each for each in keys if each) if isinstance(keys, list) else keys or b""),
        "properties": list(texts.items()),
    }


def _text(value: bytes) -> str:
    """The first bytes of ``value``, without the signs that no property has; U+FFFD for what is no UTF-8."""
    text = value.decode(errors="replace")
    for sign in (NUL, NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR):
        text = text.replace(sign, " ")
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
