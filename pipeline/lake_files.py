"""The lake's Parquet files: sorted messages, and what each file holds of each queue.

A file holds messages of one broker stored on one day (UTC), sorted by topic, queue and offset: zstd, row groups of
about 128 MiB, Bloom filters on message ids and keys, statistics and page indexes on what queries ask for. Arrow sorts
and writes them in the process that has the rows; they pass through Java neither as rows nor for sorting.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from .arrow_types import arrow_schema
from .lake import Lake

GROUP_BYTES = 128 << 20
SORTED_BYTES = 512 << 20
"""Rows that are held, and sorted, together; below the 2 GiB that a column of texts may have."""
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The day, as Spark names it, of messages whose store time is no time."""
_NO_TIME = np.iinfo(np.int64).min
_DAY_MICROS = 86_400_000_000
_DICTIONARY = (
    *("topic", "brokerName", "queueId", "size", "tags", "properties.key_value.key", "bornTimestamp", "storeTimestamp"),
    *("bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset"),
)
_NO_STATISTICS = ("body", "properties", "keys")
_BLOOM_FILTERS = ("messageId", "keys.list.element")
_FALSE_POSITIVES = 0.01


@dataclass(frozen=True, slots=True)
class QueueInFile:
    """What one file, at ``path`` in the lake, holds of one queue. Positions are those of the log, times in ms."""

    path: str
    file_bytes: int
    day: str
    broker: str
    topic: str
    queue_id: int
    rows: int
    record_bytes: int
    first_offset: int
    last_offset: int
    start: int
    end: int
    first_time: int | None
    last_time: int | None


_TEXTS, _INTS = ("path", "day", "broker", "topic"), ("queue_id",)
COLUMNS = {
    name: "string" if name in _TEXTS else "int" if name in _INTS else "bigint"
    for name in QueueInFile.__dataclass_fields__
}
"""The columns of a :class:`QueueInFile`, for Spark."""


def as_batches(found: Iterable[QueueInFile]) -> Iterator[pa.RecordBatch]:
    """For ``mapInArrow`` with :data:`COLUMNS`; :func:`from_row` is the way back."""
    schema = arrow_schema(COLUMNS)
    for each in found:
        yield pa.RecordBatch.from_pylist([asdict(each)], schema)


def from_row(row: Any) -> QueueInFile:
    """What a row of Spark says."""
    return QueueInFile(**row.asDict())


def write_sorted(
    batches: Iterable[pa.RecordBatch], lake: Lake, folder: str, *, sorted_bytes: int = SORTED_BYTES
) -> Iterator[QueueInFile]:
    """Write all rows to new files in ``folder`` of the lake, which is there. Columns: messages of stores or topics.

    Of about ``sorted_bytes`` at a time; a file is whole before its queues are told.

    Raises:
        OSError: a file cannot be written.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size >= sorted_bytes:
            yield from _write(_Sorted(held), lake, folder)
            held, size = [], 0
    if held:
        yield from _write(_Sorted(held), lake, folder)


class _Sorted:
    """Rows in the order of the lake, and where each queue of each file begins."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        batches.clear()
        times = table["storeTimestamp"].cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
        days = np.where(times == _NO_TIME, _NO_TIME, times // _DAY_MICROS)
        brokers, broker_names = _ranks(table["brokerName"])
        topics, topic_names = _ranks(table["topic"])
        queues, offsets = table["queueId"].to_numpy(), table["queueOffset"].to_numpy()
        order = np.lexsort((offsets, queues, topics, brokers, days))
        if (order[1:] < order[:-1]).any():
            table = table.take(pa.array(order))
        self.table = table
        self._broker_names, self._topic_names = broker_names, topic_names
        self._days, self._brokers, self._topics = days[order], brokers[order], topics[order]
        self._queues, self._offsets, self._times = queues[order], offsets[order], times[order]
        self._sizes = table["size"].to_numpy().astype(np.int64)
        self._positions = table["physicalOffset"].to_numpy()
        is_file = _changes(self._days, self._brokers)
        self.files = np.flatnonzero(is_file)
        self.queues = np.flatnonzero(is_file | _changes(self._topics, self._queues))

    def place(self, row: int) -> tuple[str, str]:
        """Day and broker of a row."""
        day = self._days[row]
        name = NO_DAY if day == _NO_TIME else str(np.datetime64(int(day), "D"))
        return name, self._broker_names[self._brokers[row]]

    def queue(self, start: int, end: int, path: str, file_bytes: int) -> QueueInFile:
        """What these rows, of one queue in one file, are together."""
        part = slice(start, end)
        day, broker = self.place(start)
        times, positions, sizes = self._times[part], self._positions[part], self._sizes[part]
        return QueueInFile(
            path=path,
            file_bytes=file_bytes,
            day=day,
            broker=broker,
            topic=self._topic_names[self._topics[start]],
            queue_id=int(self._queues[start]),
            rows=end - start,
            record_bytes=int(sizes.sum()),
            first_offset=int(self._offsets[start]),
            last_offset=int(self._offsets[end - 1]),
            start=int(positions.min()),
            end=int((positions + sizes).max()),
            first_time=None if day == NO_DAY else int(times.min()) // 1000,
            last_time=None if day == NO_DAY else int(times.max()) // 1000,
        )


def _ranks(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int64], list[str]]:
    """For each text its place among the sorted distinct ones, and these."""
    encoded = column.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    places = np.empty(len(names), np.int64)
    places[order] = np.arange(len(names))
    return places[encoded.indices.to_numpy()], [names[index] for index in order]


def _changes(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows differ from the one before; the first does."""
    found: npt.NDArray[np.bool_] = np.ones(len(columns[0]), np.bool_)
    found[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return found


def _write(rows: _Sorted, lake: Lake, folder: str) -> Iterator[QueueInFile]:
    table, queues = rows.table, rows.queues
    queue_ends = [*queues[1:].tolist(), len(table)]
    for start, end in zip(rows.files.tolist(), [*rows.files[1:].tolist(), len(table)], strict=True):
        path = f"{folder}/{uuid.uuid4().hex}.parquet"
        _write_file(table.slice(start, end - start), lake, path)
        size = int(lake.files.get_file_info(f"{lake.path}/{path}").size)
        first, last = np.searchsorted(queues, (start, end)).tolist()
        for number in range(first, last):
            yield rows.queue(int(queues[number]), queue_ends[number], path, size)


def _write_file(table: pa.Table, lake: Lake, path: str) -> None:
    names = table.schema.names
    groups = max(1, round(table.nbytes / GROUP_BYTES))
    group_rows = -(-len(table) // groups)
    bloom_filter = {"ndv": group_rows, "fpp": _FALSE_POSITIVES}
    with pq.ParquetWriter(
        f"{lake.path}/{path}",
        table.schema,
        filesystem=lake.files,
        compression="zstd",
        use_dictionary=list(_DICTIONARY),
        write_statistics=[name for name in names if name not in _NO_STATISTICS],
        write_page_index=True,
        bloom_filter_options=dict.fromkeys(_BLOOM_FILTERS, bloom_filter),
    ) as writer:
        writer.write_table(table, row_group_size=group_rows)
