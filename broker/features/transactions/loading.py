"""Which halves are open: read from the queues of halves and ops when a mastership begins, and followed from then on."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import numpy as np

from penstock.proto import names
from penstock.proto.wire import transactions_pb2 as wire

from ...core.core import Core
from ...core.journal import Journal
from ...core.reposting import LOCATED_AT_ONCE, Reposter, records_of
from ...core.tables.offsets import offset_records
from ...store.absent import bring
from .decisions import QUEUE, Decisions
from .halves import KNOWN_MAX, OPEN, Halves, Longs, Waiting
from .ops import read_op
from .table import TX_DONE, TransactionTable

log = logging.getLogger(__name__)

OPS_REMEMBERED: Final = 4096
"""So many ops are read at least, if they are there: how halves were decided can be asked after a failover too."""
SETTLE_S: Final = 5.0
SCAN_AFTER_S: Final = 1.0


class Loading:
    """Fills :attr:`Decisions.halves`, and records how far they are done with; event loop only."""

    def __init__(self, core: Core, decisions: Decisions) -> None:
        self._core = core
        self._store = core.store
        self._decisions = decisions
        self._table = core.tables[TransactionTable]
        self._reposter = Reposter(core)
        self._log_end = 0  # when the mastership began: what lies below is to be dispatched first
        self._seen: deque[tuple[float, int]] = deque()  # when the queue of halves ended where
        self._scan_after_s = min(core.config.transactions.timeout_ms / 2000, SCAN_AFTER_S)
        self._settle_at = 0.0
        self._loading = asyncio.Lock()  # one task reads for all that wait: after a failover every end does

    def on_role(self) -> None:
        """The mastership is over, or a new one begins."""
        self._decisions.forget()
        self._log_end = self._store.end_offset

    def first_open(self) -> int | None:
        """Log position of the first open half, or None. A slave goes by what its master has recorded."""
        halves, high = self._decisions.halves, self._range(names.HALF_TOPIC)[1]
        floor = halves.floor if halves is not None else self._committed(names.HALF_TOPIC)
        floor = max(floor, self._store.removal.first_from(names.HALF_TOPIC, QUEUE, self._store.min_offset))
        return self._store.picker.first_position(names.HALF_TOPIC, QUEUE, floor, high)

    async def load(self, journal: Journal) -> bool:
        """True if the halves are known now."""
        if not self._is_loaded():
            async with self._loading:
                return self._is_loaded() or await self._load(journal)
        return True

    async def _load(self, journal: Journal) -> bool:
        decisions, store = self._decisions, self._store
        if store.dispatched_offset < self._log_end:
            return False
        high = self._range(names.HALF_TOPIC)[1]
        op_low, op_high = self._range(names.OP_TOPIC)
        floor = self._committed(names.HALF_TOPIC)
        op_floor = self._committed(names.OP_TOPIC)
        first_op = max(op_low, min(op_floor, op_high - OPS_REMEMBERED))
        records = records_of(store, names.OP_TOPIC, QUEUE, first_op, op_high)
        ops = [(offset, read_op(record)) async for offset, _, record in records]
        mentioned = [int(each.offsets.min()) for _, op in ops for each in op if len(each.offsets)]
        halves = Halves(max(min([floor, *mentioned]), floor - KNOWN_MAX, 0), floor)
        halves.grow(high)
        for _, op in ops:
            for each in op:
                halves.decide(each.offsets, each.state)
        keys: list[Longs] = []
        async for rows, own in self._rows(_open_between(halves, floor, high), halves):
            halves.add(rows)
            keys.append(own)
        if journal.is_over:
            return False
        if self._table.ops > op_high:  # a snapshot knew ops that a power cut took, and perhaps what the last one left
            journal.put(TX_DONE, {"ops": max(op_high - 1, 0)})
        if keys:
            halves.supersede(np.concatenate(keys))
        halves.scanned = high
        if len(halves.waiting):  # by these their producers know them
            halves.know_from(int(halves.waiting.firsts.min()))
        self._seen.clear()
        decisions.halves = halves
        decisions.reaches.clear()
        for op_offset, op in ops:
            if op_offset >= op_floor:
                decisions.note_reach(op_offset, op)
        if ops and ops[-1][0] >= self._table.ops and any(each.letter for each in ops[-1][1]):
            decisions.unfinished = ops[-1][1], ops[-1][0]
        if len(halves.waiting):
            log.info("open transactions loaded halves=%d first=%d", len(halves.waiting), halves.floor)
        return True

    async def scan(self) -> None:
        """Note the halves that came some time ago and are open still; most are decided by then."""
        halves = self._decisions.known()
        now_s, until = self._core.clock.monotonic_s(), halves.scanned
        while self._seen and self._seen[0][0] <= now_s - self._scan_after_s:
            until = self._seen.popleft()[1]
        high = self._range(names.HALF_TOPIC)[1]
        if high > (self._seen[-1][1] if self._seen else until):
            self._seen.append((now_s, high))
        if halves.scanned < until:
            async for rows, _ in self._rows(_open_between(halves, halves.scanned, until), halves):
                halves.add(rows)
            halves.scanned = until
        halves.prune()

    def settle(self, journal: Journal) -> None:
        """Record how far halves and ops are done with: for whoever is master next, retention, and RocketMQ."""
        now_s = self._core.clock.monotonic_s()
        if now_s < self._settle_at or self._decisions.unfinished is not None:
            return
        self._settle_at = now_s + SETTLE_S
        op_end = self._range(names.OP_TOPIC)[1]
        group, table = names.TRANSACTIONS_GROUP, self._core.tables.offsets
        reached = {
            names.HALF_TOPIC: self._decisions.known().floor,
            names.OP_TOPIC: self._decisions.first_op(op_end),
        }
        moved = {topic: {QUEUE: at} for topic, at in reached.items() if table.get(group, topic, QUEUE) < at}
        for kind, document in offset_records(group, moved) if any(reached.values()) else ():
            journal.put(kind, document)
        if op_end > self._table.ops:
            journal.put(TX_DONE, {"ops": op_end})

    def _is_loaded(self) -> bool:
        return self._decisions.halves is not None

    def _range(self, topic: str) -> tuple[int, int]:
        return self._store.reader.queue_range(topic, QUEUE)

    def _committed(self, topic: str) -> int:
        low, high = self._range(topic)
        return min(max(self._core.tables.offsets.get(names.TRANSACTIONS_GROUP, topic, QUEUE), low), high)

    async def _rows(self, offsets: Longs, halves: Halves) -> AsyncIterator[tuple[Waiting, Longs]]:
        """What the halves at these offsets say of themselves, in pieces; what cannot be read is open no more."""
        for start in range(0, len(offsets), LOCATED_AT_ONCE):
            wanted = offsets[start : start + LOCATED_AT_ONCE]
            picked = self._store.picker.locate(names.HALF_TOPIC, QUEUE, wanted)
            parts, at = self._store.picker.absent(picked), 0
            if parts:
                await asyncio.to_thread(bring, parts)
            unread = [np.setdiff1d(wanted, picked.offsets)]
            for part in parts:
                own = picked.offsets[at : at + len(part.sizes)]
                at += len(part.sizes)
                rows, keys = self._decisions.rows(part.data, part.positions, part.sizes, own)
                is_half = rows.groups != 0
                unread.append(own[~is_half])
                yield rows.part(is_half), keys[is_half]
            lost = np.concatenate(unread)
            if len(lost):
                halves.decide(lost, wire.ENDED)
                log.error("halves cannot be read, nobody decides them count=%d first=%d", len(lost), lost[0])
            await asyncio.sleep(0)


def _open_between(halves: Halves, start: int, end: int) -> Longs:
    offsets = np.arange(start, end)
    open_: Longs = offsets[halves.states(offsets) == OPEN]
    return open_
