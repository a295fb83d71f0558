"""Work that the driver does itself, in place of Spark's tasks: what a short session reads.

Spark has a Python process list a source, one plan it, and one for each core read it, and each loads the kernels:
seconds of the processor for some megabytes that the driver, which has the kernels, reads in a moment. The readers are
the same; Spark gets what they yield as a table of Arrow, and goes on as it always does.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from ...columns.schema import as_struct, columns
from ...spark.sessions import reads_here

_LOADED = ("penstock.pipeline.stores.scan.messages", "penstock.pipeline.columns.part_kernels", "pandas")
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
BYTES_MAX = 128 << 20
"""Of rows that go through the driver's memory: compressed bodies are larger than their log."""


def frame_here(spark: Any, batches: Iterable[pa.RecordBatch], schema: Any, bytes_max: int | None = None) -> Any:
    """A frame of these batches in ``schema``, a ``StructType`` or words; None if they have more than ``bytes_max``."""
    from pyspark.sql.pandas.types import to_arrow_schema

    struct = as_struct(columns(schema)) if isinstance(schema, str) else schema
    wanted = to_arrow_schema(struct, timezone="UTC")
    kept: list[pa.RecordBatch] = []
    total = 0
    for batch in batches:
        if not batch.num_rows:  # behind an empty one Spark 4.3 reads no further
            continue
        kept.append(batch.select(wanted.names).cast(wanted))
        total += kept[-1].nbytes
        if bytes_max is not None and total > bytes_max:
            return None
    table = pa.Table.from_batches(kept or [pa.RecordBatch.from_pylist([], wanted)])  # columns have a chunk at least
    return spark.createDataFrame(table, struct)


def rows_here(spark: Any, rows: Sequence[Sequence[Any]], schema: str) -> Any:
    """A frame of rows that the driver has.

    Of a list of Python's rows Spark makes a frame by a daemon and workers of their own, which load the kernels, too.
    """
    return frame_here(spark, as_batches(rows, schema), schema)


def as_batches(rows: Sequence[Sequence[Any]], schema: str) -> list[pa.RecordBatch]:
    """Some rows, with the names of ``schema``, for :func:`frame_here`."""
    names = list(columns(schema))
    return [pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in rows])] if rows else []


def store_here(spark: Any, options: Mapping[str, str], schema: str) -> Any:
    """What ``penstock_store`` reads with these options; None if that is much."""
    from ...stores.source import StoreDataSource

    source = StoreDataSource(options)
    struct = as_struct(columns(schema)) if schema else source.schema()
    reader = source.reader(struct)
    read = (batch for partition in reader.partitions() for batch in reader.read(partition))
    return frame_here(spark, read, struct, BYTES_MAX)


def load_ahead() -> None:
    """Begin to import what reading stores and handing rows to Spark takes: Java needs as long to start."""
    threading.Thread(target=_load, name="load-ahead").start()


def _load() -> None:
    for name in _LOADED:
        importlib.import_module(name)


def mapped(spark: Any, frame: Any, work: Work, schema: str) -> Any:
    """``frame.mapInArrow(work, schema)``; in a short session the driver does the work, before this returns."""
    if not reads_here(spark):
        return frame.mapInArrow(work, schema)
    return frame_here(spark, work(iter(frame.toArrow().to_batches())), schema)
