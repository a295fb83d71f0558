"""Deleting the log's oldest files, and with them what queues and index have of them.

A file goes in two steps. First it is taken out: the log begins behind it, and nobody new can read it. Then it is
deleted, in any thread, when nobody holds its bytes any more, or after a grace. A reader who still holds them keeps
them alive through the mapping, deleted or not: no read ever fails because of a deletion, only the space comes back
later. Files are deleted in the order of the log, so that a crash leaves no gap.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..disk import Bytes, Disk, named_errors
from ..index.index import Index
from ..log.commit_log import CommitLog
from ..queues.consume_queue import ConsumeQueues
from ..queues.other_queues import OtherQueues
from ..queues.queue_search import first_offset
from .cleaning import DiskUse, FileAge

log = logging.getLogger(__name__)

_QUEUES_AT_ONCE = 64


@dataclass(slots=True)
class _Leaving:
    """A file that was taken out of the log and is not deleted yet."""

    path: str
    descriptor: int
    bytes: Bytes | None
    alive: weakref.ref[Bytes]
    since_s: float
    warned: bool = False


class Removal:
    """What deletes. The owner thread of the store calls everything; :meth:`delete_taken` any one thread."""

    def __init__(self, disk: Disk, log_: CommitLog, queues: ConsumeQueues, index: Index, others: OtherQueues) -> None:
        self._disk = disk
        self._log = log_
        self._queues = queues
        self._index = index
        self._others = others
        self._leaving: deque[_Leaving] = deque()
        self._guard = threading.Lock()

    @property
    def waiting(self) -> int:
        """Files taken out and not deleted yet."""
        return len(self._leaving)

    def files(self) -> list[FileAge]:
        """The log's files, the oldest first."""
        makes_space = self._log.directories.makes_space
        return [
            FileAge(file.base, file.end, self._disk.modified_ms(file.path), makes_space(file.path))
            for file in self._log.files
        ]

    def disk_use(self) -> DiskUse:
        """Use of the disk that matters: of the log's directories the emptiest, of that and the queues' the fuller."""
        emptiest = min(map(self._use, self._log.directories.writable), key=lambda use: use.percent)
        return max(emptiest, self._use(self._queues.files.directory), key=lambda use: use.percent)

    @property
    def is_out_of_space(self) -> bool:
        """True if the next log file fits nowhere, however low :meth:`disk_use` is: one is large on a small disk."""
        return self._log.allocator.is_out_of_space

    def take_out(self, end: int) -> int:
        """Let the log begin at ``end``, where one of its files but the last ends; how many files were taken out.

        The caller has made sure that everything below is synced, dispatched and noted in a checkpoint.
        """
        taken = self._log.take_before(end)
        now_s = time.monotonic()
        with self._guard:
            for file in taken:
                self._leaving.append(_Leaving(file.path, file.descriptor, file.bytes, weakref.ref(file.bytes), now_s))
        return len(taken)

    def delete_taken(self, grace_s: float, *, now_s: float | None = None) -> int:
        """Delete files that were taken out: the oldest, and the ones behind it, up to the first that a reader holds.

        After ``grace_s`` a file is deleted whether it is held or not. Returns how many were.

        Raises StorageError: a file cannot be deleted; it is tried again at the next call.
        """
        now = time.monotonic() if now_s is None else now_s
        deleted: list[str] = []
        with self._guard:
            while self._leaving:
                first = self._leaving[0]
                first.bytes = None  # the last reference, unless a reader has one: this unmaps the file
                held = first.alive() is not None
                if held and now - first.since_s < grace_s:
                    if not first.warned:
                        log.info("log file still read, deleted later path=%s grace_s=%.0f", first.path, grace_s)
                        first.warned = True
                    break
                self._delete(first, held=held)
                self._leaving.popleft()
                deleted.append(first.path)
        self._log.directories.sync(deleted)
        return len(deleted)

    def align(self) -> Iterator[None]:
        """Let queues and index begin with the log, yielding now and then. Raises Corrupt, StorageError: call again."""
        self._index.remove_before(self._log.min_offset)
        names = [(topic, queue_id) for topic, ids in self._queues.slots.by_topic.items() for queue_id in ids]
        for number, (topic, queue_id) in enumerate(names):
            self._align_queue(topic, queue_id)
            if number % _QUEUES_AT_ONCE == _QUEUES_AT_ONCE - 1:
                yield
        self._others.align(self._queues)

    def ended_before(self, physical_offset: int) -> list[tuple[str, int, int]]:
        """Topic, id and maximum of each queue that has no record from there on."""
        slots = self._queues.slots
        count = len(slots.topics)
        found = np.flatnonzero((slots.next_offsets[:count] > 0) & (slots.ends[:count] <= physical_offset))
        return [(slots.topics[slot], slots.queue_ids[slot], int(slots.next_offsets[slot])) for slot in found.tolist()]

    def remember(self, ends_of: Callable[[str], Mapping[int, int]]) -> None:
        """Queues of which there is neither a record nor an entry go on where ``ends_of(topic)`` says, by their ids."""
        self._queues.ends_of = ends_of

    def first_from(self, topic: str, queue_id: int, physical_offset: int, *, below: bool = False) -> int:
        """The first offset of the queue whose record lies at or behind ``physical_offset``; its maximum without one.

        ``below``: also one below a raised minimum.
        """
        slot = self._queues.slots.find(topic, queue_id)
        if slot is None:
            return 0
        return self._first_from(slot, physical_offset, self._queues.look_below(topic, queue_id).low if below else None)

    def physical_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Where the record at that offset lies in the log; None outside the queue."""
        slot, low, high = self._queues.look(topic, queue_id)
        return self._physical(slot, offset) if low <= offset < high else None

    def raise_min_offset(self, topic: str, queue_id: int, offset: int) -> bool:
        """Let the queue begin at ``offset``, unless it begins later already. Returns True if that changed anything.

        The records stay in the log and the entries in the queue's files: it holds until the store is closed.
        """
        slots = self._queues.slots
        slot = slots.find(topic, queue_id)
        if slot is None or offset <= slots.min_offsets[slot]:
            return False
        slots.min_offsets[slot] = min(offset, int(slots.next_offsets[slot]))
        return True

    def close(self, *, delete: bool) -> None:
        """Delete what was taken out, whoever holds it; ``delete=False``: only close it, the next start deletes it."""
        with self._guard:
            for leaving in self._leaving:
                leaving.bytes = None
                if delete:
                    self._delete(leaving, held=False)
                else:
                    self._disk.close(leaving.descriptor)
            self._leaving.clear()

    def _use(self, directory: str) -> DiskUse:
        return DiskUse(self._disk.used_bytes(directory), self._disk.free_bytes(directory))

    def _delete(self, leaving: _Leaving, *, held: bool) -> None:
        with named_errors(leaving.path, "deleting the log file"):
            if self._disk.exists(leaving.path):
                self._log.directories.unlink(leaving.path)
        self._disk.close(leaving.descriptor)
        if held:
            log.warning("log file deleted under a reader, its space returns later path=%s", leaving.path)
        else:
            log.info("log file deleted path=%s", leaving.path)

    def _align_queue(self, topic: str, queue_id: int) -> None:
        slots = self._queues.slots
        slot = slots.find(topic, queue_id)
        if slot is None:
            return
        low = int(slots.min_offsets[slot])
        first = self._first_from(slot, self._log.min_offset)
        if first > low:
            slots.min_offsets[slot] = first
            with self._queues.lock:
                self._queues.files.remove_leading(topic, queue_id, first)

    def _first_from(self, slot: int, physical_offset: int, low: int | None = None) -> int:
        slots = self._queues.slots
        low, high = int(slots.min_offsets[slot]) if low is None else low, int(slots.next_offsets[slot])
        if low == high or self._physical(slot, low) >= physical_offset:
            return low
        if slots.ends[slot] <= physical_offset:
            return high
        return first_offset(
            partial(self._queues.entries, slot), low, high, lambda physical: physical >= physical_offset
        )

    def _physical(self, slot: int, offset: int) -> int:
        entry = self._queues.entry(slot, offset)
        return -1 if entry.is_filler else entry.physical_offset
