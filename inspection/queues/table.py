"""Numbers (slots) for queues, in arrays that the kernels search; and rows, queue by queue."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.formats.delay_levels import levels_ms
from penstock.proto.names import SCHEDULE_TOPIC

from .. import kernels

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Rows = npt.NDArray[np.void]


def can_name_directory(topic: str, queue_id: int) -> bool:
    """True if a queue may have a directory: damaged bytes must not lead out of the store's."""
    fits = 0 < len(topic.encode("utf-8", "surrogateescape")) <= 255 and queue_id >= 0
    return fits and topic not in (".", "..") and "/" not in topic and "\0" not in topic


def runs(entries: Rows) -> Iterator[tuple[int, Rows]]:
    """(slot, rows) of each stretch of rows with consecutive queue offsets: queue by queue, in the log's order."""
    rows = entries[np.argsort(entries["slot"], kind="stable")]
    edges = np.flatnonzero((np.diff(rows["slot"]) != 0) | (np.diff(rows["queue_offset"]) != 1)) + 1
    for run in np.split(rows, edges):
        if len(run):
            yield int(run["slot"][0]), run


class QueueTable:
    """Every queue that a log has records of, by (topic, queue id).

    Per slot: ``next_offsets`` (what :func:`kernels.check_records` expects next, -1 at first), ``kinds``.
    ``batch_topics`` are those whose inner batches have queues of their own format.
    """

    def __init__(self, batch_topics: frozenset[str] = frozenset()) -> None:
        self._batch_topics = batch_topics
        self._slots: dict[tuple[bytes, int], int] = {}
        self.names: list[tuple[str, int]] = []
        self.table: Ints = np.full(1 << 10, -1, np.int32)
        self.name_bytes: Bytes = np.zeros(1 << 12, np.uint8)
        self.name_ends: Longs = np.zeros((1 << 8) + 1, np.int64)
        self.queue_ids: Ints = np.zeros(1 << 8, np.int32)
        self.next_offsets: Longs = np.full(1 << 8, -1, np.int64)
        self.kinds: Ints = np.zeros(1 << 8, np.int32)
        self.delays: Longs = np.array([0, *levels_ms()], np.int64)

    def __len__(self) -> int:
        return len(self.names)

    def find(self, topic: str, queue_id: int) -> int | None:
        """The slot, None if no record of that queue was seen."""
        return self._slots.get((topic.encode("utf-8", "surrogateescape"), queue_id))

    def add(self, topic: bytes, queue_id: int) -> int:
        """The slot of a queue, made if it is new."""
        slot = self._slots.get((topic, queue_id))
        if slot is not None:
            return slot
        slot = len(self.names)
        self._reserve(slot, len(topic))
        name = topic.decode("utf-8", "surrogateescape")
        start = int(self.name_ends[slot])
        self.name_bytes[start : start + len(topic)] = np.frombuffer(topic, np.uint8)
        self.name_ends[slot + 1] = start + len(topic)
        self.queue_ids[slot] = queue_id
        kind = kernels.SLOT_SCHEDULE if name == SCHEDULE_TOPIC else 0
        self.kinds[slot] = kind | (kernels.SLOT_BATCH if name in self._batch_topics else 0)
        self._slots[topic, queue_id] = slot
        self.names.append((name, queue_id))
        self._enter(topic, queue_id, slot)
        return slot

    def _enter(self, topic: bytes, queue_id: int, slot: int) -> None:
        at = kernels.slot_place(np.frombuffer(topic, np.uint8), queue_id)
        mask = len(self.table) - 1
        at &= mask
        while self.table[at] >= 0:
            at = at + 1 & mask
        self.table[at] = slot

    def _reserve(self, slot: int, name_bytes: int) -> None:
        """Room for one more slot, and a table at most half full."""
        if slot == len(self.queue_ids):
            self.name_ends = np.concatenate((self.name_ends, np.zeros(slot, np.int64)))
            self.queue_ids = np.concatenate((self.queue_ids, np.zeros(slot, np.int32)))
            self.next_offsets = np.concatenate((self.next_offsets, np.full(slot, -1, np.int64)))
            self.kinds = np.concatenate((self.kinds, np.zeros(slot, np.int32)))
        used = int(self.name_ends[slot])
        if used + name_bytes > len(self.name_bytes):
            self.name_bytes = np.concatenate((self.name_bytes, np.zeros(len(self.name_bytes) + name_bytes, np.uint8)))
        if 2 * (slot + 1) > len(self.table):
            self.table = np.full(2 * len(self.table), -1, np.int32)
            for (topic, queue_id), known in self._slots.items():
                self._enter(topic, queue_id, known)
