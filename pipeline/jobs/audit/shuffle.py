"""Pieces of a history as rows that Spark brings together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.judge.history import DamagedHistory
from penstock.judge.pieces import Column, Group, grouped, split
from penstock.proto.errors import Corrupt

_PIECE = pa.schema(
    [
        ("part", pa.int32()),
        ("kind", pa.int32()),
        ("a", pa.int64()),
        ("b", pa.int64()),
        ("number", pa.int32()),  # of the file
        ("first", pa.int64()),  # row of the file that the block began with
        ("rows", pa.int64()),
        ("data", pa.binary()),
    ]
)
_SPARK_TYPES = {pa.int32(): "int", pa.int64(): "bigint", pa.binary(): "binary"}
PIECE_SCHEMA = ", ".join(f"{field.name} {_SPARK_TYPES[field.type]}" for field in _PIECE)


def cut(events: Column, parts: int, number: int, first: int) -> pa.RecordBatch:
    """The pieces of one block of a file, as rows of Spark.

    Raises:
        Corrupt: a message's number is out of range.
    """
    try:
        rows = [{**piece._asdict(), "number": number, "first": first} for piece in split(events, parts)]
    except DamagedHistory as error:
        raise Corrupt(str(error)) from error
    return pa.RecordBatch.from_pylist(rows, _PIECE)


def groups(batches: Iterable[pa.RecordBatch]) -> Iterator[Group]:
    """The whole queues and stretches that a task's pieces make up; rows of a file stay in their order."""
    return grouped(piece for batch in batches for piece in _pieces(batch))


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, int, int, tuple[int, int], int, Any]]:
    plain = [batch.column(name).to_pylist() for name in ("kind", "a", "b", "number", "first", "rows")]
    for kind, a, b, number, first, count, data in zip(*plain, batch.column("data"), strict=True):
        yield kind, a, b, (number, first), count, data.as_buffer()
