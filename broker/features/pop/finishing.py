"""What becomes of messages in flight: acknowledged, visible at another time, sent to the retry topic, or dead letters.

An op says it first, and is the decision. The copies of those that come again or are dead letters are posted right
behind it, under a producer mark whose sequence is the op's place in its queue. So whoever is master next reads the last
such op, posts what is missing of it, and nothing twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.properties import PROPERTIES_BYTES_MAX
from penstock.formats.record.reposting.retries import GROWTH_MAX, PROPERTIES_GROWTH_MAX
from penstock.proto import names
from penstock.proto.errors import PenstockError
from penstock.proto.wire.pop_pb2 import RECEIPT_OK, RECEIPT_UNKNOWN, ReceiptStatus

from ...core.core import Core
from ...core.failed import DEAD_QUEUES, ensure_topic, failed_copies, tried_times
from ...core.journal import Journal, Target
from ...core.reposting import Records, Reposter
from ...core.tables.groups import Group
from .ops import NOTHING, Kind, Longs, Op
from .queue import PopQueue
from .request import Receipts
from .state import PopState

log = logging.getLogger(__name__)

PRODUCER_ID: Final = int.from_bytes(b"\x00timers\x70")
LANE: Final = 0
GIVEN_BACK_MS: Final = 60_000
"""Messages that are given back hold up retention, and count as in flight, for so long at most."""
RUN_COUNT: Final = 1024
RUN_BYTES: Final = 1 << 20


class Finisher:
    """Event loop only."""

    def __init__(self, core: Core, state: PopState) -> None:
        self._core = core
        self._state = state
        self._reposter = Reposter(core)
        self.acknowledged: Counter[str] = Counter()  # by group, like the next
        self.again: Counter[str] = Counter()
        self.dead: Counter[str] = Counter()

    # What consumers ask. Without waiting: the log says in which order.

    def acknowledge(
        self, journal: Journal, group: str, receipts: Collection[Receipts], now_ms: int
    ) -> list[ReceiptStatus]:
        """Finish what is in flight under these receipts; the status of each, none if all are OK."""
        statuses, ops = self._decide(group, receipts, now_ms, Kind.DONE, 0)
        if ops:
            self._state.record(journal, ops)
            self.acknowledged[group] += sum(len(op.offsets) for op in ops)
        return statuses

    def change(
        self,
        journal: Journal,
        group: str,
        receipts: Collection[Receipts],
        now_ms: int,
        visible_ms: int,
        *,
        keeps_receipts: bool,
    ) -> tuple[list[ReceiptStatus], int]:
        """Have them come again at another time; the statuses, and the check point of the new receipts, or -1.

        ``keeps_receipts``: there are no new ones, those that they have are good until that time.
        """
        kind = Kind.RENEW if keeps_receipts else Kind.CHANGE
        statuses, ops = self._decide(group, receipts, now_ms, kind, visible_ms)
        return statuses, self._state.record(journal, ops) if ops else -1

    def give_back(
        self, journal: Journal, group: str, receipts: Collection[Receipts], now_ms: int
    ) -> tuple[list[ReceiptStatus], int]:
        """Have them come again at once, and not as another time: nobody has begun with them. Answers likewise.

        Those that nobody receives in :data:`GIVEN_BACK_MS` go the way of all whose time is over.
        """
        statuses, ops = self._decide(group, receipts, now_ms, Kind.PARK, now_ms + GIVEN_BACK_MS)
        return statuses, self._state.record(journal, ops) if ops else -1

    def release(self, journal: Journal, ops: Collection[Op], point: int, now_ms: int) -> None:
        """Let what was given out by these ops come again at once, if that is still possible."""
        if journal.is_over:
            return
        given = [op for op in ops if op.kind in (Kind.POP, Kind.CHANGE, Kind.AGAIN)]
        for op in given:
            self.give_back(journal, op.group, [Receipts(op.topic, op.queue_id, point, 0, op.offsets)], now_ms)

    async def forward(
        self, journal: Journal, group: str, receipts: Collection[Receipts], now_ms: int
    ) -> list[ReceiptStatus]:
        """Make them dead letters; the statuses. Raises NotMaster: the mastership ended meanwhile."""
        statuses: list[ReceiptStatus] = []
        for each in receipts:
            queue = self._state.queue(group, each.topic, each.queue_id)
            before, live = self._look(queue, each, now_ms)
            if queue is not None:
                for start in range(0, len(live), RUN_COUNT):
                    await self._fail(journal, queue, live[start : start + RUN_COUNT], each)
            statuses += before.tolist()
        return _told(statuses)

    # What happens by itself.

    async def revive(self, journal: Journal, queue: PopQueue) -> None:
        """Let the messages whose time is over come again, or make dead letters of them, so many at once.

        Those of an orderly group come again in their place, so that only dead letters are made.

        Raises:
            NotMaster: the mastership ended meanwhile.
            As :meth:`Journal.append`.
        """
        overdue = self._overdue(queue, self._state.now_ms())[:RUN_COUNT]
        if len(overdue):
            await self._fail(journal, queue, overdue, None)

    async def finish(self, journal: Journal) -> None:
        """Post what is still missing of the last ops. Raises as :meth:`revive`."""
        while self._state.unfinished is not None:
            unfinished = self._state.unfinished
            point, ops = unfinished
            found = {}
            for op in ops:
                picked = await self._reposter.locate(op.topic, op.queue_id, op.offsets)
                found[op.kind] = await self._reposter.read_as_master(journal, picked)
            if self._state.unfinished is unfinished:
                for op in ops:
                    self._post(journal, op, found[op.kind], np.arange(len(found[op.kind].offsets)), point)
                self._state.unfinished = None
                self._state.end = self._core.store.end_offset

    async def _fail(self, journal: Journal, queue: PopQueue, offsets: Longs, receipts: Receipts | None) -> None:
        """Decide about these messages, which are due, or become dead letters by their ``receipts``."""
        await self.finish(journal)
        picked = await self._reposter.locate(queue.topic, queue.queue_id, offsets)
        gone = np.setdiff1d(offsets, picked.offsets)
        fits = self._reposter.fitting(picked.sizes, RUN_BYTES, growth=GROWTH_MAX)
        rest = picked.offsets[fits:]
        first = picked.part(np.arange(fits))
        records = await self._reposter.read_as_master(journal, first)
        await self.finish(journal)
        # Others had their turn: what is not as it was is left alone.
        known = self._state.queues.get((queue.group, queue.topic, queue.queue_id))
        journal.check()
        if known is not queue:
            return
        now_ms = self._state.now_ms()  # the clock may have been set meanwhile, which puts off what was due
        alive = self._overdue(queue, now_ms) if receipts is None else self._look(queue, receipts, now_ms)[1]
        gone = np.intersect1d(np.union1d(gone, np.setdiff1d(first.offsets, records.offsets)), alive)
        if len(gone):
            log.error(
                "messages in flight are gone from the log group=%s topic=%s queue=%d count=%d first_offset=%d",
                *(queue.group, queue.topic, queue.queue_id, len(gone), gone[0]),
            )
            self._state.record(journal, [self._op(Kind.DONE, queue, gone)])
        chosen = np.flatnonzero(np.isin(records.offsets, alive))
        if len(chosen):
            is_dead = receipts is not None or queue.is_orderly
            self._carry_out(journal, queue, records, chosen, is_dead=is_dead)
        if len(rest) and receipts is not None:
            await self._fail(journal, queue, rest, receipts)

    def _overdue(self, queue: PopQueue, now_ms: int) -> Longs:
        if queue.is_orderly:
            return queue.exhausted(now_ms, self._core.tables.group_or_default(queue.group).retry_max_times)
        return queue.due(now_ms)

    # Without waiting: whoever is asked next finds the op and all that follows from it.

    def _carry_out(self, journal: Journal, queue: PopQueue, records: Records, chosen: Longs, *, is_dead: bool) -> None:
        group = self._core.tables.group_or_default(queue.group)
        times, properties = tried_times(records, queue.topic)
        allowed = group.retry_max_times if group.retry_queues > 0 else 0
        dies = (times >= allowed) | (properties + PROPERTIES_GROWTH_MAX > PROPERTIES_BYTES_MAX) | is_dead
        ops, places = [], []
        for kind, own in ((Kind.REPOST, chosen[~dies[chosen]]), (Kind.DEAD, chosen[dies[chosen]])):
            if len(own):
                self._ensure(journal, kind, group)
                ops.append(self._op(kind, queue, records.offsets[own]))
                places.append(own)
        point = self._state.record(journal, ops)
        self._state.unfinished = point, ops
        for op, own in zip(ops, places, strict=True):
            self._post(journal, op, records, own, point)
        self._state.unfinished = None
        self._state.end = self._core.store.end_offset

    def _ensure(self, journal: Journal, kind: Kind, group: Group) -> Target:
        name, queues = _topic_of(kind, group.name), DEAD_QUEUES if kind is Kind.DEAD else max(group.retry_queues, 1)
        topic = ensure_topic(self._core, journal, name, queues)
        return Target(name, max(topic.write_queues, 1))

    def _post(self, journal: Journal, op: Op, records: Records, chosen: Longs, point: int) -> None:
        """Append the copies of an op, unless they are there."""
        known, mark = Target(_topic_of(op.kind, op.group), 1), ProducerMark(PRODUCER_ID, 0, LANE, point + 1, 1)
        if not len(chosen) or self._reposter.is_done(known, mark, below=point + 2):
            return  # the topic may have been deleted since
        target = self._ensure(journal, op.kind, self._core.tables.group_or_default(op.group))
        times, _ = tried_times(records, op.topic)
        are_again = op.topic.startswith(names.RETRY_PREFIX)

        def batch_of(places: Longs, mark: ProducerMark) -> memoryview:
            due = NOTHING if op.kind is Kind.DEAD else np.full(len(places), -1)
            return failed_copies(records, places, times, due, target.topic, b"", mark, are_again=are_again)

        def on_bad(place: int, error: PenstockError) -> None:
            log.error(
                "message cannot come again topic=%s from=%s queue=%d offset=%d error=%s",
                *(target.topic, op.topic, op.queue_id, records.offsets[place], error),
            )

        posted = self._reposter.append_sound(journal, target, mark, chosen, batch_of, on_bad)
        if posted is None:
            return
        chosen = posted[0]
        (self.dead if op.kind is Kind.DEAD else self.again)[op.group] += len(chosen)
        if op.kind is Kind.DEAD:
            log.warning(
                "messages became dead letters group=%s topic=%s queue=%d count=%d first_offset=%d",
                *(op.group, op.topic, op.queue_id, len(chosen), records.offsets[chosen[0]]),
            )

    def _decide(
        self, group: str, receipts: Iterable[Receipts], now_ms: int, kind: Kind, at_ms: int
    ) -> tuple[list[ReceiptStatus], list[Op]]:
        found = []
        ops = []
        are_all_live = True
        for each in receipts:
            queue = self._state.queue(group, each.topic, each.queue_id)
            before, live = self._look(queue, each, now_ms)
            found.append(before)
            are_all_live &= len(live) == len(before)
            if queue is not None and len(live):
                ops.append(self._op(kind, queue, live, at_ms))
        return [] if are_all_live else _told([status for before in found for status in before.tolist()]), ops

    def _look(self, queue: PopQueue | None, receipts: Receipts, now_ms: int) -> tuple[Longs, Longs]:
        offsets = receipts.offsets
        if queue is None:
            return np.full(len(offsets), RECEIPT_UNKNOWN), NOTHING
        until_ms = receipts.until_ms if receipts.point >= self._state.set_at else 0
        return queue.statuses(offsets, receipts.point, until_ms, now_ms, self._state.op_end)

    @staticmethod
    def _op(kind: Kind, queue: PopQueue, offsets: Longs, at_ms: int = 0) -> Op:
        return Op(kind, queue.group, queue.topic, queue.queue_id, offsets, 0, at_ms, queue.is_orderly)


def _topic_of(kind: Kind, group: str) -> str:
    """Where the copies of an op go."""
    return (names.DLQ_PREFIX if kind is Kind.DEAD else names.RETRY_PREFIX) + group


def _told(statuses: list[ReceiptStatus]) -> list[ReceiptStatus]:
    return [] if statuses.count(RECEIPT_OK) == len(statuses) else statuses
