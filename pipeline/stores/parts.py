"""The views ``parts`` and ``queue_parts``: what lies in a stretch of the log, or in a queue file, per part of a queue.

A part is ``partOffsets`` neighbouring queue offsets. A row sums up the messages of one part in some megabytes of the
log (or in a queue file), so a query over a large store gathers some rows per queue and stretch, where the view
``messages`` has one per message. A part has several rows; together they are ``sum(messages)``, ``min(firstOffset)``,
``max(lastOffset)``, ``sum(bytes)`` and ``bit_xor(digest)``. A log and its queues agree on where a part's messages are
if all of these do; what the messages hold is no part of the digest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .. import part_kernels as kernels
from ..columns import Bytes, Rows, text_column
from .derived import DerivedSplit, batch_of, queue_entries
from .scanning import has_no_entry

PART_ENTRY = np.dtype(
    [
        ("queue_offset", "<i8"),
        ("physical_offset", "<i8"),
        ("size", "<i4"),
        ("tags_code", "<i8"),
        ("store_timestamp", "<i8"),
    ]
)
"""One message in the column ``entries``; the messages of a row are in the order of the log."""
Longs = npt.NDArray[np.int64]


class _Parts:
    """The rows of one batch: a group each."""

    def __init__(self, count: int, groups: npt.NDArray[np.int32], offsets: Longs, physical: Longs, sizes: Any) -> None:
        self.groups = groups
        self.messages, self.first, self.last, self.bytes, self.digest = (np.empty(count, np.int64) for _ in range(5))
        outputs = self.messages, self.first, self.last, self.bytes, self.digest
        kernels.digest_groups(groups, offsets, physical, np.ascontiguousarray(sizes, np.int32), *outputs)

    def sums(self) -> dict[str, Any]:
        """The columns that a log and its queues have in common."""
        return {
            "messages": self.messages,
            "firstOffset": self.first,
            "lastOffset": self.last,
            "bytes": self.bytes,
            "digest": self.digest,
        }


class PartWriter:
    """Makes record batches of ``schema``, a selection of the view's columns; in place of a ``ColumnWriter``."""

    def __init__(self, schema: pa.Schema, *, broker_name: str, part_offsets: int) -> None:
        self._schema = schema
        self._broker_name = broker_name
        self._part_offsets = part_offsets

    def batches(self, buffer: Bytes, rows: Rows) -> Iterator[pa.RecordBatch]:
        """One batch: a row per part of a queue that ``rows`` belong to."""
        offsets, physical = (np.ascontiguousarray(rows[name]) for name in ("queue_offset", "physical_offset"))
        topics, topic_sizes = (np.ascontiguousarray(rows[name]) for name in ("topic_position", "topic_size"))
        queue_ids = np.ascontiguousarray(rows["queue_id"])
        named = ~has_no_entry(rows)
        starts = offsets - offsets % self._part_offsets
        table = np.full(1 << (2 * len(rows) - 1).bit_length(), -1, np.int32)
        groups, firsts = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        count = kernels.group_rows(buffer, topics, topic_sizes, queue_ids, starts, named, table, groups, firsts)
        firsts = firsts[:count]
        parts = _Parts(count, groups, offsets, physical, rows["size"])
        values = parts.sums() | {
            "topic": text_column(buffer, topics[firsts], topic_sizes[firsts], pa.string()),
            "brokerName": self._broker_name,
            "queueId": queue_ids[firsts],
            "part": starts[firsts],
            "hasEntries": named[firsts],
            "physicalOffset": physical[firsts],
            "corrupt": None,
        }
        if "entries" in self._schema.names:
            values["entries"] = _entries(rows, parts)
        yield batch_of(values, count, self._schema)


def read_queue_parts(split: DerivedSplit, schema: pa.Schema, end: int, part_offsets: int) -> Iterator[pa.RecordBatch]:
    """A row per part of a queue and file: the entries of records below the log position ``end``."""
    for file, offsets, entries in queue_entries(split, end):
        starts, groups = np.unique(offsets - offsets % part_offsets, return_inverse=True)
        physical, sizes = entries["physical_offset"].astype(np.int64), entries["size"]
        parts = _Parts(len(starts), groups.astype(np.int32), offsets, physical, sizes)
        values = parts.sums() | {
            "topic": file.topic,
            "brokerName": split.broker_name,
            "queueId": file.queue_id,
            "part": starts,
        }
        yield batch_of(values, len(starts), schema)


def _entries(rows: Rows, parts: _Parts) -> pa.Array:
    packed = np.empty(len(rows), PART_ENTRY)
    for name in PART_ENTRY.names or ():
        packed[name] = rows[name]
    packed = packed[np.argsort(parts.groups, kind="stable")]
    ends = np.zeros(len(parts.messages) + 1, np.int32)
    np.cumsum(parts.messages * PART_ENTRY.itemsize, out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(parts.messages), [None, pa.py_buffer(ends), pa.py_buffer(packed)])
