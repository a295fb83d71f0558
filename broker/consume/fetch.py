"""Fetches: messages of many queues in one long poll.

A fetch that finds nothing registers for its queues, looks once more if anything has moved since, and then waits:
whatever dispatch makes readable after the registration wakes it, whatever came before is seen by the second look. So
there is no wake-up to lose and no polling.

Old messages may have to come from the disk first: other threads wait for it, so that sends and other fetches do not.

Most fetches need none of that: :mod:`.fetch_poll` does those without a task.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable, Forbidden, InvalidArgument
from penstock.proto.wire.broker_pb2 import FetchHeader
from penstock.runtime.data.sending import Data
from penstock.runtime.turns import Turns

from ..core.core import Core
from ..core.dispatch import Asked
from ..core.tables.filters import wanted_by
from ..core.wire import QUEUES_MAX, check_count, check_queues, in_turns
from ..store.absent import Absent, AbsentEntries, bring
from .answer import Answer
from .fetch_load import FetchLoad
from .fetch_waiters import Waiter, Waiters, Wanted

WAIT_MS_MAX = 60_000
_BRINGERS = 4
"""Threads that wait for the disk; more consumers than this that read far behind wait for each other."""
_NO_END = (1 << 63) - 1
LARGE_BYTES = 1 << 16
TURN_BYTES = 4 << 20
"""So much goes into replies in one go, or one reply: some milliseconds of the event loop."""


T = TypeVar("T")


class Fetch:
    """Reads for consumers."""

    def __init__(self, core: Core) -> None:
        self.waiters = Waiters(core.dispatcher.hurry)
        self.load = FetchLoad(core.config.limits)
        self.is_open = True
        self.turns = Turns()
        """Of all fetches."""
        self._core = core
        self._takes_sql = core.config.topics.property_filter
        self.catch_up = core.dispatcher.catch_up
        self._store = core.store
        self._tables = core.tables
        self._first = 0  # of the queues that are read, moves on with each fetch
        self._making = asyncio.Lock()  # whoever makes a large reply; guards the next
        self._made_bytes = 0  # since others had their turn
        self._start_end = core.store.end_offset
        self._bringers = ThreadPoolExecutor(_BRINGERS, thread_name_prefix="cold-reads")

    def close(self) -> None:
        """Take no new fetch, and answer those that wait."""
        self.is_open = False
        self.waiters.wake_all()
        self._bringers.shutdown(wait=False)

    async def fetch(self, header: FetchHeader, connection: Hashable) -> list[Data]:
        """The framed reply, at once or when there is something or the wait ran out.

        Its pieces may be views of the log, to be sent in the same turn. They stay as they are: a file goes with its
        last reader, and before a cut the connections that have not sent all end.
        """
        with self.load.counted(connection, self.count(header)):
            return await self.made(await self._answered(header, await self._wanted(header)))

    def count(self, header: FetchHeader) -> int:
        """How many queues are wanted. Raises InvalidArgument, or BrokerUnavailable: the broker is shutting down."""
        if not self.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        check_count("topics", len(header.topics), QUEUES_MAX)
        count = sum(len(part.queue_ids) for part in header.topics)
        if not 1 <= count <= QUEUES_MAX:
            raise InvalidArgument(f"a fetch of {count} queues: 1..{QUEUES_MAX} are allowed")
        return count

    def wanted(self, header: FetchHeader) -> list[Wanted]:
        """The queues that are wanted, in one go: for a few. Raises Forbidden, InvalidArgument: they may not be."""
        self._check_group(header)
        parts = (self._wanted_of(index, part, header) for index, part in enumerate(header.topics))
        return list(itertools.chain.from_iterable(parts))

    def answer(self, header: FetchHeader, wanted: list[Wanted]) -> Answer:
        """An answer that is still empty."""
        return Answer(self._core, header, wanted, self._knows_all_topics)

    async def made(self, answer: Answer) -> list[Data]:
        """The reply, once it has its turn: between large ones others have theirs."""
        if answer.record_bytes < LARGE_BYTES:
            return answer.pieces(copied=True)
        async with self._making:
            if self._made_bytes >= TURN_BYTES:
                self._made_bytes = 0
                await asyncio.sleep(0)
            self._made_bytes += answer.record_bytes
            return answer.pieces(copied=False)

    async def _answered(self, header: FetchHeader, wanted: list[Wanted]) -> Answer:
        answer, wait_s = self.answer(header, wanted), wait_s_of(header)
        await self.turns.have()
        self.catch_up(asked(header))
        seen = self._seen()
        ready = answer.find(wanted if header.in_order else self.rotated(wanted))
        await self._brought(await self._all_of(answer.absent_entries(ready)))
        # What is absent is not kept: its files may be deleted from then on.
        await self._brought(await self._all_of(answer.absent(ready)))
        await self._in_turns(answer.read(ready))
        if not answer.has_news and wait_s > 0:
            # In order, nothing of the others can be told before there is something of the first.
            await self._wait(answer, wanted[:1] if header.in_order else wanted, wait_s, seen)
        return answer

    def _knows_all_topics(self) -> bool:
        """True if a queue that is not known does not exist: not so at a slave, which may be behind, nor at a master
        that has not dispatched yet what its log held at the start.
        """
        store = self._store
        return self._core.role.is_master and store.dispatched_offset >= min(self._start_end, store.end_offset)

    def _seen(self) -> tuple[int, int, int]:
        """As long as this is the same, another look at the queues shows nothing else."""
        return self.turns.number, self._store.dispatched_offset, self._tables.topics.changes

    async def _in_turns(self, steps: Iterable[T]) -> list[T]:
        """What all steps give; between them others have their turns."""
        found: list[T] = []
        for each in steps:
            found.append(each)
            if not self.turns.ends_s():
                await self.turns.have()
        return found

    async def _all_of(self, steps: Iterable[Sequence[T]]) -> list[T]:
        return list(itertools.chain.from_iterable(await self._in_turns(steps)))

    async def _brought(self, absent: Sequence[Absent | AbsentEntries]) -> None:
        """Have other threads wait for the disk."""
        if absent and self.is_open:
            await asyncio.get_running_loop().run_in_executor(self._bringers, bring, absent)

    def _check_group(self, header: FetchHeader) -> None:
        group = self._tables.groups.get(header.group) if header.group else None
        if group is not None and not group.consume_enable:
            raise Forbidden(f"group {header.group} may not consume: its consumeEnable is false")
        if group is not None and header.broadcasting and not group.broadcast_enable:
            raise Forbidden(f"group {header.group} may not broadcast: its consumeBroadcastEnable is false")

    async def _wanted(self, header: FetchHeader) -> list[Wanted]:
        """The same, of any number: others have their turn meanwhile, also between topics that name no queue."""
        self._check_group(header)
        topics = enumerate(header.topics)
        parts = (itertools.chain((None,), self._wanted_of(index, part, header)) for index, part in topics)
        return [each async for each in in_turns(itertools.chain.from_iterable(parts)) if each is not None]

    def _wanted_of(self, index: int, part: FetchHeader.Topic, header: FetchHeader) -> Iterable[Wanted]:
        """The queues of one topic."""
        if len(part.queue_ids) != len(part.offsets):
            raise InvalidArgument(f"topic {part.topic}: {len(part.queue_ids)} queues with {len(part.offsets)} offsets")
        if len(part.ends) not in (0, len(part.offsets)):
            raise InvalidArgument(f"topic {part.topic}: {len(part.offsets)} offsets with {len(part.ends)} ends")
        if len(part.topic) > names.DERIVED_TOPIC_LENGTH_MAX:
            raise InvalidArgument(
                f"topic {part.topic[:64]!r}: a name has at most {names.DERIVED_TOPIC_LENGTH_MAX} characters"
            )
        if len(part.queue_ids) > 1:
            check_queues(part.topic, part.queue_ids)
        topic = self._tables.topics.get(part.topic)
        if topic is not None and not topic.is_readable:
            raise Forbidden(f"topic {part.topic} may not be read: its perm is {topic.perm}")
        self._store.reader.check_readable(part.topic)
        tags, condition = wanted_by(part.filter, self._takes_sql)
        ends = part.ends or itertools.repeat(_NO_END, len(part.offsets))
        for queue_id, offset, end in zip(part.queue_ids, part.offsets, ends, strict=True):
            if offset < 0 or queue_id < 0:
                raise InvalidArgument(f"topic {part.topic} queue {queue_id} offset {offset}: neither may be negative")
            if end <= offset or (header.in_order and not part.ends):
                raise InvalidArgument(
                    f"topic {part.topic} queue {queue_id} offset {offset}: it must have an end behind it"
                )
            yield Wanted(index, part.topic, queue_id, offset, offset, end, tags, condition)

    def rotated(self, wanted: list[Wanted]) -> list[Wanted]:
        """Another queue begins each time, so that a budget too small for all reaches all."""
        self._first += 1
        start = self._first % len(wanted)
        return wanted[start:] + wanted[:start] if start else wanted

    async def _look(self, answer: Answer, wanted: Iterable[Wanted]) -> None:
        """Read from those of the queues that have something."""
        await self.turns.have()
        await self._in_turns(answer.read(answer.find(wanted)))

    async def _wait(self, answer: Answer, wanted: list[Wanted], wait_s: float, seen: tuple[int, int, int]) -> None:
        """Wait for news of the queues, which had none when it was ``seen``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        woken = asyncio.Event()
        waiter = Waiter.of(wanted, woken.set)
        self.waiters.add(waiter)  # before the second look: what arrives after it wakes us
        timer = loop.call_at(deadline, woken.set)
        try:
            self.catch_up(waiter.asked())
            if self._seen() != seen:
                await self._look(answer, wanted)
            while not answer.has_news and self.is_open:
                await woken.wait()
                if loop.time() >= deadline:
                    return
                woken.clear()
                await self._look(answer, waiter.take_hits())
        finally:
            timer.cancel()
            self.waiters.remove(waiter)


def asked(header: FetchHeader) -> Asked:
    """The messages that are wanted next."""
    return ((part.topic, zip(part.queue_ids, part.offsets, strict=False)) for part in header.topics)


def wait_s_of(header: FetchHeader) -> float:
    """For how long a fetch waits for messages."""
    return min(header.max_wait_ms, WAIT_MS_MAX) / 1000
