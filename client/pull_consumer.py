"""Consuming at the caller's own pace."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

from penstock.formats.trace import TRACE_TOPIC
from penstock.proto.errors import ClientClosed, InvalidArgument, MessageNotFound
from penstock.runtime.security.credentials import Credentials, Tls

from . import arguments
from .arguments import LEVEL_MAX
from .cluster import Expression, check_timeout, require_timeout
from .cluster.subscription import ALL, parse_subscription
from .consume.assignment import Assignment
from .consume.consumer_config import CONSUME_FROM_LAST, ConsumerConfig, new_client_id
from .consume.core import Consumer, ConsumerCore
from .consume.group.membership import Membership
from .consume.group.notices import Callback, Callbacks
from .consume.group.rebalance import Strategy, strategy_named
from .consume.local_queue import LocalQueue, Standing, Taken
from .consume.message_batch import MessageBatch
from .consume.offsets import NEVER_COMMITTED, BrokerOffsets, query_committed, query_range, search_offset
from .consume.pulled_queue import PulledQueue
from .consume.send_backs import SendBacks, parts
from .message import MessageQueue, MessageView, kind_in
from .telemetry import telemetry_of
from .trace.consuming import ConsumeTrace
from .trace.making import tracer_of

POLL_TIMEOUT_S = 1.0
CALL_TIMEOUT_S = 3.0
SEND_BACK_TIMEOUT_S = 30.0


class PullConsumer(Consumer):
    """Messages when the caller asks for them, from a share of the queues (``subscribe``) or chosen ones (``assign``).

    With ``auto_commit`` a poll commits what the poll before it returned (within ``commit_interval_ms``), and so does
    :meth:`close`: what a crash interrupts is delivered again. Without it nothing is committed but by :meth:`commit`.

    A queue that goes to another member is kept until the next poll, commit or close, so that what was returned is
    counted as processed first; a caller that does not come back within ``revoke_timeout_ms`` loses it, and the other
    member begins at the last commit.

    Fetching runs in the background, bounded by the configuration. For one thread at a time.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        group: str,
        client_id: str | None = None,
        consume_from: str | int = CONSUME_FROM_LAST,
        strategy: str | Strategy = "AVG",
        auto_commit: bool = True,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        config: ConsumerConfig | None = None,
        trace: bool | float = False,
        trace_topic: str = TRACE_TOPIC,
        telemetry: Any = False,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``consume_from`` (``"last"``, ``"first"``, or ms since 1970) holds for queues without a committed offset.

        ``on_assigned``, ``on_revoked``: as of :class:`~penstock.client.PushConsumer`, for subscribed topics. The work
        on a queue has ended when the caller has come back.
        ``trace``, ``trace_topic``: as of :class:`~penstock.client.PushConsumer`; a message's consumption ends when the
        next poll, the commit or the close counts it as processed. ``telemetry``: True, or a tracer of OpenTelemetry: a
        span of each poll that returns messages, linked to their sends.
        ``tls``, ``credentials``: as of :class:`~penstock.client.Producer`.

        Raises:
            ConfigError, InvalidName: an argument is wrong.
        """
        self._callbacks = Callbacks(on_assigned, on_revoked)
        self._auto_commit = arguments.flag("auto_commit", auto_commit)
        self._strategy = strategy_named(strategy)
        self._core = ConsumerCore(
            nameservers,
            group=group,
            client_id=new_client_id() if client_id is None else client_id,
            consume_from=consume_from,
            config=ConsumerConfig() if config is None else config,
            tls=tls,
            credentials=credentials,
            new_queue=lambda queue: PulledQueue(queue, auto_commit),
        )
        tracer = tracer_of(trace, trace_topic, nameservers, tls, credentials)
        self._trace = None if tracer is None else ConsumeTrace(tracer, group)
        self._telemetry = telemetry_of(telemetry, group)
        self._is_watched = self._trace is not None or self._telemetry is not None
        self._send_backs = SendBacks(self._core.calls, group, None)
        self._lock = self._core.buffers.lock
        self._returned: set[PulledQueue] = set()  # queues whose messages the caller has; guarded by the lock
        self._is_manual: bool | None = None  # None until the caller subscribes or assigns

    @property
    def is_closed(self) -> bool:
        """True once :meth:`close` was called."""
        return self._core.is_closed

    def on_ready(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when a poll that found nothing should be tried again.

        It is called under a lock, from other threads, often without need; it must not block.
        """
        self._core.buffers.on_ready = callback

    def __exit__(self, kind: object, _error: BaseException | None, _traceback: object) -> None:
        # After an error in the caller's code, what it was working on is not processed: it is delivered again.
        self._close(self._core.config.close_timeout_ms / 1000, processed=kind is None)

    # What to consume

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Share the queues of ``topic`` with the group's other members; also while consuming.

        A topic that does not exist is waited for.

        Raises:
            NameserverUnavailable: no nameserver answers.
            InvalidName, InvalidArgument: the topic's name or the expression is wrong, or queues are assigned.
        """
        self._begin(is_manual=False)
        subscription = parse_subscription(topic, expression)
        self._core.subscribe(subscription)
        if self._core.owner is None:
            self._core.begin(Membership(self._core, self._strategy, self._callbacks))

    def assign(self, queues: Iterable[MessageQueue], expression: Expression = ALL) -> None:
        """Consume exactly these queues, whoever else does; offsets are the group's. Replaces an earlier assignment.

        With ``auto_commit`` it commits what the last poll returned of the queues that are given up.

        Raises:
            NameserverUnavailable: no nameserver answers.
            InvalidArgument: topics are subscribed.
        """
        chosen = frozenset(arguments.queues(queues))
        self._begin(is_manual=True)
        self._settle(self._auto_commit)
        for topic in {each.topic for each in chosen}:
            self._core.subscriptions[topic] = parse_subscription(topic, expression)
        if isinstance(self._core.owner, Assignment):
            self._core.owner.assign(chosen)
        else:
            core = self._core
            store = BrokerOffsets(core.connections, core.directory, core.group, core.client_id)
            core.begin(Assignment(core, store, chosen))

    def queues(self, topic: str) -> list[MessageQueue]:
        """Every queue of ``topic``, for :meth:`assign`."""
        return self._core.queues_of(topic)

    # Messages

    def poll(self, timeout_s: float = POLL_TIMEOUT_S, max_messages: int = 500) -> list[MessageView]:
        """The next messages, at most so many, as soon as there is one; none when ``timeout_s`` runs out or on close.

        Raises:
            Refused: a broker refused the group or the filter, by its own error.
            DamagedRecord: the next record of a queue cannot be read: once, and whenever there is nothing else, until
                :meth:`seek` steps over it (``details['next_offset']``).
            InvalidArgument: nothing is subscribed or assigned. ClientClosed: the consumer is closed.
        """
        max_messages = arguments.whole("max_messages", max_messages, 1)
        began_ns = time.time_ns() if self._is_watched else 0
        taken = self._wait(lambda: self._take(max_messages), timeout_s)
        messages = _views(taken)
        if self._is_watched:
            self._tell(messages, began_ns)
        return messages

    def poll_batch(self, timeout_s: float = POLL_TIMEOUT_S, max_messages: int | None = None) -> MessageBatch:
        """The next messages of one queue as columns; an empty batch when ``timeout_s`` runs out. Errors as ``poll``."""
        most = self._core.config.queue_messages
        limit = most if max_messages is None else arguments.whole("max_messages", max_messages, 1)
        began_ns = time.time_ns() if self._is_watched else 0
        taken = self._wait(lambda: self._take_one(limit), timeout_s)
        if not taken:
            return MessageBatch.empty()
        queue, part = taken[0]
        batch = MessageBatch(queue, part.batch, part.indexes)
        if self._is_watched:
            self._tell(batch.messages(), began_ns)
        return batch

    def __iter__(self) -> Iterator[MessageView]:
        """Every message until the consumer is closed, waiting for the next one. Errors as ``poll``.

        Each is polled by itself: with ``auto_commit`` it counts as processed when the next one is asked for, and a
        loop that is left loses none.
        """
        while not self._core.is_closed:
            try:
                messages = self.poll(max_messages=1)
            except ClientClosed:
                return  # by another thread
            yield from messages

    def send_back(
        self, message: MessageView | Sequence[MessageView], delay_level: int = 0, timeout_s: float = SEND_BACK_TIMEOUT_S
    ) -> None:
        """Have messages come again later, to any member of the group, as after a listener's failure.

        ``delay_level``: 1..18 of the broker's ``messageDelayLevel``; 0: by the group's retry policy; below 0: dead
        letters at once. When this returns they are kept, and the commit may pass them. Members get what comes again
        beside the topics that they subscribe; who assigns queues has to assign those of ``%RETRY%`` and the group.

        Raises:
            MessageNotFound: the broker has no record of some any more; the others are kept.
            BrokerUnavailable, OutcomeUnknown: there is no master; perhaps some are kept.
            Refused: not kept, by the broker's own error.
        """
        timeout_s = require_timeout(timeout_s)
        delay_level = arguments.whole("delay_level", delay_level, -LEVEL_MAX, LEVEL_MAX, InvalidArgument)
        self._core.require_open()
        deadline_s = time.monotonic() + timeout_s
        sizes: dict[MessageQueue, dict[int, int]] = {}
        for each in arguments.messages(message):
            sizes.setdefault(each.message_queue, {})[each.queue_offset] = each.size
        for queue, of_queue in sizes.items():
            for offsets in parts(of_queue):
                left_s = max(deadline_s - time.monotonic(), 0.2)
                gone = self._send_backs.send(queue, offsets, left_s, delay_level=delay_level)
                if gone:
                    raise MessageNotFound(
                        f"queue {queue}: offsets {gone[:10]} have no record any more, keep them yourself"
                    )

    # Positions

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Commit everything that polls have returned, or these offsets (the next ones to consume), and wait for it.

        Raises:
            CommitRefused: a queue belongs to another member now, or an offset is beyond the queue's end.
            BrokerUnavailable, OutcomeUnknown: a broker did not answer; commit again.
        """
        timeout_s = require_timeout(timeout_s)
        self._core.require_open()
        if offsets is not None:
            if not isinstance(offsets, Mapping):
                raise arguments.wrong("offsets", offsets, "a mapping of queues to offsets", InvalidArgument)
            offsets = {each: arguments.offset(f"offset of {each}", offset) for each, offset in offsets.items()}
        with self._lock:
            locals_ = [local for local in self._core.buffers.queues.values() if local.standing is not Standing.WAITING]
            if offsets is None:
                for local in locals_:
                    assert isinstance(local, PulledQueue)
                    local.settle(processed=True)
                self._returned.clear()
                chosen = {local.queue: local.unfinished() for local in locals_ if local.unfinished() != local.committed}
            else:
                chosen = offsets
                for each, offset in chosen.items():
                    local = self._core.local(each)
                    assert isinstance(local, PulledQueue)
                    if offset < local.committed:
                        local.may_go_back = object()
                    local.processed = offset
        owner = self._core.begun()
        if chosen:
            owner.commit(chosen, timeout_s)
        owner.poke()
        if self._trace is not None and offsets is None:
            self._trace.settled(success=True)

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, asked of the broker, or None if nothing was committed."""
        queue = arguments.queue(queue)
        found = query_committed(self._core.connections, self._core.address_of(queue), self._core.group, queue)
        return None if found == NEVER_COMMITTED else found

    def position(self, queue: MessageQueue) -> int | None:
        """The offset that the next poll goes on from; ``None`` until the queue has begun."""
        with self._lock:
            front = self._core.local(queue).front()
        return None if front < 0 else front

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on from ``offset``; outside of the queue means its nearer end.

        Raises:
            InvalidArgument: no offset, or a queue that is not this consumer's.
        """
        offset = arguments.offset("offset", offset)
        with self._lock:
            local = self._core.local(queue)
            self._core.buffers.start(local, offset)
            local.may_go_back = object()
        self._core.fetcher.wake()

    def seek_to_begin(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on from the first message of these queues, or of all."""
        for each in self._chosen(queues):
            self.seek(each, query_range(self._core.connections, self._core.address_of(each), each)[0])

    def seek_to_end(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Skip everything that is in these queues now, or in all."""
        for each in self._chosen(queues):
            self.seek(each, query_range(self._core.connections, self._core.address_of(each), each)[1])

    def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The first offset whose message was stored at that time or later, else the queue's end."""
        queue = arguments.queue(queue)
        time_ms = arguments.whole(
            "timestamp_ms", timestamp_ms, -arguments.OFFSET_MAX, arguments.OFFSET_MAX, InvalidArgument
        )
        return search_offset(self._core.connections, self._core.address_of(queue), queue, time_ms)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return no messages of these queues, or of any, until :meth:`resume`; the queues stay this consumer's."""
        chosen = self._chosen(queues)
        with self._lock:
            for each in chosen:
                local = self._core.local(each)
                if not local.is_paused:
                    local.is_paused = True
                    # What was fetched is dropped: it would hold memory that other queues could use.
                    self._core.buffers.drop_buffered(local)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Return messages of these queues again, or of all."""
        chosen = self._chosen(queues)
        with self._lock:
            for each in chosen:
                self._core.local(each).is_paused = False
        self._core.fetcher.wake()

    def close(self, timeout_s: float | None = None) -> None:
        """Commit what was returned (with ``auto_commit``), release the queues, disconnect. May be called again."""
        self._close(self._core.config.close_timeout_ms / 1000 if timeout_s is None else timeout_s, processed=True)

    # Inside

    def _tell(self, messages: list[MessageView], began_ns: int) -> None:
        """Trace what a poll, which began then, returns."""
        if self._trace is not None:
            self._trace.handed_out(messages)
        if self._telemetry is not None:
            self._telemetry.received(messages, began_ns)

    def _begin(self, *, is_manual: bool) -> None:
        self._core.require_open()
        if self._is_manual not in (None, is_manual):
            raise InvalidArgument("a consumer either subscribes topics or assigns queues, not both: make two")
        self._is_manual = is_manual

    def _close(self, timeout_s: float, *, processed: bool) -> None:
        timeout_s = check_timeout(timeout_s)
        deadline_s = time.monotonic() + timeout_s
        try:
            if not self._core.is_closed:
                self._settle(processed and self._auto_commit, all_done=processed)
            self._core.close(deadline_s)
        finally:
            if self._trace is not None:
                self._trace.settled(success=False)
                self._trace.tracer.close(deadline_s - time.monotonic())

    def _settle(self, processed: bool, *, all_done: bool = True) -> None:
        """The caller has come back: what it got last is processed, and revoked queues may go."""
        with self._lock:
            returned, self._returned = self._returned, set()
            if all_done:
                for local in returned:
                    local.settle(processed)
            is_revoked = any(local.standing is Standing.REVOKED for local in returned)
        if is_revoked:
            self._core.poke()
        if self._trace is not None and processed:
            self._trace.settled(success=True)

    def _wait(
        self, take: Callable[[], list[tuple[MessageQueue, Taken]]], timeout_s: float
    ) -> list[tuple[MessageQueue, Taken]]:
        timeout_s = require_timeout(timeout_s)
        self._core.begun()
        self._settle(self._auto_commit)
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while True:
                if self._core.is_closed:
                    return []
                self._core.require_alive()
                damage = self._core.buffers.take_damage(again=False)
                taken = take() if damage is None else []
                damage = damage if taken else damage or self._core.buffers.take_damage(again=True)
                if damage is not None:
                    raise damage
                left_s = deadline_s - time.monotonic()
                if taken or left_s <= 0:
                    return taken
                self._lock.wait(left_s)

    def _take(self, max_messages: int) -> list[tuple[MessageQueue, Taken]]:
        taken: list[tuple[MessageQueue, Taken]] = []
        left = max_messages
        for local in self._core.buffers.take_turns():
            while left and local.chunks:
                part = self._take_part(local, left)
                left -= len(part.indexes)
                taken.append((local.queue, part))
            self._core.buffers.make_ready(local)
            if not left:
                break
        return taken

    def _take_one(self, max_messages: int) -> list[tuple[MessageQueue, Taken]]:
        for local in self._core.buffers.take_turns():
            part = self._take_part(local, max_messages)
            self._core.buffers.make_ready(local)
            return [(local.queue, part)]
        return []

    def _take_part(self, local: LocalQueue, max_messages: int) -> Taken:
        assert isinstance(local, PulledQueue)
        part = local.take(max_messages)
        self._returned.add(local)
        self._core.buffers.handed_out += len(part.indexes)
        self._core.buffers.finish(local, part.record_bytes, len(part.indexes))
        return part

    def _chosen(self, queues: Iterable[MessageQueue] | None) -> Collection[MessageQueue]:
        return self.assignment() if queues is None else arguments.queues(queues)


def _views(taken: list[tuple[MessageQueue, Taken]]) -> list[MessageView]:
    views: list[MessageView] = []
    # Python looks for garbage each time that some hundred objects were made: for one poll once is enough, a third less.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for queue, part in taken:
            views.extend(map(kind_in(queue.topic), repeat(part.batch), part.indexes, repeat(queue.broker_name)))
    finally:
        if was_enabled:
            gc.enable()
    return views
