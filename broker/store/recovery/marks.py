"""Producer marks in scanned records: the first record of a batch says how many there are."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.formats.record.kernels.marks import BATCH_NUMBERS, read_marks

from ..disk import Bytes
from ..log.log_kernels import find_marks
from ..log.readable_log import Chunk
from ..queues.kernels import Ints, Rows
from .recovery import MarkTracker


def batches_of(buffer: Bytes, rows: Rows, count: int, marked: Ints) -> Iterator[tuple[int, ...]]:
    """The numbers that :func:`.read_marks` finds of each of the rows ``marked``."""
    numbers = np.zeros(BATCH_NUMBERS * len(marked), np.uint64)
    read_marks(buffer, rows, count, marked, numbers)
    each = iter(numbers.tolist())
    return zip(*[each] * BATCH_NUMBERS, strict=True)


def track(tracker: MarkTracker, chunk: Chunk, marked: Ints) -> None:
    """Follow the last valid mark of the chunk; ``marked`` is memory, one per row."""
    data, rows, count = chunk.file.bytes, chunk.rows, chunk.count
    found = marked[: find_marks(data, rows, count, marked)]
    for number, batch in reversed(list(zip(found.tolist(), batches_of(data, rows, count, found), strict=True))):
        if batch[4]:
            tracker.on_mark(batch[6], batch[4], count - number)
            return
    tracker.on_records(count)
