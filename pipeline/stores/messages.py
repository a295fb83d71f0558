"""The view ``messages``: the records of a split as Arrow batches, filtered, damage treated as the options say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.proto.errors import Corrupt

from .. import column_kernels as kernels
from ..columns import ColumnWriter
from .files import Bytes, FileReader, open_file_system
from .model import Damage
from .options import StoreOptions
from .planning import Split
from .scanning import FileScan, Rows

log = logging.getLogger(__name__)


def read_split(split: Split, options: StoreOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ``split``.

    Raises:
        Corrupt: there is damage, and ``onCorrupt`` is ``fail``.
        StorageError: the file cannot be read.
    """
    treat = _Damages(split, options, schema)
    if split.gap is not None:
        yield from treat.met(split.gap)
        return
    assert split.file is not None
    writer = ColumnWriter(
        schema,
        broker_name=split.broker_name,
        decompress=options.decompress,
        batch_rows=options.batch_rows,
        on_bad_body=treat.bad_body,
    )
    wanted = RowFilter(options)
    file = split.file
    file_system, _ = open_file_system(split.root)
    with FileReader(file_system, file.path) as reader:
        scan = FileScan(reader, file.start, file.end, check_crc=options.verify != "none", needs_blank=file.is_sealed)
        for piece in scan.read(split.begin, split.end):
            if isinstance(piece, Damage):
                yield from treat.met(piece)
                continue
            buffer, rows = piece
            rows = wanted.select(buffer, rows)
            if len(rows):
                yield from writer.batches(buffer, rows)


class RowFilter:
    """Selects rows by topic, queue, time and position."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        names = [topic.encode() for topic in options.topics]
        self._topics = np.frombuffer(b"".join(names), np.uint8)
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def select(self, buffer: Bytes, rows: Rows) -> Rows:
        """The wanted rows, in their order."""
        options = self._options
        kept: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        if options.start_physical_offset is not None:
            kept &= rows["physical_offset"] >= options.start_physical_offset
        if options.end_physical_offset is not None:
            kept &= rows["physical_offset"] < options.end_physical_offset
        if options.start_timestamp_ms is not None:
            kept &= rows["store_timestamp"] >= options.start_timestamp_ms
        if options.end_timestamp_ms is not None:
            kept &= rows["store_timestamp"] < options.end_timestamp_ms
        if options.queue_ids:
            kept &= np.isin(rows["queue_id"], options.queue_ids)
        if options.topics:
            found = np.empty(len(rows), np.bool_)
            starts, sizes = (np.ascontiguousarray(rows[name]) for name in ("topic_position", "topic_size"))
            kernels.match_any(buffer, starts, sizes, self._topics, self._ends, found)
            kept &= found
        return rows if kept.all() else rows[kept]


class _Damages:
    """What happens to damage: an error, nothing but a count, or a row."""

    def __init__(self, split: Split, options: StoreOptions, schema: pa.Schema) -> None:
        self._split = split
        self._policy = options.on_corrupt
        self._schema = schema

    def met(self, damage: Damage) -> Iterator[pa.RecordBatch]:
        """Treat bytes that are no records."""
        text = f"{self._place(damage.start)}: {damage.reason}"
        if self._policy == "fail":
            raise Corrupt(
                f"{text}; sound again at {damage.end}: restore from a replica, or set onCorrupt to skip or emit"
            )
        log.warning("damage passed over place=%s bytes=%d", text, damage.end - damage.start)
        if self._policy == "emit":
            values: dict[str, Any] = {
                "brokerName": self._split.broker_name,
                "physicalOffset": damage.start,
                "size": min(damage.end - damage.start, (1 << 31) - 1),
                "corrupt": damage.reason,
            }
            columns = [pa.array([values.get(field.name)], field.type) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def bad_body(self, rows: Rows, index: int, error: Exception) -> str:
        """Treat a body that cannot be decompressed; the reason for the column ``corrupt``."""
        place = self._place(int(rows["physical_offset"][index]))
        if self._policy == "fail":
            raise Corrupt(f"{place}: {error}; set onCorrupt to skip or emit, or decompress to false") from error
        log.warning("message without a readable body place=%s error=%s", place, error)
        return str(error)

    def _place(self, physical: int) -> str:
        return f"{self._split.root} at {physical}"
