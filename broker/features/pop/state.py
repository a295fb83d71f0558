"""What all groups were given: read from the ops when a mastership begins, and followed from then on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

import numpy as np

from penstock.formats.record.form import RecordForm
from penstock.formats.record.properties import WAIT, encode_properties
from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable
from penstock.runtime.clock import JUMP_MS

from ...core.core import Core
from ...core.journal import Journal, Target
from ...core.reposting import records_of
from ...core.tables.offsets import offset_records
from .kernels import NEVER
from .ops import Kind, Op, joined, read_ops
from .queue import PopQueue
from .table import BY, POP, POP_DONE, PopTable

log = logging.getLogger(__name__)

QUEUE: Final = 0
OPS_BEHIND_MAX: Final = 50_000
"""So many ops are read at most when a mastership begins, about; queues that need older ones are stated anew."""
STATED_AT_ONCE: Final = 64
_TARGET: Final = Target(names.POP_TOPIC, 1)
_PROPERTIES: Final = encode_properties({WAIT: "true"})


class PopState:
    """The queues of all groups that pop; event loop only. Filled while this broker is master."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._store = core.store
        self._table = core.tables[PopTable]
        self._table.on_moved = self._on_moved
        self.changes = 0
        """Grows when a queue comes or goes."""
        self._form = RecordForm.own(names.POP_TOPIC, core.config.advertised_address)
        self.on_role()

    def on_role(self) -> None:
        """The mastership is over, or a new one begins."""
        self.queues: dict[tuple[str, str, int], PopQueue] = {}
        self.changes += 1
        self.in_flight = 0
        self.is_loaded = False
        self.op_end = 0  # offset of the next op's record
        self.end = 0  # where in the log the last one ends
        self.unfinished: tuple[int, list[Op]] | None = None
        """The last ops whose copies may be missing, and the offset of their record."""
        self._log_end = self._store.end_offset
        self._loading = asyncio.Lock()
        self._roll_below = 0
        self._ahead_ms = self._ahead(self._core.clock.due_ms())
        self.set_at = 0
        """Receipts of check points below it say times of a clock that was set since."""

    def now_ms(self) -> int:
        """The broker's time. Once that was set, what is in flight is put off by as much: it was given for so long."""
        now_ms = self._core.clock.due_ms()
        set_ms = round(self._ahead(now_ms) - self._ahead_ms)
        if abs(set_ms) > JUMP_MS:
            self._ahead_ms += set_ms
            for queue in self.queues.values():
                queue.put_off(set_ms)
            self.set_at = self.op_end
            self.make_way(self.end)  # whoever is master next knows it too
        return now_ms

    async def load(self, journal: Journal) -> None:
        """Return when the queues are known. Raises BrokerUnavailable: the log is not dispatched, or another's."""
        if not self.is_loaded:
            async with self._loading:
                await self._load(journal)

    async def _load(self, journal: Journal) -> None:
        if not self.is_loaded:
            _check_master(journal)
            if self._store.dispatched_offset < self._log_end:
                raise BrokerUnavailable("what the log held is not all in its queues yet: try again")
            low, high = self._store.reader.queue_range(names.POP_TOPIC, QUEUE)
            if self._table.ops > high:  # a snapshot knew ops that a power cut took: whatever is left may be needed
                begin = self._store.min_offset
                journal.put(POP_DONE, {"ops": low, "position": begin, "held": begin})
            self.queues, self.in_flight, self.op_end, self.end = {}, 0, high, self._store.end_offset
            self.changes += 1
            count = 0
            async for point, position, ops in self._read(max(low, self._table.ops), high):
                _check_master(journal)  # the queues are the next mastership's by now
                posted = joined(op for op in ops if op.kind in (Kind.REPOST, Kind.DEAD))
                if posted:
                    self.unfinished = point, posted
                for op in ops:
                    if position > self._table.cut(op.group, op.topic, op.queue_id):
                        self._apply(op, point)
                count += 1
            _check_master(journal)
            self.is_loaded = True
            if count:
                log.info("messages in flight loaded count=%d ops=%d", self.in_flight, count)

    def queue(self, group: str, topic: str, queue_id: int) -> PopQueue | None:
        """What the group was given of the queue; None where nobody has said where it begins."""
        key = group, topic, queue_id
        found = self.queues.get(key)
        if found is None:
            begin = self._core.tables.offsets.get(*key)
            if begin < 0 or self._table.known(*key) is None:
                return None
            found = self.queues[key] = PopQueue(*key, begin)
            self.changes += 1
        return found

    def begin(self, journal: Journal, group: str, topic: str, offsets: dict[int, int]) -> None:
        """Record where the group begins in these queues."""
        self._commit(journal, group, {topic: offsets})

    def record(self, journal: Journal, ops: Sequence[Op]) -> int:
        """Append the ops as one record, and take them; the record's offset, which is their check point.

        Raises as :meth:`Journal.append`: nothing has changed.
        """
        records = self._form.encode(b"".join(op.encode() for op in ops), _PROPERTIES)
        receipt = journal.append(_TARGET, records, count=1)
        point = receipt.queue_offsets[0]
        self.op_end, self.end = point + 1, receipt.end
        for op in ops:
            self._apply(op, point)
        return point

    def settle(self, journal: Journal) -> None:
        """Record how far queues and ops are done with: for whoever is master next, and for retention."""
        if self.unfinished is not None:
            return
        moved: dict[str, dict[str, dict[int, int]]] = {}
        for (group, topic, queue_id), queue in self.queues.items():
            if self._table.known(group, topic, queue_id) != queue.low:
                moved.setdefault(group, {}).setdefault(topic, {})[queue_id] = queue.low
        for group, offsets in moved.items():
            self._commit(journal, group, offsets)
        held = [queue for queue in self.queues.values() if len(queue)]
        floor = min((queue.floor for queue in held), default=self.op_end)
        old = max(self.op_end - OPS_BEHIND_MAX, self._first_op_behind(floor))
        for queue in sorted(held, key=lambda queue: queue.floor)[:STATED_AT_ONCE]:
            if queue.floor < old:
                self.record(journal, [queue.state()])
        floor = min((queue.floor for queue in held), default=self.op_end)
        position = self._position(names.POP_TOPIC, QUEUE, floor)
        places = [self._position(queue.topic, queue.queue_id, queue.low) for queue in held]
        if floor < self.op_end:
            places.append(position)
        needed = min((place for place in places if place), default=0)  # 0: gone, or not dispatched yet
        if floor > self._table.ops or needed != self._table.held:
            journal.put(POP_DONE, {"ops": floor, "position": position or self._table.position, "held": needed})

    def make_way(self, end: int) -> None:
        """Let nothing of the log below ``end`` be needed for its ops."""
        self._roll_below = max(self._roll_below, end)

    def _ahead(self, now_ms: int) -> float:
        """How far the broker's time, which is ``now_ms``, is ahead of monotonic time, in milliseconds."""
        return now_ms - 1000 * self._core.clock.monotonic_s()

    def _first_op_behind(self, floor: int) -> int:
        """The first op that does not lie in what retention wants to take, from ``floor`` on."""
        if not self._roll_below or self._position(names.POP_TOPIC, QUEUE, floor) >= self._roll_below:
            return 0
        return self.op_end

    def _position(self, topic: str, queue_id: int, offset: int) -> int:
        picked = self._store.picker.locate(topic, queue_id, np.array([offset], np.int64))
        return int(picked.positions[0]) if len(picked.positions) else 0

    def _commit(self, journal: Journal, group: str, offsets: dict[str, dict[int, int]]) -> None:
        for kind, document in offset_records(group, offsets, **{BY: POP}):
            journal.put(kind, document)

    def _apply(self, op: Op, point: int) -> None:
        queue = self.queue(op.group, op.topic, op.queue_id)
        if queue is not None:
            before = len(queue)
            queue.apply(op, point)
            self.in_flight += len(queue) - before

    def _on_moved(self, group: str, topic: str, queue_id: int) -> None:
        for key in [
            key for key in self.queues if group in ("", key[0]) and topic in ("", key[1]) and queue_id in (-1, key[2])
        ]:
            self.in_flight -= len(self.queues.pop(key))
            self.changes += 1

    async def _read(self, start: int, end: int) -> AsyncIterator[tuple[int, int, list[Op]]]:
        """Offset, position in the log, and ops of the records at the offsets ``[start, end)``."""
        async for offset, position, record in records_of(self._store, names.POP_TOPIC, QUEUE, start, end):
            try:
                ops = list(read_ops(record.body))
            except ValueError as error:
                log.error("op passed over offset=%d error=%s", offset, error)
                ops = []
            yield offset, position, ops


def flights(queues: Iterable[PopQueue], now_ms: int) -> list[PopQueue]:
    """The queues of which something is due."""
    return [queue for queue in queues if queue.due_ms <= now_ms < NEVER]


def _check_master(journal: Journal) -> None:
    if journal.is_over:
        raise BrokerUnavailable("the broker has ceased to be master meanwhile")
