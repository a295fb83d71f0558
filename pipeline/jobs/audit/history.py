"""Histories of drills and load tests, as frames: a row per operation of a client, or pieces that Spark brings together.

:mod:`penstock.judge.history` has the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.judge import conditions
from penstock.judge.conditions import Conditions
from penstock.judge.history import EVENT, DamagedHistory, HistoryFile, history_files, list_files, read_events
from penstock.judge.pieces import Column, Group, grouped, split
from penstock.proto.errors import ConfigError, Corrupt

from ...columns.schema import columns
from ...spark.arrow_types import arrow_schema
from ...spark.sessions import reads_here
from ..framework.here import Work, as_batches, frame_here, rows_here

TASK_ROWS = 500_000
FOLDERS_NAMED_MAX = 5
_WIDE = {"stream", "crc"}
SCHEMA = "line bigint, " + ", ".join(
    f"{name} {'bigint' if EVENT[name].itemsize == 8 or name in _WIDE else 'int'}" for name in EVENT.names or ()
)
PIECE_SCHEMA = "part int, kind int, a bigint, b bigint, number int, first bigint, rows bigint, data binary"
"""``number``: of the file; ``first``: the row of it that the block began with; the rest: see ``Piece``."""
_PIECE = arrow_schema(columns(PIECE_SCHEMA))


def list_history(folder: Path) -> list[HistoryFile]:
    """The files of one drill.

    Raises ConfigError: no history is there; drills in the folders below are named, each has to be judged by itself.
    Raises Corrupt: one is no history, or of another drill.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory: name the one that holds *.history")
    try:
        found = list_files(history_files(folder))
    except DamagedHistory as error:
        raise Corrupt(str(error)) from error
    if not found:
        below = sorted({str(path.parent) for path in folder.rglob("*.history")})
        more = f" and {len(below) - FOLDERS_NAMED_MAX} more" if len(below) > FOLDERS_NAMED_MAX else ""
        hint = f"; name one of {', '.join(below[:FOLDERS_NAMED_MAX])}{more}" if below else ""
        raise ConfigError(f"{folder}: holds no file *.history{hint}")
    return found


def load_conditions(folder: Path) -> Conditions:
    """The conditions beside the history, or those of a run without faults. Raises Corrupt: they are something else."""
    try:
        return conditions.load_conditions(folder) if has_conditions(folder) else Conditions()
    except DamagedHistory as error:
        raise Corrupt(str(error)) from error


def has_conditions(folder: Path) -> bool:
    """True if the history is a drill's, which has its conditions beside it."""
    return (folder / conditions.FILE).exists()


def each_block(spark: Any, files: list[HistoryFile], work: Work, schema: str) -> Any:
    """A frame of what ``work`` makes of rows for stretches of the files, each of which a task reads at once."""
    blocks = [
        (number, file.path, file.start, first, min(TASK_ROWS, file.rows - first))
        for number, file in enumerate(files)
        for first in range(0, file.rows, TASK_ROWS)
    ]
    columns = "number int, path string, start bigint, first bigint, rows bigint"
    if reads_here(spark):
        return frame_here(spark, work(iter(as_batches(blocks, columns))), schema)
    return rows_here(spark, blocks, columns).repartition(max(len(blocks), 1)).mapInArrow(work, schema)


def read_history(spark: Any, files: list[HistoryFile]) -> Any:
    """All rows, with ``line``: a number that keeps the order of each file's rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                yield read_rows(task["path"], task["start"], task["first"], task["rows"], task["number"])

    return each_block(spark, files, read, SCHEMA)


def read_rows(path: str, start: int, first: int, rows: int, number: int) -> pa.RecordBatch:
    """``rows`` rows of a file from row ``first`` on, as Arrow."""
    events = read_events(path, start, first, rows)
    lines = (np.int64(number) << 40) + first + np.arange(len(events), dtype=np.int64)
    columns: dict[str, pa.Array] = {"line": pa.array(lines)}
    for name in EVENT.names or ():
        wide = EVENT[name].itemsize == 8 or name in _WIDE
        columns[name] = pa.array(events[name].astype(np.int64 if wide else np.int32))
    return pa.RecordBatch.from_pydict(columns)


def cut(events: Column, parts: int, number: int, first: int) -> pa.RecordBatch:
    """The pieces of one block of a file, as rows of Spark. Raises Corrupt: a message's number is out of range."""
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
