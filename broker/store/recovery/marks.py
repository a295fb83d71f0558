"""Producer marks in scanned records: the first record of a batch says how many there are."""

from __future__ import annotations

from penstock.formats.record.producer_mark import ProducerMark, find_producer_mark

from ..disk import Bytes
from ..log.commit_log import Chunk
from ..log.log_kernels import find_marks
from ..queues.kernels import Ints, Rows
from .recovery import MarkTracker

_SEEN_BYTES = 256
"""Of the properties, so much is looked at for a mark, which is shorter."""


def mark_of(buffer: Bytes, rows: Rows, number: int) -> ProducerMark | None:
    """The mark of record ``number``, whose properties begin as one does; None if they are no mark."""
    row = rows[number]
    start = int(row["properties_position"])
    size = min(int(row["properties_size"]), _SEEN_BYTES)
    return find_producer_mark(buffer[start : start + size].tobytes())


def track(tracker: MarkTracker, chunk: Chunk, marked: Ints) -> None:
    """Follow the last valid mark of the chunk; ``marked`` is memory, one per row."""
    data, rows, count = chunk.file.bytes, chunk.rows, chunk.count
    for number in marked[: find_marks(data, rows, count, marked)][::-1].tolist():
        mark = mark_of(data, rows, number)
        if mark is not None:
            tracker.on_mark(int(rows["physical_offset"][number]), mark.count, count - number)
            return
    tracker.on_records(count)
