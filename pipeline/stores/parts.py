"""The views ``parts`` and ``queue_parts``: what lies in a stretch of the log, or in a queue file, per part of a queue.

A part is ``partOffsets`` neighbouring queue offsets. A row sums up the messages of one part in some megabytes of the
log (or in a queue file), so a query over a large store gathers some rows per queue and stretch, where the view
``messages`` has one per message. A part has several rows; together they are ``sum(messages)``, ``min(firstOffset)``,
``max(lastOffset)``, ``sum(bytes)`` and ``bit_xor(digest)``. A log and its queues agree on where a part's messages are
if all of these do; of what the messages hold, the digest has the tags code alone. In the view ``parts`` no row has
messages of two lives of a topic (:mod:`.deletions`): each lies in front of any deletion, or behind it, as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.batch_unit import BatchUnit, messages_of, pack_units
from penstock.formats.delay_levels import delivery_times
from penstock.formats.queue_entry import ENTRY_BYTES, HASH_MIN
from penstock.formats.record.layout import SysFlag
from penstock.formats.record.properties import decode_properties
from penstock.proto.errors import StorageError
from penstock.proto.names import LIGHT_PREFIX, SCHEDULE_TOPIC

from ..columns import part_kernels as kernels
from ..columns.columns import Bytes, Rows, text_column
from ..spark.arrow_types import arrow_schema
from .deletions import find_deletion_rows
from .derived import DIFFERENCE_COLUMNS, DerivedSplit, Longs, QueueFile, batch_of, queue_entries, read_queue_file
from .files import open_file_system
from .scan.scanning import has_no_entry

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


def _sums(
    count: int, groups: npt.NDArray[np.int32], offsets: Longs, physical: Longs, sizes: Any, tags: Any
) -> dict[str, Any]:
    """Columns that sum up the rows of each group; all but ``offsets`` are those of a log and of its queues."""
    names = "messages", "firstOffset", "lastOffset", "bytes", "digest", "offsets"
    sums = {name: np.empty(count, np.int64) for name in names}
    inputs = np.ascontiguousarray(sizes, np.int32), np.ascontiguousarray(tags, np.int64)
    kernels.digest_groups(groups, offsets, physical, *inputs, *sums.values())
    return sums


class PartWriter:
    """Makes record batches of ``schema``, a selection of the view's columns; in place of a ``ColumnWriter``."""

    def __init__(self, schema: pa.Schema, *, broker_name: str, part_offsets: int) -> None:
        self._schema = schema
        self._broker_name = broker_name
        self._part_offsets = part_offsets

    def batches(self, buffer: Bytes, rows: Rows) -> Iterator[pa.RecordBatch]:
        """A row per part of a queue that ``rows`` belong to, and per part of a light queue if that column is read."""
        for piece in np.split(rows, find_deletion_rows(buffer, rows)):
            lit = _light_rows(buffer, piece) if "isLight" in self._schema.names else piece[:0]
            for each, is_light in ((piece, False), (lit, True)):
                if len(each):
                    yield self._batch(buffer, each, is_light=is_light)

    def _batch(self, buffer: Bytes, rows: Rows, *, is_light: bool) -> pa.RecordBatch:
        offsets, physical = (np.ascontiguousarray(rows[name]) for name in ("queue_offset", "physical_offset"))
        topics, topic_sizes = (np.ascontiguousarray(rows[name]) for name in ("topic_position", "topic_size"))
        queue_ids = np.ascontiguousarray(rows["queue_id"])
        named = ~has_no_entry(rows)
        starts = offsets - offsets % self._part_offsets
        table = np.full(1 << (2 * len(rows) - 1).bit_length(), -1, np.int32)
        groups, firsts = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
        count = kernels.group_rows(buffer, topics, topic_sizes, queue_ids, starts, named, table, groups, firsts)
        firsts = firsts[:count]
        names = text_column(buffer, topics[firsts], topic_sizes[firsts], pa.string())
        tags = rows["tags_code"]
        delayed = pc.equal(names, SCHEDULE_TOPIC).to_numpy(zero_copy_only=False)[groups]
        if delayed.any():
            tags = np.where(delayed, delivery_times(queue_ids, rows["store_timestamp"]), tags)
        values = _sums(count, groups, offsets, physical, rows["size"], tags) | {
            "topic": names,
            "brokerName": self._broker_name,
            "queueId": queue_ids[firsts],
            "part": starts[firsts],
            "hasEntries": named[firsts],
            "physicalOffset": physical[firsts],
            "innerBatches": np.bincount(groups[_is_inner_batch(rows)], minlength=count),
            "isLight": is_light,
            "corrupt": None,
        }
        if "batches" in self._schema.names:
            numbers, units = _batch_units(buffer, rows)
            values["batches"] = _packed(units, groups[numbers], count)
        if "entries" in self._schema.names:
            entries = np.empty(len(rows), PART_ENTRY)
            for name in PART_ENTRY.names or ():
                entries[name] = rows[name]
            values["entries"] = _packed(entries, groups, count)
        return batch_of(values, count, self._schema)


def _packed(items: npt.NDArray[np.void], groups: npt.NDArray[np.int32], count: int) -> pa.Array:
    """The items of each group end to end, in their order."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(groups, minlength=count) * items.dtype.itemsize, out=ends[1:])
    ordered = items[np.argsort(groups, kind="stable")]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(ordered)])


def _is_inner_batch(rows: Rows) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = rows["sys_flag"] & SysFlag.INNER_BATCH != 0
    return found


def _batch_units(buffer: Bytes, rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.void]]:
    """Numbers of the rows that have a unit, and these, in the rows' order.

    Inner batches without a number of messages have none, nor have prepared and rolled-back ones.
    """
    kinds = rows["sys_flag"] & SysFlag.TRANSACTION_MASK
    special = np.isin(kinds, (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK))
    numbers, units = [], []
    for number in np.flatnonzero(_is_inner_batch(rows) & ~special).tolist():
        row = rows[number]
        at = int(row["properties_position"])
        properties = decode_properties(buffer[at : at + int(row["properties_size"])].tobytes())
        messages = messages_of(properties, int(row["queue_offset"]))
        if messages is None:
            continue
        place = row["physical_offset"], row["size"], row["tags_code"], row["store_timestamp"]
        numbers.append(number)
        units.append(BatchUnit(*place, *messages))
    return np.array(numbers, np.int64), pack_units(units)


def _light_rows(buffer: Bytes, rows: Rows) -> Rows:
    """A row for each light queue that a record stands in: the record's, with queue and offset of that."""
    special = has_no_entry(rows)
    named = rows[~special] if special.any() else rows
    topics, properties = (np.ascontiguousarray(named[name]) for name in ("topic_position", "properties_position"))
    topic_sizes, sizes = (np.ascontiguousarray(named[name]) for name in ("topic_size", "properties_size"))
    most = int(kernels.count_lights(buffer, properties, sizes))
    if not most:
        return rows[:0]
    numbers, name_sizes = np.empty(most, np.int32), np.empty(most, np.int32)
    offsets, names = np.empty(most, np.int64), np.empty(most, np.int64)
    inputs = topics, topic_sizes, properties, sizes
    count = kernels.find_lights(buffer, *inputs, numbers, offsets, names, name_sizes)
    lit = named[numbers[:count]]
    lit["topic_position"], lit["topic_size"] = names[:count], name_sizes[:count]
    lit["queue_id"], lit["queue_offset"] = 0, offsets[:count]
    return lit


def read_queue_parts(split: DerivedSplit, schema: pa.Schema, part_offsets: int) -> Iterator[pa.RecordBatch]:
    """A row per part of a queue and file: the entries of records of the log."""
    for file, offsets, entries in queue_entries(split):
        kept = entries["physical_offset"] >= split.start
        if kept.any():
            yield _queue_parts(split, schema, file, offsets[kept], entries[kept], part_offsets)


def prove_queue_files(
    split: DerivedSplit, schema: pa.Schema, part_offsets: int, *, is_open: bool, deleted: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """The rows of :func:`read_queue_parts`, and one for each problem of a file, in the column ``problem``.

    Entries below the log's start are left by retention. Entries at or behind its end are a problem of a closed store;
    an open one may have them by now. ``messages`` is their number, and ``firstOffset`` the first of them in the queue.
    Light queues (``%LMQ%``), which repeat other queues' records, have no rows of the first kind. ``deleted``: where the
    log deletes topics last; of an open store, whose dispatch may not be there yet, entries in front of it are left out.
    """
    file_system, _ = open_file_system(split.root)
    for file in split.files:
        values = {"topic": file.topic, "brokerName": split.broker_name, "queueId": file.queue_id}
        try:
            offsets, entries = read_queue_file(file_system, file)
        except StorageError as error:
            yield _problem(schema, values, file.start // ENTRY_BYTES, 1, str(error))
            continue
        physical = entries["physical_offset"]
        behind = np.flatnonzero(physical >= split.end)
        if len(behind) and not is_open:
            first = int(behind[0])
            count = len(behind)
            text = (
                f"{count} queue entries from {offsets[first]} on name positions from {physical[first]} on, at or "
                f"behind the log's end {split.end}: records are lost, or the queue is another log's"
            )
            yield _problem(schema, values, int(offsets[first]), count, text)
        start = max(split.start, deleted.get(file.topic, 0)) if is_open else split.start
        kept = (physical >= start) & (physical < split.end)
        if kept.any() and not file.topic.startswith(LIGHT_PREFIX):
            yield _queue_parts(split, schema, file, offsets[kept], entries[kept], part_offsets)


def _problem(schema: pa.Schema, values: dict[str, Any], offset: int, count: int, text: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([values | {"firstOffset": offset, "messages": count, "problem": text}], schema)


def _queue_parts(
    split: DerivedSplit, schema: pa.Schema, file: QueueFile, offsets: Longs, entries: Any, part_offsets: int
) -> pa.RecordBatch:
    starts, groups = np.unique(offsets - offsets % part_offsets, return_inverse=True)
    physical, sizes, tags = entries["physical_offset"].astype(np.int64), entries["size"], entries["tags_code"]
    values = _sums(len(starts), groups.astype(np.int32), offsets, physical, sizes, tags) | {
        "topic": file.topic,
        "brokerName": split.broker_name,
        "queueId": file.queue_id,
        "part": starts,
        "problem": None,
    }
    return batch_of(values, len(starts), schema)


def compare_part(
    topic: str,
    queue_id: int,
    records: npt.NDArray[np.void],
    queue: tuple[Longs, npt.NDArray[np.void]],
    *,
    reached: int | None,
    has_extension: bool,
    examples: int,
) -> pa.Table:
    """How the records of a part (:data:`PART_ENTRY`) and its queue's entries, with their offsets, differ.

    ``reached``: the last queue offset that has an entry, where later ones may follow: the store is open. Tags codes
    are no difference where they are addresses in a ``consumequeue_ext`` (``has_extension``), or delivery times by
    other delay levels than the default ones: one and the same delay in the whole part.
    """
    records = records[np.lexsort((records["physical_offset"], records["queue_offset"]))]
    order = np.argsort(queue[0], kind="stable")
    offsets, entries = queue[0][order], queue[1][order]
    wanted = records["queue_offset"]
    at = np.searchsorted(offsets, wanted)
    has_entry = at < len(offsets)
    has_entry[has_entry] = offsets[at[has_entry]] == wanted[has_entry]
    late = ~has_entry & (wanted > reached) if reached is not None else np.zeros(len(records), np.bool_)
    named = np.zeros(len(records), entries.dtype)
    named[has_entry] = entries[at[has_entry]]
    same = has_entry & (named["physical_offset"] == records["physical_offset"]) & (named["size"] == records["size"])
    tags = _tags(topic, queue_id, records, named["tags_code"], same)
    other_tags = same & (named["tags_code"] != tags)
    if has_extension:
        other_tags &= named["tags_code"] >= HASH_MIN
    told: list[tuple[int, str]] = []
    for index in np.flatnonzero(~has_entry & ~late)[:examples].tolist():
        told.append((int(wanted[index]), f"the record at {records['physical_offset'][index]} has no queue entry"))
    for index in np.flatnonzero(has_entry & ~same)[:examples].tolist():
        entry, record = named[index], records[index]
        text = (
            f"the queue entry names {entry['physical_offset']} ({entry['size']} bytes), "
            f"the record lies at {record['physical_offset']} ({record['size']} bytes)"
        )
        told.append((int(wanted[index]), text))
    for index in np.flatnonzero(other_tags)[:examples].tolist():
        text = f"the queue entry has the tags code {named['tags_code'][index]}, the record {tags[index]}"
        told.append((int(wanted[index]), text))
    alone = np.flatnonzero(~np.isin(offsets, wanted))
    for index in alone[:examples].tolist():
        position = entries["physical_offset"][index]
        told.append((int(offsets[index]), f"the queue entry names {position}, where no record of this queue lies"))
    told.sort()
    jumps = np.flatnonzero(wanted[1:] != wanted[:-1] + 1)
    following = [f"queue offset {wanted[index + 1]} follows {wanted[index]} in the log" for index in jumps[:examples]]
    total = int(np.count_nonzero(~same & ~late)) + int(np.count_nonzero(other_tags)) + len(alone) + len(jumps)
    if not total and reached is None and not has_extension and topic != SCHEDULE_TOPIC:
        total = 1
        text = f"{len(records)} records and {len(offsets)} queue entries differed, and none was found that does"
        told.append((int(np.concatenate([wanted, offsets, [0]])[0]), text))
    texts = [*told[:examples], *((None, text) for text in following)]
    rows = [{"queueOffset": offset, "problem": text, "messages": 1, "late": 0} for offset, text in texts]
    rows.append({"messages": total - len(rows), "late": int(np.count_nonzero(late))})
    shared = {"topic": topic, "queueId": queue_id}
    return pa.Table.from_pylist([shared | row for row in rows], arrow_schema(DIFFERENCE_COLUMNS))


def _tags(topic: str, queue_id: int, records: Any, found: Any, same: npt.NDArray[np.bool_]) -> Any:
    """The tags codes that the entries of the records are to have."""
    if topic != SCHEDULE_TOPIC:
        return records["tags_code"]
    delays = np.unique((found - records["store_timestamp"])[same])
    if len(delays) == 1 and delays[0] >= 0:
        return records["store_timestamp"] + delays[0]
    return delivery_times(np.full(len(records), queue_id), records["store_timestamp"])
