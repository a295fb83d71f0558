"""What every consumer is made of, put together: the way to the cluster, buffers, fetcher, and who decides on queues."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.proto.errors import BrokerUnavailable, ClientClosed, InvalidArgument, PenstockError
from penstock.proto.names import check_group, check_topic
from penstock.runtime.security.credentials import Credentials, Tls

from .. import arguments
from ..cluster import Calls, Subscription, readable_queues, reworded
from ..inherited import Client
from ..message import MessageQueue
from ..statistics import ConsumerStatistics, Latency
from .consumer_config import ConsumerConfig, check_consume_from
from .fetcher import Fetcher
from .local_queue import Buffers, LocalQueue

if TYPE_CHECKING:
    from ..trace.consuming import ConsumeTrace
    from .owner import QueueOwner

log = logging.getLogger(__name__)


class ConsumerCore:
    """The parts of one consumer. ``new_queue`` makes the kind of queue that the consumer works with."""

    def __init__(
        self,
        nameservers: str,
        *,
        group: str,
        client_id: str,
        consume_from: str | int,
        config: ConsumerConfig,
        tls: Tls | None,
        credentials: Credentials | None,
        new_queue: Callable[[MessageQueue], LocalQueue],
    ) -> None:
        if not isinstance(config, ConsumerConfig):
            raise arguments.wrong("config", config, "a ConsumerConfig")
        self.group = check_group(group)
        self.client_id = arguments.client_id(client_id)
        self.config = config
        self.consume_from = check_consume_from(consume_from)
        self.new_queue = new_queue
        self.subscriptions: dict[str, Subscription] = {}  # the user's threads write it, the fetcher's reads single ones
        self.failure: PenstockError | None = None  # set once, by whichever thread finds it; never taken back
        self.is_closed = False
        self._is_closing = False
        self.watch: Callable[[float], float] = lambda now_s: math.inf  # called by the owner now and then: when next
        self.is_orderly = False  # nobody else may begin before its work has ended
        self.is_concurrent = False  # its listeners work on messages of one queue side by side
        self.is_broadcasting = False
        self.owner: QueueOwner | None = None  # from the first subscription or assignment on, and then the same
        self._beginning = threading.Lock()  # what is subscribed is there when the owner starts, or the owner is told
        self.calls = Calls.to(nameservers, tls=tls, credentials=credentials)
        self.connections, self.directory = self.calls.connections, self.calls.directory
        self.buffers = Buffers(config)
        self.fetcher = Fetcher(self)

    def subscription_of(self, topic: str) -> Subscription:
        """The subscription of ``topic``; of everything where nothing was said."""
        return self.subscriptions.get(topic) or Subscription.of_all(topic)

    def begin(self, owner: QueueOwner) -> None:
        """Let ``owner`` decide from now on, and fetch.

        Raises:
            NameserverUnavailable: no nameserver answers; nothing has begun.
            ClientClosed: it is closed, perhaps meanwhile, by another thread.
        """
        self.require_open()
        assert self.owner is None, "a consumer begins once"
        with self._beginning:
            owner.start()
            self.owner = owner
        self.fetcher.start()
        if self._is_closing:  # whoever closes it may have come before there was an owner to end
            self._end(time.monotonic())
            self.require_open()

    def subscribe(self, subscription: Subscription) -> None:
        """Want a topic, or other messages of it; the owner is told, if there is one already."""
        self.require_open()
        with self._beginning:
            self.subscriptions[subscription.topic] = subscription
        if self.owner is not None:
            self.owner.subscribe(subscription)

    def begun(self) -> QueueOwner:
        """Who decides on queues. Raises InvalidArgument where nobody does; ClientClosed, or what it failed with."""
        self.require_open()
        if self.owner is None:
            raise InvalidArgument(f"consumer of group {self.group}: nothing is subscribed or assigned: do so first")
        return self.owner

    def unsubscribe(self, topic: str) -> None:
        with self._beginning:
            self.subscriptions.pop(topic, None)
        if self.owner is not None:
            self.owner.unsubscribe(topic)

    def poke(self) -> None:
        """Have the owner look again: running work of a revoked queue may have ended."""
        if self.owner is not None:
            self.owner.poke()

    def require_open(self) -> None:
        """Raise what the consumer failed with, or that it is closed."""
        self.require_alive()
        if self.is_closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed: make a new one")

    def require_alive(self) -> None:
        """Raise what the consumer failed with, if it has; as often as it is asked, so its traceback begins anew."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)

    def fail(self, error: PenstockError) -> None:
        """The consumer cannot go on; whoever uses it next is told."""
        if self.failure is None:
            subscribed = list(self.subscriptions.values())  # users' threads add to it
            wanted = ", ".join(f"{each.topic} {each.filter.expression or '*'!r}" for each in subscribed)
            told = f"this consumer of group {self.group} ({wanted:.500}) gets nothing more: make a new one"
            self.failure = reworded(error, told)
            log.error("consumer cannot go on error=%s", self.failure.message)
        self._wake_waiting()

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of ``topic``, sorted.

        Raises:
            TopicNotFound, RouteNotFound, NameserverUnavailable: there is no such topic, or nobody to ask.
        """
        return sorted(readable_queues(self.directory.topic(check_topic(topic))))

    def address_of(self, queue: MessageQueue) -> str:
        """The broker to ask about ``queue``. Raises BrokerUnavailable: no member of its broker group lives."""
        if self.directory.read_address(queue.broker_name) is None:
            self.directory.topic(queue.topic)
        address = self.directory.read_address(queue.broker_name)
        if address is None:
            raise BrokerUnavailable(f"queue {queue}: no member of its broker group lives")
        return address

    def local(self, queue: MessageQueue) -> LocalQueue:
        """The queue's buffer; the caller holds the lock.

        Raises:
            InvalidArgument: it is not this consumer's. ClientClosed: nor is any other.
        """
        found = self.buffers.queues.get(queue)
        if found is None or self.is_closed:
            self.require_open()
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return found

    def close(self, deadline_s: float) -> None:
        """Commit, release and disconnect; over at about ``deadline_s``. May be called again.

        Ctrl-C makes it quick and goes on: a member that stayed would keep its queues, with nobody to work on them.
        """
        if self._is_closing:
            return
        self._is_closing = True
        try:
            if self.owner is not None:
                self.owner.leave(deadline_s)
            self._end(deadline_s)
        except BaseException:
            self._end(time.monotonic())
            raise
        log.info("consumer closed group=%s client=%s", self.group, self.client_id)

    def _end(self, deadline_s: float) -> None:
        """Everything of :meth:`close` but what users are told; what was begun may be begun again."""
        self.is_closed = True
        self._wake_waiting()
        if self.owner is not None:
            self.owner.close(deadline_s)
        self.fetcher.close()
        self.calls.close()
        with self.buffers.lock:
            for local in self.buffers.queues.values():
                self.buffers.drop_buffered(local)

    def _wake_waiting(self) -> None:
        with self.buffers.lock:
            self.buffers.lock.notify_all()
            if self.buffers.on_ready is not None:
                self.buffers.on_ready()


class Consumer(Client):
    """What consumers of every kind have in common."""

    _core: ConsumerCore
    _trace: ConsumeTrace | None

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._core.group

    @property
    def client_id(self) -> str:
        """The name under which this consumer is a member."""
        return self._core.client_id

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``; running listeners finish."""
        self._core.unsubscribe(check_topic(topic))

    def statistics(self) -> ConsumerStatistics:
        """Counts since it was made, and latencies. Cheap."""
        buffers = self._core.buffers
        with buffers.lock:
            failed, dropped, listener = self._listener_statistics()
            return ConsumerStatistics(
                queues=sum(local.is_held() for local in buffers.queues.values()),
                received=buffers.received,
                received_bytes=buffers.received_bytes,
                handed_out=buffers.handed_out,
                buffered_bytes=buffers.held_bytes,
                failed=failed,
                dropped=dropped,
                listener=listener,
                traces_dropped=self._trace.tracer.dropped if self._trace is not None else 0,
            )

    def _listener_statistics(self) -> tuple[int, int, Latency]:
        """Failed calls of a listener, messages given up, and all its calls; under the lock."""
        return 0, 0, Latency()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        buffers = self._core.buffers
        with buffers.lock:
            return sorted(each for each, local in buffers.queues.items() if local.is_held())
