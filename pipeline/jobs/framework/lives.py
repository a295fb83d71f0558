"""The lives of topics, as Spark's frames: what lies between two deletions of a topic (:mod:`..stores.deletions`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from penstock.proto.errors import StorageError

from ...spark.arrow_types import arrow_schema
from ...stores.derived import QueueFile, batch_of
from ...stores.model import Store
from ...stores.scan.planning import Split
from .reading import one_task_each

log = logging.getLogger(__name__)

Deletions = Mapping[str, Sequence[int]]
"""Per topic the log positions of the records that delete it, ascending."""
_DELETION = {"topic": "string", "position": "bigint"}
_PART = _DELETION | {
    "first": "bigint",
    "last": "bigint",
    "start": "bigint",
    "end": "bigint",
    "isFirst": "boolean",
    "problem": "string",
}
_DELETION_SCHEMA, _PART_SCHEMA = arrow_schema(_DELETION), arrow_schema(_PART)


def _ddl(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def find_deletions(spark: Any, store: Store) -> dict[str, list[int]]:
    """The deletions in the log: by the state topic's queue as far as that is whole, the rest scanned.

    Raises:
        StorageError: a log file cannot be read.
    """
    from ...stores.deletions import StatePart, list_state_files, plan_scans, unread_ranges

    found: list[tuple[str, int]] = []
    parts: list[StatePart] = []
    files = list_state_files(store)
    if files and store.files:
        rows = one_task_each(spark, files, lambda file: _read_file(store, file), _ddl(_PART)).collect()
        problems = [row["problem"] for row in rows if row["problem"] is not None]
        if problems:
            log.warning("state queue not believed, the log is scanned store=%s problem=%s", store.root, problems[0])
        else:
            parts = [
                StatePart(row["first"], row["last"], row["start"], row["end"], row["isFirst"], ())
                for row in rows
                if row["first"] is not None
            ]
            found = [(row["topic"], row["position"]) for row in rows if row["topic"] is not None]
    scans = plan_scans(store, unread_ranges(store, parts)) if store.files else []
    if scans:
        rows = one_task_each(spark, scans, _scan, _ddl(_DELETION)).collect()
        found += [(row["topic"], row["position"]) for row in rows]
    deletions: dict[str, list[int]] = {}
    for topic, position in sorted(found):
        deletions.setdefault(topic, []).append(position)
    return deletions


def _read_file(store: Store, file: QueueFile) -> Iterator[pa.RecordBatch]:
    from ...stores.deletions import read_state_file

    nothing: dict[str, Any] = dict.fromkeys(_PART)
    try:
        part = read_state_file(store, file)
    except StorageError as error:
        yield batch_of(nothing | {"problem": str(error)}, 1, _PART_SCHEMA)
        return
    if part is None:
        return
    sums = {"first": part.first, "last": part.last, "start": part.start, "end": part.end, "isFirst": part.is_first}
    yield batch_of(nothing | sums, 1, _PART_SCHEMA)
    for deletion in part.deletions:
        yield batch_of(nothing | deletion._asdict(), 1, _PART_SCHEMA)


def _scan(split: Split) -> Iterator[pa.RecordBatch]:
    from ...stores.deletions import scan_deletions

    for deletion in scan_deletions(split):
        yield batch_of(deletion._asdict(), 1, _DELETION_SCHEMA)


def with_lives(spark: Any, parts: Any, deletions: Deletions) -> Any:
    """Rows of the view ``parts`` with two columns more.

    ``life``: how many deletions of the topic lie in front of it; ``isLast``: none lies behind it.
    """
    from pyspark.sql import functions as f

    if not deletions:
        return parts.withColumns({"life": f.lit(0), "isLast": f.lit(True)})
    rows = [(topic, list(positions)) for topic, positions in deletions.items()]
    known = spark.createDataFrame(rows, "topic string, deletedAt array<bigint>")
    joined = parts.join(f.broadcast(known), "topic", "left")
    before = f.size(f.filter("deletedAt", lambda position: position < f.col("physicalOffset")))
    life = f.when(f.col("deletedAt").isNull(), 0).otherwise(before)
    is_last = f.col("deletedAt").isNull() | (before == f.size("deletedAt"))
    return joined.withColumns({"life": life, "isLast": is_last}).drop("deletedAt")
