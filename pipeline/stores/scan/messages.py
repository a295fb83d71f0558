"""The views ``messages`` and ``parts``: a split's records as Arrow batches, filtered, damage treated as options say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.proto.errors import Corrupt

from ...columns import column_kernels as kernels
from ...columns.columns import ColumnWriter
from ..files import Bytes, FileReader, open_file_system
from ..model import Damage
from ..options import StoreOptions
from .picking import read_picks
from .planning import Split
from .proving import Prover
from .scanning import LARGE_WINDOW_BYTES, WINDOW_BYTES, FileScan, Rows

if TYPE_CHECKING:
    from ..parts import PartWriter

log = logging.getLogger(__name__)


def read_split(
    split: Split, options: StoreOptions, schema: pa.Schema, *, keeps_bad_bodies: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of ``split``; with ``keeps_bad_bodies`` a body that cannot be decompressed is what is stored, not null.

    Raises Corrupt: there is damage, and ``onCorrupt`` is ``fail``.
    Raises StorageError: the file cannot be read.
    """
    treat = _Damages(split, options, schema)
    if split.gap is not None:
        yield from treat.met(split.gap)
        return
    assert split.file is not None
    writer = _writer(split, options, schema, treat, keeps_bad_bodies)
    wanted = RowFilter(options)
    prover = Prover(split) if options.verify == "full" else None
    file = split.file
    file_system, _ = open_file_system(split.root)
    with FileReader(file_system, file.path) as reader:
        for piece in _pieces(reader, split, options):
            if isinstance(piece, Damage):
                if prover is not None:
                    prover.pass_over()
                yield from treat.met(piece)
                continue
            buffer, rows = piece
            chosen = wanted.is_of_queues(buffer, rows)
            for stray in _strays(rows[~chosen]) if split.picks is not None else ():
                yield from treat.met(stray)
            rows = rows if chosen.all() else rows[chosen]
            if prover is not None and len(rows):
                rows, disproved = _proved(prover, buffer, rows)
                for damage in disproved:
                    yield from treat.met(damage)
            rows = wanted.in_range(rows)  # behind the proof, which needs each record's neighbours
            if len(rows):
                yield from writer.batches(buffer, rows)


def _writer(
    split: Split, options: StoreOptions, schema: pa.Schema, treat: _Damages, keeps_bad_bodies: bool
) -> ColumnWriter | PartWriter:
    if options.view == "parts":
        from ..parts import PartWriter

        return PartWriter(schema, broker_name=split.broker_name, part_offsets=options.part_offsets)
    return ColumnWriter(
        schema,
        broker_name=split.broker_name,
        decompress=options.decompress,
        batch_rows=options.batch_rows,
        on_bad_body=treat.bad_body,
        keeps_bad_bodies=keeps_bad_bodies,
    )


def _pieces(reader: FileReader, split: Split, options: StoreOptions) -> Iterator[tuple[Bytes, Rows] | Damage]:
    file = split.file
    assert file is not None
    check_crc = options.verify != "none"
    if split.picks is not None:
        return read_picks(reader, file.start, split.picks, check_crc=check_crc)
    scan = FileScan(
        reader,
        file.start,
        file.end,
        check_crc=check_crc,
        needs_blank=file.is_sealed,
        window_bytes=LARGE_WINDOW_BYTES if options.view == "parts" else WINDOW_BYTES,
    )
    return scan.read(split.begin, split.end)


def _proved(prover: Prover, buffer: Bytes, rows: Rows) -> tuple[Rows, list[Damage]]:
    """The rows that agree with their queues, and the others as damage."""
    wrong = prover.prove(buffer, rows)
    if not wrong:
        return rows, []
    found = []
    for index, reason in sorted(wrong.items()):
        start = int(rows["physical_offset"][index])
        found.append(Damage(start, start + int(rows["size"][index]), reason))
    return np.delete(rows, list(wrong)), found


def _strays(rows: Rows) -> Iterator[Damage]:
    """Records that entries of the wanted queues name, and that are of others: the wanted ones are not found so."""
    for start, size in zip(rows["physical_offset"].tolist(), rows["size"].tolist(), strict=True):
        reason = "a queue entry names it, and it is of another topic or queue: rebuild the queues, or read with "
        yield Damage(start, start + size, f"{reason}useConsumeQueue=false")


class RowFilter:
    """Selects rows by topic, queue, time and position."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        names = [topic.encode() for topic in options.topics]
        self._topics = np.frombuffer(b"".join(names), np.uint8)
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def is_of_queues(self, buffer: Bytes, rows: Rows) -> npt.NDArray[np.bool_]:
        """Which rows are of the wanted topics and queues."""
        options = self._options
        kept: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        if options.queue_ids:
            kept &= np.isin(rows["queue_id"], options.queue_ids)
        if options.topics:
            found = np.empty(len(rows), np.bool_)
            starts, sizes = (np.ascontiguousarray(rows[name]) for name in ("topic_position", "topic_size"))
            kernels.match_any(buffer, starts, sizes, self._topics, self._ends, found)
            kept &= found
        return kept

    def in_range(self, rows: Rows) -> Rows:
        """The rows of the wanted times and positions, in their order."""
        options = self._options
        kept: npt.NDArray[np.bool_] = np.ones(len(rows), np.bool_)
        for name, start, end in (
            ("physical_offset", options.start_physical_offset, options.end_physical_offset),
            ("store_timestamp", options.start_timestamp_ms, options.end_timestamp_ms),
        ):
            if start is not None:
                kept &= rows[name] >= start
            if end is not None:
                kept &= rows[name] < end
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
                "bytes": damage.end - damage.start,
                "corrupt": damage.reason,
            }
            yield pa.RecordBatch.from_pylist([values], self._schema)

    def bad_body(self, rows: Rows, index: int, error: Exception) -> str:
        """Treat a body that cannot be decompressed; the reason for the column ``corrupt``."""
        place = self._place(int(rows["physical_offset"][index]))
        if self._policy == "fail":
            raise Corrupt(f"{place}: {error}; set onCorrupt to skip or emit, or decompress to false") from error
        log.warning("message without a readable body place=%s error=%s", place, error)
        return str(error)

    def _place(self, physical: int) -> str:
        return f"{self._split.root} at {physical}"
