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
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from penstock.formats.record.producer_mark import MARK_PREFIX, producer_mark
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, FlowControl, InvalidArgument, MessageTooLarge, PenstockError
from penstock.runtime.clock import Clock

from ...core.metrics import Counters, Families
from ...core.producers import ProducerTable, Receipt
from ...core.state import State, Topic
from ...core.state_log import StateLog
from ...store.reading import Reader
from .timer_table import TIMER_RUN, Run
from .timer_wheel import Longs, TimerWheel

if TYPE_CHECKING:
    from ...store.picking import Picked, Picker
    from ...store.results import AppendResult

log = logging.getLogger(__name__)

TICK_S: Final = 0.1
RETRY_S: Final = 5.0
SETTLE_S: Final = 30.0
PRODUCER_ID: Final = int.from_bytes(b"\x00timers\x00")
PAGE_BYTES: Final = 1 << 20
PAGE_COUNT: Final = 1024
PAGE_BITS: Final = 24
SCAN_COUNT: Final = 8192
QUEUE: Final = 0


class TimerStore(Protocol):
    """What of the store this module needs."""

    @property
    def picker(self) -> Picker: ...
    def append(self, topic: str, records: memoryview, *, queues: int) -> AppendResult: ...
    @property
    def reader(self) -> Reader: ...


class TimerRole(Protocol):
    """What of the role this module needs."""

    def can_acknowledge(self) -> bool: ...


class Timers:
    """The wheel of one broker; event loop only, and only a master turns it."""

    def __init__(
        self,
        store: TimerStore,
        state: State,
        producers: ProducerTable,
        state_log: StateLog | None,
        role: TimerRole,
        counters: Counters,
        *,
        on_appended: Callable[[int], None],
        clock: Clock,
        page_bytes_max: int,
        delay_ms_max: int,
        waiting_max: int,
    ) -> None:
        """``state_log``: None at a slave."""
        self._store = store
        self._state = state
        self._table = state.timers
        self._producers = producers
        self._state_log = state_log
        self._role = role
        self._counters = counters
        self._on_appended = on_appended
        self._clock = clock
        self._page_bytes = min(PAGE_BYTES, page_bytes_max)
        self._delay_ms_max = delay_ms_max
        self._waiting_max = waiting_max
        self._term = 0  # grows with each change of role: what was begun before is nobody's any more
        self._wheel: TimerWheel | None = None
        self._scanned = 0
        self._unfinished: tuple[Run, Longs, Longs] | None = None
        self._settle_at = 0.0
        self._not_before = 0.0
        self.delivered = 0
        self.dropped = 0

    def on_role(self, state_log: StateLog | None) -> None:
        """The broker has become master, or slave (None)."""
        self._state_log = state_log
        self._wheel = self._unfinished = None
        self._term += 1

    def check(self, records: memoryview, topic: Topic) -> None:
        """That each record can be delivered to ``topic``.

        Raises:
            CorruptBatch, MessageTooLarge, InvalidArgument: ``details['index']`` names the one that cannot.
            FlowControl: too many wait already.
        """
        from penstock.formats.record.timers import TimerStatus, check_timers

        if self._wheel is not None and len(self._wheel) >= self._waiting_max:
            raise FlowControl(f"{len(self._wheel)} messages wait for their time (timerMessagesMax): send later")
        latest = self._clock.wall_ms() + self._delay_ms_max
        name = np.frombuffer(topic.name.encode(), np.uint8)
        status, index = check_timers(np.frombuffer(records, np.uint8), name, topic.write_queues, latest)
        if status == TimerStatus.OK:
            return
        where, index = f"topic {topic.name}, record {index} of the batch", int(index)
        if status == TimerStatus.TOO_LATE:
            raise InvalidArgument(
                f"{where}: due more than {self._delay_ms_max // 1000} s (timerMaxDelaySec) from now", index=index
            )
        if status == TimerStatus.PROPERTIES_TOO_LARGE:
            raise MessageTooLarge(f"{where}: its properties leave no room for what delivery adds", index=index)
        reason = TimerStatus(status).name.lower().replace("_", " ")
        raise CorruptBatch(f"{where}: no message for later: {reason}", index=index)

    def first_waiting(self) -> int | None:
        """Where in the log the first message begins that waits, as far as the log tells; None without one."""
        high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)[1]
        floor = self._table.last.floor
        if floor >= high:
            return None
        picked = self._store.picker.locate(names.TIMER_TOPIC, QUEUE, np.arange(floor, min(floor + 1, high)))
        return int(picked.positions[0]) if len(picked.positions) else None

    async def run(self) -> None:
        """Deliver what is due, until cancelled; what goes wrong is logged and tried again."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._state_log is None or self._clock.monotonic_s() < self._not_before:
                continue
            try:
                await self.turn()
            except PenstockError as error:
                self._not_before = self._clock.monotonic_s() + RETRY_S
                log.warning("delivery of messages for later delayed error=%s: %s", type(error).__name__, error)

    async def turn(self) -> None:
        """Look at what has come, and deliver what is due now."""
        term, state_log = self._term, self._state_log
        if state_log is None or not self._may_append(term):
            return
        if self._wheel is None and not await self._load(term):
            return
        wheel = self._wheel
        assert wheel is not None, "loaded in this term"
        await self._scan(wheel, term)
        if not self._may_append(term):
            return
        if self._unfinished is None:
            self._begin(wheel, state_log)
        if self._unfinished is not None:
            if await self._deliver(*self._unfinished, term):
                self._unfinished = None
        elif self._clock.monotonic_s() >= self._settle_at:
            self._settle_at = self._clock.monotonic_s() + SETTLE_S
            self._settle(wheel, state_log)

    def _may_append(self, term: int) -> bool:
        return term == self._term and self._role.can_acknowledge()

    def describe(self, families: Families) -> None:
        """Add this module's metrics."""
        waiting = len(self._wheel) if self._wheel is not None else 0
        families.gauge("penstock_timer_waiting", "Messages that wait for their time", waiting)
        families.counters("penstock_timer_delivered", "Messages delivered at their time", (), [((), self.delivered)])
        families.counters("penstock_timer_dropped", "Their topic, or they, are gone", (), [((), self.dropped)])

    def _begin(self, wheel: TimerWheel, state_log: StateLog) -> None:
        last = self._table.last
        now_ms = self._clock.wall_ms()
        first = wheel.first_offset()
        due, offsets = wheel.take(now_ms)
        if not len(due):
            return
        assert first is not None
        run = Run(last.number + 1, last.delivered() if last.number else (), now_ms, self._scanned, first)
        try:
            state_log.put(TIMER_RUN, run.to_json())
        except BaseException:
            self._wheel = None  # to be filled again
            raise
        self._unfinished = (run, due, offsets)

    def _settle(self, wheel: TimerWheel, state_log: StateLog) -> None:
        """Record that the last run is delivered, once: retention need not keep its messages."""
        last = self._table.last
        first = wheel.first_offset()
        floor = self._scanned if first is None else first
        if last.number and floor > last.floor:
            settled = replace(last, before=last.delivered(), floor=floor)
            state_log.put(TIMER_RUN, settled.to_json())

    async def _load(self, term: int) -> bool:
        """Fill the wheel from the queue; whether all of it is there."""
        last = self._table.last
        low, high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)
        if high < last.end:
            return False  # dispatch has not come there yet
        wheel = TimerWheel()
        due_parts, offset_parts = [], []
        async for due, offsets in self._due(max(low, last.floor), high):
            if term != self._term:
                return False
            is_before = last.is_before(due, offsets)
            is_now = ~is_before & (offsets < last.end) & (due <= last.until_ms)
            due_parts.append(due[is_now])
            offset_parts.append(offsets[is_now])
            rest = ~is_before & ~is_now
            wheel.add(due[rest], offsets[rest])
        if term != self._term:
            return False
        self._wheel, self._scanned = wheel, max(high, last.end)
        if sum(map(len, due_parts)):
            self._unfinished = (last, np.concatenate(due_parts), np.concatenate(offset_parts))
        if len(wheel):
            log.info("messages for later loaded waiting=%d", len(wheel))
        return True

    async def _scan(self, wheel: TimerWheel, term: int) -> None:
        high = self._store.reader.queue_range(names.TIMER_TOPIC, QUEUE)[1]
        async for due, offsets in self._due(self._scanned, high):
            if term != self._term:
                return
            wheel.add(due, offsets)
            self._scanned = int(offsets[-1]) + 1 if len(offsets) else self._scanned
        if term == self._term:
            self._scanned = max(self._scanned, high)

    async def _due(self, start: int, end: int) -> Any:
        """(due, offsets) of the records ``[start, end)`` of the queue, in pieces; what is no such record is told."""
        from penstock.formats.record.timers import due_times

        picker = self._store.picker
        while start < end:
            stop = min(start + SCAN_COUNT, end)
            picked = picker.locate(names.TIMER_TOPIC, QUEUE, np.arange(start, stop))
            due = np.empty(len(picked.offsets), np.int64)
            parts = picker.absent(picked)
            await _bring(parts)
            at = 0
            for part in parts:
                due_times(part.data, part.positions, part.sizes, due[at : at + len(part.sizes)])
                at += len(part.sizes)
            good = due >= 0
            self.dropped += stop - start - int(good.sum())
            yield due[good], picked.offsets[good]
            start = stop
            await asyncio.sleep(0)

    async def _deliver(self, run: Run, due: Longs, offsets: Longs, term: int) -> bool:
        """Append every message of the run that is not there yet, by their times; whether it came to its end."""
        picker = self._store.picker
        wanted, places = await asyncio.to_thread(_in_order, due, offsets)
        located = await self._locate(wanted)
        if len(located.offsets) < len(wanted):
            self.dropped += len(wanted) - len(located.offsets)
            kept = np.isin(wanted, located.offsets)
            places = (np.cumsum(kept) - 1)[places[kept[places]]]
        for number, page in enumerate(_pages(places, located.sizes[places], self._page_bytes)):
            chosen = np.sort(page)
            picked = located.part(chosen)
            await _bring(picker.absent(picked))
            if not self._may_append(term):
                return False
            self._deliver_page(run, number, picked, np.searchsorted(chosen, page))
            await asyncio.sleep(0)
        return term == self._term

    async def _locate(self, offsets: Longs) -> Picked:
        """Where the messages are, in pieces that hold nobody up."""
        from ...store.picking import Picked

        parts = []
        for start in range(0, len(offsets), SCAN_COUNT):
            parts.append(self._store.picker.locate(names.TIMER_TOPIC, QUEUE, offsets[start : start + SCAN_COUNT]))
            await asyncio.sleep(0)
        return Picked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _deliver_page(self, run: Run, number: int, picked: Picked, order: Longs) -> None:
        """``order``: places in ``picked``, by time."""
        from penstock.formats.record.timers import real_topics

        sound = self._store.picker.sound(picked)
        if len(sound.offsets) < len(picked.offsets):
            self.dropped += len(picked.offsets) - len(sound.offsets)
            kept = np.isin(picked.offsets, sound.offsets)
            order = np.searchsorted(sound.offsets, picked.offsets[order[kept[order]]])
        records = self._store.picker.join(sound)
        sizes = sound.sizes
        positions = np.cumsum(sizes, dtype=np.int64) - sizes
        positions, sizes = positions[order], sizes[order]
        topics, hashes = np.empty(len(sizes), np.int64), np.empty(len(sizes), np.uint64)
        real_topics(records, positions, sizes, topics, hashes)
        self.dropped += int((topics < 0).sum())
        for found in dict.fromkeys(hashes[topics >= 0].tolist()):
            chosen = np.flatnonzero(hashes == found)
            start = int(topics[chosen[0]])
            name = records[start : start + 255].tobytes().partition(b"\x02")[0].decode("utf-8", "replace")
            self._deliver_to(name, run, number, records, positions[chosen], sizes[chosen])

    def _deliver_to(self, name: str, run: Run, number: int, records: Any, positions: Longs, sizes: Any) -> None:
        from penstock.formats.record.timers import GROWTH_MAX, TOPIC_GROWTH_MAX, delivered_records

        sequence = run.number << PAGE_BITS | number
        last = self._producers.last_sequence(PRODUCER_ID, name, QUEUE)
        if last is not None and last >= sequence:
            return
        topic, count = self._state.topic(name), len(positions)
        if topic is None or names.is_system_topic(name):
            self.dropped += count
            log.warning("messages for later dropped, their topic is gone topic=%s count=%d", name, count)
            return
        mark = MARK_PREFIX + producer_mark(PRODUCER_ID, 0, QUEUE, sequence, count) + b"\x02"
        queues = max(topic.write_queues, 1)
        out = np.empty(int(sizes.sum()) + GROWTH_MAX + count * TOPIC_GROWTH_MAX + TOPIC_GROWTH_MAX, np.uint8)
        target = np.frombuffer(name.encode(), np.uint8)
        length = int(delivered_records(records, positions, sizes, target, queues, np.frombuffer(mark, np.uint8), out))
        assert length > 0, "sound records, and room for them"
        try:
            placed = self._store.append(name, out[:length].data, queues=queues)
        except (CorruptBatch, MessageTooLarge) as error:  # of a store that others wrote: it would never do
            self.dropped += count
            log.error("messages for later cannot be delivered topic=%s count=%d error=%s", name, count, error)
            return
        receipt = Receipt(
            sequence,
            placed.start,
            placed.end,
            placed.store_timestamp_ms,
            placed.queue_ids,
            placed.queue_offsets,
        )
        self._producers.remember(PRODUCER_ID, 0, name, QUEUE, receipt)
        self._counters.topic(name).on_appended(placed.count, length)
        self.delivered += placed.count
        self._on_appended(placed.end)


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


async def _bring(parts: Any) -> None:
    from ...store.absent import bring  # loads the kernels

    if parts:
        await asyncio.to_thread(bring, parts)
