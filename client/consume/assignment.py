"""Queues without a group's sharing: those a user assigned by hand, or all of them for a broadcasting consumer.

No sessions and no claims: nobody is kept from reading the same queues. Offsets are kept by an :class:`OffsetStore`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from penstock.proto.errors import BrokerUnavailable, CommitRefused, PenstockError, RouteNotFound, TopicNotFound
from penstock.proto.names import PERM_READ
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from ..cluster.connections import Connections
from ..cluster.directory import Directory
from ..cluster.subscription import Subscription
from ..message import MessageQueue
from .consumer_config import ConsumerConfig
from .control import ControlLoop
from .fetcher import Fetcher
from .local_queue import Buffers, LocalQueue, Standing
from .offsets import (
    FileOffsets,
    commit_request,
    query_committed,
    query_range,
    refused_queues,
    search_offset,
)
from .positions import starting_offset, uncommitted

log = logging.getLogger(__name__)

RETRY_S = 0.5
COMMIT_TIMEOUT_S = 2.0


class OffsetStore(Protocol):
    """Where progress is kept between runs."""

    def load(self, queue: MessageQueue) -> int:
        """The next offset to consume, -1 if nothing is known."""
        ...

    def save(self, offsets: Mapping[MessageQueue, int], timeout_s: float, *, force: bool) -> None:
        """Keep ``offsets``; with ``force`` they may be lower than before."""
        ...

    def close(self) -> None: ...


class BrokerStore:
    """Offsets of a group at the brokers, written by somebody who is no member of it."""

    def __init__(self, connections: Connections, directory: Directory, group: str, client_id: str) -> None:
        self._connections = connections
        self._directory = directory
        self._group = group
        self._client_id = client_id

    def load(self, queue: MessageQueue) -> int:
        return query_committed(self._connections, self._address(queue.broker_name), self._group, [queue])[queue]

    def save(self, offsets: Mapping[MessageQueue, int], timeout_s: float, *, force: bool) -> None:
        by_broker: dict[str, dict[MessageQueue, int]] = {}
        for each, offset in offsets.items():
            by_broker.setdefault(each.broker_name, {})[each] = offset
        refused = []
        for name, of_broker in by_broker.items():
            request = commit_request(self._group, self._client_id, 0, of_broker, force=force)
            reply = self._connections.call(self._address(name), "CommitOffsets", request, timeout_s)
            refused += refused_queues(reply, name)
        if refused:
            raise CommitRefused(f"{len(refused)} queues, first {refused[0]}: a member of the group has committed more")

    def close(self) -> None:
        """Nothing is held."""

    def _address(self, broker_name: str) -> str:
        readable = self._directory.readable(broker_name)
        if readable is None:
            raise BrokerUnavailable(f"broker group {broker_name}: no member lives")
        return readable[1]


class FileStore:
    """Offsets in the consumer's own file."""

    def __init__(self, offsets: FileOffsets) -> None:
        self._offsets = offsets

    def load(self, queue: MessageQueue) -> int:
        return self._offsets.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int], timeout_s: float, *, force: bool) -> None:
        self._offsets.put(offsets)

    def close(self) -> None:
        self._offsets.close()


class Assignment:
    """Keeps assigned queues in their :class:`Buffers`; without any, all queues of the subscribed topics."""

    def __init__(
        self,
        connections: Connections,
        directory: Directory,
        config: ConsumerConfig,
        *,
        name: str,
        store: OffsetStore,
        consume_from: str | int,
        subscriptions: dict[str, Subscription],
        queues: Collection[MessageQueue] | None,
        buffers: Buffers,
        fetcher: Fetcher,
        new_queue: Callable[[MessageQueue], LocalQueue],
    ) -> None:
        self._connections = connections
        self._directory = directory
        self._config = config
        self._store = store
        self._consume_from = consume_from
        self._subscriptions = subscriptions
        self._queues = frozenset(queues) if queues is not None else None
        self._buffers = buffers
        self._fetcher = fetcher
        self._new_queue = new_queue
        self._retry_at_s = 0.0
        self._commit_at_s = 0.0
        self._updating = threading.Lock()  # the user's thread assigns while the control thread hears of routes
        self._control = ControlLoop(f"penstock-assignment-{name}", self._tick)

    def start(self) -> None:
        """Look up the topics and begin; a topic that does not exist yet begins when it does."""
        for topic in self._subscriptions:
            self._look_up(topic)
        self._directory.add_listener(self._on_route)
        self._update()
        self._control.start()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others; they are known at once, and begin when their brokers have answered."""
        self._queues = frozenset(queues)
        for topic in {each.topic for each in queues}:
            self._look_up(topic)
        self._update()
        self._control.poke()

    def subscribe(self, subscription: Subscription) -> None:
        """Another topic."""
        self._look_up(subscription.topic)
        self._subscriptions[subscription.topic] = subscription
        self._control.post(self._update)

    def unsubscribe(self, topic: str) -> None:
        """One topic less."""
        self._subscriptions.pop(topic, None)
        self._control.post(self._update)

    def poke(self) -> None:
        """Nothing waits for work to end here."""

    def commit(self, offsets: Mapping[MessageQueue, int], timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Keep these offsets now.

        Raises:
            CommitRefused: a queue is not assigned, or a member of the group has committed more.
            BrokerUnavailable, OutcomeUnknown: a broker did not answer.
        """
        with self._buffers.lock:
            chosen: dict[LocalQueue, int] = {}
            for each, offset in offsets.items():
                local = self._buffers.queues.get(each)
                if local is None:
                    raise CommitRefused(f"queue {each} is not assigned to this consumer")
                chosen[local] = offset
        self._save(chosen, timeout_s)

    def close(self, deadline_s: float) -> None:
        """Commit what is finished and end."""
        self._directory.remove_listener(self._on_route)
        self._control.close(max(deadline_s - time.monotonic(), 0.1))
        self._save_quietly(uncommitted(self._buffers), max(deadline_s - time.monotonic(), 0.2))
        self._store.close()

    def _on_route(self, route: TopicRoute) -> None:
        self._control.post(self._routes_changed)

    def _routes_changed(self) -> None:
        self._fetcher.on_routes()
        self._retry_at_s = 0.0
        self._update()

    def _look_up(self, topic: str) -> None:
        try:
            self._directory.topic(topic)
        except (TopicNotFound, RouteNotFound) as error:
            log.warning("topic has no queues yet topic=%s error=%s", topic, error.message)

    def _wanted(self) -> frozenset[MessageQueue]:
        if self._queues is not None:
            return self._queues
        found: set[MessageQueue] = set()
        for topic in self._subscriptions:
            route = self._directory.known(topic)
            for data in route.queues if route is not None and route.exists else ():
                if data.perm & PERM_READ:
                    found.update(MessageQueue(topic, data.broker_name, index) for index in range(data.read_queues))
        return frozenset(found)

    def _update(self) -> None:
        with self._updating:
            wanted = self._wanted()
            with self._buffers.lock:
                known = self._buffers.queues
                # A broker that is away keeps its queues: nobody else can take them over.
                lost = [local for each, local in known.items() if each not in wanted and self._is_lost(each)]
                progress = {local: offset for local in lost if (offset := local.to_commit()) is not None}
            self._save_quietly(progress, COMMIT_TIMEOUT_S)
            with self._buffers.lock:
                for local in lost:
                    local.standing = Standing.REVOKED
                    self._buffers.remove(local.queue)
                for each in sorted(wanted - known.keys()):
                    known[each] = self._new_queue(each)

    def _is_lost(self, queue: MessageQueue) -> bool:
        return self._queues is not None or queue.topic not in self._subscriptions

    def _tick(self, now_s: float) -> float:
        next_s = now_s + 1.0
        with self._buffers.lock:
            waiting = [local for local in self._buffers.queues.values() if local.standing is Standing.WAITING]
        if waiting and now_s >= self._retry_at_s:
            for local in waiting:
                if not self._begin(local):
                    self._retry_at_s = now_s + RETRY_S
        if waiting:
            next_s = min(next_s, max(self._retry_at_s, now_s + 0.01))
        if now_s >= self._commit_at_s:
            self._commit_at_s = now_s + self._config.commit_interval_ms / 1000
            self._save_quietly(uncommitted(self._buffers), COMMIT_TIMEOUT_S)
        return min(next_s, self._commit_at_s)

    def _begin(self, local: LocalQueue) -> bool:
        """Find out where the queue begins; whether that succeeded."""
        queue = local.queue
        readable = self._directory.readable(queue.broker_name)
        if readable is None:
            return False
        address = readable[1]
        try:
            committed = self._store.load(queue)
            min_offset, max_offset = query_range(self._connections, address, queue)
            offset = starting_offset(
                queue,
                committed=committed,
                min_offset=min_offset,
                max_offset=max_offset,
                consume_from=self._consume_from,
                search=lambda timestamp_ms: search_offset(self._connections, address, queue, timestamp_ms),
            )
        except PenstockError as error:
            log.warning("starting offset could not be asked for queue=%s error=%s", queue, error.message)
            return False
        with self._buffers.lock:
            local.committed = committed
            if local.next_fetch < 0:  # else the user has set the position before
                self._buffers.start(local, offset, end=max_offset)
                local.may_go_back = offset < committed
            local.standing = Standing.OWNED
        self._fetcher.wake()
        return True

    def _save(self, offsets: Mapping[LocalQueue, int], timeout_s: float) -> None:
        for force in (False, True):
            chosen = {local: offset for local, offset in offsets.items() if local.may_go_back is force}
            if not chosen:
                continue
            self._store.save({local.queue: offset for local, offset in chosen.items()}, timeout_s, force=force)
            with self._buffers.lock:
                for local, offset in chosen.items():
                    local.committed = offset
                    local.may_go_back = False

    def _save_quietly(self, offsets: Mapping[LocalQueue, int], timeout_s: float) -> None:
        try:
            self._save(offsets, timeout_s)
        except (PenstockError, OSError) as error:
            log.warning("commit failed queues=%d error=%s", len(offsets), error)
