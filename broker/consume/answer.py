"""The answer of one fetch while it is put together: what each wanted queue has, and what of it the reply can hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from penstock.formats.record.layout import FIXED_BYTES
from penstock.proto.errors import BrokerUnavailable
from penstock.proto.frames import allocate, pack
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply
from penstock.runtime.data.sending import Data

from ..core.core import Core
from ..core.dispatch import Fresh
from ..store.absent import Absent, AbsentEntries, uncached
from ..store.results import ReadResult
from .fetch_waiters import Wanted

REPLY_BYTES_MAX: Final = 16 * 1024 * 1024
REPLY_BYTES_DEFAULT: Final = 1024 * 1024
SCANS_MAX: Final = 16  # fruitless reads in one go: then the fetch tells how far it got and others get their turn
SEARCHED_BYTES = 2 << 20
"""Of records, for all queues with conditions together, in one go: some milliseconds; then others get their turn."""
_RECORD_BYTES_GUESSED: Final = 1024
_FILTERED_ENTRIES: Final = 1 << 17
"""What one read of the store with a filter looks at, 2.6 MB; without one a record has 91 bytes or more."""

# The store's ReadStatus has the wire's numbers.
_FOUND, _NO_NEW, _NO_MATCH = int(FetchReply.FOUND), int(FetchReply.NO_NEW_MESSAGE), int(FetchReply.NO_MATCHED_MESSAGE)


class Answer:
    """Found by :meth:`find`, brought into memory where it is absent, read by :meth:`read`; event loop only."""

    def __init__(
        self, core: Core, header: FetchHeader, wanted: list[Wanted], knows_all_topics: Callable[[], bool]
    ) -> None:
        """``knows_all_topics``: True if a queue that is not known does not exist."""
        self._core = core
        self._reader = core.store.reader
        self._knows_all_topics = knows_all_topics
        self._budget = min(header.max_bytes if header.max_bytes > 0 else REPLY_BYTES_DEFAULT, REPLY_BYTES_MAX)
        self._per_queue = (
            min(header.max_bytes_per_queue, self._budget) if header.max_bytes_per_queue > 0 else self._budget
        )
        self._wanted = wanted
        self._told_epochs = [part.epoch for part in header.topics]
        self._cuts = core.events.cuts  # at the last look
        self._epoch = -1  # of what this broker could show at the last look; -1: there was none
        self._verify = header.verify
        self._in_order = header.in_order
        self._found: list[tuple[Wanted, ReadResult]] = []
        self._told: list[FetchReply.Result] = []
        self._behind_ready: tuple[Wanted, FetchReply.Result] | None = None
        """In order: what is wrong with the queue behind the ready ones; told when those are read to their ends."""
        self.record_bytes = 0
        self._behind_bytes = 0
        self._scans_left = SCANS_MAX
        self._search_left = SEARCHED_BYTES

    @property
    def has_news(self) -> bool:
        """True if there is something to tell."""
        return bool(self._found or self._told)

    def find(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        """The queues that have something, in order up to one that has nothing; what is wrong with others is told."""
        ready: list[Wanted] = []
        self._behind_ready = None
        shown = self._core.shown_epoch
        if self._epoch not in (-1, shown):  # what has been seen of the queues may be gone
            wanted = self._wanted
            for each in wanted:
                each.offset = each.began
        self._epoch = shown
        if not self._found:
            self._cuts = self._core.events.cuts
        told = {epoch: self._core.end_of_epoch(epoch) for epoch in set(self._told_epochs)}
        ends = {epoch: end for epoch, end in told.items() if end is not None}  # none but behind a failover
        topic, queues, queue_range = "", 0, self._reader.queue_range
        for each in wanted:
            if each.topic is not topic:
                topic, queues = each.topic, self._core.tables.read_queues(each.topic)
            low, high = queue_range(topic, each.queue_id)
            if each.queue_id < queues:
                problem = self._truncated(each, low, high, ends) if ends else None
                if problem is None and low <= each.offset < high:
                    ready.append(each)
                    continue
                if problem is None and each.offset != high:
                    problem = self._outside(each, low, high)
            else:
                problem = self._result(each, FetchReply.QUEUE_NOT_FOUND, 0, 0, 0) if self._knows_all_topics() else None
            if self._in_order:
                self._behind_ready = (each, problem) if problem is not None else None
                break
            if problem is not None:
                self._add(each, problem)
        return ready

    def absent_entries(self, ready: list[Wanted]) -> Iterator[list[AbsentEntries]]:
        """What of the entries that :meth:`read` would look at is not in memory, about; a queue at a time."""
        left = self._budget
        for index, each in enumerate(ready):
            share = max(self._share(left, len(ready) - index), _RECORD_BYTES_GUESSED)
            looked = share if each.condition is None else SEARCHED_BYTES
            count = min(_FILTERED_ENTRIES if each.tags is not None else -(-looked // FIXED_BYTES), each.count)
            yield self._reader.absent_entries(each.topic, each.queue_id, each.offset, count)
            left -= min(share, count * FIXED_BYTES) if self._in_order else share
            if left <= 0:
                return

    def absent(self, ready: list[Wanted]) -> Iterator[list[Absent]]:
        """What of the records that :meth:`read` would find may not be in memory, about; a queue at a time."""
        left, search_left = self._budget, SEARCHED_BYTES
        for index, each in enumerate(ready):
            share = self._share(left, len(ready) - index)
            looked = share if each.condition is None else search_left
            parts = self._reader.absent(each.topic, each.queue_id, each.offset, looked)
            if not each.is_filtered:
                parts = _first(parts, each.count)
            yield uncached(parts)
            size = sum(int(part.sizes.sum()) for part in parts)  # the reply holds them wherever they are
            if each.condition is not None:
                search_left -= size
            else:
                left -= size if self._in_order else max(share, size)
            if left <= 0 or search_left <= 0:
                return

    def read(self, ready: list[Wanted]) -> Iterator[None]:
        """Read from these queues, one in each step; the budget is shared evenly among them.

        In order: from the first ones, up to one of which more is wanted than there is or than the reply can hold.
        """
        self._scans_left, self._search_left = SCANS_MAX, SEARCHED_BYTES
        for index, each in enumerate(ready):
            if self._is_full:
                if not self._in_order and not self.has_news:
                    # Whoever waits would wait for more in a queue that has something.
                    self._tell(each, _NO_MATCH, each.offset, *self._reader.queue_range(each.topic, each.queue_id))
                return
            self._read_queue(each, self._share(self._budget - self.record_bytes, len(ready) - index))
            yield
            if self._in_order and each.offset < each.end:
                return
        if self._behind_ready is not None and not self._is_full:
            self._add(*self._behind_ready)

    def take(self, each: Wanted, fresh: Fresh) -> bool:
        """Take a record that is not dispatched yet, if it is the next one of ``each``. True if it is."""
        if each.is_filtered or self._verify or each.offset != fresh.queue_offset:
            return False
        if self._epoch != self._core.shown_epoch:
            return False
        read = self._reader.read_next(fresh.topic, fresh.queue_id, fresh.queue_offset, fresh.start, fresh.end)
        if read is None or each.queue_id >= self._core.tables.read_queues(fresh.topic):
            return False
        if not self._found:
            self._cuts = self._core.events.cuts
        self._take(each, read)
        return True

    def pieces(self, *, copied: bool) -> list[Data]:
        """The framed reply. Not ``copied``: records that lie together are sent from the log, which they keep."""
        if self._found and self._cuts != self._core.events.cuts:
            raise BrokerUnavailable("the log's end was cut off while the answer was made: ask again")
        reply = self._reply()
        runs = [] if copied else [read.views() for _, read in self._found]
        if runs and all(runs):
            return [pack(reply), *itertools.chain.from_iterable(runs)]
        message, address = allocate(reply, self.record_bytes)
        for _, read in self._found:
            read.copy_to(address)
            address += read.bytes
        return [message]

    def _reply(self) -> FetchReply:
        suggested = self._core.role.suggested_broker_id(self._behind_bytes)
        answer = FetchReply(suggested_broker_id=suggested, epoch=max(self._epoch, 0))
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
            self._core.counters.topic(each.topic).on_fetched(read.count, read.bytes)
        results.extend(self._told)
        results.extend(self._skipped())
        return answer

    @property
    def _is_full(self) -> bool:
        return self.record_bytes >= self._budget or self._scans_left <= 0 or self._search_left <= 0

    def _share(self, left: int, queues: int) -> int:
        """How much of ``left`` the first of so many queues may use."""
        return min(self._per_queue, left if self._in_order else max(left // queues, 1))

    def _truncated(self, each: Wanted, low: int, high: int, ends: Mapping[int, int]) -> FetchReply.Result | None:
        """What is wrong with an offset of an earlier epoch, of which the log keeps what lies below its one of ``ends``.

        Other messages have its place by now, or will.
        """
        log_end = ends.get(self._told_epochs[each.topic_index])
        if log_end is None:
            return None
        end = self._core.store.removal.first_from(each.topic, each.queue_id, log_end)
        return self._result(each, FetchReply.TRUNCATED, end, low, high) if each.began > end else None

    def _outside(self, each: Wanted, low: int, high: int) -> FetchReply.Result | None:
        if each.offset < low:
            return self._result(each, FetchReply.OFFSET_TOO_SMALL, low, low, high)
        # Only what no message of the log can have: a broker that has just started, or a slave, may see less than the
        # consumer has read already; sending the consumer back would repeat messages.
        hidden = self._core.dispatcher.hidden_records_max(each.topic, each.queue_id)
        if self._core.role.is_master and each.offset > high + hidden:
            return self._result(each, FetchReply.OFFSET_OVERFLOW, high, low, high)
        return None

    def _read_queue(self, each: Wanted, share: int) -> None:
        while True:
            read = self._reader.read(
                *(each.topic, each.queue_id, each.offset, share),
                max_count=each.count,
                tags=each.tags,
                condition=each.condition,
                max_searched=self._search_left,
                verify=self._verify,
            )
            self._search_left -= read.searched
            status = int(read.status)
            if status == _FOUND:
                self._take(each, read)
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

    def _take(self, each: Wanted, read: ReadResult) -> None:
        each.is_told = True
        each.offset = read.next_offset
        self._found.append((each, read))
        self.record_bytes += read.bytes
        self._behind_bytes += (read.max_offset - read.next_offset) * (read.bytes // max(read.count, 1))

    def _skipped(self) -> Iterator[FetchReply.Result]:
        """For queues where the filter left everything out: how far it got, so that nobody scans it again."""
        for each in self._wanted:
            if each.offset > each.began and not each.is_told:
                low, high = self._reader.queue_range(each.topic, each.queue_id)
                yield self._result(each, _NO_MATCH, each.offset, low, high)

    def _tell(self, each: Wanted, status: int, next_offset: int, low: int, high: int, problem: str = "") -> None:
        self._add(each, self._result(each, status, next_offset, low, high, problem))

    def _add(self, each: Wanted, result: FetchReply.Result) -> None:
        each.is_told = True
        self._told.append(result)

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


def _first(parts: list[Absent], count: int) -> list[Absent]:
    """Those of the first ``count`` records."""
    found: list[Absent] = []
    for part in parts:
        if count > 0:
            found.append(part._replace(positions=part.positions[:count], sizes=part.sizes[:count]))
        count -= len(part.sizes)
    return found
