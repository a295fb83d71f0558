"""Queues without a group's sharing: those a user assigned by hand, or all of them for a broadcasting consumer.

No sessions and no claims: nobody is kept from reading the same queues. Offsets are kept at the brokers or in a file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping

from penstock.proto.errors import CommitRefused, PenstockError

from ..message import MessageQueue
from .core import ConsumerCore
from .local_queue import LocalQueue, Standing
from .offsets import BrokerOffsets, FileOffsets, query_range
from .owner import COMMIT_TIMEOUT_S, QueueOwner, by_direction, uncommitted

log = logging.getLogger(__name__)

RETRY_S = 0.5


class Assignment(QueueOwner):
    """Works on the assigned queues; without any (``queues`` None), on all queues of the subscribed topics."""

    def __init__(
        self, core: ConsumerCore, store: BrokerOffsets | FileOffsets, queues: Collection[MessageQueue] | None
    ) -> None:
        super().__init__(core, "assignment")
        self._store = store
        self._queues = frozenset(queues) if queues is not None else None  # replaced by the user's thread
        self._retry_at_s = 0.0
        self._updating = threading.Lock()  # the user's thread assigns while the control thread hears of routes

    def start(self) -> None:
        """Look up the topics and begin; a topic that does not exist yet begins when it does."""
        super().start()
        self._update()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others; they are known at once, and begin when their brokers have answered."""
        self._queues = frozenset(queues)
        self._look_up({each.topic for each in queues})
        self._update()
        self._control.poke()

    def commit(self, offsets: Mapping[MessageQueue, int], timeout_s: float = COMMIT_TIMEOUT_S) -> None:
        """Keep these offsets now.

        Raises:
            CommitRefused: a queue is not assigned, a member of the group has committed more, or a failover has cut off
                what was read.
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

    def leave(self, deadline_s: float) -> None:
        """Nobody is told: the user has chosen the queues, or has all of them."""

    def _end(self, deadline_s: float) -> None:
        self._save_quietly(uncommitted(self._buffers), max(deadline_s - time.monotonic(), 0.2))
        self._store.close()

    def _routes_changed(self) -> None:
        self._core.fetcher.on_routes()
        self._retry_at_s = 0.0
        self._update()

    def _subscriptions_changed(self) -> None:
        self._update()

    def _wants(self, topic: str) -> bool:
        return topic in {queue.topic for queue in self._queues} if self._queues is not None else super()._wants(topic)

    def _update(self) -> None:
        with self._updating:
            wanted = self._queues if self._queues is not None else self._subscribed_queues()
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
                    known[each] = self._core.new_queue(each)

    def _is_lost(self, queue: MessageQueue) -> bool:
        return self._queues is not None or queue.topic not in self._subscriptions

    def _decide(self, now_s: float) -> float:
        with self._buffers.lock:
            waiting = [local for local in self._buffers.queues.values() if local.standing is Standing.WAITING]
        if waiting and now_s >= self._retry_at_s:
            for local in waiting:
                if not self._begin(local):
                    self._retry_at_s = now_s + RETRY_S
        return min(now_s + 1.0, max(self._retry_at_s, now_s + 0.01)) if waiting else now_s + 1.0

    def _commit_progress(self) -> None:
        self._save_quietly(uncommitted(self._buffers), COMMIT_TIMEOUT_S)

    def _begin(self, local: LocalQueue) -> bool:
        """Let the queue begin. Returns False if its broker could not be asked where."""
        queue = local.queue
        address = self._directory.read_address(queue.broker_name)
        if address is None:
            return False
        start = self._find_start(
            queue, address, lambda: (*self._store.load(queue), *query_range(self._core.connections, address, queue))
        )
        if start is None:
            return False
        with self._buffers.lock:
            if local.next_fetch < 0:  # else the user has set the position before
                self._buffers.start(local, start.offset, end=start.end, log_epoch=start.log_epoch)
                local.may_go_back = object() if start.offset < start.committed else None
        self._go_on(local, start.committed)
        return True

    def _save(self, offsets: Mapping[LocalQueue, int], timeout_s: float) -> None:
        failure: PenstockError | OSError | None = None
        for commit in by_direction(self._buffers, offsets):
            for part in commit.by_broker():
                try:
                    self._store.save(part.by_queue(), timeout_s, force=part.force, epoch=part.epoch)
                except (PenstockError, OSError) as error:
                    failure = failure or error
                else:
                    part.note(self._buffers)
        if failure is not None:
            raise failure

    def _save_quietly(self, offsets: Mapping[LocalQueue, int], timeout_s: float) -> None:
        try:
            self._save(offsets, timeout_s)
        except (PenstockError, OSError) as error:
            log.warning("commit failed queues=%d error=%s", len(offsets), error)
