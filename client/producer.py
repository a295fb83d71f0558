"""The producer: every way to send a message, over one delivery underneath."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from penstock.formats.destination import Ordinary
from penstock.proto import names
from penstock.proto.errors import BufferFull, ClientClosed, DeliveryFailed
from penstock.runtime.security.credentials import Credentials, Tls

from .cluster import Calls, check_timeout, local_host
from .cluster.choices import Choices, Selector
from .consume.consumer_config import new_client_id
from .inherited import Client
from .message import DeliverAt, Delivery, Message, MessageQueue, MessageView, SendReceipt
from .produce.accumulator import MORE
from .produce.buffer import Buffer
from .produce.config import ProducerConfig, config_of
from .produce.delivery import Shipping, TopicDelivery
from .produce.drafts import Draft, PartMaker
from .produce.health import BrokerHealth
from .produce.keys import EncodedTags, property_bytes
from .produce.parts import RECORD_COST, Kind, Part
from .produce.receipts import result_of, results_of
from .produce.sender import Deliveries, Sender
from .request.request_reply import RequestReply
from .signatures import taking
from .statistics import ProducerStatistics
from .telemetry import telemetry_of
from .trace.making import tracer_of
from .trace.sending import SendTrace

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0


class Producer(Client):
    """Sends messages; may be shared between threads.

    ``send`` waits for one message, ``send_async`` gives a future, ``produce`` is the fast path: it buffers, and
    ``flush`` tells what could not be delivered. Order within a queue is the order of the calls of a thread;
    messages with one sharding key go to one queue as long as the topic's broker groups stay the same.

    Every batch carries this producer's number, so a retry within the time-out stores once. Outcomes: a receipt
    (acknowledged), an error derived from ``Refused`` or ``Retryable`` (not stored), ``OutcomeUnknown``.

    ``on_delivery`` learns the outcome of everything that ``produce`` and ``produce_many`` accepted, a
    :class:`~penstock.client.Delivery` at a time, before :meth:`flush` counts it as settled. It is called in threads
    of the client, or in one that sends or closes: several at once, and while it runs others' outcomes wait. So it must
    not wait for this producer: no ``send``, ``flush`` or ``close``, and no ``produce`` that :meth:`would_block`; put
    what is to be sent again into a queue of your own. What it raises is logged.

    ``tls`` and ``credentials`` are for clusters that demand them; without both, the environment may name them
    (``PENSTOCK_TLS_CA_FILE``, ``PENSTOCK_CREDENTIALS_FILE``).

    Settings are the fields of :class:`~penstock.client.ProducerConfig`.
    """

    def __init__(
        self,
        /,
        nameservers: str | Sequence[str],
        *,
        group: str = "DEFAULT_PRODUCER",
        config: ProducerConfig | None = None,
        on_delivery: Callable[[Delivery], None] | None = None,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        **settings: Any,
    ) -> None:
        from .produce.encoding import Encoder  # loads the kernels, and with them the compiler

        self.group = names.check_group(group)
        self.config = config_of(config, on_delivery).replaced(settings)
        self._maker = PartMaker(self.config, telemetry_of(self.config.telemetry, self.group))
        self.producer_id = secrets.randbits(64) or 1
        self.client_id = new_client_id()  # as brokers call it
        self._calls = Calls.to(nameservers, tls=tls, credentials=credentials)
        host = local_host(self._calls.connections.addresses[0])
        tracer = tracer_of(self.config.trace, self.config.trace_topic, nameservers, tls, credentials)
        trace = None if tracer is None else SendTrace(tracer, self.group)
        self._buffer = Buffer(self.config.buffer_bytes)
        self._sender = Sender(self.config.linger_ms)
        self._shipping = Shipping(
            config=self.config,
            connections=self._calls.connections,
            directory=self._calls.directory,
            encoder=Encoder(self.producer_id, 0, host, tells_sizes=trace is not None),
            buffer=self._buffer,
            health=BrokerHealth(),
            wake=self._sender.wake,
            may_wait=self._sender.may_wait,
            on_delivery=on_delivery,
            trace=trace,
        )
        self._choices, self._plain_below = Choices(self._calls.directory), self._maker.plain_below
        self._deliveries = Deliveries(self._calls, self._shipping, self._sender.add)
        self._delivery, self._open = self._deliveries.get, self._deliveries.open
        self._tags = EncodedTags()
        self._request_reply = RequestReply(self._calls, self.client_id, self._sent, self._deadline)

    # Waiting for one message.

    def send(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        deliver_at: DeliverAt | None = None,
        delay_s: float | None = None,
        delay_level: int | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        wait: bool = True,
        message_id: str | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send one message and wait for its receipt; ``timeout_s`` covers all tries.

        ``deliver_at``: consumers get it then, and not before; a ``datetime`` with a time zone, or ms since 1970 UTC.
        ``delay_s``: so many seconds after this call, by this machine's clock. ``delay_level``: 1..18, so long after it
        was stored as the broker's ``messageDelayLevel`` says. At most one of the three.
        ``queue``: it goes there and nowhere else, whatever its sharding key. ``selector(queues, message)`` chooses one
        of the topic's queues, sorted; what it raises, this raises. ``wait=False``: acknowledged when the master has it,
        without waiting for its disk and its slaves, so that a failover may lose it. ``message_id``: its own.

        Raises:
            Refused, Retryable: not stored. OutcomeUnknown: it may be.
        """
        deadline = self._deadline(timeout_s)
        draft = Draft(topic, body, tag, keys, properties, sharding_key, deliver_at, delay_s, delay_level)
        draft.queue, draft.selector, draft.wait, draft.message_id = queue, selector, wait, message_id
        return self._sent(draft, deadline)

    @taking(send)
    def send_async(self, *message: Any, timeout_s: float | None = None, **options: Any) -> Future[SendReceipt]:
        """Start to send one message; the future ends as :meth:`send` would.

        Blocks only for the first message to a topic (its route is looked up) and while the buffer is full. A callback
        of the future is called by the thread that reads brokers' answers: it may start another send, and not wait for
        one.
        """
        delivery, part = self._taken(Kind.SEND, Draft(*message, **options), self._deadline(timeout_s))
        future = part.futures[0]
        delivery.join(part)
        return future

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages together and wait; the receipts are in their order.

        Those of one topic without sharding keys, up to the batch limits, go to one queue, all or none of them; those
        with a time for themselves. ``queue``, ``wait``: of all, as of :meth:`send`.

        Raises:
            DeliveryFailed: only some were stored. When all failed alike, that error itself.
        """
        deadline = self._deadline(timeout_s)
        messages = list(messages) if isinstance(messages, Iterable) else messages  # refused there
        futures = self.send_batch_async(messages, queue=queue, wait=wait, timeout_s=timeout_s)
        return results_of(list(zip(messages, futures, strict=True)), deadline)

    def send_batch_async(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> list[Future[SendReceipt]]:
        """Start to send messages together, as :meth:`send_batch`; the futures are in their order.

        Blocks as :meth:`send_async`.
        """
        drafts = Draft.batch(messages)
        deadline = self._deadline(timeout_s)
        for draft in drafts:
            draft.queue, draft.wait = queue, wait
        futures = self._deliveries.start_together(drafts, self._maker, self._choices, deadline)
        self._sender.wake()
        return futures

    def recall(self, topic: str, recall_handle: str, *, timeout_s: float | None = None) -> bool:
        """Take a message back before it is due. True if it was in time: nobody will get it; else it was due already.

        ``recall_handle``: of the receipt, from whatever producer. May be called again, and rides through a failover:
        once in time, it stays so until the message would have been due.

        Raises:
            InvalidArgument: no handle, or of another topic.
            Refused: not done, as TopicNotFound. Retryable: not done. OutcomeUnknown: perhaps it is done: call again.
        """
        return self._deliveries.recall(topic, recall_handle, self._deadline(timeout_s))

    @taking(RequestReply.request)
    def request(self, *message: Any, **options: Any) -> MessageView:
        return self._request_reply.request(*message, **options)

    @taking(RequestReply.reply)
    def reply(self, *reply: Any, **options: Any) -> SendReceipt:
        return self._request_reply.reply(*reply, **options)

    # The fast path.

    def produce(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer one message: it is sent within ``linger_ms``, and retried.

        ``queue``, ``selector``: as of :meth:`send`; such a message takes longer to buffer than others.
        :meth:`flush` and ``on_delivery`` tell its outcome. No message id is made for it: consumers see the offset
        message id instead.

        Raises:
            BufferFull: the buffer stayed full for ``timeout_s`` (default: the delivery time-out); not accepted.
            Refused: a bad argument, or, at the first message to a topic, a topic that does not exist.
            ClientClosed: another thread has closed the producer; not accepted.
        """
        # About 0.2 µs. No lock, object or future per message: accumulator.py says why that is safe.
        try:
            accumulator = self._open[topic]
        except (KeyError, TypeError):  # a new topic; or a list, perhaps, which is refused by name
            accumulator = None
        if accumulator is None:
            accumulator = self._delivery(Ordinary(topic), self._deadline(timeout_s)).open
        if timeout_s is not None:
            check_timeout(timeout_s)
        if (
            type(body) is not bytes
            or not 0 < (size := len(body)) < self._plain_below
            or queue is not None
            or selector is not None
        ):
            encoded = property_bytes(tag, keys, properties, sharding_key)
            place = None
            if queue is not None or selector is not None:
                message = Message(topic, body, tag, keys or (), properties or {}, sharding_key)
                place = self._choices.place(topic, queue, selector, message)
            deadline = time.monotonic() + self.config.delivery_timeout_s
            part = self._maker.produced(topic, body, encoded, sharding_key, deadline)
            part.bind(place)
            self._produce_unusual(topic, part, timeout_s)
            return
        cost = accumulator.cost + size + RECORD_COST
        encoded = None
        if keys is not None or properties is not None or sharding_key is not None:
            encoded = property_bytes(tag, keys, properties, sharding_key)
        elif tag is not None:
            encoded = self._tags[tag]
        if encoded is not None:
            cost += len(encoded)
        if cost > accumulator.limit:
            cost -= accumulator.cost
            self._make_room(topic, cost, timeout_s)
        if encoded is None:
            accumulator.append(body)
        else:
            accumulator.extend((MORE, body, encoded, sharding_key))
        accumulator.cost = cost
        if self._deliveries.is_closed:  # read behind the append: whoever closes after it takes the message out
            self._deliveries.known[Ordinary(topic)].check_taken(body, encoded, sharding_key)
        if self._sender.is_sleeping:
            self._sender.wake()

    @taking(produce)
    def send_oneway(self, *message: Any, timeout_s: float | None = None, **options: Any) -> None:
        """Send one message once; nobody learns its outcome."""
        delivery, part = self._taken(Kind.ONEWAY, Draft(*message, **options), self._deadline(timeout_s))
        delivery.join(part)

    def produce_many(
        self,
        topic: str,
        bodies: Any,
        tags: str | Sequence[str | None] | None = None,
        keys: str | Sequence[Any] | None = None,
        sharding_keys: Any = None,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Buffer many messages in one call, column by column: no Python per message.

        ``bodies``: a list of bytes, a NumPy array (``S``, or rows of ``uint8``), which may be written again as soon as
        this returns, or an Arrow binary array, whose memory must stay as it is until the outcome is told. ``tags``,
        ``keys`` and ``sharding_keys``: one for each message, or (not sharding keys) one text for all. ``queue``:
        of all, as of :meth:`send`.

        Raises:
            BufferFull: the buffer stayed full for ``timeout_s``; ``details["accepted"]`` messages were accepted.
            ClientClosed: another thread has closed the producer; ``details["accepted"]`` as above.
            Refused: a bad argument; nothing was accepted.
        """
        delivery = self._delivery(Ordinary(topic), self._deadline(timeout_s), sharding_keys is not None)
        wait_s = self._patience_s(timeout_s)
        place = None if queue is None else self._choices.place(topic, queue)
        accepted = 0
        for part in self._maker.columnar(topic, bodies, tags, keys, sharding_keys):
            part.bind(place)
            try:
                self._buffer.wait_for_room(part.cost, wait_s, self._sender.wake)
                part.deadline = time.monotonic() + self.config.delivery_timeout_s
                delivery.hold(part)
                delivery.enqueue([part])
            except (BufferFull, ClientClosed) as error:
                raise type(error)(error.message, accepted=accepted) from None
            accepted += part.count
            self._sender.wake()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything sent or produced so far is acknowledged or given up.

        Raises:
            DeliveryFailed: ``refused`` and ``unknown`` list what failed since the last flush. Messages that are
                still on their way after ``timeout_s`` (default: the delivery time-out) are listed as unknown, and
                their delivery goes on.
        """
        wait_s = check_timeout(self.config.delivery_timeout_s + 1.0 if timeout_s is None else timeout_s)
        if not self._wait_settled(wait_s):
            self._shipping.failures.add(self._buffer.late(wait_s))
        self._shipping.failures.raise_all()

    @property
    def pending(self) -> int:
        """Messages that are accepted and not yet acknowledged or given up."""
        return self._deliveries.pending

    def statistics(self) -> ProducerStatistics:
        """Counts since it was made, and latencies. Cheap, and never waits."""
        return self._deliveries.statistics()

    def would_block(self, topic: str, body_bytes: int) -> bool:
        """True if a message to ``topic`` would wait now, for its route or for room in the buffer."""
        accumulator = self._open.get(topic if isinstance(topic, str) else names.check_topic(topic))
        if accumulator is None:
            return True
        held = self._buffer.used + accumulator.cost
        return bool(held) and held + body_bytes + RECORD_COST > self._buffer.bytes_max

    def prepare(self, topic: str, timeout_s: float | None = None) -> None:
        """Look up the route of ``topic`` (creating it where allowed), so that the first send need not."""
        self._delivery(Ordinary(topic), self._deadline(timeout_s))

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then stop; whatever is left is given up. May be called again.

        A message that another thread sends meanwhile is acknowledged, or listed in what this raises, or its call
        raises ``ClientClosed``.

        Raises:
            DeliveryFailed: as :meth:`flush`, after everything is closed, with what was given up.
        """
        timeout_s = check_timeout(timeout_s)
        if not self._deliveries.begin_close():
            return
        try:
            self._request_reply.close()
            self._wait_settled(timeout_s)
        finally:
            self._sender.stop()
            for delivery in self._deliveries.all():
                delivery.give_up(ClientClosed("the producer was closed before it could be sent"))
            self._calls.close()
            if self._shipping.trace is not None:
                self._shipping.trace.tracer.close(timeout_s)
        self._shipping.failures.raise_all()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            self.close()
        except DeliveryFailed as failed:
            if error is None:
                raise
            log.warning("closed with undelivered messages %s", failed)

    # Inside.

    def _wait_settled(self, timeout_s: float) -> bool:
        for delivery in self._deliveries.all():
            delivery.seal()
        self._sender.wake()
        return self._buffer.wait_settled(timeout_s)

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + check_timeout(self.config.send_timeout_s if timeout_s is None else timeout_s)

    def _patience_s(self, timeout_s: float | None) -> float:
        """How long a message that is to be buffered may wait for room."""
        return check_timeout(self.config.delivery_timeout_s if timeout_s is None else timeout_s)

    def _taken(self, kind: Kind, draft: Draft, deadline: float) -> tuple[TopicDelivery, Part]:
        """The delivery that is to send the message, and a part of it alone, which is counted into the buffer."""
        delivery = self._delivery(draft.destination, deadline, draft.is_keyed)
        part = self._maker.one(kind, draft, deadline)
        part.bind(draft.place(self._choices))
        delivery.admit(part, deadline)
        return delivery, part

    def _sent(self, draft: Draft, deadline: float) -> SendReceipt:
        delivery, part = self._taken(Kind.SEND, draft, deadline)
        future = part.futures[0]
        batch = delivery.start_now(part)
        if batch is not None:
            delivery.transmit(batch, wait=True)
        return result_of(future, draft.topic, deadline)

    def _make_room(self, topic: str, cost: int, timeout_s: float | None) -> None:
        wait_s = self._patience_s(timeout_s)
        delivery = self._deliveries.known[Ordinary(topic)]
        delivery.seal()
        self._sender.wake()
        self._shipping.wait_for_room(cost, wait_s)
        delivery.open.limit = self._buffer.room(self.config.batch_bytes_max)

    def _produce_unusual(self, topic: str, part: Part, timeout_s: float | None) -> None:
        """A message that needs a part of its own: for a chosen queue, of other bytes, or compressed."""
        until = time.monotonic() + self._patience_s(timeout_s)
        delivery = self._delivery(Ordinary(topic), until)
        delivery.admit(part, until)
        delivery.enqueue([part])
        self._sender.wake()
