"""What every consumer is made of, put together: connections, routes, buffers, fetcher, and who decides on queues."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from penstock.proto.errors import BrokerUnavailable, ClientClosed, InvalidArgument, PenstockError
from penstock.proto.names import PERM_READ, check_group
from penstock.runtime.security.credentials import Credentials, Tls

from ..cluster.connections import Connections
from ..cluster.directory import Directory
from ..cluster.subscription import Subscription
from ..message import MessageQueue
from .assignment import Assignment, BrokerStore, FileStore, OffsetStore
from .consumer_config import ConsumerConfig, check_consume_from
from .fetcher import Fetcher
from .group.commits import Member
from .group.membership import Membership
from .group.rebalance import Strategy, strategy_named
from .local_queue import Buffers, LocalQueue
from .offsets import FileOffsets

log = logging.getLogger(__name__)


class Ownership(Protocol):
    """Who decides which queues the consumer works on: :class:`Membership` or :class:`Assignment`."""

    def start(self) -> None: ...
    def subscribe(self, subscription: Subscription) -> None: ...
    def unsubscribe(self, topic: str) -> None: ...
    def poke(self) -> None: ...
    def commit(self, offsets: Mapping[MessageQueue, int], timeout_s: float) -> None: ...
    def close(self, deadline_s: float) -> None: ...


class ConsumerCore:
    """The parts of one consumer. ``new_queue`` makes the kind of queue that the consumer works with."""

    def __init__(
        self,
        nameservers: str,
        *,
        group: str,
        client_id: str,
        consume_from: str | int,
        strategy: str | Strategy,
        config: ConsumerConfig,
        tls: Tls | None,
        credentials: Credentials | None,
        new_queue: Callable[[MessageQueue], LocalQueue],
    ) -> None:
        self.group = check_group(group)
        self.client_id = client_id
        self.config = config
        self.subscriptions: dict[str, Subscription] = {}
        self.failure: PenstockError | None = None
        self.is_closed = False
        self.ownership: Ownership | None = None
        self._consume_from = check_consume_from(consume_from)
        self._strategy = strategy_named(strategy)
        self._new_queue = new_queue
        self.connections = Connections(nameservers, tls=tls, credentials=credentials)
        self.routes = Directory(self.connections)
        self.buffers = Buffers(config)
        self.fetcher = Fetcher(
            self.connections,
            self.routes,
            self.buffers,
            config,
            group=group,
            client_id=client_id,
            subscription_of=self.subscription_of,
            on_refused=self.fail,
        )

    def subscription_of(self, topic: str) -> Subscription:
        """What is wanted of ``topic``; everything where nothing was said."""
        return self.subscriptions.get(topic) or Subscription.of_all(topic)

    def join(self) -> None:
        """Become a member of the group.

        Raises:
            NameserverUnavailable: no nameserver answers.
        """
        member = Member(self.group, self.client_id, self._strategy, self._consume_from, dict(self.subscriptions))
        self._begin(
            Membership(
                self.connections,
                self.routes,
                self.config,
                member,
                buffers=self.buffers,
                fetcher=self.fetcher,
                new_queue=self._new_queue,
                on_failed=self.fail,
            )
        )

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Consume these queues and no others, with the group's offsets, beside its members."""
        if isinstance(self.ownership, Assignment):
            self.ownership.assign(queues)
            return
        self._begin_assignment(
            BrokerStore(self.connections, self.routes, self.group, self.client_id), queues, _topics_of(queues)
        )

    def broadcast(self) -> None:
        """Consume every queue of the subscribed topics, with offsets in the consumer's own file.

        Raises:
            ConfigError: the file is in use or damaged.
        """
        offsets = FileOffsets(self.config.offsets_root, self.client_id, self.group)
        self._begin_assignment(FileStore(offsets), None, self.subscriptions)

    def require_open(self) -> None:
        """Raise what the consumer failed with, or that it is closed."""
        if self.failure is not None:
            raise self.failure
        if self.is_closed:
            raise ClientClosed(f"the consumer of group {self.group} is closed: make a new one")

    def fail(self, error: PenstockError) -> None:
        """The consumer cannot go on; whoever uses it next is told."""
        if self.failure is None:
            log.error("consumer cannot go on group=%s error=%s", self.group, error.message)
            self.failure = error
        with self.buffers.lock:
            self.buffers.lock.notify_all()
            if self.buffers.on_ready is not None:
                self.buffers.on_ready()

    def queues_of(self, topic: str) -> list[MessageQueue]:
        """Every readable queue of ``topic``, sorted.

        Raises:
            TopicNotFound, RouteNotFound, NameserverUnavailable: there is no such topic, or nobody to ask.
        """
        route = self.routes.topic(topic)
        return sorted(
            MessageQueue(topic, data.broker_name, index)
            for data in route.queues
            if data.perm & PERM_READ
            for index in range(data.read_queues)
        )

    def address_of(self, queue: MessageQueue) -> str:
        """The broker to ask about ``queue``.

        Raises:
            BrokerUnavailable: no member of its broker group lives.
        """
        if self.routes.readable(queue.broker_name) is None:
            self.routes.topic(queue.topic)
        readable = self.routes.readable(queue.broker_name)
        if readable is None:
            raise BrokerUnavailable(f"queue {queue}: no member of its broker group lives")
        return readable[1]

    def local(self, queue: MessageQueue) -> LocalQueue:
        """The queue's buffer; the caller holds the lock.

        Raises:
            InvalidArgument: it is not this consumer's.
        """
        found = self.buffers.queues.get(queue)
        if found is None:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        return found

    def close(self, deadline_s: float) -> None:
        """Commit, release and disconnect; over at about ``deadline_s``. May be called again."""
        if self.is_closed:
            return
        self.is_closed = True
        with self.buffers.lock:
            self.buffers.lock.notify_all()
            if self.buffers.on_ready is not None:
                self.buffers.on_ready()
        if self.ownership is not None:
            self.ownership.close(deadline_s)
            self.fetcher.close()
        self.routes.close()
        self.connections.close()
        log.info("consumer closed group=%s client=%s", self.group, self.client_id)

    def _begin_assignment(
        self,
        store: OffsetStore,
        queues: Collection[MessageQueue] | None,
        subscriptions: dict[str, Subscription],
    ) -> None:
        self._begin(
            Assignment(
                self.connections,
                self.routes,
                self.config,
                name=self.group,
                store=store,
                consume_from=self._consume_from,
                subscriptions=subscriptions,
                queues=queues,
                buffers=self.buffers,
                fetcher=self.fetcher,
                new_queue=self._new_queue,
            )
        )

    def _begin(self, ownership: Ownership) -> None:
        self.require_open()
        assert self.ownership is None, "a consumer begins once"
        ownership.start()
        self.ownership = ownership
        self.fetcher.start()


def _topics_of(queues: Collection[MessageQueue]) -> dict[str, Subscription]:
    return {each.topic: Subscription.of_all(each.topic) for each in queues}
