"""The producer for asyncio."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.formats.columns import Column
from penstock.formats.destination import Half
from penstock.proto.errors import OutcomeUnknown

from ..cluster import check_timeout
from ..message import FailedDelivery, Message, MessageView, SendReceipt
from ..produce.drafts import Draft
from ..produce.parts import RECORD_COST, Owner
from ..produce.receipts import RunReceipt
from ..producer import CLOSE_TIMEOUT_S, Producer
from ..signatures import taking
from ..transact.sessions import OnQuestion, ProducerSessions
from ..transact.transaction import half_of, own_properties
from .outcomes import Outcomes
from .turns import Turns, Twin, at_once, in_thread, to_the_end

T = TypeVar("T")


class AsyncProducer(Twin):
    """:class:`~penstock.client.Producer`, awaited. Nothing here blocks the event loop.

    Cancelling a send takes back nothing: the message may be sent all the same. ``on_delivery`` is called in threads
    of the client, as there, not by the event loop, but for :meth:`work_in_loop`.
    """

    _sync: Producer

    @taking(Producer.__init__)
    def __init__(self, *arguments: Any, **settings: Any) -> None:
        self._sync = Producer(*arguments, **settings)
        self._turns = Turns()
        self._outcomes: Outcomes | None = None

    @property
    def producer(self) -> Producer:
        """The producer underneath."""
        return self._sync

    @property
    def pending(self) -> int:
        """Messages that are accepted and not yet acknowledged or given up."""
        return self._sync.pending

    def work_in_loop(self) -> None:
        """Have the running event loop send, and read the receipts, and no threads of the client.

        For a program that sends many messages one by one and does little else in its loop: nothing else is woken for
        them. Call it before the first message. The loop must live until the producer is closed. It calls
        ``on_delivery``, and may call nothing of :attr:`producer` that waits: it would wait for itself.
        """
        loop = asyncio.get_running_loop()
        self._sync._calls.connections.data.work_in(loop)
        self._sync._sender.work_in(loop)

    @taking(Producer.send)
    async def send(self, *message: Any, **options: Any) -> SendReceipt:
        """Send one message and wait for its receipt; sends of many tasks share batches."""
        return await self.send_async(*message, **options)

    @taking(Producer.send_async)
    def send_async(
        self, topic: str, body: bytes, *rest: Any, timeout_s: float | None = None, **options: Any
    ) -> asyncio.Future[SendReceipt]:
        """Start to send one message; the future of the running loop ends as :meth:`send` would.

        Returns at once. A message that has to wait, for its topic's route or for room in the buffer, waits in a
        thread; the order of the calls is kept. Await some of the futures now and then: above 10,000 waiting messages
        it raises ``BufferFull``.
        """
        send = self._timed(functools.partial(self._sync.send_async, topic, body, *rest, **options), timeout_s)
        if not self._must_wait(topic, body):
            return self._outcomes_here().follow(send())
        return asyncio.ensure_future(self._outcome(self._turns.line_up(topic, send, self._blocking(topic, body))))

    @taking(Producer.send_oneway)
    def send_oneway(self, topic: str, body: bytes, *rest: Any, timeout_s: float | None = None, **options: Any) -> None:
        """Send one message once; nobody learns its outcome. Returns at once, as :meth:`send_async`."""
        send = self._timed(functools.partial(self._sync.send_oneway, topic, body, *rest, **options), timeout_s)
        if self._must_wait(topic, body):
            self._turns.line_up(topic, send, self._blocking(topic, body))
        else:
            send()

    send_batch = in_thread(Producer.send_batch)

    @taking(Producer.send_batch_async)
    def send_batch_async(
        self, messages: Sequence[Message], *, timeout_s: float | None = None, **options: Any
    ) -> list[asyncio.Future[SendReceipt]]:
        """Start to send messages together; the futures of the running loop are in their order.

        Returns at once. Where they have to wait, as of :meth:`send_async`, each is sent as there, and not together.
        """
        try:
            size = sum(len(each.body) + RECORD_COST for each in messages)
            topics = {each.topic for each in messages}
        except (AttributeError, TypeError):
            size, topics = 0, set()  # what is no message is refused below
        if any(self._turns.is_waiting(topic) or self._sync.would_block(topic, size) for topic in topics):
            return [self.send_async(**_fields_of(each), timeout_s=timeout_s, **options) for each in messages]
        outcomes = self._outcomes_here()
        return [outcomes.follow(each) for each in self._sync.send_batch_async(messages, timeout_s=timeout_s, **options)]

    def send_columns(
        self,
        topic: str,
        bodies: Column,
        properties: Column,
        on_end: Callable[[Future[RunReceipt | SendReceipt]], None],
        *,
        timeout_s: float | None = None,
    ) -> bool:
        """Start to send messages whose property strings are encoded already, to one queue, all or none of them.

        They are of no special type; nothing of them is checked again. The running loop calls ``on_end`` with what
        has ended: the place of the first, which the others follow, or the error of all. False: they would have to
        wait, as of :meth:`send_async`, or are not sent as they are (more than a batch, to be compressed, traced): send
        them otherwise.
        """
        deadline = self._sync._deadline(timeout_s)
        part = None if self._sync._shipping.trace else self._sync._maker.whole(bodies, properties, deadline)
        if part is None or self._turns.is_waiting(topic) or self._sync.would_block(topic, part.cost):
            return False
        self._outcomes_here().tell(self._sync._deliveries.start_whole(topic, part, deadline), on_end)
        return True

    def send_half(
        self,
        group: str,
        owner: Owner,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: Sequence[str] | str | None = None,
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        *,
        message_id: str,
        check_after_s: float | None = None,
        timeout_s: float | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Start to store one message that some producer of ``group`` decides about; its id is the transaction's.

        As :meth:`send_async`; ``owner`` is told where the half lies, before the future ends. Who decides asks brokers
        itself, and is asked by them: see :meth:`producer_sessions`.
        """
        own, destination = own_properties(message_id, check_after_s), Half(topic, group)
        draft = Draft(topic, body, tag, keys, properties, sharding_key, message_id=message_id)

        def start(timeout_s: float) -> Future[SendReceipt]:
            deadline = self._sync._deadline(timeout_s)
            part = half_of(draft, own, self._sync._maker, deadline)
            part.owner = owner
            delivery = self._sync._delivery(destination, deadline)
            delivery.admit(part, deadline)
            delivery.join(part)
            return part.futures[0]

        def blocks() -> bool:
            has_room = self._sync._buffer.has_room(_size(body) + RECORD_COST)
            return not has_room or destination not in self._sync._deliveries.known

        send = self._timed(start, timeout_s)
        if not self._turns.is_waiting(topic) and not blocks():
            return self._outcomes_here().follow(send())
        return asyncio.ensure_future(self._outcome(self._turns.line_up(topic, send, blocks)))

    def producer_sessions(self, on_question: OnQuestion) -> ProducerSessions:
        """What this client is known by as a producer of many groups, once it joins them; to be closed before it.

        ``on_question`` is called where receipts are read, by the event loop or in threads; it may not block.
        """
        return ProducerSessions(self._sync._calls, self._sync.client_id, on_question)

    recall = in_thread(Producer.recall)

    @taking(Producer.request)
    async def request(
        self,
        topic: str,
        body: bytes,
        tag: Any = None,
        keys: Any = None,
        properties: Any = None,
        sharding_key: Any = None,
        *,
        queue: Any = None,
        selector: Any = None,
        timeout_s: float | None = None,
    ) -> MessageView:
        """Send one message and wait for the reply to it; requests of many tasks share batches.

        Cancelling it takes back nothing: the message may be sent, and processed.
        """
        given_s = check_timeout(self._sync.config.send_timeout_s if timeout_s is None else timeout_s)
        with self._sync._request_reply.requests.begin(topic, given_s, is_followed=True) as request:
            own = request.properties(properties)
            request.on_sent(
                await self.send_async(
                    *(topic, body, tag, keys, own, sharding_key),
                    queue=queue,
                    selector=selector,
                    timeout_s=request.left_s,
                )
            )
            try:
                async with asyncio.timeout(request.left_s):
                    return await self._outcomes_here().follow(request.future)
            except TimeoutError:
                raise request.late() from None

    reply = in_thread(Producer.reply)

    @taking(Producer.produce)
    async def produce(
        self, topic: str, body: bytes, *rest: Any, timeout_s: float | None = None, **options: Any
    ) -> None:
        """Buffer one message; acknowledged by :meth:`flush`. Waits only while the buffer is full."""
        sync = self._sync
        if not self._must_wait(topic, body):
            sync.produce(topic, body, *rest, timeout_s=timeout_s, **options)
            return
        deadline_s = time.monotonic() + sync._patience_s(timeout_s)

        def produce() -> None:
            left_s = max(deadline_s - time.monotonic(), 0.0)
            if timeout_s is None and topic not in sync._open:  # a route is waited for no longer than by a send
                left_s = min(left_s, sync.config.send_timeout_s)
            sync.produce(topic, body, *rest, timeout_s=left_s, **options)

        await self._turns.line_up(topic, produce, self._blocking(topic, body))

    produce_many = in_thread(Producer.produce_many)
    statistics = at_once(Producer.statistics)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything so far is acknowledged or given up. Raises DeliveryFailed."""
        deadline_s = time.monotonic() + self._sync._patience_s(timeout_s)
        if waiting := await self._turns.settled(deadline_s - time.monotonic()):
            late = OutcomeUnknown(f"{waiting} calls wait for a route or for room yet: each tells its own outcome")
            self._sync._shipping.failures.add(FailedDelivery("", waiting, late))
        left_s = None if timeout_s is None else max(deadline_s - time.monotonic(), 0.0)
        await asyncio.to_thread(self._sync.flush, left_s)

    async def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then stop. May be called again. Raises DeliveryFailed."""
        deadline_s = time.monotonic() + check_timeout(timeout_s)
        await self._turns.settled(deadline_s - time.monotonic())
        await to_the_end(self._sync.close, max(deadline_s - time.monotonic(), 0.0))

    async def __aexit__(self, *outcome: Any) -> None:
        await self._turns.settled(CLOSE_TIMEOUT_S)
        await super().__aexit__(*outcome)

    def _must_wait(self, topic: str, body: bytes) -> bool:
        return self._sync.would_block(topic, _size(body)) or self._turns.is_waiting(topic)

    def _blocking(self, topic: str, body: bytes) -> Callable[[], bool]:
        """True from it if the message would still block when its turn comes."""
        return functools.partial(self._sync.would_block, topic, _size(body))

    def _timed(self, send: Callable[..., T], timeout_s: float | None) -> Callable[[], T]:
        """``send`` as a call whose time began now, whenever its turn comes."""
        deadline_s = self._sync._deadline(timeout_s)
        return lambda: send(timeout_s=max(deadline_s - time.monotonic(), 0.0))

    async def _outcome(self, taken: asyncio.Future[Future[SendReceipt]]) -> SendReceipt:
        # Shielded: who stops waiting for the receipt takes back nothing, and those behind it keep their turn.
        return await self._outcomes_here().follow(await asyncio.shield(taken))

    def _outcomes_here(self) -> Outcomes:
        """Those of the running loop, which may be another one than before."""
        loop = asyncio.get_running_loop()
        outcomes = self._outcomes
        if outcomes is None or outcomes.loop is not loop:
            outcomes = self._outcomes = Outcomes(loop)
        return outcomes


def _size(body: object) -> int:
    return len(body) if isinstance(body, (bytes, bytearray, memoryview)) else 0  # another is refused when it is sent


def _fields_of(message: Message) -> dict[str, Any]:
    return {name: getattr(message, name) for name in Message.__dataclass_fields__}
