"""Writes consume queues afresh, as RocketMQ would have: one run per queue and batch of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.formats.batch_unit import BATCH_UNIT_BYTES
from penstock.formats.directory import BATCH_QUEUE, CONSUME_QUEUE, file_name
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, FILE_ENTRIES, FILLER

from ..directory import QueueKey
from ..files import Bytes
from ..log.model import Rows
from .table import QueueTable, can_name_directory, runs

DEFAULT_QUEUE_BYTES = FILE_ENTRIES * ENTRY_BYTES
FILLED_MAX = 1 << 24
"""Entries of filling at once; a queue offset further ahead is damaged."""
OFFSET_MAX = (1 << 63) // ENTRY_BYTES
DEFAULT_BATCH_BYTES = FILE_ENTRIES * BATCH_UNIT_BYTES


def write_at(path: Path, position: int, data: bytes | bytearray | memoryview | Bytes, size: int) -> None:
    """Write ``data`` into a file of ``size`` bytes, which is made if absent, as a hole."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(descriptor).st_size != size:
            os.ftruncate(descriptor, size)
        view = memoryview(data).cast("B") if not isinstance(data, np.ndarray) else data.data
        while len(view):
            written = os.pwrite(descriptor, view, position)
            position += written
            view = view[written:]
    finally:
        os.close(descriptor)


class QueueWriter:
    """Makes ``root/consumequeue`` from rows in the log's order."""

    def __init__(self, root: Path, table: QueueTable, queue_bytes: int) -> None:
        self._root = root
        self._table = table
        self._file_bytes = queue_bytes or DEFAULT_QUEUE_BYTES
        self._next: dict[int, int] = {}
        self.entries = 0
        self.filled = 0
        """Entries of filling within queues, for records that the log has lost."""
        self.left_out = 0
        """Entries that fit no queue, because of a damaged topic or queue offset: their records are in the log only."""

    def __len__(self) -> int:
        """Number of queues."""
        return len(self._next)

    def take(self, rows: Rows) -> None:
        """Write the entries of a batch. Raises OSError: the disk is full, or a name cannot be a directory."""
        for slot, run in runs(rows):
            self._write_run(run, slot)
        self.entries += len(rows)

    def _write_run(self, rows: Rows, slot: int) -> None:
        topic, queue_id = self._table.names[slot]
        offset = int(rows["queue_offset"][0])
        expected = self._next.get(slot, offset)
        right = offset == 0 or expected <= offset <= expected + FILLED_MAX
        if not right or not can_name_directory(topic, queue_id) or offset >= OFFSET_MAX:
            self.left_out += len(rows)
            return
        directory = self._root / CONSUME_QUEUE / topic / str(queue_id)
        if slot in self._next and offset < expected:
            for path in directory.iterdir():
                path.unlink()  # the topic was deleted and made again: the queue begins anew
            del self._next[slot]
        if slot not in self._next:
            directory.mkdir(parents=True, exist_ok=True)
            expected = offset - offset % (self._file_bytes // ENTRY_BYTES)
        elif offset > expected:
            self.filled += offset - expected
        if offset > expected:
            filling = np.frombuffer(FILLER * (offset - expected), np.uint8)
            self._write(directory, expected * ENTRY_BYTES, filling)
        entries = np.empty(len(rows), ENTRY)
        for name in ENTRY.names or ():
            entries[name] = rows[name]
        self._write(directory, offset * ENTRY_BYTES, entries.view(np.uint8))
        self._next[slot] = offset + len(rows)

    def _write(self, directory: Path, at: int, data: Bytes) -> None:
        while len(data):
            base = at - at % self._file_bytes
            part = data[: base + self._file_bytes - at]
            write_at(directory / file_name(base), at - base, part, self._file_bytes)
            at += len(part)
            data = data[len(part) :]


def write_batch_queues(root: Path, demanded: Mapping[QueueKey, npt.NDArray[np.void]], file_bytes: int) -> None:
    """Make ``root/batchconsumequeue`` of the units of inner batches, in files of so many bytes."""
    size = file_bytes or DEFAULT_BATCH_BYTES
    for (topic, queue_id), units in demanded.items():
        if not can_name_directory(topic, queue_id):
            continue
        directory = root / BATCH_QUEUE / topic / str(queue_id)
        directory.mkdir(parents=True, exist_ok=True)
        rows = units.view(np.uint8)
        for start in range(0, len(rows), size):
            write_at(directory / file_name(start), 0, rows[start : start + size], size)
