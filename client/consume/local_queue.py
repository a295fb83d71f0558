"""One queue as its consumer sees it: what was fetched of it, what was handed out, and how far it is finished."""

from __future__ import annotations

import enum
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from penstock.proto.errors import DamagedRecord

from ..message import MessageQueue
from .consumer_config import ConsumerConfig

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch


class Standing(enum.Enum):
    """How far the consumer may work on the queue."""

    WAITING = "waiting"  # wanted, not granted yet
    OWNED = "owned"
    SUSPENDED = "suspended"  # the session with its broker broke; everything is kept for the next grant
    REVOKED = "revoked"  # another member's from now on: running work ends, nothing new begins


class Lease:
    """How long a grant surely stands; the thread of its session's stream writes it."""

    __slots__ = ("until_s",)

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s


class Taken(NamedTuple):
    """Messages that were handed out: rows ``indexes`` of ``batch``."""

    batch: RecordBatch
    indexes: Sequence[int]
    record_bytes: int


class Fetched:
    """The messages of one reply that are not handed out yet: rows ``indexes[cursor:]`` of ``batch``, never none."""

    __slots__ = ("batch", "bytes_left", "cursor", "indexes")

    def __init__(self, batch: RecordBatch, indexes: Sequence[int], record_bytes: int) -> None:
        self.batch = batch
        self.indexes = indexes
        self.cursor = 0
        self.bytes_left = record_bytes

    def __len__(self) -> int:
        return len(self.indexes) - self.cursor

    def first_offset(self) -> int:
        return int(self.batch.rows["queue_offset"][self.indexes[self.cursor]])

    def take(self, max_messages: int) -> Taken:
        count = min(max_messages, len(self))
        share = self.bytes_left if count == len(self) else self.bytes_left * count // len(self)
        taken = Taken(self.batch, self.indexes[self.cursor : self.cursor + count], share)
        self.cursor += count
        self.bytes_left -= share
        return taken


class LocalQueue:
    """Buffer and progress of one queue; guarded by the lock of its :class:`Buffers`.

    Three parties write here: the owner's control thread (standing, position), the fetching thread (what arrives), and
    the consumer's threads (what is handed out and finished). Always ``front() <= next_fetch``.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        # The owner's: whose the queue is, and where it stands.
        self.standing = Standing.WAITING
        self.lease: Lease | None = None  # of the last grant; None: there is no session to lose
        self.committed = -1  # what its broker has, as far as is known
        # A new one whenever the position is set by hand: the next commit may be lower than the last. None: it may not.
        self.may_go_back: object | None = None
        self.granted_epoch = -1  # that of the position which the last grant has set
        self.revoke_deadline_s = 0.0  # of a revoked queue: running work is waited for until then
        # Grows whenever the position is set anew: what was handed out in an older epoch counts no more.
        self.epoch = 0
        # Grows with epoch, and whenever else what is being fetched is not wanted any more: late answers are ignored.
        self.fetch_epoch = 0
        # The fetching thread's: what was asked for and has come.
        self.next_fetch = -1  # the first offset that no reply has brought; -1 until the position is known
        self.log_epoch = 0  # of its broker's log, which the position is of; 0: nobody has told
        self.is_new = True  # no reply has come since the position was set
        self.is_fetching = False  # True while a request is under way: a queue is in one at a time
        self.arriving_from: int | None = None  # where a reply begins that has come and is not read yet
        self.is_left_out = False  # of the last fetch, because it holds enough
        self.is_behind = False  # the broker is known to have more than was fetched
        self.served = 0  # when it last got messages, as a running number
        self.retry_at_s = 0.0  # nothing is asked before
        self.is_doubted = False  # the last answer held bad records: the broker is to prove the next
        self.damage: DamagedRecord | None = None  # why nothing comes, while it is not stepped over
        self.is_damage_told = False  # the user has seen that error
        # Between both and the consumer.
        self.chunks: deque[Fetched] = deque()  # fetched and not handed out: the fetcher appends, the consumer takes
        self.held_bytes = 0  # fetched and not finished; their sum over all queues is Buffers.held_bytes
        self.held_messages = 0
        self.is_ready = False  # True while it stands in Buffers.ready
        self.is_paused = False  # the user's: nothing is fetched

    def start(self, offset: int) -> None:
        """Go on from ``offset``, with nothing buffered or in work."""
        self.drop_buffered()
        self.epoch += 1
        self.next_fetch = offset
        self.log_epoch = 0
        self.is_new = True
        self.is_behind = False
        self.is_left_out = False
        self.retry_at_s = 0.0
        self.damage = None

    def drop_buffered(self) -> int:
        """Forget what was fetched and not handed out; the bytes that are free now."""
        freed_bytes = sum(chunk.bytes_left for chunk in self.chunks)
        self.held_bytes -= freed_bytes
        self.held_messages -= sum(map(len, self.chunks))
        self.next_fetch = self.front()
        self.chunks.clear()
        self.forget_fetches()
        return freed_bytes

    def forget_fetches(self) -> None:
        self.fetch_epoch += 1
        self.is_fetching = False
        self.arriving_from = None

    def stop(self) -> None:
        """Let nothing more begin of what was handed out."""

    def front(self) -> int:
        """The first offset that was not handed out."""
        if self.chunks:
            return self.chunks[0].first_offset()
        return self.next_fetch if self.arriving_from is None else self.arriving_from

    def unfinished(self) -> int:
        """The first offset that is not finished: what may be committed."""
        return self.front()

    def to_commit(self) -> int | None:
        """The offset to commit without anybody asking for it, or None if there is nothing new."""
        offset = self.unfinished()
        return offset if offset >= 0 and offset != self.committed else None

    def is_busy(self) -> bool:
        """True if something that was handed out is not finished."""
        return False

    def is_held(self) -> bool:
        """True if the queue is the consumer's, as far as the consumer knows."""
        return self.standing in (Standing.OWNED, Standing.SUSPENDED)

    def may_begin(self) -> bool:
        """True if nobody else can have the queue by now. Needs no lock."""
        if self.standing is not Standing.OWNED:
            return False
        return self.lease is None or time.monotonic() < self.lease.until_s

    def has_messages(self) -> bool:
        """True if something may be handed out now."""
        return self.standing is Standing.OWNED and bool(self.chunks)

    def is_full(self, config: ConsumerConfig) -> bool:
        """True if the queue holds so much that nothing more should be fetched."""
        return (
            self.held_bytes >= config.queue_bytes
            or self.held_messages >= config.queue_messages
            or self.next_fetch - self.unfinished() >= config.queue_span
        )

    def has_room_again(self, config: ConsumerConfig) -> bool:
        """True if a queue that was left out should be fetched again: there is some room, so that fetches stay large."""
        return (
            self.held_bytes <= config.queue_bytes // 2
            and self.held_messages <= config.queue_messages // 2
            and self.next_fetch - self.unfinished() <= config.queue_span // 2
        )


class Buffers:
    """All queues of one consumer. ``lock`` guards everything in here and in its queues; it is notified of messages."""

    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self.lock = threading.Condition(threading.Lock())
        self.queues: dict[MessageQueue, LocalQueue] = {}
        self.ready: deque[LocalQueue] = deque()  # queues with messages, in the order of their turn
        self.damaged: set[LocalQueue] = set()  # those with a damage; some that have none any more
        self.held_bytes = 0  # fetched and not finished, of all queues
        self.received = self.received_bytes = self.handed_out = 0  # since the consumer was made
        self.on_ready: Callable[[], None] | None = None  # called under the lock when messages arrive; must not block
        self.wake_fetcher: Callable[[], None] = lambda: None  # called when a queue that was full has room again
        self._served = 0  # numbers the replies

    def of_broker(self) -> dict[str, list[LocalQueue]]:
        found: dict[str, list[LocalQueue]] = {}
        for local in self.queues.values():
            found.setdefault(local.queue.broker_name, []).append(local)
        return found

    def expect(self, local: LocalQueue, next_offset: int, record_bytes: int, messages: int) -> None:
        """A reply with messages up to ``next_offset`` has come; :meth:`arrive` follows when it is read."""
        local.arriving_from = local.next_fetch
        local.next_fetch = next_offset
        self._served += 1
        local.served = self._served
        local.held_bytes += record_bytes
        local.held_messages += messages
        self.held_bytes += record_bytes

    def arrive(
        self, local: LocalQueue, chunk: Fetched | None, record_bytes: int, messages: int, *, is_told: bool
    ) -> None:
        """The expected reply is read: ``chunk`` holds its wanted messages, None if there are none.

        Not ``is_told``: the caller sees to it that somebody works on them.
        """
        local.arriving_from = None
        wanted = len(chunk) if chunk is not None else 0
        self.finish(local, 0 if wanted else record_bytes, messages - wanted)
        if chunk is not None:
            self.received += wanted
            self.received_bytes += record_bytes
            local.chunks.append(chunk)
            self.make_ready(local, is_told=is_told)

    def make_ready(self, local: LocalQueue, *, is_told: bool = True) -> None:
        """Put the queue in line if it has something to hand out."""
        if not local.is_ready and local.has_messages():
            local.is_ready = True
            self.ready.append(local)
            if is_told:
                self.lock.notify()
            if self.on_ready is not None:
                self.on_ready()

    def take_turns(self) -> Iterator[LocalQueue]:
        """The queues in line, each taken out of it; who leaves messages in one puts it back with :meth:`make_ready`."""
        while self.ready:
            local = self.ready.popleft()
            local.is_ready = False
            if local.has_messages():
                yield local

    def on_damage(self, local: LocalQueue, damage: DamagedRecord) -> None:
        """Stop the queue at a damaged record until its position is set behind it; waiting users are told news."""
        if local.damage is not None and local.damage.details == damage.details:
            return
        local.damage, local.is_damage_told = damage, False
        self.damaged.add(local)
        self.lock.notify_all()
        if self.on_ready is not None:
            self.on_ready()

    def take_damage(self, *, again: bool) -> DamagedRecord | None:
        """A damaged record that is the next of its queue; with ``again`` also one that was told before."""
        for local in list(self.damaged):
            damage = local.damage
            if damage is None or self.queues.get(local.queue) is not local:
                self.damaged.discard(local)
                continue
            is_next = local.standing is Standing.OWNED and not local.chunks and local.arriving_from is None
            if is_next and (again or not local.is_damage_told):
                local.is_damage_told = True
                return DamagedRecord(damage.message, **damage.details)
        return None

    def finish(self, local: LocalQueue, record_bytes: int, messages: int) -> None:
        """Count so much of ``local`` out: nobody holds it any more."""
        if self.queues.get(local.queue) is not local:
            return  # removed meanwhile, with everything it held
        self.held_bytes -= record_bytes
        local.held_bytes -= record_bytes
        local.held_messages -= messages
        if local.is_left_out and local.has_room_again(self.config):
            local.is_left_out = False
            self.wake_fetcher()

    def start(self, local: LocalQueue, offset: int, *, end: int = 0, log_epoch: int = 0) -> None:
        """Let the queue go on from ``offset``; what was fetched of it is dropped.

        ``end``: the queue's, if known; ``log_epoch``: that which the offset is of, if known.
        """
        before = local.held_bytes
        local.start(offset)
        local.log_epoch = log_epoch
        local.is_behind = offset < end
        self.held_bytes -= before - local.held_bytes
        self.wake_fetcher()

    def refetch(self, local: LocalQueue) -> None:
        """Fetch again: what has come could not be read."""
        if local.arriving_from is not None:
            local.next_fetch = local.arriving_from
        local.forget_fetches()

    def drop_buffered(self, local: LocalQueue) -> None:
        self.held_bytes -= local.drop_buffered()

    def remove(self, queue: MessageQueue) -> None:
        """The queue is this consumer's no more."""
        local = self.queues.pop(queue)
        self.drop_buffered(local)
        local.epoch += 1  # work that did not end counts no more
        self.held_bytes -= local.held_bytes
        local.held_bytes = 0
