"""A queue whose messages are worked on by several threads: what is in work, what has failed, what is finished."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING

from penstock.proto import names

from ...message import MessageQueue, MessageView, RetriedMessage, kind_in
from ..local_queue import LocalQueue, Taken

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch

Item = MessageView | list[MessageView]
"""What a listener is called with: one message, or several of one queue."""


def first_offset_of(item: Item) -> int:
    return item[0].queue_offset if isinstance(item, list) else item.queue_offset


def items_of(taken: Taken, queue: MessageQueue, size: int) -> list[Item]:
    """What is handed out of the queue as items of ``size`` messages each."""
    kind = DeadLetter if queue.topic.startswith(names.DLQ_PREFIX) else kind_in(queue.topic)
    views = list(map(kind, repeat(taken.batch), taken.indexes, repeat(queue.broker_name)))
    return [*views] if size == 1 else [views[at : at + size] for at in range(0, len(views), size)]


def messages_of(item: Item) -> list[MessageView]:
    return item if isinstance(item, list) else [item]


class DeadLetter(MessageView):
    """One of a group's dead letters, which is consumed once more: its tries begin anew."""

    __slots__ = ()

    @property
    def reconsume_times(self) -> int:
        """How often it was given back since: never."""
        return 0


class RedeliveredMessage(RetriedMessage):
    """A message that a listener could not take; a copy of its record, so that the fetched reply need not be kept."""

    __slots__ = ("_attempts",)

    def __init__(self, batch: RecordBatch, broker_name: str, attempts: int) -> None:
        super().__init__(batch, 0, broker_name)
        self._attempts = attempts

    @property
    def reconsume_times(self) -> int:
        """How often it was given back, here and by what its record says, unless that is a dead letter."""
        is_dead_letter = self.message_queue.topic.startswith(names.DLQ_PREFIX)
        return self._attempts + (0 if is_dead_letter else super().reconsume_times)


def redelivered(item: Item, attempts: int) -> Item:
    """``item`` for another try: copies of its messages, which know how often they were tried."""
    from penstock.formats.record.reading import RecordBatch  # here: importing the kernels costs half a second

    if isinstance(item, list):
        return [RedeliveredMessage(RecordBatch(each.record_bytes), each.broker_name, attempts) for each in item]
    return RedeliveredMessage(RecordBatch(item.record_bytes), item.broker_name, attempts)


class Slot:
    """One worker in one run, and what it is at. The worker alone writes ``current`` and ``finished``."""

    __slots__ = ("calls", "current", "finished", "is_late", "seconds", "seen", "since_s", "thread")

    def __init__(self, current: Item | None) -> None:
        self.current = current
        self.finished: Item | None = None  # the last item with which the listener came back
        self.thread: threading.Thread | None = None
        self.calls, self.seconds = 0, 0.0  # of the listener, and how long they took together; at the worker's end
        # The watch's, written with the lock.
        self.is_late = False  # another has taken the worker's place: what the listener says now counts no more
        self.seen: Item | None = None  # what the listener was at when the watch looked last
        self.since_s = 0.0

    def is_overdue(self, now_s: float, limit_s: float) -> bool:
        """True if the listener is at an item for so long, as far as the watch has seen; then the worker is late."""
        current = self.current
        if current is None or self.finished is current:
            self.seen = None
        elif self.seen is not current:
            self.seen, self.since_s = current, now_s
        elif now_s - self.since_s >= limit_s:
            # The worker looks at the flag between the end of one item and the next. So it stops if it has not got to
            # the end by now, which the second look tells; if it has, it may be past the flag.
            self.is_late = True
            self.is_late = self.current is current and self.finished is not current
        return self.is_late


class Run:
    """Consecutive messages of one queue in work.

    Workers take items from one iterator, in order, each finishing one before it takes the next. So everything below
    the lowest item that a worker is at is finished (or noted as failed), and nothing has to be noted per message.
    """

    __slots__ = (
        *("_cut_at", "attempts", "epoch", "first_offset", "is_filled", "items", "iterator", "local"),
        *("messages", "pause_s", "pending", "record_bytes", "slots", "started_s", "taken"),
    )

    def __init__(self, local: PushedQueue, taken: Taken, first_offset: int) -> None:
        self.local = local
        self.epoch = local.epoch
        self.first_offset = first_offset
        self.taken = taken
        self.messages = len(taken.indexes)
        self.record_bytes = taken.record_bytes
        self.items: list[Item] = []
        self.iterator: Iterator[Item] = iter(self.items)
        self.slots: list[Slot] = []
        self.started_s = 0.0
        self.is_filled = False
        self.pending: Item | None = None  # orderly: failed, and tried again before anything behind it
        self.attempts = 0  # orderly: of ``pending``
        self.pause_s = 0.0  # orderly: before ``pending`` is tried again
        self._cut_at: int | None = None  # the first message that nobody will begin any more

    def fill(self, items: list[Item]) -> None:
        """Begin; the items are made outside of the lock."""
        self.is_filled = True
        self.items = items
        self.iterator = iter(items)

    def enter(self) -> Slot:
        """Another worker takes part. It counts from where the slowest one is, until it has taken its first item."""
        others = (each.current for each in self.slots if each.current)
        slot = Slot(min(others, key=first_offset_of, default=self.pending))
        self.slots.append(slot)
        return slot

    def left(self) -> int:
        """How many items nobody has begun, roughly."""
        return self.iterator.__length_hint__()  # type: ignore[attr-defined,no-any-return]

    def replace(self, slot: Slot) -> Slot | None:
        """Another worker takes the place of a late one; None if nothing is left that nobody has begun."""
        left = self.left()
        if not left:
            return None
        successor = Slot(self.items[len(self.items) - left])
        self.slots[self.slots.index(slot)] = successor
        return successor

    def cut(self) -> None:
        left = self.left()
        rest = self.items[len(self.items) - left :] if left else []
        if rest and self._cut_at is None:
            self._cut_at = first_offset_of(rest[0])
        self.items.clear()

    def unfinished(self) -> int | None:
        """The first offset that is not finished, or None if all are."""
        offsets = [first_offset_of(slot.current) if slot.current else self.first_offset for slot in self.slots]
        if self.pending is not None:
            offsets.append(first_offset_of(self.pending))
        if self._cut_at is not None:
            offsets.append(self._cut_at)
        return min(offsets, default=None)


class Failed:
    """An item that its listener could not take, until it can."""

    __slots__ = ("attempts", "epoch", "item", "local", "messages", "offset", "record_bytes")

    def __init__(self, local: PushedQueue, epoch: int, item: Item) -> None:
        messages = messages_of(item)
        self.local = local
        self.epoch = epoch
        self.item: Item = item
        self.offset = messages[0].queue_offset
        self.attempts = 0
        self.messages = len(messages)
        self.record_bytes = sum(each.size for each in messages)

    def for_next_try(self) -> None:
        self.attempts += 1
        self.keep()

    def keep(self) -> None:
        """Make copies: it may take long until somebody is done with it."""
        self.item = redelivered(self.item, self.attempts)


class PushedQueue(LocalQueue):
    """Commits hold at the first message that is not finished, whatever is finished behind it."""

    def __init__(self, queue: MessageQueue) -> None:
        super().__init__(queue)
        self.runs: list[Run] = []
        self.former: list[Run] = []  # of older epochs, whose workers have not come back
        self.failed: dict[int, Failed] = {}  # by the offset of the first message
        self._failed_offsets: list[int] = []  # a heap; may hold offsets that have left ``failed``
        self.retrying = 0  # failed items in work right now
        self._floor: int | None = None  # work that was cut off at this offset

    def start(self, offset: int) -> None:
        super().start(offset)
        for run in self.runs:
            run.cut()
            if not run.slots:  # orderly: it waits for its next try, which does not come
                self.held_bytes -= run.record_bytes
                self.held_messages -= run.messages
        self.former += [run for run in self.runs if run.slots]
        self.runs.clear()
        self.held_bytes -= sum(each.record_bytes for each in self.failed.values())
        self.held_messages -= sum(each.messages for each in self.failed.values())
        self.failed.clear()
        self._failed_offsets.clear()
        self._floor = None

    def add_failed(self, failed: Failed) -> None:
        """Count it as unfinished, and its memory as held."""
        self.failed[failed.offset] = failed
        heapq.heappush(self._failed_offsets, failed.offset)
        self.held_bytes += failed.record_bytes
        self.held_messages += failed.messages

    def take(self, max_messages: int) -> Run:
        """The next messages as a run without items; the caller fills it."""
        chunk = self.chunks[0]
        first_offset = chunk.first_offset()
        taken = chunk.take(max_messages)
        if not len(chunk):
            self.chunks.popleft()
        run = Run(self, taken, first_offset)
        self.runs.append(run)
        run.slots.append(Slot(None))
        return run

    def leave(self, run: Run, slot: Slot) -> bool:
        """A worker found nothing more in ``run``. Returns True if it was the last one, so that the run is over."""
        run.slots.remove(slot)
        if run.slots:
            return False
        if run in self.runs:
            self._keep_floor(run.unfinished())
            self.runs.remove(run)
        elif run in self.former:
            self.former.remove(run)
        return True

    def stop(self) -> None:
        for run in list(self.runs):
            run.cut()
            if not run.slots:  # orderly: it waits for its next try
                self._keep_floor(run.unfinished())
                self.runs.remove(run)

    def unfinished(self) -> int:
        lowest = self.front()
        for run in self.runs:
            at = run.unfinished()
            if at is not None and at < lowest:
                lowest = at
        while self._failed_offsets and self._failed_offsets[0] not in self.failed:
            heapq.heappop(self._failed_offsets)
        if self._failed_offsets:
            lowest = min(lowest, self._failed_offsets[0])
        return lowest if self._floor is None else min(lowest, self._floor)

    def is_busy(self) -> bool:
        return self.retrying > 0 or bool(self.former) or any(run.slots for run in self.runs)

    def _keep_floor(self, offset: int | None) -> None:
        if offset is not None:
            self._floor = offset if self._floor is None else min(self._floor, offset)
