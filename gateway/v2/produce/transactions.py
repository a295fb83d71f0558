"""Transactions: halves that clients send, their ends, and what brokers ask about those that nobody has ended.

The protocol has no groups of producers: all that send to a topic answer for each other. So the group is the topic, and
the gateway is a member of it as long as a producer of the topic is connected to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.client import MessageView, PenstockError, SendReceipt
from penstock.client.aio import AsyncProducer
from penstock.formats.record.properties import PREPARED_QUEUE_OFFSET, REAL_TOPIC
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code, MessageType, TransactionResolution, TransactionSource
from penstock.proto.data_frames import Method
from penstock.proto.errors import LimitReached
from penstock.proto.names import GROUP_LENGTH_MAX, HALF_TOPIC
from penstock.proto.wire.broker_pb2 import QueryMessagesRequest
from penstock.proto.wire.transactions_pb2 import COMMIT, ROLLBACK, EndReply, EndRequest, HalfRange
from penstock.runtime.turns import Turns

from ..brokers import Brokers
from ..callers import Caller
from ..clients import Client, Clients
from ..messages import Draft, deliver
from ..names import resource_of, topic_of
from ..routes import accepted_types
from ..status import Refusal, ok

log = logging.getLogger(__name__)

MISSED_MAX: Final = 10_000
"""Topics whose groups are to be joined when something is known of them."""
QUESTIONS_MAX: Final = 64
"""Questions of brokers that wait, each about many halves; further ones are dropped, and asked again."""
KNOWN_MAX: Final = 200_000
IDLE_S: Final = 60.0
ID_LENGTH_MAX: Final = 255
_FOUND_MAX: Final = 16
_RESOLUTIONS: Final = {TransactionResolution.COMMIT: COMMIT, TransactionResolution.ROLLBACK: ROLLBACK}

Halves = Iterator[tuple[int, MessageView]]
"""What a broker asks about, and the offsets by which it is decided."""


class Place(NamedTuple):
    """Where a half is; ``epoch``: of the log that its offset is of, 0: nobody knows."""

    topic: str
    broker_name: str
    offset: int
    epoch: int = 0


class _Stored:
    """Learns where a half lies."""

    def __init__(self, topic: str) -> None:
        self.place = Place(topic, "", -1)

    def on_stored(self, broker_name: str, first: int, count: int, epoch: int) -> None:
        self.place = Place(self.place.topic, broker_name, first, epoch)

    def on_given_up(self, count: int, error: PenstockError) -> None:
        """Nowhere, or it is not known: the half's future says so."""


class Transactions:
    """Event loop only, but for the questions of brokers."""

    def __init__(self, brokers: Brokers, clients: Clients, producer: AsyncProducer) -> None:
        self._brokers = brokers
        self._clients = clients
        self._producer = producer
        self._loop = asyncio.get_running_loop()
        self._sessions = producer.producer_sessions(self._on_question)
        self._used: dict[str, float] = {}  # topics of whose group the gateway is a member, and when a half came last
        self._missed: dict[str, None] = {}  # topics of producers of which nothing was known yet
        self._places: OrderedDict[str, Place] = OrderedDict()  # by message id
        self._turn = 0
        self._turns = Turns()
        self._questions: asyncio.Queue[tuple[str, Halves]] = asyncio.Queue(QUESTIONS_MAX)
        self._tasks: set[asyncio.Task[bool]] = set()

    async def send(self, topic: str, draft: Draft, timeout_s: float) -> SendReceipt:
        """Store a half. Raises PenstockError: not known to be stored. LimitReached: nobody could be asked about it."""
        self._be_member(topic)
        stored = _Stored(topic)
        receipt = await self._producer.send_half(
            *(group_of_topic(topic), stored, topic, draft.body),
            *(draft.tag, draft.keys, draft.properties, draft.sharding_key),
            message_id=draft.message_id,
            check_after_s=draft.check_after_s,
            timeout_s=timeout_s,
        )
        self._know(draft.message_id, stored.place)
        return receipt

    async def end(self, caller: Caller, request: wire.EndTransactionRequest) -> wire.EndTransactionResponse:
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
        place = self._places.get(transaction_id) or await self._found(topic, transaction_id, caller.timeout_s)
        if place is None or place.topic != topic:
            await self._brokers.route(topic)  # the topic's absence is told before the half's
            raise Refusal(Code.INVALID_TRANSACTION_ID, "cannot found transaction data of this id")
        if is_undecided:
            return wire.EndTransactionResponse(status=ok())
        is_answer = request.source == TransactionSource.SOURCE_SERVER_CHECK
        decision = EndRequest(
            group=group_of_topic(topic),
            halves=[HalfRange(offset=place.offset, count=1, epoch=place.epoch)],
            resolution=resolution,
            is_answer=is_answer,
        )
        await self._brokers.at_data_port(
            place.broker_name, Method.END, decision.SerializeToString(), EndReply.FromString, caller.timeout_s
        )
        return wire.EndTransactionResponse(status=ok())

    def on_producer(self, client: Client) -> None:
        """A producer has told its topics: the gateway answers for it from now on."""
        for topic in client.topics:
            if topic not in self._used:
                task = asyncio.create_task(self._join(topic))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _join(self, topic: str) -> bool:
        """Answer for a topic that takes transactions. False: nothing is known of topics now, it is missed."""
        try:
            if MessageType.TRANSACTION in accepted_types(await self._brokers.route(topic)):
                self._be_member(topic)
        except LimitReached as error:
            log.warning("brokers cannot ask about transactions here topic=%s error=%s", topic, error)
        except PenstockError as error:
            if error.retryable and len(self._missed) < MISSED_MAX:
                self._missed[topic] = None
                return False
        return True

    def _be_member(self, topic: str) -> None:
        """Be a producer of the topic's group for a while. Raises LimitReached."""
        if topic not in self._used:
            self._sessions.join(group_of_topic(topic))
        self._used[topic] = time.monotonic()

    async def sweep(self) -> None:
        """Leave the groups of topics of which no producer is connected any more; join those that were missed."""
        before = time.monotonic() - IDLE_S
        for topic, used_s in list(self._used.items()):
            if used_s < before and not self._clients.publishers(topic):
                del self._used[topic]
                self._sessions.leave(group_of_topic(topic))
        while self._missed:
            topic = next(iter(self._missed))
            del self._missed[topic]
            if self._clients.publishers(topic) and not await self._join(topic):
                break

    async def run(self) -> None:
        """Have clients asked what brokers ask, until cancelled."""
        while True:
            broker_name, halves = await self._questions.get()
            try:
                for offset, message in halves:
                    await self._turns.have()
                    self._ask(Place(message.topic, broker_name, offset), message)
                    await asyncio.sleep(0)  # its client may take it, before another comes
            except Exception:
                log.exception("question about transactions not passed on broker=%s", broker_name)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._brokers.in_thread(self._sessions.close)

    def _on_question(self, broker_name: str, halves: Halves) -> None:
        """A broker asks; in any thread. The answer comes as a call of whoever is asked."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the gateway with it
            self._loop.call_soon_threadsafe(self._take, broker_name, halves)

    def _take(self, broker_name: str, halves: Halves) -> None:
        try:
            self._questions.put_nowait((broker_name, halves))
        except asyncio.QueueFull:
            log.warning("question about transactions dropped, %d wait: it will be asked again", QUESTIONS_MAX)

    def _ask(self, place: Place, message: MessageView) -> None:
        topic = place.topic
        self._know(message.message_id, place)
        publishers = self._clients.publishers(topic)
        self._turn += 1
        for step in range(len(publishers)):
            client = publishers[(self._turn + step) % len(publishers)]
            command = wire.RecoverOrphanedTransactionCommand(transaction_id=message.message_id)
            deliver(command.message, message, resource_of(topic, client.namespace), client.namespace)
            if client.push(wire.TelemetryCommand(recover_orphaned_transaction_command=command)):
                return

    def _know(self, message_id: str, place: Place) -> None:
        self._places[message_id] = place
        self._places.move_to_end(message_id)
        if len(self._places) > KNOWN_MAX:
            self._places.popitem(last=False)

    async def _found(self, topic: str, transaction_id: str, timeout_s: float) -> Place | None:
        """The half by the brokers' index: another gateway has stored it, or this one before it was started again."""
        request = QueryMessagesRequest(topic=HALF_TOPIC, key=transaction_id, max_count=_FOUND_MAX)
        everywhere = self._brokers.calls.everywhere
        answers, _ = await self._brokers.in_thread(everywhere, "QueryMessages", request, timeout_s)
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


def _place_of(message: MessageView, topic: str) -> Place:
    """Where the half is that this record stores, perhaps anew."""
    first = message.all_properties.get(PREPARED_QUEUE_OFFSET, "")
    offset = int(first) if first.isascii() and first.isdecimal() and len(first) <= 18 else message.queue_offset
    return Place(topic, message.broker_name, offset)
