"""Queue entries that the log knows nothing of, and the queues of inner batches."""

from __future__ import annotations

import numpy as np

from penstock.formats.batch_unit import BATCH_UNIT, BATCH_UNIT_BYTES, BatchUnit
from penstock.formats.directory import BATCH_QUEUE, CONSUME_QUEUE
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, FILLER_SIZE, are_messages

from ..directory import QueueFiles, QueueKey, StoreDirectory
from ..files import Unreadable
from ..log.model import Rows, SecondLooks
from .check import QueueCheck
from .table import QueueTable
from .view import read_segments

STEP_ENTRIES = 1 << 10


class QueueRest:
    """Looks at the entries before and behind those that the log demands.

    ``log_end`` is where the log ends; with ``loose_end`` that end moves, or a crash cut it, so entries that point
    behind it are to be expected.
    """

    def __init__(self, store: StoreDirectory, log_end: int, *, loose_end: bool) -> None:
        self._store = store
        self._findings = store.findings
        self._log_end = log_end
        self._loose_end = loose_end
        self._beyond = self._beyond_queues = 0
        self._second_looks = SecondLooks(store)

    def check(self, table: QueueTable, checked: QueueCheck) -> None:
        """Every queue that has a directory."""
        for name, queue in self._store.queues.items():
            if not queue.segments:
                continue
            slot = table.find(*name)
            bounds = None if slot is None else checked.first_and_next(slot)
            start = queue.segments[0].start // ENTRY_BYTES
            end = (queue.segments[-1].start + queue.segments[-1].size) // ENTRY_BYTES
            first, following = bounds if bounds is not None else (end, end)
            try:
                self._check_head(queue, start, min(first, end))
                self._check_tail(queue, following, end)
            except Unreadable as error:
                self._findings.problem(queue.directory, None, str(error))
        if self._beyond:
            text = f"{self._beyond} entries of {self._beyond_queues} queues point behind the log's end {self._log_end}"
            self._findings.note(self._store.root / CONSUME_QUEUE, None, text)

    def _check_head(self, queue: QueueFiles, start: int, end: int) -> None:
        """Entries in front of the log's first record of the queue: of records deleted since, or the filling."""
        for first in range(start, end, STEP_ENTRIES):
            count = min(STEP_ENTRIES, end - first)
            entries = read_segments(queue.segments, first * ENTRY_BYTES, count * ENTRY_BYTES).view(ENTRY)
            filling = int(np.count_nonzero((entries["size"] == FILLER_SIZE) & (entries["physical_offset"] == 0)))
            if filling and first == start:
                text = f"the queue begins late: {filling} entries of filling stand in front of its first message"
                self._findings.note(queue.segments[0].path, 0, text)
            used = are_messages(entries)
            if first == start and not used.any() and not filling:
                return  # nothing was ever written
            later = np.flatnonzero(used & (entries["physical_offset"] >= self._store.log_start))
            if len(later):
                self._tell_surplus(queue, first, entries, later)

    def _check_tail(self, queue: QueueFiles, start: int, end: int) -> None:
        """Entries behind the log's last record of the queue."""
        for first in range(start, end, STEP_ENTRIES):
            count = min(STEP_ENTRIES, end - first)
            while True:
                entries = read_segments(queue.segments, first * ENTRY_BYTES, count * ENTRY_BYTES).view(ENTRY)
                used = np.flatnonzero(entries["size"] > 0)
                within = entries["physical_offset"][used] + entries["size"][used] <= self._log_end
                if not (within.any() and self._second_looks.is_due((queue.directory, first))):
                    break
            if len(used):
                self._tell_surplus(queue, first, entries, used)
            if len(used) < count:
                return

    def _tell_surplus(
        self, queue: QueueFiles, first: int, entries: Rows, chosen: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> None:
        behind = chosen[entries["physical_offset"][chosen] + entries["size"][chosen] > self._log_end]
        within = chosen[entries["physical_offset"][chosen] + entries["size"][chosen] <= self._log_end]
        if len(behind) and self._loose_end:
            self._beyond += len(behind)
            self._beyond_queues += 1
        elif len(behind):
            text = f"points to {int(entries['physical_offset'][behind[0]])}, behind the log's end {self._log_end}"
            self._tell(queue, first + int(behind[0]), text, len(behind))
        if len(within):
            text = f"points to {int(entries['physical_offset'][within[0]])}: no record of this queue is there"
            self._tell(queue, first + int(within[0]), text, len(within))

    def _tell(self, queue: QueueFiles, offset: int, text: str, count: int) -> None:
        at = offset * ENTRY_BYTES
        segment = next((s for s in queue.segments if s.start <= at < s.start + s.size), queue.segments[-1])
        more = f" (and {count - 1} more)" if count > 1 else ""
        self._findings.problem(segment.path, at - segment.start, f"entry {offset} {text}{more}")

    def check_batches(self, demanded: dict[QueueKey, list[BatchUnit]]) -> None:
        """The queues of inner batches, unit by unit."""
        for name in demanded.keys() | self._store.batch_queues.keys():
            units = demanded.get(name, [])
            queue = self._store.batch_queues.get(name)
            if queue is None:
                path = self._store.root / BATCH_QUEUE / name[0] / str(name[1])
                self._findings.problem(path, None, f"missing: {len(units)} inner batches should be in it")
                continue
            try:
                self._check_batch_queue(queue, units)
            except Unreadable as error:
                self._findings.problem(queue.directory, None, str(error))

    def _check_batch_queue(self, queue: QueueFiles, units: list[BatchUnit]) -> None:
        found, start = read_batch_units(queue)
        old = int(np.count_nonzero(found["physical_offset"] < self._store.log_start))
        for number, unit in enumerate(units):
            at = start + (old + number) * BATCH_UNIT_BYTES
            if old + number >= len(found):
                text = f"{len(units) - number} units are missing at the queue's end, from message {unit.base} on"
                self._findings.tell(queue.directory, at, text, expected=self._loose_end)
                return
            entry = found[old + number]
            if tuple(entry)[:6] != tuple(unit):
                text = f"the unit holds {tuple(int(v) for v in tuple(entry)[:6])}, its record demands {tuple(unit)}"
                self._findings.problem(queue.directory, at, text)
                return
        surplus = len(found) - old - len(units)
        if surplus and not self._loose_end:
            at = start + (old + len(units)) * BATCH_UNIT_BYTES
            self._findings.problem(queue.directory, at, f"{surplus} units point to no record of this queue")


def read_batch_units(queue: QueueFiles) -> tuple[Rows, int]:
    """All units of a batch consume queue, and the queue's first byte position.

    Raises Unreadable: one of its files cannot be read.
    """
    if not queue.segments:
        return np.zeros(0, BATCH_UNIT), 0
    start = queue.segments[0].start
    size = queue.segments[-1].start + queue.segments[-1].size - start
    units = read_segments(queue.segments, start, size - size % BATCH_UNIT_BYTES).view(BATCH_UNIT)
    used = np.flatnonzero(units["size"] <= 0)
    return units[: int(used[0]) if len(used) else len(units)], start
