"""Slots: a number for each (topic, queue id), and what is known of each queue in arrays that kernels use.

| Array, one per slot | Meaning |
|---|---|
| next_offsets | offset of the next entry: the queue's maximum |
| ends | end of the last entry's record in the log; 0 without one |
| min_offsets | first offset that can be read |
| arena, arena_counts | the newest entries, not in a file yet |

Names are found through two open-addressed tables: topic name -> topic id, compared byte by byte, and
(topic id << 32 | queue id) -> slot. Only the owner thread changes them.
"""

from __future__ import annotations

import secrets
from typing import TypeVar

import numpy as np

from penstock.formats.queue_entry import ENTRY_BYTES
from penstock.proto.names import LIGHT_PREFIX

from ..disk import Bytes
from .kernels import Ints, Longs, Rows, assign_slots, key_hash, topic_hash

ARENA_MAX = 64
"""Entries that a queue collects in memory before they are written: 1280 bytes per queue, one call per 64."""
_FIRST_CAPACITY = 256

Array = TypeVar("Array", Bytes, Ints, Longs)


class Slots:
    """The table of all queues; grows by doubling."""

    def __init__(self) -> None:
        self._seed = np.uint64(secrets.randbits(64))  # nobody outside can choose names that collide
        self.topics: list[str] = []  # one per slot
        self.queue_ids: list[int] = []
        self.by_topic: dict[str, dict[int, int]] = {}
        self.light_count = 0  # queues of light queues' names
        self._free: list[int] = []
        self._topic_ids: dict[str, int] = {}
        self._names: Bytes = np.zeros(4096, np.uint8)
        self._names_size = 0
        self._name_ends: Longs = np.zeros(_FIRST_CAPACITY, np.int64)
        self._topic_table: Ints = np.full(4 * _FIRST_CAPACITY, -1, np.int32)
        self._keys: Longs = np.full(4 * _FIRST_CAPACITY, -1, np.int64)
        self._key_slots: Ints = np.zeros(4 * _FIRST_CAPACITY, np.int32)
        self.next_offsets: Longs = np.zeros(_FIRST_CAPACITY, np.int64)
        self.ends: Longs = np.zeros(_FIRST_CAPACITY, np.int64)
        self.min_offsets: Longs = np.zeros(_FIRST_CAPACITY, np.int64)
        self.cursors: Longs = np.zeros(_FIRST_CAPACITY, np.int64)
        self.arena_counts: Ints = np.zeros(_FIRST_CAPACITY, np.int32)
        self.new_counts: Ints = np.zeros(_FIRST_CAPACITY, np.int32)
        self.arena = np.zeros((_FIRST_CAPACITY, ARENA_MAX * ENTRY_BYTES), np.uint8)

    def __len__(self) -> int:
        return sum(map(len, self.by_topic.values()))

    def find(self, topic: str, queue_id: int) -> int | None:
        """The slot of that queue, None if it is unknown."""
        queues = self.by_topic.get(topic)
        return None if queues is None else queues.get(queue_id)

    def assign(self, buffer: Bytes, rows: Rows, start: int, end: int, slots: Ints) -> int:
        """Slots of ``rows[start:end]``; the first row of an unknown queue, or ``end``. See :func:`assign_slots`."""
        found: int = assign_slots(buffer, rows, start, end, self.tables, slots)
        return found

    @property
    def tables(self) -> tuple[Bytes, Longs, Ints, np.uint64, Longs, Ints]:
        """What kernels search: names, their ends, the topics' table, its seed, keys and the slots of the keys."""
        return self._names, self._name_ends, self._topic_table, self._seed, self._keys, self._key_slots

    def add(self, topic: str, queue_id: int) -> int:
        """A slot for a queue that has none; the queue is empty and begins at 0."""
        topic_id = self._topic_ids.get(topic)
        if topic_id is None:
            topic_id = self._add_topic(topic)
        if self._free:
            slot = self._free.pop()
            self.topics[slot], self.queue_ids[slot] = topic, queue_id
        else:
            slot = len(self.topics)
            self.topics.append(topic)
            self.queue_ids.append(queue_id)
            if slot == len(self.next_offsets):
                self._grow()
        self.by_topic.setdefault(topic, {})[queue_id] = slot
        self.light_count += topic.startswith(LIGHT_PREFIX)
        if 2 * len(self.topics) > len(self._keys):
            self._rebuild_keys(2 * len(self._keys))
        else:
            self._insert_key(topic_id << 32 | queue_id, slot)
        return slot

    def clear(self, slot: int, begin: int = 0) -> None:
        """Make the queue an empty one that begins at ``begin``."""
        self.next_offsets[slot] = self.min_offsets[slot] = begin
        self.ends[slot] = 0
        self.arena_counts[slot] = self.new_counts[slot] = 0

    def remove(self, topic: str, *queue_ids: int) -> None:
        """Forget these queues."""
        for queue_id in queue_ids:
            slot = self.by_topic[topic].pop(queue_id)
            self.light_count -= topic.startswith(LIGHT_PREFIX)
            self.clear(slot)
            self.topics[slot] = ""
            self._free.append(slot)
        if not self.by_topic[topic]:
            del self.by_topic[topic]
        self._rebuild_keys(len(self._keys))

    def _add_topic(self, topic: str) -> int:
        name = topic.encode()
        topic_id = len(self._topic_ids)
        if self._names_size + len(name) > len(self._names):
            self._names = _grown(self._names, 2 * (self._names_size + len(name)))
        if topic_id == len(self._name_ends):
            self._name_ends = _grown(self._name_ends, 2 * topic_id)
        self._names[self._names_size : self._names_size + len(name)] = np.frombuffer(name, np.uint8)
        self._names_size += len(name)
        self._name_ends[topic_id] = self._names_size
        self._topic_ids[topic] = topic_id
        if 2 * len(self._topic_ids) > len(self._topic_table):
            self._topic_table = np.full(2 * len(self._topic_table), -1, np.int32)
            for known, known_id in self._topic_ids.items():
                self._insert_topic(known.encode(), known_id)
        else:
            self._insert_topic(name, topic_id)
        return topic_id

    def _insert_topic(self, name: bytes, topic_id: int) -> None:
        mask = len(self._topic_table) - 1
        at = int(topic_hash(np.frombuffer(name, np.uint8), self._seed)) & 0x7FFFFFFFFFFFFFFF & mask
        while self._topic_table[at] >= 0:
            at = (at + 1) & mask
        self._topic_table[at] = topic_id

    def _rebuild_keys(self, size: int) -> None:
        self._keys = np.full(size, -1, np.int64)
        self._key_slots = np.zeros(size, np.int32)
        for topic, queues in self.by_topic.items():
            topic_id = self._topic_ids[topic]
            for queue_id, slot in queues.items():
                self._insert_key(topic_id << 32 | queue_id, slot)

    def _insert_key(self, key: int, slot: int) -> None:
        mask = len(self._keys) - 1
        at = int(key_hash(key)) & mask
        while self._keys[at] >= 0:
            at = (at + 1) & mask
        self._keys[at] = key
        self._key_slots[at] = slot

    def _grow(self) -> None:
        size = 2 * len(self.next_offsets)
        for name in ("next_offsets", "ends", "min_offsets", "cursors", "arena_counts", "new_counts"):
            setattr(self, name, _grown(getattr(self, name), size))
        arena = np.zeros((size, ARENA_MAX * ENTRY_BYTES), np.uint8)
        used = np.flatnonzero(self.arena_counts[: len(self.arena)])
        arena[used] = self.arena[used]  # the rest was never written, and takes no memory
        self.arena = arena


def _grown(array: Array, size: int) -> Array:
    grown = np.zeros(size, array.dtype)
    grown[: len(array)] = array
    return grown
