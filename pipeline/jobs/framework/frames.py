"""The stores that are verified, as Spark's frames."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ...columns.schema import as_struct
from ...spark.arrow_types import arrow_schema
from ...stores.derived import QUEUE_PART_COLUMNS, DerivedSplit, find_queue_files, pack_queues
from ...stores.model import Store
from ...stores.options import PART_OFFSETS
from .lives import find_deletions, with_lives
from .reading import one_task_each, read_stores
from .report import Report

EXAMPLES_MAX = 100
"""Of each kind of difference, and store."""


class Frames:
    """The stores, summed up by part of a queue, and message by message for what differs.

    The log of an open store is read up to where it ended when the stores were listed, whatever follows meanwhile.
    """

    def __init__(self, spark: Any, stores: list[Store], up_to: str) -> None:
        self.spark = spark
        self._up_to = up_to
        self.stores = {store.broker_name: store for store in stores}
        self.deletions = {store.broker_name: find_deletions(spark, store) for store in stores}

    def log(self, view: str, schema: str, **more: object) -> Any:
        """A view of all logs; of parts, with their lives."""
        frames = (self.one(broker, view, schema, **more) for broker in self.stores)
        return functools.reduce(lambda together, frame: together.unionByName(frame), frames)

    def queue_parts(self, report: Report) -> Any:
        """Queues of all stores by their parts, with problems: :func:`prove_queue_files`. Notes impossible names."""
        splits: list[tuple[DerivedSplit, bool, dict[str, int]]] = []
        for store in self.stores.values():
            files, wrong = find_queue_files(store.root)
            for text in wrong:
                report.problem(text, broker=store.broker_name)
            deleted = self.last_deletions(store.broker_name)
            splits += [(split, store.is_open, deleted) for split in pack_queues(store, files)]
        columns = QUEUE_PART_COLUMNS | {"problem": "string"}
        schema = arrow_schema(columns)

        def prove(item: tuple[DerivedSplit, bool, dict[str, int]]) -> Iterator[pa.RecordBatch]:
            from ...stores.parts import prove_queue_files  # its kernels take a moment, which the driver can save

            split, is_open, deleted = item
            return prove_queue_files(split, schema, PART_OFFSETS, is_open=is_open, deleted=deleted)

        return one_task_each(self.spark, splits, prove, as_struct(columns))

    def last_deletions(self, broker: str) -> dict[str, int]:
        """Per topic the log position of the record that deletes it last."""
        return {topic: positions[-1] for topic, positions in self.deletions[broker].items()}

    def one(self, broker: str, view: str, schema: str = "", **more: object) -> Any:
        """A view of one store; of parts, with their lives. What its queues say counts for nothing."""
        store = self.stores[broker]
        more = {"brokerName": broker, "upTo": self._up_to, "useConsumeQueue": "false"} | more
        if store.is_open:
            more = {"endPhysicalOffset": store.end} | more
        found = read_stores(self.spark, (store.root,), schema, view=view, **more)
        return with_lives(self.spark, found, self.deletions[broker]) if view == "parts" else found


def count_hidden(report: Report, broker: str, count: int) -> None:
    if count > 0:
        report.problem(f"{count} more of this kind", count=count, broker=broker)
