"""What a pass over a log hands out, and what it keeps of what it meets besides records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.formats.batch_unit import BatchUnit
from penstock.formats.index.index_kernels import KEY_ROW

from .. import kernels
from ..directory import StoreDirectory
from ..files import Bytes
from ..queues.table import QueueTable
from .second_looks import SecondLooks

WINDOW_BYTES = 16 << 20
ENTRY_ROWS = 1 << 20
KEY_ROWS = 1 << 20
TIME_MIN = -(1 << 63)

Rows = npt.NDArray[np.void]
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""


class Batch(NamedTuple):
    """What a stretch of the log demands; good until the next one is asked for."""

    entries: Rows
    keys: Rows
    up_to: int  # log position behind the stretch


class Damage(NamedTuple):
    """Bytes ``[start, end)`` of the log that are not what was written; ``end`` is where sound ones follow.

    ``lost``: whether records may be missing because of it. ``at_end``: the rest of the file is gone with it.
    """

    start: int
    end: int
    reason: str
    lost: bool
    at_end: bool = False


class Tail(NamedTuple):
    """Where the log ends, and what lies there if it is not zeros."""

    end: int
    reason: str = ""
    leftover_at: int | None = None  # bytes of something cut off earlier, behind a proper end
    full: bool = False  # a full file, and the one that must follow is not there


class OffsetJump(NamedTuple):
    """A record whose queue offset does not follow the queue's record before."""

    slot: int
    physical_offset: int
    size: int
    queue_offset: int
    expected: int


class LogPass:
    """What one pass over the log of ``store`` has found so far, and its memory; :class:`.reader.LogReader` makes it.

    ``check_crc`` proves checksums as well. ``jumps``, ``damages``, ``batch_units``, ``tail`` and the counters grow
    while batches are taken.
    """

    def __init__(
        self,
        store: StoreDirectory,
        table: QueueTable,
        *,
        check_crc: bool = True,
        progress: Progress | None = None,
        entry_rows: int = ENTRY_ROWS,
    ) -> None:
        self.store = store
        self.table = table
        self.check_crc = check_crc
        self.damages: list[Damage] = []
        self.jumps: list[OffsetJump] = []
        self.batch_units: dict[tuple[str, int], list[BatchUnit]] = {}
        self.records = 0
        self.last_time = TIME_MIN  # store time of the last good record
        self.lost_at: int | None = None  # the first record that a rebuild put in place of lost ones
        self.last_end = store.log_start
        self.tail = Tail(store.log_start)
        self.second_looks = SecondLooks(store)
        self._progress = progress
        self.entries: Rows = np.empty(entry_rows, kernels.ENTRY_ROW)
        self.keys: Rows = np.empty(KEY_ROWS, KEY_ROW)
        self.entry_count = self.key_count = 0
        self.buffer: Bytes = np.empty(WINDOW_BYTES, np.uint8)

    def flush(self) -> Iterator[Batch]:
        """The batch collected so far."""
        if self.entry_count or self.key_count:
            entries, keys = self.entries[: self.entry_count], self.keys[: self.key_count]
            self.entry_count = self.key_count = 0
            yield Batch(entries, keys, self.last_end)

    def add_entry(self, name: str, offset: int, row: tuple[int, int, int, int]) -> None:
        """An entry of a light queue: its messages are records of another topic (multi-dispatch).

        ``row``: physical offset, size, tags code, store time.
        """
        physical, size, tags_code, time_ms = row
        table = self.table
        slot = table.add(name.encode("utf-8", "surrogateescape"), 0)
        expected = int(table.next_offsets[slot])
        if expected >= 0 and offset != expected:
            self.jumps.append(OffsetJump(slot, physical, size, offset, expected))
        table.next_offsets[slot] = offset + 1
        if self.entry_count == len(self.entries):
            self.entries = np.concatenate((self.entries, np.empty(1024, kernels.ENTRY_ROW)))
        self.entries[self.entry_count] = (physical, offset, tags_code, time_ms, slot, size)
        self.entry_count += 1

    def lost_before(self, physical: int) -> bool:
        """True if records in front of that position are lost, now or since before a rebuild."""
        damaged = any(damage.lost and damage.start < physical for damage in self.damages)
        return damaged or (self.lost_at is not None and self.lost_at < physical)

    def show_progress(self, position: int, *, done: bool = False) -> None:
        """Tell that everything below a log position is done, or simply everything."""
        if self._progress is not None:
            total = len(self.store.segments) * self.store.segment_bytes
            self._progress(total if done else min(position - self.store.log_start, total), total)
