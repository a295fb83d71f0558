"""The lake's Parquet files: sorted messages, what each file holds of each queue, and its statistics for the table.

A file holds messages of one broker stored on one day (UTC), sorted by topic, queue and offset: zstd, row groups of
about 128 MiB, Bloom filters on message ids and keys, statistics and page indexes on what queries ask for. Arrow sorts
and writes them in the process that has the rows, with less work than it is to pass them on to Java.
"""

from __future__ import annotations

import io
import json
import uuid
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.proto.errors import StorageError

from ..columns.schema import STORE_COLUMNS, columns
from ..spark.arrow_types import arrow_schema
from .lake import NO_DAY, TABLE, Lake, wrong_size

GROUP_BYTES = 128 << 20
PAGE_BYTES = 1 << 20
SORTED_BYTES = 256 << 20
"""Rows that are held, and sorted, together: a task needs about three times as much. Far below the 2 GiB that a column
of texts may have."""
_NO_TIME = np.iinfo(np.int64).min
_DAY_MICROS = 86_400_000_000
_DICTIONARY = (
    *("topic", "brokerName", "queueId", "size", "tags", "properties.key_value.key", "bornTimestamp", "storeTimestamp"),
    *("bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset"),
)
_NO_STATISTICS = ("body", "properties", "keys")
_SKIPPED_BY = ("topic", "queueId", "queueOffset", "physicalOffset", "bornTimestamp", "storeTimestamp")
"""What the table says the least and the greatest value of, so that queries of any program skip files."""
_FALSE_POSITIVES = 0.01
_ZSTD_LEVEL = 3  # Parquet's Java library writes this one
_FIXED_BYTES = 200  # about what a message takes beside its body
_READ_BYTES = 8 << 20
COLUMNS = columns(
    "name string, file_bytes bigint, file_crc32 bigint, statistics string, broker string, topic string, queue_id int, "
    "rows bigint, record_bytes bigint, unreadable bigint, first_offset bigint, last_offset bigint, start bigint, "
    "end bigint, first_time bigint, last_time bigint"
)
"""What one file of the table holds of one queue. ``statistics``: the file's, as Delta writes them. ``start`` and
``end`` are positions of the log; times in ms, null where the file's messages have none. ``unreadable``: messages with a
body that cannot be decompressed."""


def write_sorted(
    batches: Iterable[pa.RecordBatch], lake: Lake, *, sorted_bytes: int = SORTED_BYTES
) -> Iterator[pa.RecordBatch]:
    """Write all rows to new files in the table's folder, in no commit yet; what each holds, as :data:`COLUMNS`.

    The columns of ``batches`` are those of messages of stores or topics. One more, ``corrupt``, says which bodies are
    unreadable, and is not written. About ``sorted_bytes`` are held, and sorted together. A file is whole, and on the
    disk, before it is told.
    Raises OSError, StorageError: a file cannot be written.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if len(batch):
            held.append(batch)
            size += batch.nbytes
        if size >= sorted_bytes:
            yield from _write(held, lake)
            size = 0
    if held:
        yield from _write(held, lake)


def _write(batches: list[pa.RecordBatch], lake: Lake) -> Iterator[pa.RecordBatch]:
    """Sort and write these, which are dropped from the list."""
    table = pa.Table.from_batches(batches).combine_chunks()
    batches.clear()
    unreadable = np.zeros(len(table), np.int64)
    if "corrupt" in table.column_names:
        unreadable = pc.is_valid(table["corrupt"]).cast(pa.int64()).to_numpy()
        table = table.drop_columns(["corrupt"])
    # all files have one schema, also where a source knows what is never null
    table = table.cast(arrow_schema({name: STORE_COLUMNS[name] for name in table.column_names}))
    times = table["storeTimestamp"].cast(pa.int64()).fill_null(_NO_TIME).to_numpy()
    days = np.where(times == _NO_TIME, _NO_TIME, times // _DAY_MICROS)
    brokers, broker_names = _ranks(table["brokerName"])
    topics, topic_names = _ranks(table["topic"])
    queues, offsets = table["queueId"].to_numpy(), table["queueOffset"].to_numpy()
    order = np.lexsort((offsets, queues, topics, brokers, days))
    days, brokers, topics = days[order], brokers[order], topics[order]
    queues, offsets, times = queues[order], offsets[order], times[order]
    sizes, positions = table["size"].to_numpy()[order].astype(np.int64), table["physicalOffset"].to_numpy()[order]

    begins_file = _changes(days, brokers)
    starts = np.flatnonzero(begins_file | _changes(topics, queues))
    ends = np.append(starts[1:], len(order))
    no_time = days[starts] == _NO_TIME
    columns = {
        "topic": pa.array(topic_names).take(pa.array(topics[starts])),
        "queue_id": pa.array(queues[starts], pa.int32()),
        "rows": pa.array(ends - starts),
        "record_bytes": pa.array(np.add.reduceat(sizes, starts)),
        "unreadable": pa.array(np.add.reduceat(unreadable[order], starts)),
        "first_offset": pa.array(offsets[starts]),
        "last_offset": pa.array(offsets[ends - 1]),
        "start": pa.array(np.minimum.reduceat(positions, starts)),
        "end": pa.array(np.maximum.reduceat(positions + sizes, starts)),
        "first_time": pa.array(np.minimum.reduceat(times, starts) // 1000, mask=no_time),
        "last_time": pa.array(np.maximum.reduceat(times, starts) // 1000, mask=no_time),
    }
    file_starts = np.flatnonzero(begins_file).tolist()
    for start, end in zip(file_starts, [*file_starts[1:], len(order)], strict=True):
        name = f"dt={_day(days[start])}/{uuid.uuid4().hex}.parquet"
        size, checksum, statistics = _write_file(table, order[start:end], lake, f"{TABLE}/{name}")
        first, last = np.searchsorted(starts, (start, end)).tolist()
        shared: dict[str, Any] = {"name": name, "file_bytes": size, "file_crc32": checksum, "statistics": statistics}
        shared["broker"] = broker_names[brokers[start]]
        own = {name: column.slice(first, last - first) for name, column in columns.items()}
        arrays = [own[name] if name in own else pa.repeat(shared[name], last - first) for name in COLUMNS]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(COLUMNS))


def _day(day: Any) -> str:
    return NO_DAY if day == _NO_TIME else str(np.datetime64(int(day), "D"))


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


def _write_file(table: pa.Table, order: npt.NDArray[np.int64], lake: Lake, path: str) -> tuple[int, int, str]:
    """Write these rows of ``table``, in this order, as one file; its bytes, their CRC-32, and its statistics."""
    groups = _groups(table, order)
    rows_min, rows_max = min(map(len, groups)), max(map(len, groups))
    group_bytes = table.nbytes * len(order) // len(table) // len(groups)
    keys = table["keys"].combine_chunks().flatten()
    bloom_filters = {
        "messageId": {"ndv": rows_max, "fpp": _FALSE_POSITIVES},
        "keys.list.element": {"ndv": max(rows_max, len(keys) * rows_max // len(table)), "fpp": _FALSE_POSITIVES},
    }
    folder = path.rpartition("/")[0]
    lake.files.create_dir(f"{lake.path}/{folder}", recursive=True)
    with (
        _Summing(lake.files.open_output_stream(f"{lake.path}/{path}")) as sink,
        pq.ParquetWriter(
            sink,
            table.schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=list(_DICTIONARY),
            write_statistics=[name for name in table.schema.names if name not in _NO_STATISTICS],
            write_page_index=True,
            write_batch_size=max(1, min(1024, PAGE_BYTES * rows_min // group_bytes)),  # a page ends with one of them
            data_page_size=PAGE_BYTES,
            write_page_checksum=True,
            bloom_filter_options=bloom_filters,
        ) as writer,
    ):
        for group in groups:
            writer.write_table(table.take(pa.array(group)), row_group_size=len(group))
    lake.sync(path)
    lake.sync_folders(folder)
    written = pq.read_metadata(f"{lake.path}/{path}", filesystem=lake.files)
    if written.num_rows != len(order):
        raise StorageError(
            f"{lake.root}/{path}: {written.num_rows} rows were written of {len(order)}: run the job again"
        )
    return sink.size, sink.crc32, statistics_of(written)


def statistics_of(metadata: pq.FileMetaData) -> str:
    """What a Delta table says about a file, from what Parquet says about its row groups.

    Source: the Delta protocol, Per-file Statistics.
    """
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            name, found = column.path_in_schema, column.statistics
            if name in _SKIPPED_BY:
                nulls[name] = nulls.get(name, 0) + found.null_count
                if found.has_min_max:
                    least[name] = min(least.get(name, found.min), found.min)
                    greatest[name] = max(greatest.get(name, found.max), found.max)
    told = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return json.dumps(told, default=_as_delta, ensure_ascii=False)


def _as_delta(time: datetime) -> str:
    """Stored times have milliseconds."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Summing(io.RawIOBase):
    """A stream to a file, which sums up what it writes: reading the file again would cost as much as writing it."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self.size = 0
        self.crc32 = 0

    def writable(self) -> bool:
        """Arrow asks."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        self._stream.write(data)
        self.crc32 = zlib.crc32(data, self.crc32)
        self.size += len(data)
        return len(data)

    def close(self) -> None:
        """The file is whole."""
        self._stream.close()
        super().close()


def examine(lake: Lake, name: str, size: int, checksum: int) -> tuple[int, str]:
    """How many messages a file of the lake holds, and what is wrong with it, all of it being read; nothing if empty."""
    path = f"{lake.path}/{TABLE}/{name}"
    wrong = wrong_size(lake.files.get_file_info(path), size)
    if wrong:
        return 0, wrong
    try:
        found = 0
        with lake.files.open_input_file(path) as file:
            while data := file.read(_READ_BYTES):
                found = zlib.crc32(data, found)
        if found != checksum:
            return 0, f"the file has the checksum {found:#010x} where the table says {checksum:#010x}"
        return pq.read_metadata(path, filesystem=lake.files).num_rows, ""
    except (pa.ArrowException, OSError) as error:
        return 0, f"the file cannot be read: {error}"


def runs_in(lake: Lake, name: str) -> Iterator[tuple[str, int, int, int]]:
    """Topic, queue, first offset and the one behind the last, of each run of messages that a file of the lake holds."""
    table = pq.read_table(
        f"{lake.path}/{TABLE}/{name}",
        columns=["topic", "queueId", "queueOffset"],
        filesystem=lake.files,
        partitioning=None,
    )
    topics, names = _ranks(table["topic"])
    queues, offsets = table["queueId"].to_numpy(), table["queueOffset"].to_numpy()
    starts = np.flatnonzero(_changes(topics, queues, offsets - np.arange(len(offsets))))
    lasts = np.append(starts[1:], len(offsets)) - 1
    for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
        yield names[topics[start]], int(queues[start]), int(offsets[start]), int(offsets[last]) + 1


def _groups(table: pa.Table, order: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The rows of one file in groups of about :data:`GROUP_BYTES`, each of them as large as the others."""
    sizes = pc.fill_null(pc.binary_length(table["body"]), 0).to_numpy()[order].astype(np.int64) + _FIXED_BYTES
    ends = np.cumsum(sizes)
    count = max(1, round(int(ends[-1]) / GROUP_BYTES))
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, count) // count)
    return [group for group in np.split(order, cuts) if len(group)]
