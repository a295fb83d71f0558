"""Compares the logs of two copies of a store: blocks of 1 MiB over their common range, then the records that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ...columns.schema import as_struct, columns
from ...spark.arrow_types import arrow_schema
from ...stores.files import FileReader, open_file_system
from ...stores.model import Damage, Store
from ..framework.frames import EXAMPLES_MAX
from ..framework.reading import one_task_each
from ..framework.report import Report, Table

BLOCK_BYTES = 1 << 20
RUN_BLOCKS = 8
"""Neighbouring blocks that differ, which one task compares record by record."""
_BEFORE_BYTES = 8 << 20
"""In front of a block: a record that begins there may reach into it. Brokers take 4 MiB by default."""
_DIFFERING = columns("physicalOffset bigint, topic string, queueId int, queueOffset bigint, isRecord boolean")


def compare_logs(spark: Any, report: Report, left: Store, right: Store) -> None:
    """Compares two logs where both have bytes. One that ends earlier lags, which is told, and no problem."""
    start = max(left.files[0].start, right.files[0].start)
    end = min(left.end, right.end)
    report.figures |= {"log_end": left.end, "replica_end": right.end}
    if left.end != right.end:
        behind = "replica_lag_bytes" if right.end < left.end else "replica_ahead_bytes"
        report.figures[behind] = abs(left.end - right.end)
    if start >= end:
        report.problem(f"the logs have no byte in common: {left.root} ends at {left.end}, {right.root} at {right.end}")
        return
    blocks = [(at, min(at + 64 * BLOCK_BYTES, end)) for at in range(start, end, 64 * BLOCK_BYTES)]

    def compare(block: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        found = list(differing_blocks(left, right, *block))
        yield pa.RecordBatch.from_pydict({"block": pa.array(found, pa.int64())})

    differing = sorted(row["block"] for row in one_task_each(spark, blocks, compare, "block bigint").collect())
    report.figures |= {"compared_bytes": end - start, "differing_blocks": len(differing)}
    if differing:
        _name_records(spark, report, (left, right), runs_of(differing, end))


def _name_records(spark: Any, report: Report, stores: tuple[Store, Store], runs: list[tuple[int, int]]) -> None:
    """The records that differ: all are counted, the first ones named."""

    def compare(run: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        yield differing_records(*stores, *run)

    names = f"{stores[0].root} and {stores[1].root}"
    # A record that reaches from one run into another is found by both.
    found = one_task_each(spark, runs, compare, as_struct(_DIFFERING)).dropDuplicates(["physicalOffset"]).persist()
    try:
        counts = {row["isRecord"]: row["count"] for row in found.groupBy("isRecord").count().collect()}
        rows = found.orderBy("physicalOffset").limit(EXAMPLES_MAX).collect()
    finally:
        found.unpersist()
    report.figures["differing_records"] = counts.get(True, 0)
    for row in rows:
        if row["isRecord"]:
            where = {"topic": row["topic"], "queue": row["queueId"], "queue_offset": row["queueOffset"]}
            report.problem(f"{names} differ in a record", offset=row["physicalOffset"], **where)
        else:
            text = f"{names} differ from {row['physicalOffset']} on, where neither has a record"
            report.problem(text, offset=row["physicalOffset"])
    hidden = sum(counts.values()) - len(rows)
    if hidden:
        report.problem(f"{hidden} more records differ", count=hidden)
    shown = [[row[name] for name in ("physicalOffset", "topic", "queueId", "queueOffset")] for row in rows]
    report.tables.append(Table("Records that differ", ["position", "topic", "queue", "queue offset"], shown))


def runs_of(blocks: list[int], end: int) -> list[tuple[int, int]]:
    """Neighbouring ones of the sorted blocks together, at most :data:`RUN_BLOCKS`: ``[start, end)`` of each run."""
    runs: list[tuple[int, int]] = []
    for block in blocks:
        if runs and runs[-1][1] == block and block - runs[-1][0] < RUN_BLOCKS * BLOCK_BYTES:
            runs[-1] = runs[-1][0], min(block + BLOCK_BYTES, end)
        else:
            runs.append((block, min(block + BLOCK_BYTES, end)))
    return runs


def differing_records(left: Store, right: Store, start: int, end: int) -> pa.RecordBatch:
    """The records of either log with bytes in ``[start, end)`` that the other has not, each once.

    Stretches of bytes that differ and belong to no record of either log are one more row, with the first such byte.
    """
    unequal = np.flatnonzero(read_log(left, start, end) != read_log(right, start, end)) + start
    found: dict[int, tuple[str | None, int | None, int | None, bool]] = {}
    outside = np.ones(len(unequal), np.bool_)
    for store in (left, right):
        for positions, sizes, names, queues, offsets in _records(store, max(0, start - _BEFORE_BYTES), end):
            firsts, lasts = (np.searchsorted(unequal, at) for at in (positions, positions + sizes))
            for index in np.flatnonzero(lasts > firsts).tolist():
                outside[firsts[index] : lasts[index]] = False
                row = names[index].as_py(), int(queues[index]), int(offsets[index]), True
                found.setdefault(int(positions[index]), row)
    if outside.any():
        found.setdefault(int(unequal[outside][0]), (None, None, None, False))
    rows = [dict(zip(_DIFFERING, (at, *found[at]), strict=True)) for at in sorted(found)]
    return pa.RecordBatch.from_pylist(rows, arrow_schema(_DIFFERING))


def _records(store: Store, start: int, end: int) -> Iterator[tuple[Any, Any, pa.Array, Any, Any]]:
    """Positions, sizes, topics, queues and queue offsets of the records that begin in ``[start, end)`` of a log."""
    from ...columns.columns import text_column
    from ...stores.scan.scanning import FileScan

    file_system, _ = open_file_system(store.root)
    for file in store.files:
        first, last = max(start - file.start, 0), min(end - file.start, file.end)
        if first >= last:
            continue
        with FileReader(file_system, file.path) as reader:
            for piece in FileScan(reader, file.start, file.end, check_crc=False).read(first, last):
                if not isinstance(piece, Damage):
                    buffer, rows = piece
                    starts, lengths = (np.ascontiguousarray(rows[name]) for name in ("topic_position", "topic_size"))
                    names = text_column(buffer, starts, lengths, pa.string())
                    yield rows["physical_offset"], rows["size"], names, rows["queue_id"], rows["queue_offset"]


def differing_blocks(left: Store, right: Store, start: int, end: int) -> Iterator[int]:
    """Log positions of the blocks in ``[start, end)`` that are not the same bytes in both logs."""
    for at in range(start, end, BLOCK_BYTES):
        stop = min(at + BLOCK_BYTES, end)
        if not np.array_equal(read_log(left, at, stop), read_log(right, at, stop)):
            yield at


def read_log(store: Store, start: int, end: int) -> Any:
    """Bytes ``[start, end)`` of a log; zeros where a file is missing or short."""
    out = np.zeros(end - start, np.uint8)
    file_system, _ = open_file_system(store.root)
    for file in store.files:
        first, last = max(start, file.start), min(end, file.start + file.size)
        if first < last:
            with FileReader(file_system, file.path) as reader:
                data = reader.read(first - file.start, last - first)
            out[first - start : first - start + len(data)] = data
    return out
