"""Records that lie in the log become records of another topic.

The one who does it names each batch by a *mark*: a producer id of its own, a lane, and a sequence that grows. Which
records are in a batch must follow from the log alone. Then each batch is in the log once, whoever is interrupted: the
duplicate table, which follows from the marks in the log, tells any later attempt, on any broker, what is there already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final, NamedTuple

import numpy as np

from penstock.formats.record.layout import Record, decode_record
from penstock.formats.record.producer_mark import ProducerMark
from penstock.proto.errors import CorruptBatch, MessageTooLarge, PenstockError

from ..store.absent import bring
from ..store.disk import Bytes
from ..store.picking import Picked
from ..store.queues.kernels import Ints, Longs
from ..store.store import Store
from .core import Core
from .journal import Journal, Target
from .tables.producers import Receipt

log = logging.getLogger(__name__)

LOCATED_AT_ONCE: Final = 8192
DECODED_AT_ONCE: Final = 1024
RECENT_BYTES: Final = 32 << 20
"""What lies so near the log's end is in memory: a thread that brings it would cost more than reading it."""


class Records(NamedTuple):
    """Sound records in memory, by ascending offset."""

    data: Bytes
    offsets: Longs
    positions: Longs  # where in `data` each begins
    sizes: Ints

    @classmethod
    def joined(cls, data: Bytes, offsets: Longs, sizes: Ints) -> Records:
        """Records that lie in ``data`` end to end."""
        return cls(data, offsets, np.cumsum(sizes, dtype=np.int64) - sizes, sizes)


async def records_of(
    store: Store, topic: str, queue_id: int, start: int, end: int, *, below: bool = False
) -> AsyncGenerator[tuple[int, int, Record], None]:
    """Offset, position in the log, and record of each of the queue's offsets ``[start, end)`` that has one.

    ``below``: also of those below a raised minimum.
    """
    while start < end:
        stop = min(start + LOCATED_AT_ONCE, end)
        picked = store.picker.locate(topic, queue_id, np.arange(start, stop), below=below)
        parts, at = store.picker.absent(picked), 0
        if parts:
            await asyncio.to_thread(bring, parts)
        for part in parts:
            for position, size in zip(part.positions.tolist(), part.sizes.tolist(), strict=True):
                record = decode_record(part.data[position : position + size].data)
                yield int(picked.offsets[at]), int(picked.positions[at]), record
                at += 1
                if at % DECODED_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0)
        start = stop


class Reposter:
    """Finds records by their place in a queue, and appends what is made of them; event loop only."""

    def __init__(self, core: Core) -> None:
        self._store = core.store
        self._picker = core.store.picker
        self._producers = core.tables.producers
        self.foreign = 0  # marks of others that stood in the way

    async def locate(self, topic: str, queue_id: int, offsets: Longs) -> Picked:
        """Where the records at these offsets, which ascend, are; without those that are gone."""
        parts = []
        if len(offsets) <= LOCATED_AT_ONCE:
            return self._picker.locate(topic, queue_id, offsets)
        for start in range(0, len(offsets), LOCATED_AT_ONCE):
            parts.append(self._picker.locate(topic, queue_id, offsets[start : start + LOCATED_AT_ONCE]))
            await asyncio.sleep(0)
        return Picked(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    async def read(self, journal: Journal, picked: Picked, *, in_place: bool = False) -> Records | None:
        """The records, without those that are damaged. None if the mastership ended while the disk was waited for.

        ``in_place``: they are not copied where one log file has them all; for the turn in which the call returns.
        """
        if len(picked.positions) and int(picked.positions.min()) < self._store.end_offset - RECENT_BYTES:
            await asyncio.to_thread(bring, self._picker.absent(picked))
        if journal.is_over:
            return None
        sound = self._picker.sound(picked)
        return self._taken(sound) if in_place else Records.joined(self._picker.join(sound), sound.offsets, sound.sizes)

    async def read_as_master(self, journal: Journal, picked: Picked, *, in_place: bool = False) -> Records:
        """The same. Raises NotMaster: the mastership ended while the disk was waited for."""
        records = await self.read(journal, picked, in_place=in_place)
        journal.check()
        assert records is not None, "the mastership goes on"
        return records

    def recent(self, topic: str, queue_id: int, offsets: Longs) -> Records | None:
        """Records in place, so near the log's end that nobody waits for them; None if some are not, or not sound."""
        picked = self._picker.locate(topic, queue_id, offsets)
        if len(picked.positions) < len(offsets) or int(picked.positions[0]) < self._store.end_offset - RECENT_BYTES:
            return None
        if self._picker.sound(picked) is not picked:
            return None
        return self._taken(picked)

    def _taken(self, picked: Picked) -> Records:
        """Sound records, in place where one log file has them all."""
        found = self._picker.in_place(picked)
        if found is None:
            return Records.joined(self._picker.join(picked), picked.offsets, picked.sizes)
        return Records(found[0], picked.offsets, found[1], picked.sizes)

    def fitting(self, sizes: Ints | Longs, bytes_max: int, *, growth: int) -> int:
        """How many of the first records, of these sizes, may become one batch: as many as have ``bytes_max`` bytes.

        A log file must hold it, when each record, and the batch, is longer by ``growth``. The first one always may.
        """
        if len(sizes) <= 1:
            return len(sizes)
        ends = np.cumsum(sizes, dtype=np.int64)
        grown = ends + growth * np.arange(2, len(sizes) + 2)
        fits = np.searchsorted(ends, bytes_max, side="right")
        return max(1, min(int(fits), int(np.searchsorted(grown, self._store.segment_bytes, side="right"))))

    def append_sound(
        self,
        journal: Journal,
        target: Target,
        mark: ProducerMark,
        chosen: Longs,
        batch_of: Callable[[Longs, ProducerMark], memoryview],
        on_bad: Callable[[int, PenstockError], None],
    ) -> tuple[Longs, Receipt] | None:
        """Append what the records at the places ``chosen`` become, as one batch, without those that will not do.

        ``batch_of``: makes it, with its mark. ``on_bad``: hears of each place that is left out, and why: it is of a
        store that others wrote, or damaged. Answers the places of the others, and their receipt; None without any.
        """
        while len(chosen):
            mark = mark._replace(count=len(chosen))
            try:
                batch = batch_of(chosen, mark)
                return chosen, journal.append(target, batch, mark, count=len(chosen), is_kept=True)
            except (CorruptBatch, MessageTooLarge) as error:
                bad = error.details["index"]
                on_bad(int(chosen[bad]), error)
                chosen = np.delete(chosen, bad)
        return None

    def is_done(self, target: Target, mark: ProducerMark, *, below: int = 1 << 63) -> bool:
        """True if the batch of that mark, or a later one of its lane, is in the log already.

        ``below``: what no batch of the lane can have reached yet. A sequence from there on is not from this broker: it
        counts for nothing.
        """
        last = self._producers.last_sequence(mark.producer_id, target.topic, mark.lane)
        if last is not None and last >= below:
            self.foreign += 1
            log.error(
                "foreign producer mark passed over producer=%016x topic=%s sequence=%d: nobody but the broker may use "
                "this id; a later crash can deliver messages of this moment twice",
                *(mark.producer_id, target.topic, last),
            )
            return False
        return last is not None and last >= mark.sequence
