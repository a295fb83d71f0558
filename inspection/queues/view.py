"""One consume queue as a reader sees it: its bounds, and single entries; and the messages that they lead to."""

from __future__ import annotations

from collections.abc import Callable

from penstock.formats.queue_entry import ENTRY_BYTES, Entry

from ..directory import QueueFiles
from ..files import InputFile


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

        Raises:
            Unreadable: its file cannot be read.
        """
        at = offset * ENTRY_BYTES
        for segment in self.queue.segments:
            if segment.start <= at < segment.start + segment.size:
                with InputFile(segment.path) as file:
                    return _read(file, at - segment.start)
        return Entry(0, 0, 0)

    def _end(self) -> int:
        for segment in reversed(self.queue.segments):
            count = segment.size // ENTRY_BYTES
            if not count:
                continue
            with InputFile(segment.path) as file:

                def is_free(number: int, file: InputFile = file) -> bool:
                    return _read(file, number * ENTRY_BYTES).size <= 0

                used = first_true(0, count, is_free)
            if used:
                return segment.start // ENTRY_BYTES + used
        return 0

    def _is_kept(self, offset: int) -> bool:
        entry = self.entry(offset)
        return entry.is_message and entry.physical_offset >= self._log_start


def _read(file: InputFile, at: int) -> Entry:
    return Entry.decode(file.read(at, ENTRY_BYTES).ljust(ENTRY_BYTES, b"\0"))


def first_true(low: int, high: int, is_true: Callable[[int], bool]) -> int:
    """The smallest number in ``[low, high)`` for which ``is_true``, which stays true from there on; else ``high``."""
    while low < high:
        middle = (low + high) // 2
        if is_true(middle):
            high = middle
        else:
            low = middle + 1
    return low
