"""Who decides which queues a consumer works on: what a member of a group and an assignment by hand have in common."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from penstock.proto import names
from penstock.proto.errors import PenstockError, RouteNotFound, TopicNotFound
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from ..cluster import Subscription, all_queues, readable_queues
from ..message import MessageQueue
from .consumer_config import CONSUME_FROM_FIRST, CONSUME_FROM_LAST
from .control import ControlLoop
from .core import ConsumerCore
from .local_queue import Buffers, LocalQueue, Standing
from .offsets import search_offset

log = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 2.0


class Start(NamedTuple):
    """Where a queue begins: ``offset``; what its broker has: the committed one (-1: none), and its ``end``.

    ``log_epoch``: that of the log which the offset is of; 0: nobody knows.
    """

    offset: int
    committed: int
    end: int
    log_epoch: int


class QueueOwner(ABC):
    """Keeps a consumer's queues in its :class:`Buffers` and commits what is finished of them.

    Decisions are made in one thread, the control thread, from events that other threads post. Which queues there are,
    and how their offsets are kept, is the subclass's.
    """

    def __init__(self, core: ConsumerCore, kind: str) -> None:
        self._core = core
        self._directory = core.directory
        self._buffers = core.buffers
        self._subscriptions: dict[str, Subscription] = {}  # as far as it has heard; written by the control thread
        self._older: dict[str, frozenset[MessageQueue]] = {}  # by topic: queues that were there when it was subscribed
        self._existing: set[str] = set()  # topics that were there; by the watch thread, and by whoever looks one up
        self._commit_at_s = self._watch_at_s = 0.0
        self._control = ControlLoop(f"penstock-{kind}-{core.group}", self._tick)

    # Called by the consumer, from any thread

    def start(self) -> None:
        """Look up the topics and begin; queues arrive later. Raises NameserverUnavailable: no nameserver answers."""
        self._subscriptions.update(self._core.subscriptions)
        self._look_up(self._subscriptions)
        self._directory.add_listener(self._on_route)
        self._control.start()

    def subscribe(self, subscription: Subscription) -> None:
        """Want another topic too, or other messages of one."""
        self._look_up([subscription.topic])

        def change() -> None:
            self._subscriptions[subscription.topic] = subscription
            self._subscriptions_changed()

        self._control.post(change)

    def unsubscribe(self, topic: str) -> None:
        """Want the topic no more; its queues are given up."""

        def change() -> None:
            self._subscriptions.pop(topic, None)
            self._subscriptions_changed()

        self._control.post(change)

    def poke(self) -> None:
        self._control.poke()

    def close(self, deadline_s: float) -> None:
        """Commit what is finished and end; over at about ``deadline_s``."""
        self._directory.remove_listener(self._on_route)
        self._control.close(max(deadline_s - time.monotonic(), 0.1))
        self._end(deadline_s)

    # What a subclass decides, in the control thread

    @abstractmethod
    def commit(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> None:
        """Commit these offsets now. Called by the consumer."""

    @abstractmethod
    def leave(self, deadline_s: float) -> None:
        """Let the user know of queues that go because the consumer is about to close; it is open meanwhile."""

    @abstractmethod
    def _decide(self, now_s: float) -> float:
        """Act on what has changed; when to look again at the latest."""

    @abstractmethod
    def _commit_progress(self) -> None:
        """Commit what is finished, every ``commit_interval_ms``."""

    @abstractmethod
    def _subscriptions_changed(self) -> None: ...

    @abstractmethod
    def _routes_changed(self) -> None: ...

    @abstractmethod
    def _end(self, deadline_s: float) -> None:
        """The control thread has ended: commit the rest. Called by the consumer."""

    # For subclasses

    def _look_up(self, topics: Iterable[str]) -> None:
        for topic in topics:
            try:
                self._older.setdefault(topic, frozenset(all_queues(self._directory.topic(topic))))
                self._existing.add(topic)
            except TopicNotFound:
                self._older.setdefault(topic, frozenset())
                level = logging.DEBUG if topic.startswith(names.RETRY_PREFIX) else logging.WARNING
                log.log(level, "topic does not exist, consuming begins when it does topic=%s", topic)
            except RouteNotFound as error:
                log.warning("topic has no route yet topic=%s error=%s", topic, error.message)

    def _subscribed_queues(self) -> set[MessageQueue]:
        """Every readable queue of the subscribed topics, as far as their routes are known."""
        return {queue for topic in self._subscriptions for queue in readable_queues(self._directory.known(topic))}

    def _find_start(
        self, queue: MessageQueue, address: str, ask: Callable[[], tuple[int, int, int, int]]
    ) -> Start | None:
        """Where the queue begins, or None if its broker could not be asked.

        ``ask()``: the committed offset (-1: none), the epoch that it is of (0: nobody knows), the queue's first offset,
        and the one behind its last message.
        """
        # "last" means what arrives after subscribing: in a queue that is younger than that, everything.
        consume_from = self._core.consume_from
        if consume_from == CONSUME_FROM_LAST and queue not in self._older.get(queue.topic, (queue,)):
            consume_from = CONSUME_FROM_FIRST
        if queue.topic.startswith(names.RETRY_PREFIX):
            consume_from = CONSUME_FROM_FIRST  # nothing in there is older than the group
        try:
            committed, log_epoch, min_offset, max_offset = ask()
            offset = starting_offset(
                queue,
                committed=committed,
                min_offset=min_offset,
                max_offset=max_offset,
                consume_from=consume_from,
                search=lambda timestamp_ms: search_offset(self._core.connections, address, queue, timestamp_ms),
            )
        except PenstockError as error:
            log.warning("starting offset could not be asked for queue=%s error=%s", queue, error.message)
            return None
        return Start(offset, committed, max_offset, log_epoch if offset == committed else 0)

    def _go_on(self, local: LocalQueue, committed: int) -> None:
        """The queue is the consumer's now, and begins or goes on where it stands."""
        with self._buffers.lock:
            local.committed = committed
            local.standing = Standing.OWNED
            offset = local.unfinished()
            self._buffers.make_ready(local)
            self._buffers.lock.notify_all()
        log.info("queue began queue=%s offset=%d committed=%d", local.queue, offset, committed)
        self._core.fetcher.wake()

    def _on_route(self, route: TopicRoute) -> None:
        if route.exists:
            self._existing.add(route.topic)
        elif route.topic in self._existing and self._wants(route.topic):
            self._existing.discard(route.topic)
            log.warning("topic is gone, it was deleted; restart consumers if it is made anew topic=%s", route.topic)
        self._control.post(self._routes_changed)

    def _wants(self, topic: str) -> bool:
        return topic in self._subscriptions

    def _tick(self, now_s: float) -> float:
        next_s = self._decide(now_s)
        if now_s >= self._commit_at_s:
            self._commit_at_s = now_s + self._core.config.commit_interval_ms / 1000
            self._commit_progress()
        if now_s >= self._watch_at_s:
            self._watch_at_s = self._core.watch(now_s)
        return min(next_s, self._commit_at_s, self._watch_at_s)


def starting_offset(
    queue: MessageQueue,
    *,
    committed: int,
    min_offset: int,
    max_offset: int,
    consume_from: str | int,
    search: Callable[[int], int],
) -> int:
    """The committed offset, or what ``consume_from`` means for a queue that nobody of the group has consumed.

    A committed offset below the queue's first message is moved up to it, with a warning. One above the end stays: a
    broker that has just started, or a slave, may see less than was consumed; the fetch finds out if it is too high,
    and moves it then. ``search(timestamp_ms)`` asks the broker where a time begins.
    """
    if committed >= 0:
        wanted = committed
    elif consume_from == CONSUME_FROM_FIRST:
        wanted = min_offset
    elif consume_from == CONSUME_FROM_LAST:
        wanted = max_offset
    else:
        wanted = search(int(consume_from))
    if wanted < min_offset:
        log.warning(
            "offset was below the queue's first message, some are gone queue=%s offset=%d first=%d",
            queue,
            wanted,
            min_offset,
        )
        return min_offset
    return wanted


def uncommitted(buffers: Buffers, broker_name: str | None = None) -> dict[LocalQueue, int]:
    """Finished and not committed: queue and offset, of one broker group or of all. Takes the buffers' lock."""
    with buffers.lock:
        found = {}
        for local in buffers.queues.values():
            if broker_name is not None and local.queue.broker_name != broker_name:
                continue
            if local.standing in (Standing.OWNED, Standing.REVOKED):
                offset = local.to_commit()
                if offset is not None:
                    found[local] = offset
        return found


class Commit(NamedTuple):
    """Offsets to commit together. ``force``: their positions were set by hand, and they may be lower than the last.

    ``epoch``: of the log that they are of; 0: nobody knows.
    """

    force: bool
    epoch: int
    offsets: dict[LocalQueue, int]
    since: dict[LocalQueue, object | None]  # what each queue may go back for

    def by_queue(self) -> dict[MessageQueue, int]:
        return {local.queue: offset for local, offset in self.offsets.items()}

    def by_broker(self) -> list[Commit]:
        """Apart by broker group: while one is away, the others are told all the same."""
        names = sorted({local.queue.broker_name for local in self.offsets})
        parts = ({each: at for each, at in self.offsets.items() if each.queue.broker_name == name} for name in names)
        return [self._replace(offsets=part) for part in parts]

    def note(self, buffers: Buffers, refused: Collection[MessageQueue] = ()) -> None:
        """The broker has them, but for those it ``refused``. A position that was set since may go back still."""
        with buffers.lock:
            for local, offset in self.offsets.items():
                # Also a refused one: it is tried again only with further progress.
                local.committed = offset
                if local.queue not in refused and local.may_go_back is self.since[local]:
                    local.may_go_back = None


def by_direction(buffers: Buffers, offsets: Mapping[LocalQueue, int]) -> list[Commit]:
    """Apart: those that only go forward, and those that may go back; of each, those of one epoch."""
    chosen: dict[tuple[bool, int], dict[LocalQueue, int]] = {}
    with buffers.lock:
        since = {local: local.may_go_back for local in offsets}
        for local, offset in offsets.items():
            chosen.setdefault((since[local] is not None, local.log_epoch), {})[local] = offset
    return [Commit(force, epoch, chosen[force, epoch], since) for force, epoch in sorted(chosen)]
