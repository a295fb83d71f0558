"""The lives of topics, as Spark's frames: what lies between two deletions of a topic (:mod:`..stores.deletions`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.proto.names import STATE_TOPIC

from ...stores.deletions import TAG, deleted_topic
from ...stores.model import Store
from .here import rows_here
from .reading import has_no_entry, read_stores

Deletions = Mapping[str, Sequence[int]]
"""Per topic the log positions of the records that delete it, ascending."""
_STATE_RECORD = "queueId int, physicalOffset bigint, sysFlag int, tags string, body binary"


def find_deletions(spark: Any, store: Store) -> dict[str, list[int]]:
    """The deletions in the log, whose damage is passed over.

    The state topic's queue says where they are, as far as the queues account for the log; the rest is scanned.
    Raises StorageError: a log file cannot be read.
    """
    from pyspark.sql import functions as f

    deletions: dict[str, list[int]] = {}
    if not store.files or store.end <= store.files[0].start:
        return deletions
    options = {"topics": (STATE_TOPIC,), "endPhysicalOffset": store.end, "upTo": "end", "onCorrupt": "skip"}
    frame = read_stores(spark, (store.root,), _STATE_RECORD, verify="none", **options)
    deletes = (f.col("queueId") == 0) & (f.col("tags") == TAG) & ~has_no_entry(f.col("sysFlag"))
    for row in frame.where(deletes).orderBy("physicalOffset").collect():
        topic = deleted_topic(row["body"], row["physicalOffset"])
        if topic is not None:
            deletions.setdefault(topic, []).append(row["physicalOffset"])
    return deletions


def with_lives(spark: Any, parts: Any, deletions: Deletions) -> Any:
    """Rows of the view ``parts`` with two columns more.

    ``life``: how many deletions of the topic lie in front of it; ``isLast``: none lies behind it.
    """
    from pyspark.sql import functions as f

    if not deletions:
        return parts.withColumns({"life": f.lit(0), "isLast": f.lit(True)})
    rows = [(topic, list(positions)) for topic, positions in deletions.items()]
    known = rows_here(spark, rows, "topic string, deletedAt array<bigint>")
    joined = parts.join(f.broadcast(known), "topic", "left")
    before = f.size(f.filter("deletedAt", lambda position: position < f.col("physicalOffset")))
    life = f.when(f.col("deletedAt").isNull(), 0).otherwise(before)
    is_last = f.col("deletedAt").isNull() | (before == f.size("deletedAt"))
    return joined.withColumns({"life": life, "isLast": is_last}).drop("deletedAt")
