"""One pass over a log: proves every record, keeps every damage, and tells what must be derived.

The reader hands out batches: the queue entries and index keys that the records demand. What it meets besides records
it keeps, so that callers decide what that means: a check reports it, a rebuild fills it, a search passes over it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.formats.batch_unit import BatchUnit
from penstock.formats.index.index_kernels import KEY_ROW

from ..directory import Segment, StoreDirectory
from ..files import Bytes, InputFile, Unreadable
from ..kernels import ENTRY_ROW
from ..queues.table import QueueTable
from .model import TIME_MIN, WINDOW_BYTES, Batch, Damage, OffsetJump, Progress, Rows, SecondLooks, Tail
from .segment_walk import SegmentWalk

ENTRY_ROWS = 1 << 20
KEY_ROWS = 1 << 20


class LogReader:
    """Reads the log of ``store`` from front to back; for one pass.

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
        self.tail = Tail(store.log_start)
        self.second_looks = SecondLooks(store)
        self._progress = progress
        self.entries: Rows = np.empty(entry_rows, ENTRY_ROW)
        self.keys: Rows = np.empty(KEY_ROWS, KEY_ROW)
        self.entry_count = self.key_count = 0
        self.buffer: Bytes = np.empty(WINDOW_BYTES, np.uint8)

    def read(self, start: int = 0, end: int | None = None) -> Iterator[Batch]:
        """All batches from log position ``start`` on, which must be a record's, to the log's end.

        With ``end``, files from there on are not read.
        """
        segments = self.store.segments
        self.tail = Tail(segments[-1].start + self.store.segment_bytes)
        for number, segment in enumerate(segments):
            if segment.start + self.store.segment_bytes <= start:
                continue
            if end is not None and segment.start >= end:
                break
            if segment.start >= start:
                self._keep_gap(number)
            try:
                with InputFile(segment.path) as file:
                    file.expect_sequential()
                    walk = SegmentWalk(self, file, number, max(0, start - segment.start))
                    try:
                        finished = yield from walk.run()
                    except Unreadable as error:
                        self._keep_unreadable(segment, walk.position, error)
                        finished = False
            except Unreadable as error:
                self._keep_unreadable(segment, 0, error)
                finished = False
            if finished:
                break
        yield from self.flush()
        self.show_progress(self.tail.end, done=True)

    def _keep_gap(self, number: int) -> None:
        """Damage where log files are missing in front of this one."""
        if number > 0:
            before, segment = self.store.segments[number - 1], self.store.segments[number]
            due = before.start + self.store.segment_bytes
            if segment.start != due:
                reason = f"log files are missing between {before.path.name} and {segment.path.name}"
                self.damages.append(Damage(due, segment.start, reason, True, True))

    def _keep_unreadable(self, segment: Segment, position: int, error: Unreadable) -> None:
        end = segment.start + self.store.segment_bytes
        reason = str(error).removeprefix(f"{segment.path}: ")
        self.damages.append(Damage(segment.start + position, end, reason, True, True))

    def flush(self) -> Iterator[Batch]:
        """The batch collected so far."""
        if self.entry_count or self.key_count:
            entries, keys = self.entries[: self.entry_count], self.keys[: self.key_count]
            self.entry_count = self.key_count = 0
            yield Batch(entries, keys)

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
            self.entries = np.concatenate((self.entries, np.empty(1024, ENTRY_ROW)))
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
