"""Messages that are delivered later.

Clients send them as records of the internal topic ``names.TIMER_TOPIC``, whose properties say where they belong and
when (:mod:`penstock.formats.record.timers`); so they are replicated, acknowledged and found again as any message. The
master keeps when each is due in a wheel, which it fills from that topic's queue when it begins. What is due becomes a
*run* (:mod:`.timer_table`), and the run's messages are appended as records of their own topics, in the order of their
times, under producer marks that name the run: whoever delivers a run again appends only what is missing.

A message whose topic was deleted goes with it. Retention keeps the log from the first message on that waits.

Source: RocketMQ ``TimerMessageStore``; differs: delivered once, and within 0.2 s of its time where RocketMQ counts in
seconds; no files of its own (``timerwheel``, ``timerlog``): a broker that becomes master reads what waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from penstock.formats.record.producer_mark import ProducerMark, mark_property
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, MessageTooLarge

from ...core.core import Core
from ...core.journal import Journal, Target
from ...core.reposting import LOCATED_AT_ONCE, Records, Reposter
from .timer_table import TIMER_RUN, Run, TimerTable
from .timer_wheel import Longs, TimerWheel

log = logging.getLogger(__name__)

SETTLE_S: Final = 30.0
PRODUCER_ID: Final = int.from_bytes(b"\x00timers\x00")
PAGE_BYTES: Final = 1 << 20
PAGE_COUNT: Final = 1024
PAGE_BITS: Final = 24
QUEUE: Final = 0


class Timers:
    """The wheel of one broker; event loop only, and only a master turns it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._clock = core.clock
        self._table = core.tables[TimerTable]
        self._reposter = Reposter(core)
        self._page_bytes = min(PAGE_BYTES, core.config.store.body_bytes_max)
        self._journal: Journal | None = None  # of this mastership; what an earlier one began is nobody's any more
        self._wheel: TimerWheel | None = None
        self._scanned = 0
        self._unfinished: tuple[Run, Longs, Longs] | None = None
        self._settle_at = 0.0
        self.delivered = 0
        self.dropped = 0

    def on_role(self, journal: Journal | None) -> None:
        """The broker has become master, or slave (None)."""
        self._journal = journal
        self._wheel = self._unfinished = None

    @property
    def foreign_marks(self) -> int:
        """How often a mark of somebody else stood in the way of a delivery."""
        return self._reposter.foreign

    @property
    def waiting(self) -> int:
        """How many messages wait for their time, as far as a master has counted them."""
        return len(self._wheel) if self._wheel is not None else 0

    def first_waiting(self) -> int | None:
        """Log position of the oldest message that still waits for its time, or None."""
        high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)[1]
        floor = self._table.last.floor
        if floor >= high:
            return None
        picked = self._store.picker.locate(names.TIMER_TOPIC, QUEUE, np.arange(floor, min(floor + 1, high)))
        return int(picked.positions[0]) if len(picked.positions) else None

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
        if self._unfinished is None:
            self._begin(wheel, journal)
        if self._unfinished is not None:
            if await self._deliver(*self._unfinished, journal):
                self._unfinished = None
        elif self._clock.monotonic_s() >= self._settle_at:
            self._settle_at = self._clock.monotonic_s() + SETTLE_S
            self._settle(wheel, journal)

    def _may_append(self, journal: Journal) -> bool:
        return not journal.is_over and self._core.role.can_acknowledge()

    def _begin(self, wheel: TimerWheel, journal: Journal) -> None:
        last = self._table.last
        now_ms = self._clock.wall_ms()
        first = wheel.first_offset()
        due, offsets = wheel.take(now_ms)
        if not len(due):
            return
        assert first is not None
        run = Run(last.number + 1, last.delivered() if last.number else (), now_ms, self._scanned, first)
        try:
            journal.put(TIMER_RUN, run.to_json())
        except BaseException:
            self._wheel = None  # to be filled again
            raise
        self._unfinished = (run, due, offsets)

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
        if high < last.end:
            return False  # dispatch has not come there yet
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
        self._wheel, self._scanned = wheel, max(high, last.end)
        if sum(map(len, due_parts)):
            self._unfinished = (last, np.concatenate(due_parts), np.concatenate(offset_parts))
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
        from penstock.formats.record.timers import due_times

        from ...store.absent import bring  # loads the kernels

        picker = self._store.picker
        while start < end:
            stop = min(start + LOCATED_AT_ONCE, end)
            picked = picker.locate(names.TIMER_TOPIC, QUEUE, np.arange(start, stop))
            due = np.empty(len(picked.offsets), np.int64)
            parts = picker.absent(picked)
            if parts:
                await asyncio.to_thread(bring, parts)
            at = 0
            for part in parts:
                due_times(part.data, part.positions, part.sizes, due[at : at + len(part.sizes)])
                at += len(part.sizes)
            good = due >= 0
            self.dropped += stop - start - int(good.sum())
            yield due[good], picked.offsets[good]
            start = stop
            await asyncio.sleep(0)

    async def _deliver(self, run: Run, due: Longs, offsets: Longs, journal: Journal) -> bool:
        """Append every message of the run that is not there yet, by their times. True if the run came to its end."""
        wanted, places = await asyncio.to_thread(_in_order, due, offsets)
        located = await self._reposter.locate(names.TIMER_TOPIC, QUEUE, wanted)
        if len(located.offsets) < len(wanted):
            self.dropped += len(wanted) - len(located.offsets)
            kept = np.isin(wanted, located.offsets)
            places = (np.cumsum(kept) - 1)[places[kept[places]]]
        for number, page in enumerate(_pages(places, located.sizes[places], self._page_bytes)):
            picked = located.part(np.sort(page))
            records = await self._reposter.read(journal, picked)
            if records is None or not self._may_append(journal):
                return False
            self.dropped += len(page) - len(records.offsets)
            by_time = located.offsets[page]
            order = np.searchsorted(records.offsets, by_time[np.isin(by_time, records.offsets)])
            self._deliver_page(journal, run.number << PAGE_BITS | number, records, order)
            await asyncio.sleep(0)
        return not journal.is_over

    def _deliver_page(self, journal: Journal, sequence: int, records: Records, order: Longs) -> None:
        """``order``: places in ``records``, by time."""
        from penstock.formats.record.timers import real_topics

        positions, sizes = records.positions[order], records.sizes[order]
        topics, hashes = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.uint64)
        real_topics(records.data, positions, sizes, topics, hashes)
        self.dropped += int((topics < 0).sum())
        for found in dict.fromkeys(hashes[topics >= 0].tolist()):
            chosen = np.flatnonzero(hashes == found)
            start = int(topics[chosen[0]])
            name = records.data[start : start + 255].tobytes().partition(b"\x02")[0].decode("utf-8", "replace")
            self._deliver_to(journal, name, sequence, records.data, positions[chosen], sizes[chosen])

    def _deliver_to(self, journal: Journal, name: str, sequence: int, data: Any, positions: Longs, sizes: Any) -> None:
        from penstock.formats.record.timers import GROWTH_MAX, TOPIC_GROWTH_MAX, delivered_records

        topic, count = self._core.tables.topic(name), len(positions)
        queues = 1 if topic is None else max(topic.write_queues, 1)
        target, mark = Target(name, queues), ProducerMark(PRODUCER_ID, 0, QUEUE, sequence, count)

        def make() -> memoryview:
            out = np.empty(int(sizes.sum()) + GROWTH_MAX + count * TOPIC_GROWTH_MAX + TOPIC_GROWTH_MAX, np.uint8)
            encoded, prefix = np.frombuffer(name.encode(), np.uint8), np.frombuffer(mark_property(*mark), np.uint8)
            length = int(delivered_records(data, positions, sizes, encoded, queues, prefix, out))
            assert length > 0, "sound records, and room for them"
            return out[:length].data

        if self._reposter.is_done(target, mark, below=(sequence >> PAGE_BITS) + 1 << PAGE_BITS):
            return
        if topic is None or names.is_system_topic(name):
            self.dropped += count
            log.warning("messages for later dropped, their topic is gone topic=%s count=%d", name, count)
            return
        try:
            self.delivered += self._reposter.post(journal, target, mark, make)
        except (CorruptBatch, MessageTooLarge) as error:  # of a store that others wrote: it would never do
            self.dropped += count
            log.error("messages for later cannot be delivered topic=%s count=%d error=%s", name, count, error)


def _in_order(due: Longs, offsets: Longs) -> tuple[Longs, Longs]:
    """The offsets ascending, and their places in that in the order of their times."""
    ascending = np.argsort(offsets, kind="stable")
    rank = np.empty(len(offsets), np.int64)
    rank[ascending] = np.arange(len(offsets))
    return offsets[ascending], rank[np.lexsort((offsets, due))]


def _pages(places: Longs, sizes: Any, bytes_max: int) -> Iterator[Longs]:
    """``places`` in pieces that are the same whenever the run is delivered."""
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    while start < len(places):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + bytes_max, side="right"))
        stop = min(max(stop, start + 1), start + PAGE_COUNT)
        yield places[start:stop]
        start = stop
