"""The files of a log, and what is read of them: bytes, single records, records one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.formats.record.kernels import ScanStatus, scan
from penstock.formats.record.rows import ROW
from penstock.proto.errors import StorageError

from ..disk import Disk
from ..queues.kernels import Longs, Rows
from .log_file import LogFile

ROWS_AT_ONCE = 1 << 13


class Chunk(NamedTuple):
    """Scanned records of one file: ``rows[:count]``, whose positions are in ``file.bytes``.

    ``end`` is the log offset behind them, or behind the blank that follows them.
    """

    file: LogFile
    rows: Rows
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    end: int
    status: ScanStatus


class ReadableLog:
    """Where the log begins and ends, and its files."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self.segment_bytes = segment_bytes
        self.files: list[LogFile] = []  # ascending, of one size, without a gap; others iterate over a copy
        self.min_offset = 0
        self.end_offset = 0  # behind the last byte in the files
        self._disk = disk

    def read_bytes(self, start: int, size_max: int) -> memoryview:
        """A read-only view of at most ``size_max`` bytes from ``start`` on, of one file, below the end."""
        if not self.min_offset <= start <= self.end_offset:
            raise StorageError(f"offset {start} is outside the log {self.min_offset}..{self.end_offset}")
        if start == self.end_offset:
            return memoryview(b"")
        file = self.file_of(start)
        end = min(start + size_max, file.end, self.end_offset)
        return file.bytes[start - file.base : end - file.base].data.toreadonly()

    def file_of(self, offset: int) -> LogFile:
        """The file that holds the byte at ``offset``, which the log has."""
        number = (offset - self.files[0].base) // self.segment_bytes
        assert number >= 0, f"what lies at {offset} is not in the log any more, which begins at {self.min_offset}"
        return self.files[number]

    def by_file(self, positions: Longs) -> Iterator[tuple[LogFile, slice]]:
        """Which of ``positions``, which ascend and which the log has, lie in which file."""
        start = 0
        while start < len(positions):
            file = self.file_of(int(positions[start]))
            end = max(int(np.searchsorted(positions, file.end)), start + 1)
            yield file, slice(start, end)
            start = end

    def record_at(self, offset: int) -> memoryview | None:
        """The record at ``offset``, or None. A record is only believed if its own PHYSICALOFFSET is ``offset``."""
        if not self.min_offset <= offset < self.end_offset or not self.files:
            return None
        file = self.file_of(offset)
        at = offset - file.base
        size = int.from_bytes(file.bytes[at : at + 4].tobytes(), "big", signed=True)
        rows = np.zeros(1, ROW)
        count, _, _ = scan(file.bytes, at, min(at + max(size, 0), len(file.bytes)), file.base, False, rows)
        return file.bytes[at : at + size].data.toreadonly() if count == 1 else None

    def chunks(self, start: int, end: int, rows: Rows, *, check_crc: bool) -> Iterator[Chunk]:
        """Scan ``[start, end)`` file by file, as many records at once as ``rows`` takes.

        Ends behind the first chunk whose status is neither ROWS_FULL, BLANK nor END.
        """
        while start < end and start < self.files[-1].end:
            file = self.file_of(start)
            stop = min(end, file.end) - file.base
            count, position, status = scan(file.bytes, start - file.base, stop, file.base, check_crc, rows)
            if status == ScanStatus.BLANK and position != len(file.bytes):
                status = ScanStatus.BAD  # a blank fills its file, or is none
                position = int(rows["position"][count - 1] + rows["size"][count - 1]) if count else start - file.base
            yield Chunk(file, rows, count, file.base + position, ScanStatus(status))
            if status not in (ScanStatus.ROWS_FULL, ScanStatus.BLANK, ScanStatus.END):
                return
            start = file.base + position

    def written(self, file: LogFile, start: int) -> list[tuple[int, int]]:
        """Stretches of ``file.bytes[start:]`` that may be anything but zeros; reading the rest would make it memory.

        The rest of a file that was made ahead is a gibibyte of zeros, which the file system knows of.
        """
        found = []
        while (stretch := self._disk.data_range(file.descriptor, start, len(file.bytes))) is not None:
            found.append(stretch)
            start = stretch[1]
        return found
