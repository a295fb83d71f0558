"""Reads a range of one log file: its records in stretches, and what is no record as damage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.formats.record.kernels import ROW, ScanStatus, measure_at, scan
from penstock.formats.record.kernels.scanning import RECORD
from penstock.formats.record.layout import FIXED_BYTES, SysFlag
from penstock.proto.errors import StorageError

from ...columns import column_kernels as kernels
from ..files import Bytes, FileReader
from ..model import Damage

Rows = npt.NDArray[np.void]

WINDOW_BYTES = 2 << 20
"""Read at once, or twice that where it holds few records. A window is gone through once per column: it should still be
in the processor's cache then (of 8 MiB a scan took a third more), and make rows enough for a batch to be worth it."""
LARGE_WINDOW_BYTES = 8 << 20
"""For who sums up each window: the fewer, the fewer sums."""
ROWS_FEW = 4_096
OVERLAP_BYTES = 64 << 10
ROWS_MAX = 32_768
RECORD_BYTES_MAX = 256 << 20
"""What claims to be longer is no record: brokers take 4 MiB by default."""
ZEROS = "zeros where a record or the file's end is due"


def has_no_entry(rows: Rows) -> npt.NDArray[np.bool_]:
    """Which records no consume queue names: half messages, rolled-back ones, inner batches."""
    kinds = rows["sys_flag"] & SysFlag.TRANSACTION_MASK
    found: npt.NDArray[np.bool_] = np.isin(kinds, (SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK))
    found |= rows["sys_flag"] & SysFlag.INNER_BATCH != 0
    return found


class FileScan:
    """Records of one log file, whose first byte is at ``start`` of the log; nothing behind ``size`` is looked at."""

    def __init__(
        self,
        reader: FileReader,
        start: int,
        size: int,
        *,
        check_crc: bool,
        needs_blank: bool = False,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.start = start
        self.size = size
        self.ended_with_blank = False
        self._reader = reader
        self._check_crc = check_crc
        self._needs_blank = needs_blank
        self._window_bytes = window_bytes
        self._rows: Rows = np.empty(ROWS_MAX, ROW)

    def read(self, begin: int, end: int) -> Iterator[tuple[Bytes, Rows] | Damage]:
        """The records that begin in ``[begin, end)`` (positions in the file), in order.

        The first is the first one at or behind ``begin``. Rows are good until the next stretch is asked for, and
        never empty. Damage is told by the range in which it begins.
        Raises StorageError: the file cannot be read, or a message's body holds what looks like records of this log at
        the end of the range, so that ranges would overlap.
        """
        position: int | None = self.find(begin) if begin > 0 else begin
        end = min(end, self.size)
        wanted = self._window_bytes
        if position is None or position >= end:
            return
        while position is not None and position < end:
            window = self._window(position, min(wanted, end - position + OVERLAP_BYTES))
            at, held, status = 0, 0, ScanStatus.ROWS_FULL
            while status == ScanStatus.ROWS_FULL and position + at < end:
                count, at, code = scan(window, at, len(window), self.start + position, self._check_crc, self._rows)
                held += count
                status = ScanStatus(code)
                rows = self._rows[:count]
                if count and position + int(rows["position"][-1]) >= end:
                    kept = int(np.searchsorted(rows["position"], end - position))
                    at, status = int(rows["position"][kept]), ScanStatus.END
                    rows = rows[:kept]
                if len(rows):
                    yield window, rows
            position += at
            if status == ScanStatus.BLANK:
                yield from self._after_blank(position)
                return
            if position >= end:
                break
            wanted = self._window_bytes if held >= ROWS_FEW else 2 * self._window_bytes
            if status == ScanStatus.INCOMPLETE:
                claimed = self._claimed(window, at)
                left = self.size - position
                if len(window) - at < left and (claimed is None or claimed <= min(left, RECORD_BYTES_MAX)):
                    if claimed is not None and position + claimed > end + OVERLAP_BYTES:
                        yield from self._last(position, claimed, end)
                        return
                    wanted = max(wanted, claimed or 0)
                    continue
            if status not in (ScanStatus.END, ScanStatus.ROWS_FULL):
                damage, position = self._damage(window, at, position, status)
                yield damage
        if position is not None:
            yield from self._border(position, end)

    def _border(self, position: int, end: int) -> Iterator[Damage]:
        """Whether the next range, which begins at ``end``, goes on at ``position``, where this one's records end."""
        if position == self.size:
            if self._needs_blank:
                yield Damage(self.start + position, self.start + position, "the file ends without a blank record")
            return
        following = self.find(end)
        if following == position:
            return
        if following is not None and following < position:
            raise StorageError(
                f"{self._reader.path}: the body of a message holds what looks like a record of this log at "
                f"{self.start + following}: read the store with a splitBytes above the size of its files"
            )
        window = self._window(position, WINDOW_BYTES)
        _, at, code = scan(window, 0, len(window), self.start + position, self._check_crc, self._rows[:0])
        if code == ScanStatus.BLANK:
            yield from self._after_blank(position + at)
        else:
            yield self._damage(window, 0, position, ScanStatus(code))[0]

    def _after_blank(self, position: int) -> Iterator[Damage]:
        """A blank record ends the file, if it says so."""
        self.ended_with_blank = position == self.size
        if position < self.size:
            reason = f"a blank record ends the file {self.size - position} bytes early"
            yield Damage(self.start + position, self.start + self.size, reason)

    def find(self, position: int) -> int | None:
        """Position of the first sound record at or behind ``position``; None without one.

        All ranges of a file are cut by this, so that each record belongs to exactly one.
        """
        wanted = 2 * OVERLAP_BYTES  # mostly one is near
        while position < self.size:
            window = self._window(position, wanted)
            reaches_end = position + len(window) == self.size
            searched = len(window) if reaches_end else len(window) - min(OVERLAP_BYTES, len(window) // 2)
            found = int(kernels.find_record(window, 0, searched, self.start + position))
            if found >= 0:
                return position + found
            if found < -1:  # a record that may go on behind the window
                at = -2 - found
                claimed = self._claimed(window, at) or 0
                if claimed <= min(self.size - position - at, RECORD_BYTES_MAX):
                    position += at
                    wanted = max(WINDOW_BYTES, claimed + FIXED_BYTES)
                else:
                    position += at + 1
                continue
            if reaches_end:
                return None
            position += searched
            wanted = WINDOW_BYTES
        return None

    def _last(self, position: int, size: int, end: int) -> Iterator[tuple[Bytes, Rows] | Damage]:
        """The range's last record, which is larger than what was read behind the range."""
        window = self._window(position, size)
        count, _, code = scan(window, 0, len(window), self.start + position, self._check_crc, self._rows)
        if count:
            yield window, self._rows[:1]
            yield from self._border(position + size, end)
        elif code == ScanStatus.BLANK:
            yield from self._after_blank(position + len(window))
        else:
            yield self._damage(window, 0, position, ScanStatus(code))[0]

    def _window(self, position: int, size: int) -> Bytes:
        return self._reader.read(position, min(size, self.size - position))

    @staticmethod
    def _claimed(window: Bytes, at: int) -> int | None:
        """The size that a record which is not whole says it has; None if even that is behind the window."""
        return None if len(window) - at < 4 else int.from_bytes(window[at : at + 4].tobytes(), "big", signed=True)

    def _damage(self, window: Bytes, at: int, position: int, status: ScanStatus) -> tuple[Damage, int | None]:
        """What is wrong at ``window[at]``, which is ``position`` of the file, and where to go on."""
        kind, record_end, *_ = measure_at(window.ctypes.data, at, len(window))
        if kind == RECORD:
            physical = int.from_bytes(window[at + 28 : at + 36].tobytes(), "big", signed=True)
            follows: int | None = position + int(record_end) - at
            if physical != self.start + position:
                reason = f"the record says that it lies at {physical}"
                follows = self.find(position + 1)
            else:
                reason = "the body does not match its checksum"
        else:
            reason = ZEROS if status == ScanStatus.EMPTY else "no record: its size, magic or lengths are wrong"
            if status == ScanStatus.INCOMPLETE:
                reason = "a record that goes on behind the file's end"
            follows = self.find(position + 1)
        end = self.size if follows is None else follows
        return Damage(self.start + position, self.start + end, reason), follows
