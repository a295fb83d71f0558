"""Which queue offset the next record of each queue gets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from penstock.formats.record.rows import ROW
from penstock.proto.names import LIGHT_PREFIX, STATE_TOPIC

from ..queues.consume_queue import ConsumeQueues
from ..queues.kernels import Ints, Longs, Rows
from ..queues.light_queues import LightOffsets
from .commit_log import CommitLog
from .queue_ends import QueueEnds
from .readable_log import ROWS_AT_ONCE, Chunk


class Placement:
    """The next offset of every queue, learnt from the queues and from what is in the log but not dispatched yet.

    Bytes that came by replication, or that recovery found, change it as well; so it is learnt again whenever the
    log does not end where the last append ended.

    Behind the deletion of a topic its queues begin at 0, dispatched or not.
    """

    def __init__(
        self, log_: CommitLog, queues: ConsumeQueues, light_queues_max: int | None, deletes: Callable[[bytes], str]
    ) -> None:
        """``deletes``: which topic a record of the state topic deletes, or none."""
        self.lights = LightOffsets(queues, light_queues_max)
        self._log = log_
        self._queues = queues
        self._deletes = deletes
        self._ends: dict[str, QueueEnds] = {}
        self._undispatched: dict[str, dict[int, int]] = {}
        self._anew: set[str] = set()  # topics whose queues are still those in front of their deletion
        self._known_end = -1

    def ends(self, topic: str, queues: int) -> QueueEnds:
        """Where the queues of ``topic`` go on, of which the first ``queues`` take records; everything is known."""
        found = self._ends.get(topic)
        if found is None:
            found = self._ends[topic] = QueueEnds(topic, self._next_offsets(topic))
        if queues != found.queues:
            found.reserve(queues)
        return found

    def learn(self, dispatched: int) -> None:
        """Know what is in the log behind ``dispatched``: whole records and batches, all committed.

        A slave that became master may have had a part of one at its log's end. The rest of it will not come, and what
        is appended behind it could not be told from it; so it has been cut off.
        """
        self._ends.clear()
        self.lights.forget()
        self._undispatched.clear()
        self._anew.clear()
        queues = self._queues
        rows, slots = np.zeros(ROWS_AT_ONCE, ROW), np.zeros(ROWS_AT_ONCE, np.int32)
        for chunk in self._log.chunks(dispatched, self._log.end_offset, rows, check_crc=False):
            if chunk.count:
                queues.assign(chunk.file.bytes, rows, chunk.count, slots)
                self._take(chunk, slots)
                newest = int(rows["store_timestamp"][: chunk.count].max())
                self._log.last_store_timestamp_ms = max(self._log.last_store_timestamp_ms, newest)
        self._known_end = self._log.end_offset

    def reached(self, topic: str) -> list[int]:
        """Where each queue of the topic goes on, by its id; everything is known."""
        found = self._ends.get(topic)
        ends: list[int] = (self._next_offsets(topic) if found is None else found.next_offsets).tolist()
        return ends

    @property
    def is_level(self) -> bool:
        """True if the log ends where the last append ended, so that everything in it is known."""
        return self._known_end == self._log.appended_offset

    def forget(self) -> None:
        """The log has lost its end, or a light queue its slot: what was learnt may not be so any more."""
        self._known_end = -1

    def on_appended(self, end: int, state_records: bytes) -> None:
        """An append moved the offsets on itself; those of topics that these records delete go back to 0."""
        self._known_end = end
        while state_records:
            size = int.from_bytes(state_records[:4], "big")
            topic = self._deletes(state_records[:size])
            if topic:
                self._begin_anew(topic)
            state_records = state_records[size:]

    def drop_topic(self, topic: str) -> None:
        """The topic's queues begin at 0 again."""
        self.lights.forget_topic(topic)
        self._ends.pop(topic, None)
        self._undispatched.pop(topic, None)
        self._anew.discard(topic)

    def _next_offsets(self, topic: str) -> Longs:
        known: dict[int, int] = {}
        if topic not in self._anew:
            known.update(self._queues.ends_of(topic))
            for queue_id, slot in self._queues.slots.by_topic.get(topic, {}).items():
                known[queue_id] = max(known.get(queue_id, 0), int(self._queues.slots.next_offsets[slot]))
        known.update(self._undispatched.get(topic, {}))
        offsets = np.zeros(max(known, default=-1) + 1, np.int64)
        for queue_id, offset in known.items():
            offsets[queue_id] = offset
        return offsets

    def _take(self, chunk: Chunk, slots: Ints) -> None:
        """Queues go on behind the records of the chunk, or at 0 where these delete their topic."""
        buffer, rows, start = chunk.file.bytes, chunk.rows, 0
        state = self._queues.slots.find(STATE_TOPIC, 0)
        for number in np.flatnonzero(slots[: chunk.count] == state).tolist() if state is not None else ():
            at = int(rows["position"][number])
            topic = self._deletes(buffer[at : at + int(rows["size"][number])].tobytes())
            if topic:
                self._take_highest(*self._queues.expand(buffer, rows[start:], number - start, slots[start:]))
                self._begin_anew(topic)
                start = number
        self._take_highest(*self._queues.expand(buffer, rows[start:], chunk.count - start, slots[start:]))

    def _begin_anew(self, topic: str) -> None:
        self._ends.pop(topic, None)
        self._undispatched.pop(topic, None)
        self._anew.add(topic)
        if topic.startswith(LIGHT_PREFIX):
            for slot in self._queues.slots.by_topic.get(topic, {}).values():
                self.lights.learn(slot, 0)

    def _take_highest(self, rows: Rows, count: int, slots: Ints) -> None:
        """Queues go on behind these rows."""
        known = self._queues.slots
        taken = slots[:count] >= 0
        highest = np.full(len(known.topics), -1, np.int64)
        np.maximum.at(highest, slots[:count][taken], rows["queue_offset"][:count][taken])
        for slot in np.flatnonzero(highest >= 0).tolist():
            topic = self._undispatched.setdefault(known.topics[slot], {})
            topic[known.queue_ids[slot]] = int(highest[slot]) + 1
            if known.topics[slot].startswith(LIGHT_PREFIX):
                self.lights.learn(slot, int(highest[slot]) + 1)
