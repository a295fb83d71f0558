"""Rows that cannot be messages, for the option ``deadLetterTopic``: each becomes a message of that topic.

| Part of the dead letter | Is |
|---|---|
| body | the row's; its first 64 KiB if it is too long, the reason if there is none |
| property ``REFUSED_REASON`` | why it was refused |
| property ``REFUSED_BODY_BYTES`` | the length of a body that was cut |
| property ``DLQ_ORIGIN_TOPIC`` | the topic that it was for, if there is one |
| tags, keys, sharding key, properties | the row's, without what no message may have |

The same rows are refused whenever the batch comes again, unless meanwhile a topic that a column names is made, or a
time that was too far ahead has come near enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from penstock.formats.record.layout import BODY_BYTES_MAX
from penstock.formats.record.properties import (
    DLQ_ORIGIN_TOPIC,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    RECORD_CRC,
    SHARDING_KEY,
    UNKEPT,
)
from penstock.proto.errors import InvalidArgument, MessageTooLarge
from penstock.proto.names import PRODUCER_PROPERTY

REFUSALS = (InvalidArgument, MessageTooLarge)
REASON, BODY_BYTES = "REFUSED_REASON", "REFUSED_BODY_BYTES"
CUT_BYTES = 64 << 10
TEXT_CHARACTERS_MAX = 1000
"""Of each text of a dead letter, and so many characters of all of them eight times."""
_LETTERS = pa.schema(
    [
        ("body", pa.binary()),
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
    ]
)


def without_refused(
    batch: pa.RecordBatch, encode: Callable[[pa.RecordBatch], object], topic: str
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The rows that ``encode`` takes, and dead letters of those for which it raises, both in order.

    ``topic``: which these rows are for, where no column says so.
    """
    refused = dict(_refused(batch, encode, 0))
    kept = batch.take(pa.array([row for row in range(batch.num_rows) if row not in refused], pa.int64()))
    letters = [_letter(batch.slice(row, 1).to_pylist()[0], reason, topic) for row, reason in refused.items()]
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


def _letter(row: dict[str, Any], reason: str, topic: str) -> dict[str, Any]:
    body = row.get("body")
    body = body.encode() if isinstance(body, str) else body
    keys = row.get("keys")
    texts = {
        REASON: reason,
        DLQ_ORIGIN_TOPIC: topic or row.get("topic") or "",
        SHARDING_KEY: row.get("shardingKey") or "",
        "": row.get("tags") or "",
    }
    if body is not None and len(body) > BODY_BYTES_MAX:
        texts[BODY_BYTES] = str(len(body))
    room = 8 * TEXT_CHARACTERS_MAX
    for name, value in row.get("properties") or ():
        room -= len(name) + len(value or "")
        if name and value and room > 0 and name not in (PRODUCER_PROPERTY, RECORD_CRC, *UNKEPT):
            texts.setdefault(_plain(name), value)
    texts = {name: _plain(value)[:TEXT_CHARACTERS_MAX] for name, value in texts.items() if value}
    return {
        "body": (body or texts[REASON].encode())[: BODY_BYTES_MAX if BODY_BYTES not in texts else CUT_BYTES],
        "tags": texts.pop("", None),
        "keys": _plain(" ".join(each for each in keys if each) if isinstance(keys, list) else keys or "")[
            :TEXT_CHARACTERS_MAX
        ],
        "properties": list(texts.items()),
    }


def _plain(text: str) -> str:
    """``text`` without the signs that separate properties."""
    return text.replace(NAME_VALUE_SEPARATOR, " ").replace(PROPERTY_SEPARATOR, " ")
