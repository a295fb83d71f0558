"""The queues of the schedule topic, one for each delay level, and how what is due in them is delivered.

All messages of a level wait equally long, so its queue is in the order in which they are due, and how far it is
delivered is one number: nothing is kept in memory of a message that waits. What is due is delivered in batches, one for
each topic that some of them belong to. A batch's producer mark names the level, as its lane, and the offset up to which
the level is delivered for that topic. So whoever goes on after a crash, on any broker, learns from the log which
messages are delivered already, and the recorded progress (:mod:`.level_table`) may lag behind.

Retention keeps the log from the first message on that waits. What it would delete otherwise is *moved*: it becomes a
message for later, due at the same time, with whoever delivers those.

Source: RocketMQ ``ScheduleMessageService``; differs: delivered once, and within 0.1 s of the time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

import numpy as np

from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.reposting.timers import TOPIC_GROWTH_MAX
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, MessageTooLarge

from ...core.core import Core
from ...core.delivering import Waiting
from ...core.journal import Journal, Target
from ...core.reposting import Reposter
from ...store.queues.kernels import Longs
from .level_table import DELAY_OFFSETS, LevelTable, document_of

log = logging.getLogger(__name__)

PRODUCER_ID: Final = int.from_bytes(b"\x00timers\x01")
BATCH_COUNT: Final = 1024
BATCH_BYTES: Final = 1 << 20
RECORD_S: Final = 1.0
"""So often at most, progress is recorded."""
AHEAD_MS: Final = 1000
"""A message that would wait so much longer than its level has a wrong time: it was stored while the clock was wrong, or
after that, since the log's times never go back. Such a message waits as long as its level from when it is seen."""
LOOK_S: Final = 1.0
"""So often at most, it is noted what is seen."""


class LevelQueues:
    """What waits at one broker; event loop only, and only a master delivers."""

    def __init__(self, core: Core, levels_ms: tuple[int, ...]) -> None:
        self._core = core
        self._store = core.store
        self._clock = core.clock
        self._levels_ms = levels_ms
        self._table = core.tables[LevelTable]
        self._reposter = Reposter(core)
        self._journal: Journal | None = None  # of this mastership
        self._known_end = 0  # of the log when it began: what it says is known once that is dispatched
        self._ends: list[int] = []  # of the queues, then: what a snapshot says beyond, a power cut has taken
        self._done: dict[int, int] | None = None  # queue -> next offset to deliver; None: to be looked up
        self._held: dict[int, int] = {}  # the same as far as it is recorded, confirmed and synced
        # Queue -> (end, monotonic time) of looks: what lay below that end then. Only while times are wrong.
        self._seen: dict[int, deque[tuple[int, float]]] = {}
        self._move_end: dict[int, int] = {}  # queue -> what waits below this offset is to be moved
        self._record_at = 0.0
        self.delivered = self.moved = self.dropped = 0

    def on_role(self, journal: Journal | None) -> None:
        """The broker has become master, or slave (None)."""
        self._journal, self._done = journal, None
        self._known_end = self._store.end_offset
        self._ends = [] if journal is None else self._store.queue_ends(names.SCHEDULE_TOPIC)
        self._move_end.clear()
        self._seen.clear()

    def waiting(self) -> list[tuple[int, int]]:
        """(level, messages that wait), of the levels that have some."""
        return [(queue_id + 1, count) for queue_id in self._all() if (count := self._count(queue_id)) > 0]

    def first_waiting(self) -> int | None:
        """Log position of the oldest message that still waits, or None."""
        if self._table.position < min(self._store.dispatched_offset, self._store.flushed_offset):
            self._held = {level - 1: offset for level, offset in self._table.offsets.items()}
        found = []
        for queue_id in self._all():
            low, high = self._store.reader.queue_range(names.SCHEDULE_TOPIC, queue_id)
            first = max(low, self._held.get(queue_id, 0))
            if first < high:
                position = self._store.removal.physical_at(names.SCHEDULE_TOPIC, queue_id, first)
                found += [] if position is None or position < 0 else [position]
        return min(found, default=None)

    def make_way(self, position: int) -> None:
        """Messages that wait in the log below ``position`` are in the way of its deletion: move them, as master."""
        if self._journal is not None:
            for queue_id in self._all():
                self._move_end[queue_id] = self._store.removal.first_from(names.SCHEDULE_TOPIC, queue_id, position)

    def on_taken(self, base: int, position: int) -> None:
        """The log goes below ``position``, whatever waits there."""
        for queue_id in self._all():
            first = self._first(queue_id)
            end = self._store.removal.first_from(names.SCHEDULE_TOPIC, queue_id, position)
            if first < end:
                self.dropped += end - first
                log.error(
                    "messages with a delay level are deleted before their time level=%d count=%d offsets=%d..%d: the "
                    "disk forces their log file out, and they could not be stored anew; free some space, or add some",
                    *(queue_id + 1, end - first, first, end - 1),
                )

    async def turn(self) -> None:
        """Deliver what is due now, a batch of each level in turn; then move what is in retention's way."""
        journal = self._journal
        if journal is None or not self._may_append(journal) or self._store.dispatched_offset < self._known_end:
            return
        if self._done is None:
            ends = dict(enumerate(self._ends))
            told = self._table.offsets
            self._done = {each: min(told.get(each + 1, 0), ends.get(each, 0)) for each in self._all()}
        done = self._done  # of this mastership, whatever comes meanwhile
        left = list(done)
        while left and not journal.is_over:
            left = [queue_id for queue_id in left if await self._deliver_some(journal, done, queue_id)]
            self._record(journal, done)
        for queue_id, end in list(self._move_end.items()):
            while not journal.is_over and await self._deliver_some(journal, done, queue_id, end):
                pass
            if not journal.is_over:
                self._move_end.pop(queue_id, None)
        self._record(journal, done)

    def record(self) -> None:
        """Record how far it is, for whoever goes on."""
        if self._journal is not None and self._done is not None and self._may_append(self._journal):
            self._record_at = 0.0
            self._record(self._journal, self._done)

    def _all(self) -> set[int]:
        """The queues of the levels that there are, and of those there were."""
        return {*range(len(self._levels_ms)), *self._store.reader.queue_ids(names.SCHEDULE_TOPIC)}

    def _first(self, queue_id: int) -> int:
        low = self._store.reader.queue_range(names.SCHEDULE_TOPIC, queue_id)[0]
        done = self._table.offsets.get(queue_id + 1, 0)
        return max(low, done if self._done is None else self._done.get(queue_id, done))

    def _count(self, queue_id: int) -> int:
        return self._store.reader.queue_range(names.SCHEDULE_TOPIC, queue_id)[1] - self._first(queue_id)

    def _may_append(self, journal: Journal) -> bool:
        return not journal.is_over and self._core.role.can_acknowledge()

    def _record(self, journal: Journal, done: dict[int, int]) -> None:
        offsets = {queue_id + 1: offset for queue_id, offset in done.items() if offset}
        if offsets == self._table.offsets or journal.is_over or self._clock.monotonic_s() < self._record_at:
            return
        self._record_at = self._clock.monotonic_s() + RECORD_S
        journal.put(DELAY_OFFSETS, document_of(offsets))

    async def _deliver_some(self, journal: Journal, done: dict[int, int], queue_id: int, until: int = 0) -> bool:
        """Deliver a batch of one level, or move one of what lies below ``until``. True if there may be more."""
        low, high = self._store.reader.queue_range(names.SCHEDULE_TOPIC, queue_id)
        first = self._begin(done, queue_id, low)
        stop = min(high, until or high, first + BATCH_COUNT)
        if first >= stop or not self._may_append(journal):
            return False
        due = self._store.picker.tags_codes(names.SCHEDULE_TOPIC, queue_id, first, stop)
        count = len(due) if until else self._count_due(due, queue_id, first, high)
        if not count:
            return False
        picked = await self._reposter.locate(names.SCHEDULE_TOPIC, queue_id, np.arange(first, first + count))
        fits = self._reposter.fitting(picked.sizes, BATCH_BYTES, growth=TOPIC_GROWTH_MAX)
        if fits < len(picked.offsets):
            picked = picked.part(np.arange(fits))
            count = int(picked.offsets[-1]) + 1 - first
        records = await self._reposter.read(journal, picked)
        if records is None or not self._may_append(journal):
            return False
        if len(records.offsets) < count:
            self.dropped += count - len(records.offsets)
            log.error(
                "messages with a delay level cannot be delivered, their records are gone or damaged level=%d count=%d "
                "offsets=%d..%d",
                *(queue_id + 1, count - len(records.offsets), first, first + count - 1),
            )
        waiting = Waiting(records, np.arange(len(records.offsets)))
        self.dropped += waiting.lost
        left: list[Longs] = []
        for name, chosen in waiting.by_topic():
            reached = max(self._reached(name, queue_id, high), self._reached(names.TIMER_TOPIC, queue_id, high))
            missing = chosen[records.offsets[chosen] >= reached]
            if until:
                left.append(missing)
            else:
                self._deliver(journal, name, queue_id, first + count, waiting, records.offsets, missing)
        chosen = np.sort(np.concatenate(left)) if left else np.empty(0, np.int64)
        if len(chosen):
            timers, times = Target(names.TIMER_TOPIC, 1), due[records.offsets - first]
            self._append(journal, timers, queue_id, first + count, waiting, records.offsets, chosen, times)
        done[queue_id] = first + count
        await asyncio.sleep(0)
        return True

    def _begin(self, done: dict[int, int], queue_id: int, low: int) -> int:
        """The first offset that waits."""
        first = done.get(queue_id, 0)
        if first < low:
            if first:
                log.error(
                    "messages with a delay level are gone, their log files were deleted level=%d offsets=%d..%d: those "
                    "among them that waited are not delivered",
                    *(queue_id + 1, first, low - 1),
                )
            done[queue_id] = low
        return max(first, low)

    def _count_due(self, due: Longs, queue_id: int, first: int, high: int) -> int:
        """How many of the first messages, which begin at ``first``, are due."""
        now_ms, now_s = self._core.clock.due_ms(), self._clock.monotonic_s()
        level_ms = self._levels_ms[min(queue_id, len(self._levels_ms) - 1)]
        is_due, is_wrong = due <= now_ms, due > now_ms + level_ms + AHEAD_MS
        if is_wrong.any():
            is_due |= is_wrong & (np.arange(first, first + len(due)) < self._seen_at(queue_id, high, now_s, level_ms))
        else:
            self._seen.pop(queue_id, None)
        return len(due) if is_due.all() else int(np.argmin(is_due))

    def _seen_at(self, queue_id: int, high: int, now_s: float, level_ms: int) -> int:
        """The end of what has been seen for as long as its level; ``high``: of what is there now."""
        looks = self._seen.setdefault(queue_id, deque())
        if not looks or now_s - looks[-1][1] >= LOOK_S:
            looks.append((high, now_s))
        end = 0
        while looks and looks[0][1] <= now_s - level_ms / 1000:
            end = looks.popleft()[0]
        if end:
            looks.appendleft((end, 0.0))
        return end

    def _reached(self, topic: str, queue_id: int, high: int) -> int:
        """Up to which offset the log says that the level's messages for ``topic`` are delivered."""
        last = self._core.tables.producers.last_sequence(PRODUCER_ID, topic, queue_id)
        return last if last is not None and last <= high else 0

    def _deliver(
        self, journal: Journal, name: str, queue_id: int, end: int, waiting: Waiting, offsets: Longs, chosen: Longs
    ) -> None:
        """Append the messages ``chosen`` for the topic ``name``, which is delivered up to ``end`` then."""
        topic = self._core.tables.topics.get(name)
        if not len(chosen):
            return
        if topic is None or names.is_system_topic(name):
            self.dropped += len(chosen)
            log.warning("messages with a delay level dropped, their topic is gone topic=%s count=%d", name, len(chosen))
            return
        target = Target(name, max(topic.write_queues, 1))
        self._append(journal, target, queue_id, end, waiting, offsets, chosen)

    def _append(
        self,
        journal: Journal,
        target: Target,
        queue_id: int,
        end: int,
        waiting: Waiting,
        offsets: Longs,
        chosen: Longs,
        due: Longs | None = None,
    ) -> None:
        """Append the messages ``chosen`` in one batch, or else one by one. ``due``: until when they go on waiting."""
        mark = ProducerMark(PRODUCER_ID, 0, queue_id, end, len(chosen))
        times = None if due is None else due[chosen]
        try:
            batch = waiting.batch(chosen, target, mark, keep=due is not None, due=times)
            journal.append(target, batch, mark, count=len(chosen), is_kept=True)
            if due is None:
                self.delivered += len(chosen)
            else:
                self.moved += len(chosen)
        except (CorruptBatch, MessageTooLarge) as error:  # of a store that others wrote, or that is damaged
            for index in chosen if len(chosen) > 1 else ():
                after = int(offsets[index]) + 1
                self._append(journal, target, queue_id, after, waiting, offsets, np.array([index]), due)
            if len(chosen) == 1:
                self.dropped += 1
                log.error(
                    "message with a delay level cannot be %s topic=%s level=%d offset=%d error=%s",
                    "delivered" if due is None else "stored anew",
                    *(target.topic, queue_id + 1, offsets[chosen[0]], error),
                )
