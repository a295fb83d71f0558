"""Messages that are delivered later.

Clients send them as records of the internal topic ``names.TIMER_TOPIC``, whose properties say where they belong and
when (:mod:`penstock.formats.record.reposting.timers`); so they are replicated, acknowledged and found again as any
message. The master keeps when each is due in a wheel, which it fills from that topic's queue when it begins. What is
due becomes *runs* (:mod:`.timer_table`) of a thousand messages or a megabyte at most, one after the other, each
recorded before it is delivered: its messages are appended as records of their own topics, by their times, in one batch
for each topic, whose producer mark names the run. So whoever delivers a run again, with whatever limits, and whatever
its log still has of it, appends what is missing and nothing else.

A message is taken back by a record of the same topic that lies behind it and is due at the same time (:mod:`.recalls`).
Only what no run has yet can be taken back, so a run that is delivered again is delivered as before.

A message whose topic was deleted goes with it. Retention keeps the log from the first message on that waits; what it
would delete otherwise is *rolled*: a run whose messages become records of the timer topic again, at the log's end.

Source: RocketMQ ``TimerMessageStore``; differs: delivered once, and within 0.2 s of its time where RocketMQ counts in
seconds; no files of its own (``timerwheel``, ``timerlog``): a broker that becomes master reads what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from penstock.formats.record.form import RecordForm
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.reposting.timers import TOPIC_GROWTH_MAX, due_times
from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable, CorruptBatch, MessageTooLarge, PenstockError

from ...core.core import Core
from ...core.delivering import Waiting
from ...core.journal import Journal, Target
from ...core.reposting import LOCATED_AT_ONCE, Records, Reposter
from ...store.absent import bring
from .recalls import BODY, Recall, Recalls, recalls_in
from .timer_table import TIMER_RUN, Run, TimerTable
from .timer_wheel import Longs, TimerWheel

log = logging.getLogger(__name__)

SETTLE_S: Final = 30.0
PRODUCER_ID: Final = int.from_bytes(b"\x00timers\x00")
RUN_BYTES: Final = 1 << 20
RUN_COUNT: Final = 1024
SEQUENCE_BITS: Final = 24
FOREVER: Final = 1 << 62
QUEUE: Final = 0


class _Backlog(NamedTuple):
    """What is to be delivered (or rolled) next: by time, then by offset.

    ``lowest``: of each message's offset and all behind it; ``first``: the lowest that waits in the wheel. ``until_ms``,
    ``end``: the last run reaches so far.
    """

    due: Longs
    offsets: Longs
    lowest: Longs
    first: int
    until_ms: int
    end: int
    is_rolled: bool

    @classmethod
    def of(cls, due: Longs, offsets: Longs, first: int, until_ms: int, end: int, *, is_rolled: bool) -> _Backlog:
        """These messages, in whatever order."""
        order = np.lexsort((offsets, due))
        offsets = offsets[order]
        lowest = np.minimum.accumulate(offsets[::-1])[::-1]
        return cls(due[order], offsets, lowest, first, until_ms, end, is_rolled)

    def behind(self, count: int) -> _Backlog | None:
        """Without the first ones; None when nothing is left."""
        if count == len(self.offsets):
            return None
        return self._replace(due=self.due[count:], offsets=self.offsets[count:], lowest=self.lowest[count:])

    def part(self, count: int) -> tuple[int, int, int]:
        """How many messages the next run has, at most ``count``, and what it reaches: (count, until_ms, end)."""
        if count == len(self.due):
            return count, self.until_ms, self.end
        following = int(self.due[count])
        if self.due[count - 1] < following:
            return count, following - 1, self.end
        whole = int(np.searchsorted(self.due, following))
        if whole:
            return whole, following - 1, self.end
        return count, following, int(self.offsets[count - 1]) + 1  # more of one time than a run takes


class Timers:
    """The wheel of one broker; event loop only, and only a master turns it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._clock = core.clock
        self._table = core.tables[TimerTable]
        self.reposter = Reposter(core)
        self._journal: Journal | None = None  # of this mastership; what an earlier one began is nobody's any more
        self._wheel: TimerWheel | None = None
        self._scanned = 0
        self._backlog: _Backlog | None = None
        self._unfinished: tuple[Run, Longs] | None = None  # with its messages, by their times
        self._floor = 0  # of the last run that is confirmed and synced: what it moved away from may go
        self._roll_end = 0  # what waits below this offset is to be rolled
        self._settle_at = 0.0
        self._known_end = 0  # of the log when this broker became master: what it says is known once that is dispatched
        self._taken_ms = -1  # what is due until then is delivered, or about to be
        self._looked_ms = -1  # the time at which the wheel was turned last: less, once the clock has gone back
        self._recalls = Recalls()
        self._form = RecordForm.own(names.TIMER_TOPIC, core.config.advertised_address)
        self.delivered = 0
        self.dropped = 0
        self.rolled = 0
        self.recalled = 0

    def on_role(self, journal: Journal | None) -> None:
        """The broker has become master, or slave (None)."""
        self._journal = journal
        self._known_end = self._store.end_offset
        self._recalls = Recalls()
        self._forget()

    def recall(self, journal: Journal, recall: Recall) -> int | None:
        """Have a message not delivered. Where in the log the record ends that says so; None: it is too late.

        Raises:
            BrokerUnavailable: what waits is not known yet.
            As :meth:`Journal.append`.
        """
        if self._wheel is None:
            raise BrokerUnavailable("what waits for its time is being read: try again")
        if recall.due_ms <= self._taken_ms:
            return None
        known = self._recalls.end(recall)
        if known is not None:
            return known
        end = journal.append(Target(names.TIMER_TOPIC, 1), self._form.encode(BODY, recall.properties())).end
        self._recalls.add(recall, end)  # at once: what is due may be taken before the record is dispatched
        return end

    @property
    def waiting(self) -> int:
        """How many messages wait for their time, as far as a master has counted them."""
        backlog = self._backlog
        return (len(self._wheel) if self._wheel is not None else 0) + (0 if backlog is None else len(backlog.offsets))

    def first_waiting(self) -> int | None:
        """Log position of the oldest message that still waits for its time, or None."""
        store = self._store
        high = store.reader.queue_range(names.TIMER_TOPIC, QUEUE)[1]
        if self._table.position < min(store.dispatched_offset, store.flushed_offset):
            self._floor = self._table.last.floor
        floor = max(self._floor, store.removal.first_from(names.TIMER_TOPIC, QUEUE, store.min_offset))
        return store.picker.first_position(names.TIMER_TOPIC, QUEUE, floor, high)

    async def turn(self) -> None:
        """Look at what has come, and deliver what is due now."""
        journal = self._journal
        if journal is None or not self._may_append(journal):
            return
        if self._wheel is None and not await self._load(journal):
            return
        wheel = self._wheel
        assert wheel is not None, "loaded by this mastership"
        await self._scan(wheel, journal)
        if not self._may_append(journal):
            return
        began = False
        while self._unfinished is not None or await self._begin(wheel, journal):
            assert self._unfinished is not None
            if not await self._deliver(*self._unfinished, journal):
                return
            self._unfinished, began = None, True
        if self._backlog is not None or not self._may_append(journal):
            return  # what is due is taken out of the wheel, and is not delivered
        self._recalls.forget(self._looked_ms)
        is_quiet = not began and self._clock.monotonic_s() >= self._settle_at
        if not journal.is_over and (is_quiet or self._roll_end):
            self._roll_end = 0
            self._settle_at = self._clock.monotonic_s() + SETTLE_S
            self._settle(wheel, journal)

    def make_way(self, position: int) -> None:
        """Messages that wait in the log below ``position`` are in the way of its deletion: roll them, as master."""
        end = self._store.removal.first_from(names.TIMER_TOPIC, QUEUE, position)
        if self._journal is not None:
            self._roll_end = max(self._roll_end, end)

    def on_taken(self, base: int, position: int) -> None:
        """The log goes below ``position``, whatever waits there."""
        floor = self._table.last.floor
        end = self._store.removal.first_from(names.TIMER_TOPIC, QUEUE, position)
        if floor >= end:
            return
        lost = None if self._wheel is None else self._wheel.take_below(end)
        count = end - floor if lost is None else len(lost[1])
        if count:
            self.dropped += 0 if lost is None else count
            log.error(
                "messages for later are deleted before their time %s=%d offsets=%d..%d below=%d: the disk forces their "
                "log file out, and they could not be stored anew; free some space, or add some",
                *("at_most" if lost is None else "count", count, floor, end - 1, position),
            )

    def _forget(self) -> None:
        """The wheel is to be filled again."""
        self._wheel = self._backlog = self._unfinished = None

    def _may_append(self, journal: Journal) -> bool:
        return not journal.is_over and self._core.role.can_acknowledge()

    async def _begin(self, wheel: TimerWheel, journal: Journal) -> bool:
        """Record the next run. True if there is one."""
        try:
            backlog = self._backlog or await self._next_backlog(wheel)
        except BaseException:  # the wheel has no more what was taken
            self._forget()
            raise
        if journal.is_over:  # perhaps for another mastership, which has a wheel of its own
            return False
        self._backlog = backlog
        if backlog is None or not self._may_append(journal):
            return False
        offsets = backlog.offsets[:RUN_COUNT]
        located = await self.reposter.locate(names.TIMER_TOPIC, QUEUE, np.sort(offsets))
        sizes = np.zeros(len(offsets), np.int64)
        here = np.isin(offsets, located.offsets)
        sizes[here] = located.sizes[np.searchsorted(located.offsets, offsets[here])]
        if not self._may_append(journal):
            return False
        last = self._table.last
        before = last.delivered() if last.number else ()
        fits = self.reposter.fitting(sizes, RUN_BYTES, growth=TOPIC_GROWTH_MAX)
        count, until_ms, end = backlog.part(fits)
        floor = min(backlog.first, int(backlog.lowest[0]))
        run = Run(last.number + 1, before, until_ms, end, floor, count, backlog.is_rolled)
        try:
            journal.put(TIMER_RUN, run.to_json())
        except BaseException:
            self._forget()
            raise
        self._unfinished, self._backlog = (run, offsets[:count]), backlog.behind(count)
        return True

    async def _next_backlog(self, wheel: TimerWheel) -> _Backlog | None:
        """What is due, or else what is to be rolled."""
        now_ms = self._core.clock.due_ms()
        due, offsets = wheel.take(now_ms)
        self._looked_ms, self._taken_ms = now_ms, max(self._taken_ms, now_ms)
        until_ms, end, is_rolled = now_ms, self._scanned, False
        if not len(due):
            until_ms, end, is_rolled = FOREVER, self._roll_end, True
            due, offsets = wheel.take_below(end)
            if not len(due):
                return None
            log.info("messages for later rolled, for their log files are old count=%d below=%d", len(due), end)
            due = np.full(len(due), FOREVER)
        first = wheel.first_offset()
        first = FOREVER if first is None else first
        return await asyncio.to_thread(_Backlog.of, due, offsets, first, until_ms, end, is_rolled=is_rolled)

    def _settle(self, wheel: TimerWheel, journal: Journal) -> None:
        """Record that the last run is delivered, once: retention need not keep its messages."""
        last = self._table.last
        first = wheel.first_offset()
        floor = self._scanned if first is None else first
        if last.number and floor > last.floor:
            settled = replace(last, before=last.delivered(), floor=floor)
            journal.put(TIMER_RUN, settled.to_json())

    async def _load(self, journal: Journal) -> bool:
        """Fill the wheel from the queue. True if all of it is there."""
        last = self._table.last
        low, high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)
        reached = max([last.end, *(end for _, end in last.before)])
        if high < reached or self._store.dispatched_offset < self._known_end:
            return False  # dispatch has not come there yet
        if low > last.floor and (last.floor or last.count):
            log.error(
                "messages for later are gone, their log files were deleted offsets=%d..%d: those among them that "
                "waited are not delivered",
                *(last.floor, low - 1),
            )
        wheel = TimerWheel()
        due_parts, offset_parts = [], []
        async for due, offsets in self._due(max(low, last.floor), high):
            if journal.is_over:
                return False
            is_before = last.is_before(due, offsets)
            is_now = ~is_before & (offsets < last.end) & (due <= last.until_ms)
            due_parts.append(due[is_now])
            offset_parts.append(offsets[is_now])
            rest = ~is_before & ~is_now
            wheel.add(due[rest], offsets[rest])
        if journal.is_over:
            return False
        self._wheel, self._scanned = wheel, max(high, reached)
        past = [ms for ms, _ in last.delivered() if ms < FOREVER]
        self._taken_ms = max([self._taken_ms, *past]) if last.number else self._taken_ms
        if sum(map(len, due_parts)):
            due, offsets = np.concatenate(due_parts), np.concatenate(offset_parts)
            order = np.lexsort((offsets, due))
            self._unfinished = (last, offsets[order])
        if len(wheel):
            log.info("messages for later loaded waiting=%d", len(wheel))
        return True

    async def _scan(self, wheel: TimerWheel, journal: Journal) -> None:
        high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)[1]
        async for due, offsets in self._due(self._scanned, high):
            if journal.is_over:
                return
            wheel.add(due, offsets)
            self._scanned = int(offsets[-1]) + 1 if len(offsets) else self._scanned
        if not journal.is_over:
            self._scanned = max(self._scanned, high)

    async def _due(self, start: int, end: int) -> AsyncIterator[tuple[Longs, Longs]]:
        """(due, offsets) of the records ``[start, end)`` of the queue, in pieces; others are counted as dropped."""
        picker = self._store.picker
        while start < end:
            stop = min(start + LOCATED_AT_ONCE, end)
            picked = picker.locate(names.TIMER_TOPIC, QUEUE, np.arange(start, stop))
            due, recalls = np.empty(len(picked.offsets), np.int64), np.empty(len(picked.offsets), np.uint8)
            parts = picker.absent(picked)
            if parts:
                await asyncio.to_thread(bring, parts)
            at = 0
            for part in parts:
                here = slice(at, at + len(part.sizes))
                due_times(part.data, part.positions, part.sizes, due[here], recalls[here])
                for recall in recalls_in(part.data, part.positions, part.sizes, recalls[here]):
                    self._recalls.add(recall)
                at += len(part.sizes)
            good = due >= 0
            self.dropped += stop - start - int(good.sum())
            yield due[good], picked.offsets[good]
            start = stop
            await asyncio.sleep(0)

    async def _deliver(self, run: Run, by_time: Longs, journal: Journal) -> bool:
        """Append every message of the run that is not there yet, by their times. True if the run came to its end."""
        picked = await self.reposter.locate(names.TIMER_TOPIC, QUEUE, np.sort(by_time))
        records = await self.reposter.read(journal, picked)
        if records is None or not self._may_append(journal):
            return False
        missing = max(run.count, len(by_time)) - len(records.offsets)
        if missing:
            self.dropped += missing
            log.error(
                "messages for later cannot be delivered, their records are gone or damaged run=%d count=%d of=%d "
                "offsets=%d..%d: another master may have delivered them before",
                *(run.number, missing, max(run.count, len(by_time)), run.floor, run.end - 1),
            )
        order = np.searchsorted(records.offsets, by_time[np.isin(by_time, records.offsets)])
        self._deliver_records(journal, run, records, order)
        await asyncio.sleep(0)
        return not journal.is_over

    def _deliver_records(self, journal: Journal, run: Run, records: Records, order: Longs) -> None:
        """``order``: places in ``records``, by time."""
        waiting = Waiting(records, order)
        recalled = self._recalls.of(waiting)
        self.recalled += len(recalled)
        if run.is_rolled:  # without what is recalled: a message that is rolled would lie behind the record that says so
            self._deliver_to(journal, names.TIMER_TOPIC, run, waiting, np.arange(len(order)), recalled)
            return
        self.dropped += waiting.lost
        passed_over = np.union1d(recalled, waiting.recalls)
        for name, chosen in waiting.by_topic():
            self._deliver_to(journal, name, run, waiting, chosen, passed_over)

    def _deliver_to(
        self, journal: Journal, name: str, run: Run, waiting: Waiting, members: Longs, passed_over: Longs
    ) -> None:
        """``members``: all that the run has for that topic; each keeps its number, whatever is recalled meanwhile."""
        chosen = members[~np.isin(members, passed_over)]
        topic, count = self._core.tables.topics.get(name), len(chosen)
        queues = 1 if topic is None else max(topic.write_queues, 1)
        sequence = run.number + 1 << SEQUENCE_BITS
        target, mark = Target(name, queues), ProducerMark(PRODUCER_ID, 0, QUEUE, sequence, count)
        is_done = partial(self.reposter.is_done, target, below=sequence + 1)
        # Where they cannot be stored together they are one by one, under numbers in front of the batch's own.
        alone = mark._replace(sequence=sequence - len(members) + 1, count=1)
        is_begun = count > 0 and is_done(alone)
        if not count or (is_begun and is_done(mark)):
            return
        if not run.is_rolled and (topic is None or names.is_system_topic(name)):
            self.dropped += count
            log.warning("messages for later dropped, their topic is gone topic=%s count=%d", name, count)
            return
        if not is_begun and self._try_post(journal, target, mark, run, waiting, chosen) is None:
            return
        for number, index in enumerate(members[:, None]):
            each = alone._replace(sequence=alone.sequence + number)
            is_over = is_done(each) or index[0] in passed_over
            error = None if is_over else self._try_post(journal, target, each, run, waiting, index)
            if error is not None:
                self.dropped += 1
                log.error("message for later cannot be delivered topic=%s error=%s", name, error)

    def _try_post(
        self, journal: Journal, target: Target, mark: ProducerMark, run: Run, waiting: Waiting, chosen: Longs
    ) -> PenstockError | None:
        """Append these messages in one batch; the error of one that will never do."""
        try:
            batch = waiting.batch(chosen, target, mark, keep=run.is_rolled)
            journal.append(target, batch, mark, count=len(chosen), is_kept=True)
        except (CorruptBatch, MessageTooLarge) as error:  # of a store that others wrote, or that is damaged
            return error
        self.rolled += len(chosen) * run.is_rolled
        self.delivered += len(chosen) * (not run.is_rolled)
        return None
