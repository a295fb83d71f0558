"""Consuming one message at a time, without queues that are one's own: POP."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.proto import names
from penstock.proto.errors import ClientClosed, InvalidArgument, InvalidReceipt, PenstockError, TopicNotFound
from penstock.proto.receipts import Receipt
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.runtime.conf import require
from penstock.runtime.security.credentials import Credentials, Tls

from . import arguments
from .cluster import Calls, Expression, Subscription, all_queues, parse_subscription, readable_queues, require_timeout
from .cluster.subscription import ALL
from .consume.consumer_config import CONSUME_FROM_FIRST, CONSUME_FROM_LAST, new_client_id
from .consume.pop.receipts import Lot, Lots, Settling
from .consume.pop.receiving import MESSAGES_MAX, SUBSCRIPTIONS_MAX, ReceivedMessage, Receiving
from .inherited import Client

RECEIVE_TIMEOUT_S = 5.0
CALL_TIMEOUT_S = 10.0
WAIT_STEP_S = 5.0
INVISIBLE_S_MAX = 12 * 3600
SHARED_WAIT_STEP_S = 0.2
"""Where one call cannot ask for all topics, answers are waited for in turn."""

Receivable = ReceivedMessage | str
"""A message that was received, or its :attr:`~ReceivedMessage.receipt`."""


class _Part(NamedTuple):
    """What one call receives: of the topics of a broker group those that begin alike."""

    broker_name: str
    subscriptions: list[Subscription]
    begins_first: bool


class _Plan(NamedTuple):
    """Which broker groups have the topics, as long as these are the routes, and nothing else is subscribed."""

    subscriptions: dict[str, Subscription]
    routes: dict[str, TopicRoute]
    parts: list[_Part]


class SimpleConsumer(Client):
    """Messages when the caller asks for them, each for ``invisible_s``, from all queues of the topics.

    Any number of consumers of the group share all queues, one message goes to one of them. Whoever is done with a
    message acknowledges it (:meth:`ack`); what is not acknowledged in time comes again, to any consumer of the group,
    and becomes a dead letter after the group's ``retry_max_times``. In a group that is orderly one batch of a queue is
    out at a time, and what is not acknowledged comes again in its place.

    A group is either consumed this way or by push and pull consumers, not both at a time. For many threads at a time.
    """

    def __init__(
        self,
        nameservers: str,
        *,
        group: str,
        invisible_s: float = 30.0,
        client_id: str | None = None,
        consume_from: str = CONSUME_FROM_LAST,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """``invisible_s``: 10 seconds to 12 hours. ``consume_from`` (``"last"``, ``"first"``) holds for queues of
        which the group has nothing yet. ``tls``, ``credentials``: as of :class:`~penstock.client.Producer`.

        Raises:
            ConfigError, InvalidName: an argument is wrong.
        """
        require(
            consume_from in (CONSUME_FROM_FIRST, CONSUME_FROM_LAST),
            "consume_from must be 'first' or 'last'",
            consume_from,
        )
        self.group = names.check_group(group)
        self.client_id = arguments.client_id(new_client_id() if client_id is None else client_id)
        self._invisible_s = arguments.seconds("invisible_s", invisible_s, INVISIBLE_S_MAX)
        self._calls = Calls.to(nameservers, tls=tls, credentials=credentials)
        self._receiving = Receiving(self._calls, self.group, self.client_id)
        self._settling = Settling(self._calls, self.group)
        self._begins_first = consume_from == CONSUME_FROM_FIRST
        self._lock = threading.Lock()  # guards what follows
        self._subscriptions: dict[str, Subscription] = {}  # replaced, never changed
        self._older: dict[str, frozenset[str]] = {}  # by topic: broker groups that had it when it was looked up first
        self._turn = 0
        self._plan = _Plan({}, {}, [])
        self._closed = threading.Event()

    def subscribe(self, topic: str, expression: Expression = ALL) -> None:
        """Receive messages of ``topic`` from the next receive on. What the filter leaves out is gone for the group.

        A topic that does not exist is waited for, while another one does.

        Raises:
            InvalidName, InvalidArgument: the topic's name or the expression is wrong.
            ClientClosed: the consumer is closed.
        """
        self.require_open()
        subscription = parse_subscription(topic, expression)
        with self._lock:
            if topic not in self._subscriptions and len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
                raise InvalidArgument(f"topic {topic}: a simple consumer has at most {SUBSCRIPTIONS_MAX} topics")
            self._subscriptions = {**self._subscriptions, topic: subscription}

    def unsubscribe(self, topic: str) -> None:
        """Receive nothing more of ``topic``. What was received can be acknowledged all the same."""
        names.check_topic(topic)
        with self._lock:
            self._subscriptions = {name: each for name, each in self._subscriptions.items() if name != topic}

    def receive(
        self, max_messages: int = 32, timeout_s: float = RECEIVE_TIMEOUT_S, *, invisible_s: float | None = None
    ) -> list[ReceivedMessage]:
        """Some messages, at most 1024, as soon as there are any; none when ``timeout_s`` runs out.

        ``invisible_s``: of these, in place of the consumer's. An answer that is lost on its way costs the messages
        that time.

        Raises:
            TopicNotFound: none of the topics exists.
            Refused: a broker refused the group, a topic or the filter, by its own error.
            Retryable: nobody could be asked within ``timeout_s``.
            ClientClosed: the consumer is closed.
        """
        max_messages = arguments.whole("max_messages", max_messages, 1, MESSAGES_MAX, InvalidArgument)
        timeout_s = require_timeout(timeout_s)
        if invisible_s is None:
            invisible_s = self._invisible_s
        invisible_ms = round(arguments.seconds("invisible_s", invisible_s, INVISIBLE_S_MAX) * 1000)
        deadline, is_first = time.monotonic() + timeout_s, True
        failures: dict[tuple[str, bool], PenstockError] = {}
        while True:
            parts = self._parts(max(deadline - time.monotonic(), 0.2))
            step_s = WAIT_STEP_S if len(parts) == 1 else SHARED_WAIT_STEP_S
            for name, subscriptions, begins_first in parts:
                left_s = max(deadline - time.monotonic(), 0.0)
                # Everybody is asked once before anybody is waited at.
                wait_s = 0.0 if is_first and len(parts) > 1 else min(step_s, left_s)
                # A broker group that takes no call now may not keep the others from being asked.
                tries_s = left_s if len(parts) == 1 else min(wait_s + SHARED_WAIT_STEP_S, left_s)
                try:
                    found = self._receiving.receive(
                        name, subscriptions, max_messages, invisible_ms, wait_s, tries_s, begins_first=begins_first
                    )
                except PenstockError as error:
                    if not error.retryable:
                        raise
                    failures[name, begins_first] = error
                    self._closed.wait(min(SHARED_WAIT_STEP_S, left_s))
                    continue
                failures.pop((name, begins_first), None)
                messages, unwanted = found
                if unwanted:
                    self._settling.acknowledge(_lots(unwanted)[0], CALL_TIMEOUT_S)
                if messages:
                    return messages
            is_first = False
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                if parts and len(failures) == len(parts):
                    raise next(iter(failures.values()))
                return []
            if not parts:  # nobody may read the topics, for now
                self._closed.wait(min(SHARED_WAIT_STEP_S, left_s))

    def ack(self, messages: Receivable | Sequence[Receivable], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Be done with messages: once this returns they do not come again. May be repeated.

        Raises:
            ReceiptExpired: the time of some is over; the others are acknowledged. ``details["receipts"]`` has those.
            InvalidReceipt: likewise, of some that no broker has given out to this group.
            OutcomeUnknown, Retryable: nobody answered in time; repeat it.
        """
        self.require_open()
        lots, void = _lots(messages)
        self._settling.acknowledge(lots, timeout_s, void)

    def change_invisible(
        self, message: ReceivedMessage, invisible_s: float, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> ReceivedMessage:
        """Have the message come again ``invisible_s`` from now, at once with 0; the message with its new receipt.

        The old one is void; the given message has the new one too.

        Raises:
            As :meth:`ack`; ReceiptExpired also of a message that was acknowledged.
        """
        self.require_open()
        invisible_ms = round(arguments.seconds("invisible_s", invisible_s, INVISIBLE_S_MAX, has_zero=True) * 1000)
        if not isinstance(message, ReceivedMessage):
            raise arguments.wrong("message", message, "a message that was received", InvalidArgument)
        renewed = self._settling.change(message.parsed, invisible_ms, timeout_s)
        message.renew(renewed)
        return message

    def give_back(self, messages: Receivable | Sequence[Receivable], *, timeout_s: float = CALL_TIMEOUT_S) -> None:
        """Have messages come again at once that nobody has begun with; this counts as no try. Raises as :meth:`ack`."""
        self.require_open()
        lots, void = _lots(messages)
        self._settling.give_back(lots, timeout_s, void)

    def forward_to_dead_letters(
        self, messages: Receivable | Sequence[Receivable], *, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        """Make dead letters of messages, now; they are acknowledged by that. Raises as :meth:`ack`.

        May be repeated, as an acknowledgement. So one that was acknowledged before stays that, without an error.
        """
        self.require_open()
        lots, void = _lots(messages)
        self._settling.forward(lots, timeout_s, void)

    def close(self) -> None:
        """Disconnect. What was received and not acknowledged comes again when its time is over. May be repeated."""
        self._closed.set()
        self._calls.close()

    def require_open(self) -> None:
        """Raise ClientClosed if the consumer is closed."""
        if self._closed.is_set():
            raise ClientClosed(f"the simple consumer of group {self.group} is closed: make a new one")

    def _parts(self, timeout_s: float) -> list[_Part]:
        """Which topics each broker group has, another one first each time."""
        self.require_open()
        plan, subscriptions = self._plan, self._subscriptions
        if not subscriptions:
            raise InvalidArgument(f"simple consumer of group {self.group}: subscribe to a topic first")
        routes: dict[str, TopicRoute] = {}
        missing: TopicNotFound | None = None
        for topic in subscriptions:
            try:
                routes[topic] = self._route(topic, timeout_s)
            except TopicNotFound as error:
                missing = error
        if missing is not None and not routes:
            raise missing
        is_same = plan.subscriptions is subscriptions and plan.routes.keys() == routes.keys()
        is_same = is_same and all(plan.routes[topic] is route for topic, route in routes.items())
        if not is_same:
            plan = self._plan = self._planned(subscriptions, routes)
        if len(plan.parts) < 2:
            return plan.parts
        with self._lock:
            self._turn += 1
            start = self._turn % len(plan.parts)
        return plan.parts[start:] + plan.parts[:start]

    def _route(self, topic: str, timeout_s: float) -> TopicRoute:
        try:
            route = self._calls.directory.topic(topic, timeout_s)
        except TopicNotFound:
            self._older.setdefault(topic, frozenset())
            raise
        if topic not in self._older:
            self._older.setdefault(topic, frozenset(queue.broker_name for queue in all_queues(route)))
        return route

    def _planned(self, subscriptions: dict[str, Subscription], routes: dict[str, TopicRoute]) -> _Plan:
        found: dict[tuple[str, bool], list[Subscription]] = {}
        for topic, route in routes.items():
            for name in sorted({queue.broker_name for queue in readable_queues(route)}):
                # "last" means what arrives from now on: at a broker group that has got the topic since, everything.
                is_younger = name not in self._older[topic]
                found.setdefault((name, self._begins_first or is_younger), []).append(subscriptions[topic])
        parts = [_Part(name, topics, begins_first) for (name, begins_first), topics in sorted(found.items())]
        return _Plan(subscriptions, routes, parts)


def _lots(messages: Receivable | Sequence[Receivable]) -> tuple[Lots, list[object]]:
    """The receipts of messages, and what cannot be one. Raises InvalidArgument for all but messages and lists."""
    what = "a message that was received, its receipt, or a list"
    is_one = isinstance(messages, (ReceivedMessage, str))
    several: Sequence[Any] = [messages] if is_one else arguments.several("messages", messages, what)
    lots: dict[Lot, list[int]] = {}
    void: list[object] = []
    last, offsets = None, []
    for each in several:
        if type(each) is ReceivedMessage:
            lot, offset = each.lot, each.offset
        else:
            try:
                receipt = each.parsed if isinstance(each, ReceivedMessage) else Receipt.parse(each)
            except InvalidReceipt:  # told when the others are done with
                void.append(each)
                continue
            lot, offset = Lot.of(receipt), receipt.offset
        if lot is not last:
            last, offsets = lot, lots.setdefault(lot, [])
        offsets.append(offset)
    return lots, void
