"""Transactions: halves that clients send, their ends, and what brokers ask about those that nobody has ended.

The protocol has no groups of producers: all that send to a topic answer for each other. So the group is the topic, and
the gateway is a member of it as long as a producer of the topic is connected to it. Of very many topics it is a member
in turn: what brokers ask meanwhile they ask again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.client import MessageView, PenstockError, SendReceipt, TransactionProducer, TransactionState
from penstock.formats.record.batch import RecordBatch
from penstock.formats.record.properties import PREPARED_QUEUE_OFFSET, REAL_TOPIC
from penstock.gateway.v2.wire.definition_pb2 import Code, MessageType, TransactionResolution, TransactionSource
from penstock.gateway.v2.wire.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecoverOrphanedTransactionCommand,
    TelemetryCommand,
)
from penstock.proto.data_frames import Method
from penstock.proto.names import GROUP_LENGTH_MAX, HALF_TOPIC
from penstock.proto.wire.broker_pb2 import QueryMessagesRequest
from penstock.proto.wire.transactions_pb2 import COMMIT, ROLLBACK, EndReply, EndRequest, HalfRange

from ..brokers import Brokers
from ..callers import Caller
from ..clients import Client, Clients
from ..messages import Draft, deliver
from ..names import resource_of, topic_of
from ..routes import accepted_types
from ..status import Refusal, ok

log = logging.getLogger(__name__)

MEMBERS_MAX: Final = 64
"""Topics in whose transactions a gateway takes part at a time, each with connections of its own; of more in turn."""
TURNS_MAX: Final = 4
"""So many of those that wait for their turn have it at each sweep."""
LEFT_MAX: Final = 10_000
KNOWN_MAX: Final = 200_000
IDLE_S: Final = 60.0
ID_LENGTH_MAX: Final = 255
END_S: Final = 10.0
_FOUND_MAX: Final = 16
_RESOLUTIONS: Final = {TransactionResolution.COMMIT: COMMIT, TransactionResolution.ROLLBACK: ROLLBACK}

MakeProducer = Callable[[str, Callable[[MessageView], TransactionState]], TransactionProducer]
"""The producer for transactions of a group, with what answers brokers' questions."""


class Place(NamedTuple):
    """Where a half is."""

    topic: str
    broker_name: str
    offset: int


class _Member:
    """The gateway as a producer of one topic."""

    def __init__(self, making: asyncio.Task[TransactionProducer]) -> None:
        self.making = making
        self.users = 0
        self.used_s = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """True if nobody uses its producer, which is there."""
        return not self.users and self.making.done() and not self.has_failed

    @property
    def has_failed(self) -> bool:
        """True if its producer could not be made."""
        return self.making.done() and self.making.exception() is not None


class Transactions:
    """Event loop only, but for the questions of brokers."""

    def __init__(self, brokers: Brokers, clients: Clients, make_producer: MakeProducer) -> None:
        self._brokers = brokers
        self._clients = clients
        self._make_producer = make_producer
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, _Member] = {}  # by topic
        self._left: dict[str, None] = {}  # topics whose turn as a member comes again, the first of them first
        self._places: OrderedDict[str, Place] = OrderedDict()  # by message id
        self._turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, topic: str, draft: Draft, timeout_s: float) -> SendReceipt:
        """Store a half.

        Raises:
            PenstockError: not stored, or not known to be. Refusal: TOO_MANY_REQUESTS.
        """
        async with self._member(topic) as producer:
            receipt, halves = await self._brokers.in_thread(_sent, producer, topic, draft, timeout_s)
        for broker_name, offset in halves:
            self._know(draft.message_id, Place(topic, broker_name, offset))
        return receipt

    async def end(self, caller: Caller, request: EndTransactionRequest) -> EndTransactionResponse:
        """Decide as the client says; may be repeated.

        Without a resolution the half stays, and is asked about.

        Raises:
            Refusal: INVALID_TRANSACTION_ID, no such half, or decided otherwise. PenstockError: also no such topic.
        """
        topic = topic_of(request.topic, caller.namespace)
        transaction_id = request.transaction_id
        if not transaction_id.strip() or len(transaction_id) > ID_LENGTH_MAX:
            raise Refusal(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty, nor longer than 255 characters")
        resolution = _RESOLUTIONS.get(request.resolution)
        is_undecided = request.resolution == TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED
        if resolution is None and not is_undecided:
            raise Refusal(Code.BAD_REQUEST, f"resolution {request.resolution} is not known")
        timeout_s = max(min(caller.deadline_s, END_S) * 0.9, 0.1)
        place = self._places.get(transaction_id) or await self._found(topic, transaction_id, timeout_s)
        if place is None or place.topic != topic:
            await self._brokers.route(topic)  # the topic's absence is told before the half's
            raise Refusal(Code.INVALID_TRANSACTION_ID, "cannot found transaction data of this id")
        if is_undecided:
            return EndTransactionResponse(status=ok())
        is_answer = request.source == TransactionSource.SOURCE_SERVER_CHECK
        decision = EndRequest(
            group=group_of_topic(topic),
            halves=[HalfRange(offset=place.offset, count=1)],
            resolution=resolution,
            is_answer=is_answer,
        )
        await self._brokers.at_data_port(
            place.broker_name, Method.END, decision.SerializeToString(), EndReply.FromString, timeout_s
        )
        return EndTransactionResponse(status=ok())

    def on_producer(self, client: Client) -> None:
        """A producer has told its topics: the gateway answers for it from now on."""
        for topic in client.topics:
            if topic not in self._members:
                _in_background(self._tasks, self._join(topic))

    async def _join(self, topic: str, *, has_turn: bool = False) -> None:
        """Answer for a topic that takes transactions, or have it wait for its turn."""
        try:
            if MessageType.TRANSACTION not in accepted_types(await self._brokers.route(topic)):
                return
            has_place = topic in self._members or len(self._members) < MEMBERS_MAX
            if has_place or (has_turn and self._make_way()):
                async with self._member(topic):
                    return
        except (PenstockError, Refusal) as error:
            log.info("no transactions of topic=%s error=%s", topic, error)
        if len(self._left) < LEFT_MAX:
            self._left[topic] = None

    async def sweep(self) -> None:
        """Leave the groups of topics of which no producer is connected any more; let those have a turn that wait."""
        before = time.monotonic() - IDLE_S
        for topic, member in list(self._members.items()):
            if member.has_failed:  # whoever waited for it has gone before it failed
                del self._members[topic]
            elif member.is_idle and member.used_s < before and not self._clients.publishers(topic):
                self._leave(topic)
        self._left = {topic: None for topic in self._left if self._clients.publishers(topic)}
        for topic in list(self._left)[:TURNS_MAX]:
            if topic in self._left:  # a half may have had it join meanwhile
                del self._left[topic]
                await self._join(topic, has_turn=True)

    def _leave(self, topic: str) -> None:
        producer = self._members.pop(topic).making.result()
        _in_background(self._closing, self._brokers.in_thread(_closed, producer))

    def _make_way(self) -> bool:
        """Leave the topic that was used longest ago, until its turn comes again; False: all are being used."""
        idle = [(member.used_s, topic) for topic, member in self._members.items() if member.is_idle]
        if not idle:
            return False
        _, topic = min(idle)
        self._leave(topic)
        self._left[topic] = None
        return True

    async def close(self) -> None:
        """Leave all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        members, self._members = self._members, {}
        for member in members.values():
            await asyncio.gather(member.making, return_exceptions=True)
            if not member.has_failed:
                await self._brokers.in_thread(_closed, member.making.result())
        await asyncio.gather(*self._closing)

    @contextlib.asynccontextmanager
    async def _member(self, topic: str) -> AsyncIterator[TransactionProducer]:
        """The topic's producer, for the ``with`` block."""
        member = self._members.get(topic)
        if member is None:
            if len(self._members) >= MEMBERS_MAX and not self._make_way():
                raise Refusal(Code.TOO_MANY_REQUESTS, f"flow limit: halves of {MEMBERS_MAX} topics are being stored")
            member = self._members[topic] = _Member(asyncio.create_task(self._made(topic)))
            self._left.pop(topic, None)
        member.users += 1
        try:
            try:
                producer = await asyncio.shield(member.making)
            except Exception:
                if self._members.get(topic) is member:
                    del self._members[topic]
                raise
            yield producer
        finally:
            member.users -= 1
            member.used_s = time.monotonic()

    async def _made(self, topic: str) -> TransactionProducer:
        return await self._brokers.in_thread(self._make_producer, group_of_topic(topic), partial(self._on_check, topic))

    def _on_check(self, topic: str, message: MessageView) -> TransactionState:
        """A broker asks. In a thread of the client; the answer comes as a call of whoever is asked."""
        self._loop.call_soon_threadsafe(self._ask, topic, message)
        return TransactionState.UNKNOWN

    def _ask(self, topic: str, message: MessageView) -> None:
        self._know(message.message_id, _place_of(message, topic))
        publishers = self._clients.publishers(topic)
        self._turn += 1
        for step in range(len(publishers)):
            client = publishers[(self._turn + step) % len(publishers)]
            command = RecoverOrphanedTransactionCommand(transaction_id=message.message_id)
            deliver(command.message, message, resource_of(topic, client.namespace), client.namespace)
            if client.push(TelemetryCommand(recover_orphaned_transaction_command=command)):
                return

    def _know(self, message_id: str, place: Place) -> None:
        self._places[message_id] = place
        self._places.move_to_end(message_id)
        if len(self._places) > KNOWN_MAX:
            self._places.popitem(last=False)

    async def _found(self, topic: str, transaction_id: str, timeout_s: float) -> Place | None:
        """The half by the brokers' index: another gateway has stored it, or this one before it was started again."""
        request = QueryMessagesRequest(
            topic=HALF_TOPIC, key=transaction_id, max_count=_FOUND_MAX, end_timestamp_ms=time.time_ns() // 1_000_000
        )
        answers, _ = await self._brokers.in_thread(
            self._brokers.calls.everywhere, "QueryMessages", request, min(timeout_s, END_S)
        )
        for broker_name, answer in answers.items():
            for record in answer.records:
                message = MessageView(RecordBatch(record), 0, broker_name)
                if message.message_id == transaction_id and message.all_properties.get(REAL_TOPIC) == topic:
                    place = _place_of(message, topic)
                    self._know(transaction_id, place)
                    return place
        return None


def group_of_topic(topic: str) -> str:
    """The group of all producers of a topic; of a name that is too long for one, a digest."""
    if len(topic) <= GROUP_LENGTH_MAX:
        return topic
    return hashlib.blake2b(topic.encode(), digest_size=16).hexdigest()


def _in_background(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


def _place_of(message: MessageView, topic: str) -> Place:
    """Where the half is that this record stores, perhaps anew."""
    first = message.all_properties.get(PREPARED_QUEUE_OFFSET, "")
    offset = int(first) if first.isascii() and first.isdecimal() and len(first) <= 18 else message.queue_offset
    return Place(topic, message.broker_name, offset)


def _sent(
    producer: TransactionProducer, topic: str, draft: Draft, timeout_s: float
) -> tuple[SendReceipt, list[tuple[str, int]]]:
    made = producer.transaction(timeout_s=timeout_s, check_after_s=draft.check_after_s, transaction_id=draft.message_id)
    try:
        receipt = made.send(
            *(topic, draft.body, draft.tag, draft.keys, draft.properties, draft.sharding_key),
            message_id=draft.message_id,
            timeout_s=timeout_s,
        )
        return receipt, made.halves
    finally:
        made.leave()


def _closed(producer: TransactionProducer) -> None:
    try:
        producer.close(timeout_s=1.0)
    except PenstockError as error:
        log.info("producer of transactions closed group=%s error=%s", producer.group, error)
