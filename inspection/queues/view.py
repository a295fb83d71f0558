"""One consume queue as a reader sees it: its bounds, and single entries; and the messages that they lead to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np

from penstock.formats.queue_entry import ENTRY_BYTES, Entry

from ..directory import QueueFiles, Segment
from ..files import Bytes, InputFile


class QueueView:
    """Reads entries of ``queue``; ``log_start`` tells which are of deleted records.

    ``min_offset`` and ``max_offset`` are as a broker finds them: the first entry whose record is still there, and
    one behind the last entry.
    """

    def __init__(self, queue: QueueFiles, log_start: int) -> None:
        self.queue = queue
        self._log_start = log_start
        self.max_offset = self._end()
        start = queue.segments[0].start // ENTRY_BYTES if queue.segments else 0
        self.min_offset = first_true(min(start, self.max_offset), self.max_offset, self._is_kept)

    def entry(self, offset: int) -> Entry:
        """The entry at a queue offset; all zero where nothing was written.

        Raises Unreadable: its file cannot be read.
        """
        return Entry.decode(read_segments(self.queue.segments, offset * ENTRY_BYTES, ENTRY_BYTES).tobytes())

    def _end(self) -> int:
        for segment in reversed(self.queue.segments):
            first, count = segment.start // ENTRY_BYTES, segment.size // ENTRY_BYTES
            used = first_true(first, first + count, lambda offset: self.entry(offset).size <= 0)
            if used > first:
                return used
        return 0

    def _is_kept(self, offset: int) -> bool:
        entry = self.entry(offset)
        return entry.is_message and entry.physical_offset >= self._log_start


def read_segments(segments: Sequence[Segment], start: int, size: int) -> Bytes:
    """Bytes ``[start, start + size)`` of a queue, or a log; zeros where it has no file.

    Raises Unreadable: a file that is there cannot be read.
    """
    out: Bytes = np.zeros(size, np.uint8)
    for segment in segments:
        first, last = max(start, segment.start), min(start + size, segment.start + segment.size)
        if first < last:
            with InputFile(segment.path) as file:
                file.read_into(out[first - start : last - start], first - segment.start)
    return out


def first_true(low: int, high: int, is_true: Callable[[int], bool]) -> int:
    """The smallest number in ``[low, high)`` for which ``is_true``, which stays true from there on; else ``high``."""
    return low + bisect_left(range(low, high), True, key=is_true)
