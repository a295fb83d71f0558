"""``BrokerData/Fetch``: messages of many queues in one long poll.

A fetch that finds nothing registers for its queues, looks once more, and then waits: whatever dispatch makes
readable after the registration wakes it, whatever came before is seen by the second look. So there is no
wake-up to lose and no polling.

Old messages may have to come from the disk first: other threads wait for it, so that sends and other fetches do not.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import grpc.aio

from penstock.proto.errors import BrokerUnavailable, Forbidden, InvalidArgument
from penstock.proto.frames import allocate, unpack
from penstock.proto.record.hashing import string_hash
from penstock.proto.record.layout import FIXED_BYTES
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply, Filter

from .dispatch import Arrivals, hidden_records_max
from .metrics import Counters
from .state import State

if TYPE_CHECKING:
    from ..store.absent import Absent, AbsentEntries
    from ..store.results import ReadResult

REPLY_BYTES_MAX = 16 * 1024 * 1024
REPLY_BYTES_DEFAULT = 1024 * 1024
WAIT_MS_MAX = 60_000
QUEUES_MAX = 100_000
SCANS_MAX = 16  # fruitless reads in one go: then the fetch tells how far it got and others get their turn
_RECORD_BYTES_GUESSED = 1024
_FILTERED_ENTRIES = 1 << 17
"""What one read of the store with a filter looks at, 2.6 MB; without one a record has 91 bytes or more."""
_BRINGERS = 4
"""Threads that wait for the disk; more consumers than this that read far behind wait for each other."""
EXPRESSION_LENGTH_MAX = 8192

# The store's ReadStatus has the wire's numbers.
_FOUND, _NO_NEW, _NO_MATCH = int(FetchReply.FOUND), int(FetchReply.NO_NEW_MESSAGE), int(FetchReply.NO_MATCHED_MESSAGE)


class ReadStore(Protocol):
    """What of the store this module needs."""

    @property
    def dispatched_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    def check_readable(self, topic: str) -> None: ...
    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]: ...
    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_bytes: int,
        *,
        tags: frozenset[int] | None = None,
        verify: bool = False,
    ) -> ReadResult: ...
    def absent_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[AbsentEntries]: ...
    def absent(self, topic: str, queue_id: int, offset: int, max_bytes: int) -> list[Absent]: ...


class ReaderRole(Protocol):
    """What of the role this module needs."""

    @property
    def is_master(self) -> bool: ...
    def suggested_broker_id(self, behind_bytes: int) -> int: ...


@dataclass(slots=True)
class _Wanted:
    """One queue of a fetch; ``offset`` moves on over messages that the filter leaves out."""

    topic_index: int
    topic: str
    queue_id: int
    offset: int
    began: int
    tags: frozenset[int] | None
    is_told: bool = False  # has a result in the reply


@dataclass(slots=True, eq=False)
class _Waiter:
    """A waiting fetch: its queues by topic, and those of them that have news, each once however often it was hit."""

    queues: dict[str, dict[int, list[_Wanted]]]
    wake: asyncio.Future[None]
    hits: dict[int, _Wanted] = field(default_factory=dict)  # by identity

    def hit(self, wanted: Iterable[_Wanted]) -> None:
        """These have news."""
        self.hits.update((id(each), each) for each in wanted)


class Waiters:
    """Fetches that wait for messages, found by topic; event loop only."""

    def __init__(self) -> None:
        self._by_topic: dict[str, set[_Waiter]] = {}

    def __len__(self) -> int:
        return len(set().union(*self._by_topic.values())) if self._by_topic else 0

    def __bool__(self) -> bool:
        return bool(self._by_topic)

    def add(self, waiter: _Waiter) -> None:
        """Wake ``waiter`` from now on."""
        for topic in waiter.queues:
            self._by_topic.setdefault(topic, set()).add(waiter)

    def remove(self, waiter: _Waiter) -> None:
        """Forget ``waiter``; harmless when it is unknown."""
        for topic in waiter.queues:
            waiting = self._by_topic.get(topic)
            if waiting is not None:
                waiting.discard(waiter)
                if not waiting:
                    del self._by_topic[topic]

    def on_arrived(self, arrivals: Arrivals) -> None:
        """Wake every fetch that waits for one of these queues."""
        for topic, queue_ids in arrivals.items():
            for waiter in self._by_topic.get(topic, ()):
                wanted = waiter.queues[topic]
                hits = queue_ids.intersection(wanted) if len(queue_ids) <= len(wanted) else wanted.keys() & queue_ids
                if hits:
                    for queue_id in hits:
                        waiter.hit(wanted[queue_id])
                    _finish(waiter.wake)

    def wake_topic(self, topic: str) -> None:
        """Wake every fetch that waits in ``topic``: it was changed or deleted."""
        for waiter in self._by_topic.get(topic, ()):
            for wanted in waiter.queues[topic].values():
                waiter.hit(wanted)
            _finish(waiter.wake)

    def wake_all(self) -> None:
        """Wake every fetch, with or without news: the broker stops."""
        for waiter in set().union(*self._by_topic.values()) if self._by_topic else ():
            _finish(waiter.wake)


class Fetch:
    """Reads for consumers."""

    def __init__(
        self,
        store: ReadStore,
        state: State,
        role: ReaderRole,
        counters: Counters,
        *,
        waiters: Waiters | None = None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.waiters = Waiters() if waiters is None else waiters
        self._catch_up = catch_up
        self.is_open = True
        self._store = store
        self._state = state
        self._role = role
        self._counters = counters
        self._turn = 0
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
        wanted_now = self._rotated(wanted)
        await self._wait_for(_bring_entries, reading.absent_entries(wanted_now))
        await self._wait_for(
            _bring_records, reading.absent(wanted_now)
        )  # not kept: their files may be deleted from now on
        reading.look(wanted_now)
        if not reading.has_news and wait_s > 0:
            await self._wait(reading, wanted, wait_s)
        return reading.reply()

    async def _wait_for(self, bring: Callable[[Any], None], absent: Sequence[Any]) -> None:
        if absent and self.is_open:
            await asyncio.get_running_loop().run_in_executor(self._bringers, bring, absent)

    def _wanted(self, header: FetchHeader) -> list[_Wanted]:
        group = self._state.group(header.group) if header.group else None
        if group is not None and not group.consume_enable:
            raise Forbidden(f"group {header.group} may not consume: its consumeEnable is false")
        wanted: list[_Wanted] = []
        for index, part in enumerate(header.topics):
            if len(part.queue_ids) != len(part.offsets):
                raise InvalidArgument(
                    f"topic {part.topic}: {len(part.queue_ids)} queues with {len(part.offsets)} offsets"
                )
            topic = self._state.topic(part.topic)
            if topic is not None and not topic.is_readable:
                raise Forbidden(f"topic {part.topic} may not be read: its perm is {topic.perm}")
            self._store.check_readable(part.topic)
            tags = _tags(part.filter.kind, part.filter.expression)
            for queue_id, offset in zip(part.queue_ids, part.offsets, strict=True):
                if offset < 0 or queue_id < 0:
                    raise InvalidArgument(
                        f"topic {part.topic} queue {queue_id} offset {offset}: neither may be negative"
                    )
                wanted.append(_Wanted(index, part.topic, queue_id, offset, offset, tags))
        if not 1 <= len(wanted) <= QUEUES_MAX:
            raise InvalidArgument(f"a fetch of {len(wanted)} queues: 1..{QUEUES_MAX} are allowed")
        return wanted

    def _rotated(self, wanted: list[_Wanted]) -> list[_Wanted]:
        """Another queue begins each time, so that a budget too small for all reaches all."""
        self._turn += 1
        start = self._turn % len(wanted)
        return wanted[start:] + wanted[:start] if start else wanted

    async def _wait(self, reading: _Reading, wanted: list[_Wanted], wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        queues: dict[str, dict[int, list[_Wanted]]] = {}
        for each in wanted:
            queues.setdefault(each.topic, {}).setdefault(each.queue_id, []).append(each)
        waiter = _Waiter(queues, loop.create_future())
        self.waiters.add(waiter)  # before the second look: what arrives after it wakes us
        timer = loop.call_at(deadline, lambda: _finish(waiter.wake))
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

    def __init__(self, service: Fetch, header: FetchHeader, wanted: list[_Wanted]) -> None:
        self._service = service
        self._store = service._store
        self._budget = min(header.max_bytes if header.max_bytes > 0 else REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX)
        self._per_queue = (
            min(header.max_bytes_per_queue, self._budget) if header.max_bytes_per_queue > 0 else self._budget
        )
        self._wanted = wanted
        self._verify = header.verify
        self._found: list[tuple[_Wanted, ReadResult]] = []
        self._told: list[FetchReply.Result] = []
        self._bytes = 0
        self._behind_bytes = 0
        self._scans_left = SCANS_MAX

    @property
    def has_news(self) -> bool:
        return bool(self._found or self._told)

    def absent_entries(self, wanted: Iterable[_Wanted]) -> list[AbsentEntries]:
        """What of the entries that :meth:`look` would read is not in memory, about."""
        ready = self._ready(wanted)
        found: list[AbsentEntries] = []
        left = self._budget
        for index, each in enumerate(ready):
            share = min(self._per_queue, max(left // (len(ready) - index), _RECORD_BYTES_GUESSED))
            count = _FILTERED_ENTRIES if each.tags is not None else -(-share // FIXED_BYTES)
            found += self._store.absent_entries(each.topic, each.queue_id, each.offset, count)
            left -= share
            if left <= 0:
                break
        return found

    def absent(self, wanted: Iterable[_Wanted]) -> list[Absent]:
        """What of the records that :meth:`look` would find may not be in memory, about."""
        ready = self._ready(wanted)
        found: list[Absent] = []
        left = self._budget
        for index, each in enumerate(ready):
            share = min(self._per_queue, max(left // (len(ready) - index), 1))
            parts = self._store.absent(each.topic, each.queue_id, each.offset, share)
            found += parts
            left -= max(share, sum(int(part.sizes.sum()) for part in parts))
            if left <= 0:
                break
        return found

    def _ready(self, wanted: Iterable[_Wanted]) -> list[_Wanted]:
        """The queues that have something."""
        ready: list[_Wanted] = []
        for each in wanted:
            low, high = self._store.queue_range(each.topic, each.queue_id)
            if low <= each.offset < high:
                ready.append(each)
        return ready

    def look(self, wanted: Iterable[_Wanted]) -> None:
        """Read from those of the queues that have something; the budget is shared evenly among them."""
        ready: list[_Wanted] = []
        for each in wanted:
            if self._is_ready(each):
                ready.append(each)
        self._scans_left = SCANS_MAX
        for index, each in enumerate(ready):
            left = self._budget - self._bytes
            if left <= 0 or self._scans_left <= 0:
                return
            share = min(self._per_queue, max(left // (len(ready) - index), 1))
            self._read(each, share)

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

    def _is_ready(self, each: _Wanted) -> bool:
        if each.queue_id >= self._service._state.read_queues(each.topic):
            self._tell(each, FetchReply.QUEUE_NOT_FOUND, 0, 0, 0)
            return False
        low, high = self._store.queue_range(each.topic, each.queue_id)
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

    def _read(self, each: _Wanted, share: int) -> None:
        while True:
            read = self._store.read(each.topic, each.queue_id, each.offset, share, tags=each.tags, verify=self._verify)
            status = int(read.status)
            if status == _FOUND:
                each.is_told = True
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
            if each.offset >= read.max_offset:
                return  # everything so far is filtered out: wait for more
            self._scans_left -= 1
            if self._scans_left <= 0:
                self._tell(each, status, each.offset, read.min_offset, read.max_offset)
                return

    def _skipped(self) -> Iterator[FetchReply.Result]:
        """For queues where the filter left everything out: how far it got, so that nobody scans it again."""
        for each in self._wanted:
            if each.offset > each.began and not each.is_told:
                low, high = self._store.queue_range(each.topic, each.queue_id)
                yield self._result(each, FetchReply.NO_MATCHED_MESSAGE, each.offset, low, high)

    def _tell(self, each: _Wanted, status: int, next_offset: int, low: int, high: int, problem: str = "") -> None:
        each.is_told = True
        self._told.append(self._result(each, status, next_offset, low, high, problem))

    @staticmethod
    def _result(
        each: _Wanted, status: int, next_offset: int, low: int, high: int, problem: str = ""
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
    if kind == Filter.SQL92:
        raise InvalidArgument(
            "SQL92 filters are not available yet: subscribe by tags (kind TAG, 'a || b') and filter in the consumer"
        )
    if kind != Filter.TAG:
        raise InvalidArgument(f"filter kind {kind}: ALL 0 or TAG 1 are allowed")
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise InvalidArgument(f"tag expression of {len(expression)} characters: at most {EXPRESSION_LENGTH_MAX}")
    tags = [tag.strip() for tag in expression.split("||")]
    if expression.strip() in ("", "*"):
        return None
    if not all(tags):
        raise InvalidArgument(f"tag expression {expression[:100]!r}: an empty tag between ||")
    return frozenset(string_hash(tag) for tag in tags)


def _bring_records(absent: Iterable[Absent]) -> None:
    from ..store.absent import bring  # loads the kernels

    bring(absent)


def _bring_entries(absent: Iterable[AbsentEntries]) -> None:
    for part in absent:
        part.bring()


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
