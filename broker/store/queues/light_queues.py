"""Light queues (LMQ): records that stand in other queues as well.

A record of any topic may name light queues; it is stored once and gets an entry in each of them. Light queues have
names of their own (``%LMQ%…``), one queue with the number 0, and come into being with their first record. Their
offsets are given out when a record is appended, and kept in it: so queues can be built again from the log.
"""

from __future__ import annotations

import numpy as np

from penstock.formats.record.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, decode_properties
from penstock.proto.errors import CorruptBatch, Forbidden, MessageTooLarge
from penstock.proto.names import LIGHT_PREFIX

from ..disk import Bytes
from .consume_queue import ConsumeQueues
from .kernels import Ints, Longs
from .light_kernels import (
    ASSIGNED,
    BAD_NAME,
    GROWTH_MAX,
    NEW_NAME,
    NO_RECORD,
    OFFSETS_PAIR,
    TOO_LARGE,
    allows_lights,
    assign_lights,
    names_lights,
)

_GROWTH = 5
"""Times that a batch may grow by its offsets: 20 digits for a name of 6 bytes."""


def light_offset(properties: bytes, name: str) -> int | None:
    """The offset of a record with these properties in the light queue ``name``; None if it is not in it."""
    found = decode_properties(properties)
    lists = found.get(INNER_MULTI_DISPATCH, "").split(","), found.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    text = dict(reversed(list(zip(*lists, strict=False)))).get(name, "")  # of a repeated name the first counts
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


class LightOffsets:
    """Gives out the offsets of light queues; for the owner thread.

    ``queues_max``: light queues that may exist; more are refused. None: there are none, and names of some say nothing.
    """

    def __init__(self, queues: ConsumeQueues, queues_max: int | None) -> None:
        self._queues = queues
        self._queues_max = queues_max
        self._next: Longs = np.full(0, -1, np.int64)  # per slot; -1: what the queue says itself
        self._seen: Longs = np.zeros(0, np.int64)
        self._stamp = 1
        self._touched: Ints = np.zeros(0, np.int32)
        self._touched_count = 0

    def forget(self) -> None:
        """Believe the queues again."""
        self._next.fill(-1)
        for name, queues in self._queues.slots.by_topic.items():
            if name.startswith(LIGHT_PREFIX):
                self._begin(name, *queues.values())

    def forget_topic(self, topic: str) -> None:
        """The topic's queues begin anew."""
        for slot in self._queues.slots.by_topic.get(topic, {}).values():
            if slot < len(self._next):
                self._next[slot] = -1

    def learn(self, slot: int, next_offset: int) -> None:
        """The log holds records of the queue up to there that it does not have yet."""
        self._reserve()
        self._next[slot] = next_offset

    def check(self, topic: str, records: memoryview) -> None:
        """Raises as :meth:`assign` for records that, later in ``topic``, could not stand in their light queues."""
        self.assign(topic, np.frombuffer(records, np.uint8))
        self.take_back()

    def assign(self, topic: str, records: Bytes, *, is_kept: bool = False) -> Bytes:
        """The batch with the offsets of each record in the light queues that it names; itself if none does.

        The offsets count as given out until :meth:`take_back`, which the caller owes when it does not store them.
        ``is_kept``: the records were taken before, when there were fewer light queues: there may be more now.

        Raises:
            CorruptBatch: a record names what is no light queue.
            MessageTooLarge: its properties take more than 32767 bytes with the offsets.
            Forbidden: there would be too many light queues.
        """
        self._touched_count = 0
        named = 0 if self._queues_max is None else names_lights(records)
        if not named or not allows_lights(np.frombuffer(topic.encode(), np.uint8)):
            return records
        out: Bytes = np.empty(_GROWTH * len(records) + GROWTH_MAX * named, np.uint8)
        self._touched = np.zeros(len(records) // len(LIGHT_PREFIX) + 1, np.int32)
        position = size = number = 0
        try:
            while True:
                self._reserve()
                status, position, size, number, self._touched_count, name, name_size = assign_lights(
                    records,
                    position,
                    out,
                    size,
                    number,
                    OFFSETS_PAIR,
                    self._queues.slots.tables,
                    self._next,
                    self._queues.slots.next_offsets,
                    self._seen,
                    self._stamp,
                    self._touched,
                    self._touched_count,
                )
                if status == ASSIGNED:
                    break
                if status == NO_RECORD:  # left to be refused by name
                    self.take_back()
                    return records
                shown = records[name : name + name_size].tobytes().decode("utf-8", "replace")
                self._make_room(status, f"topic {topic}, record {number} of the batch", number, shown, is_kept=is_kept)
        except BaseException:
            self.take_back()
            raise
        finally:
            self._stamp += number + 1
        return out[:size]

    def take_back(self) -> None:
        """Nothing of the last batch was stored."""
        np.subtract.at(self._next, self._touched[: self._touched_count], 1)
        self._touched_count = 0

    def _make_room(self, status: int, where: str, number: int, shown: str, *, is_kept: bool) -> None:
        if status == TOO_LARGE:
            raise MessageTooLarge(
                f"{where}: its properties take more than 32767 bytes with the offsets of its light queues: name fewer",
                index=number,
            )
        if status == BAD_NAME:
            raise CorruptBatch(
                f"{where}: INNER_MULTI_DISPATCH names {shown[:64]!r}: a light queue is {LIGHT_PREFIX} and 1..250 "
                "of the signs of a topic, with , between two",
                index=number,
            )
        assert status == NEW_NAME
        assert self._queues_max is not None
        if self._queues.slots.light_count >= self._queues_max and not is_kept:
            raise Forbidden(
                f"{where}: light queue {shown} would be one more than maxLmqConsumeQueueNum={self._queues_max} allows: "
                "delete some, or raise it"
            )
        self._queues.add_light(shown)
        self._begin(shown, *self._queues.slots.by_topic[shown].values())

    def _begin(self, name: str, *slots: int) -> None:
        """A queue that has no record goes on behind those that are gone."""
        end = self._queues.ends_of(name).get(0, 0)
        for slot in slots:
            if end > self._queues.slots.next_offsets[slot]:
                self.learn(slot, end)

    def _reserve(self) -> None:
        missing = len(self._queues.slots.next_offsets) - len(self._next)
        if missing > 0:
            self._next = np.concatenate((self._next, np.full(missing, -1, np.int64)))
            self._seen = np.concatenate((self._seen, np.zeros(missing, np.int64)))
