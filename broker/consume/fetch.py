"""``BrokerData/Fetch``: messages of many queues in one long poll.

A fetch that finds nothing registers for its queues, looks once more, and then waits: whatever dispatch makes
readable after the registration wakes it, whatever came before is seen by the second look. So there is no
wake-up to lose and no polling.

Old messages may have to come from the disk first: other threads wait for it, so that sends and other fetches do not.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc.aio

from penstock.formats.hashing import string_hash
from penstock.formats.record.layout import FIXED_BYTES
from penstock.proto.errors import BrokerUnavailable, Forbidden, InvalidArgument
from penstock.proto.frames import allocate, unpack
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter

from ..core.core import Core
from ..core.dispatch import hidden_records_max
from .fetch_waiters import Waiter, Waiters, Wanted, finish

if TYPE_CHECKING:
    from ..store.absent import Absent, AbsentEntries
    from ..store.filter.conditions import Condition
    from ..store.results import ReadResult

REPLY_BYTES_MAX = 16 * 1024 * 1024
REPLY_BYTES_DEFAULT = 1024 * 1024
WAIT_MS_MAX = 60_000
QUEUES_MAX = 100_000
SCANS_MAX = 16  # fruitless reads in one go: then the fetch tells how far it got and others get their turn
_RECORD_BYTES_GUESSED = 1024
_FILTERED_ENTRIES = 1 << 17
"""What one read of the store with a filter looks at, 2.6 MB; without one a record has 91 bytes or more."""
SEARCHED_BYTES = 2 << 20
"""Of records, for all queues with conditions together, in one go: some milliseconds; then others get their turn."""
_BRINGERS = 4
"""Threads that wait for the disk; more consumers than this that read far behind wait for each other."""
EXPRESSION_LENGTH_MAX = 8192
_NO_END = (1 << 63) - 1

# The store's ReadStatus has the wire's numbers.
_FOUND, _NO_NEW, _NO_MATCH = int(FetchReply.FOUND), int(FetchReply.NO_NEW_MESSAGE), int(FetchReply.NO_MATCHED_MESSAGE)


class Fetch:
    """Reads for consumers."""

    def __init__(self, core: Core) -> None:
        self.waiters = Waiters()
        self.is_open = True
        self._takes_sql = core.config.topics.property_filter
        self._catch_up = core.dispatcher.catch_up
        self._store = core.store
        self._tables = core.tables
        self._role = core.role
        self._counters = core.counters
        self._turn = 0
        self._start_end = core.store.end_offset
        self._bringers = ThreadPoolExecutor(_BRINGERS, thread_name_prefix="cold-reads")

    def close(self) -> None:
        """Take no new fetch, and answer those that wait."""
        self.is_open = False
        self.waiters.wake_all()
        self._bringers.shutdown(wait=False)

    async def fetch(self, request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        """Answer one framed fetch, at once or when there is something or the wait ran out."""
        header, _ = unpack(request, FetchHeader)
        if not self.is_open:
            raise BrokerUnavailable("the broker is shutting down")
        wanted = self._wanted(header)
        reading = _Reading(self, header, wanted)
        wait_s = min(header.max_wait_ms, WAIT_MS_MAX) / 1000
        self._catch_up()
        wanted_now = wanted if header.in_order else self._rotated(wanted)
        await self._wait_for(_bring_entries, reading.absent_entries(wanted_now))
        await self._wait_for(
            _bring_records, reading.absent(wanted_now)
        )  # not kept: their files may be deleted from now on
        reading.look(wanted_now)
        if not reading.has_news and wait_s > 0:
            # In order, nothing of the others can be told before there is something of the first.
            await self._wait(reading, wanted[:1] if header.in_order else wanted, wait_s)
        return reading.reply()

    @property
    def knows_all_topics(self) -> bool:
        """Whether a queue that is not known does not exist: not so at a slave, which may be behind, nor at a master
        that has not dispatched yet what its log held at the start.
        """
        store = self._store
        return self._role.is_master and store.dispatched_offset >= min(self._start_end, store.end_offset)

    async def _wait_for(self, bring: Callable[[Any], None], absent: Sequence[Any]) -> None:
        if absent and self.is_open:
            await asyncio.get_running_loop().run_in_executor(self._bringers, bring, absent)

    def _wanted(self, header: FetchHeader) -> list[Wanted]:
        group = self._tables.group(header.group) if header.group else None
        if group is not None and not group.consume_enable:
            raise Forbidden(f"group {header.group} may not consume: its consumeEnable is false")
        wanted: list[Wanted] = []
        for index, part in enumerate(header.topics):
            if len(part.queue_ids) != len(part.offsets):
                raise InvalidArgument(
                    f"topic {part.topic}: {len(part.queue_ids)} queues with {len(part.offsets)} offsets"
                )
            topic = self._tables.topic(part.topic)
            if topic is not None and not topic.is_readable:
                raise Forbidden(f"topic {part.topic} may not be read: its perm is {topic.perm}")
            self._store.reader.check_readable(part.topic)
            if len(part.ends) not in (0, len(part.offsets)):
                raise InvalidArgument(f"topic {part.topic}: {len(part.offsets)} offsets with {len(part.ends)} ends")
            tags, condition = self._filter(part.filter.kind, part.filter.expression)
            ends = part.ends or itertools.repeat(_NO_END, len(part.offsets))
            for queue_id, offset, end in zip(part.queue_ids, part.offsets, ends, strict=True):
                if offset < 0 or queue_id < 0:
                    raise InvalidArgument(
                        f"topic {part.topic} queue {queue_id} offset {offset}: neither may be negative"
                    )
                if end <= offset or (header.in_order and not part.ends):
                    raise InvalidArgument(
                        f"topic {part.topic} queue {queue_id} offset {offset}: it must have an end behind it"
                    )
                wanted.append(Wanted(index, part.topic, queue_id, offset, offset, end, tags, condition))
        if not 1 <= len(wanted) <= QUEUES_MAX:
            raise InvalidArgument(f"a fetch of {len(wanted)} queues: 1..{QUEUES_MAX} are allowed")
        return wanted

    def _filter(self, kind: int, expression: str) -> tuple[frozenset[int] | None, Condition | None]:
        """Hashes of the wanted tags, or a condition; nothing of both for all messages."""
        if len(expression) > EXPRESSION_LENGTH_MAX:
            raise InvalidArgument(f"filter of {len(expression)} characters: at most {EXPRESSION_LENGTH_MAX}")
        if kind != Filter.SQL92:
            return _tags(kind, expression), None
        if not self._takes_sql:
            raise InvalidArgument(
                "SQL92 filters are off at this broker: enablePropertyFilter = false in its broker.conf"
            )
        return None, _condition(expression)

    def _rotated(self, wanted: list[Wanted]) -> list[Wanted]:
        """Another queue begins each time, so that a budget too small for all reaches all."""
        self._turn += 1
        start = self._turn % len(wanted)
        return wanted[start:] + wanted[:start] if start else wanted

    async def _wait(self, reading: _Reading, wanted: list[Wanted], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        queues: dict[str, dict[int, list[Wanted]]] = {}
        for each in wanted:
            queues.setdefault(each.topic, {}).setdefault(each.queue_id, []).append(each)
        waiter = Waiter(queues, loop.create_future())
        self.waiters.add(waiter)  # before the second look: what arrives after it wakes us
        timer = loop.call_at(deadline, lambda: finish(waiter.wake))
        try:
            self._catch_up()
            reading.look(wanted)
            while not reading.has_news and self.is_open:
                await waiter.wake
                if loop.time() >= deadline:
                    return
                waiter.wake = loop.create_future()
                hits, waiter.hits = waiter.hits, {}
                reading.look(hits.values())
        finally:
            timer.cancel()
            self.waiters.remove(waiter)


class _Reading:
    """The answer of one fetch while it is put together."""

    def __init__(self, service: Fetch, header: FetchHeader, wanted: list[Wanted]) -> None:
        self._service = service
        self._store = service._store
        self._budget = min(header.max_bytes if header.max_bytes > 0 else REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX)
        self._per_queue = (
            min(header.max_bytes_per_queue, self._budget) if header.max_bytes_per_queue > 0 else self._budget
        )
        self._wanted = wanted
        self._verify = header.verify
        self._in_order = header.in_order
        self._found: list[tuple[Wanted, ReadResult]] = []
        self._told: list[FetchReply.Result] = []
        self._bytes = 0
        self._behind_bytes = 0
        self._scans_left = SCANS_MAX
        self._search_left = SEARCHED_BYTES

    @property
    def has_news(self) -> bool:
        return bool(self._found or self._told)

    def absent_entries(self, wanted: Iterable[Wanted]) -> list[AbsentEntries]:
        """What of the entries that :meth:`look` would read is not in memory, about."""
        ready = self._ready(wanted)
        found: list[AbsentEntries] = []
        left = self._budget
        for index, each in enumerate(ready):
            share = max(self._share(left, len(ready) - index), _RECORD_BYTES_GUESSED)
            looked = share if each.condition is None else SEARCHED_BYTES
            count = min(_FILTERED_ENTRIES if each.tags is not None else -(-looked // FIXED_BYTES), each.count)
            found += self._store.reader.absent_entries(each.topic, each.queue_id, each.offset, count)
            left -= min(share, count * FIXED_BYTES) if self._in_order else share
            if left <= 0:
                break
        return found

    def absent(self, wanted: Iterable[Wanted]) -> list[Absent]:
        """What of the records that :meth:`look` would find may not be in memory, about."""
        ready = self._ready(wanted)
        found: list[Absent] = []
        left, search_left = self._budget, SEARCHED_BYTES
        for index, each in enumerate(ready):
            share = self._share(left, len(ready) - index)
            looked = share if each.condition is None else search_left
            parts = self._store.reader.absent(each.topic, each.queue_id, each.offset, looked)
            if not each.is_filtered:
                parts = _first(parts, each.count)
            found += parts
            size = sum(int(part.sizes.sum()) for part in parts)
            if each.condition is not None:
                search_left -= size
            else:
                left -= size if self._in_order else max(share, size)
            if left <= 0 or search_left <= 0:
                break
        return found

    def _share(self, left: int, queues: int) -> int:
        """How much of ``left`` the first of so many queues may use."""
        return min(self._per_queue, left if self._in_order else max(left // queues, 1))

    def _ready(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """The queues that have something."""
        ready: list[Wanted] = []
        for each in wanted:
            low, high = self._store.reader.queue_range(each.topic, each.queue_id)
            if low <= each.offset < high:
                ready.append(each)
        return ready

    def look(self, wanted: Iterable[Wanted]) -> None:
        """Read from those of the queues that have something; the budget is shared evenly among them.

        In order: from the first ones, up to one of which more is wanted than there is or than the reply can hold.
        """
        self._scans_left, self._search_left = SCANS_MAX, SEARCHED_BYTES
        if self._in_order:
            for each in wanted:
                if self._is_full or not self._is_ready(each):
                    return
                self._read(each, self._share(self._budget - self._bytes, 1))
                if each.offset < each.end:
                    return
            return
        ready: list[Wanted] = []
        for each in wanted:
            if self._is_ready(each):
                ready.append(each)
        for index, each in enumerate(ready):
            if self._is_full:
                if not self.has_news:  # who waits would wait for more in a queue that has something
                    self._tell(each, FetchReply.NO_MATCHED_MESSAGE, each.offset, *self._range(each))
                return
            self._read(each, self._share(self._budget - self._bytes, len(ready) - index))

    def reply(self) -> bytes:
        """The framed reply; copies the records once, from the log into the message that gRPC sends."""
        answer = FetchReply(suggested_broker_id=self._service._role.suggested_broker_id(self._behind_bytes))
        results = answer.results
        for each, read in self._found:
            results.add(
                topic_index=each.topic_index,
                queue_id=each.queue_id,
                status=FetchReply.FOUND,
                next_offset=read.next_offset,
                min_offset=read.min_offset,
                max_offset=read.max_offset,
                bytes=read.bytes,
                count=read.count,
            )
            self._service._counters.topic(each.topic).on_fetched(read.count, read.bytes)
        results.extend(self._told)
        results.extend(self._skipped())
        message, address = allocate(answer, self._bytes)
        for _, read in self._found:
            read.copy_to(address)
            address += read.bytes
        return message

    @property
    def _is_full(self) -> bool:
        return self._bytes >= self._budget or self._scans_left <= 0 or self._search_left <= 0

    def _range(self, each: Wanted) -> tuple[int, int]:
        return self._store.reader.queue_range(each.topic, each.queue_id)

    def _is_ready(self, each: Wanted) -> bool:
        if each.queue_id >= self._service._tables.read_queues(each.topic):
            if self._service.knows_all_topics:
                self._tell(each, FetchReply.QUEUE_NOT_FOUND, 0, 0, 0)
            return False
        low, high = self._store.reader.queue_range(each.topic, each.queue_id)
        if low <= each.offset < high:
            return True
        if each.offset < low:
            self._tell(each, FetchReply.OFFSET_TOO_SMALL, low, low, high)
        elif each.offset > high and self._is_beyond(each.offset, high):
            self._tell(each, FetchReply.OFFSET_OVERFLOW, high, low, high)
        return False

    def _is_beyond(self, offset: int, high: int) -> bool:
        """Whether no message of the log can have that offset.

        A broker that has just started, or a slave, may see less than the consumer has read already; sending
        the consumer back would repeat messages.
        """
        return self._service._role.is_master and offset > high + hidden_records_max(self._store)

    def _read(self, each: Wanted, share: int) -> None:
        while True:
            if each.condition is not None:
                read = self._store.reader.read_where(
                    *(each.topic, each.queue_id, each.offset, share),
                    max_count=each.count,
                    condition=each.condition,
                    max_searched=self._search_left,
                    verify=self._verify,
                )
                self._search_left -= read.searched
            else:
                read = self._store.reader.read(
                    *(each.topic, each.queue_id, each.offset, share),
                    max_count=each.count,
                    tags=each.tags,
                    verify=self._verify,
                )
            status = int(read.status)
            if status == _FOUND:
                each.is_told = True
                each.offset = read.next_offset
                self._found.append((each, read))
                self._bytes += read.bytes
                self._behind_bytes += (read.max_offset - read.next_offset) * (read.bytes // max(read.count, 1))
                return
            if status == _NO_NEW:
                return
            if status != _NO_MATCH:
                self._tell(each, status, read.next_offset, read.min_offset, read.max_offset, read.problem)
                return
            each.offset = read.next_offset
            is_done = each.offset >= each.end
            if each.offset >= read.max_offset and not is_done:
                return  # everything so far is filtered out: wait for more
            if each.condition is None:
                self._scans_left -= 1
            # A condition that was asked enough: the next records may have to come from the disk first.
            if self._scans_left <= 0 or each.condition is not None or is_done:
                self._tell(each, status, each.offset, read.min_offset, read.max_offset)
                return

    def _skipped(self) -> Iterator[FetchReply.Result]:
        """For queues where the filter left everything out: how far it got, so that nobody scans it again."""
        for each in self._wanted:
            if each.offset > each.began and not each.is_told:
                low, high = self._store.reader.queue_range(each.topic, each.queue_id)
                yield self._result(each, FetchReply.NO_MATCHED_MESSAGE, each.offset, low, high)

    def _tell(self, each: Wanted, status: int, next_offset: int, low: int, high: int, problem: str = "") -> None:
        each.is_told = True
        self._told.append(self._result(each, status, next_offset, low, high, problem))

    @staticmethod
    def _result(
        each: Wanted, status: int, next_offset: int, low: int, high: int, problem: str = ""
    ) -> FetchReply.Result:
        return FetchReply.Result(
            topic_index=each.topic_index,
            queue_id=each.queue_id,
            status=FetchReply.Status.Name(status),
            next_offset=next_offset,
            min_offset=low,
            max_offset=high,
            problem=problem,
        )


@functools.lru_cache(maxsize=1024)
def _tags(kind: int, expression: str) -> frozenset[int] | None:
    """Hashes of the wanted tags, None for all messages. Equal hashes of other tags are the client's to sort out."""
    if kind == Filter.ALL:
        return None
    if kind != Filter.TAG:
        raise InvalidArgument(f"filter kind {kind}: ALL 0, TAG 1 or SQL92 2 are allowed")
    tags = [tag.strip() for tag in expression.split("||")]
    if expression.strip() in ("", "*"):
        return None
    if not all(tags):
        raise InvalidArgument(f"tag expression {expression[:100]!r}: an empty tag between ||")
    return frozenset(string_hash(tag) for tag in tags)


@functools.lru_cache(maxsize=1024)
def _condition(expression: str) -> Condition:
    from ..store.filter.conditions import Condition

    return Condition(expression)


def _first(parts: list[Absent], count: int) -> list[Absent]:
    """Those of the first ``count`` records."""
    found: list[Absent] = []
    for part in parts:
        if count > 0:
            found.append(part._replace(positions=part.positions[:count], sizes=part.sizes[:count]))
        count -= len(part.sizes)
    return found


def _bring_records(absent: Iterable[Absent]) -> None:
    from ..store.absent import bring  # loads the kernels

    bring(absent)


def _bring_entries(absent: Iterable[AbsentEntries]) -> None:
    for part in absent:
        part.bring()
