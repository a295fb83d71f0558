"""SendMessage and RecallMessage. Messages of all clients share batches; one that is tried again is stored once.

Most calls of SendMessage are taken by :mod:`.together`; here are those of which something has to be looked at closely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from penstock.client import Message, PenstockError, SendReceipt, SendStatus
from penstock.client.aio import AsyncProducer
from penstock.formats.recall_handle import RecallHandle
from penstock.formats.record.compression import Packed
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import NORMAL, TRANSACTION, Code, MessageType, Status
from penstock.proto.errors import InvalidArgument
from penstock.proto.names import DLQ_PREFIX, PERM_WRITE, RETRY_PREFIX
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from ..brokers import Brokers
from ..callers import Caller
from ..clients import Clients
from ..messages import Draft, draft_of
from ..names import topic_of
from ..routes import accepted_types
from ..status import Refusal, merged, named, ok, status_of
from .plain import MESSAGES_MAX
from .transactions import Transactions

TOPICS_MAX: Final = 10_000
RECALL_HANDLE_MAX: Final = 4096

STORED: Final = {
    SendStatus.SEND_OK: named(Code.OK),
    SendStatus.FLUSH_DISK_TIMEOUT: named(Code.MASTER_PERSISTENCE_TIMEOUT),
    SendStatus.FLUSH_SLAVE_TIMEOUT: named(Code.SLAVE_PERSISTENCE_TIMEOUT),
    SendStatus.SLAVE_NOT_AVAILABLE: named(Code.HA_NOT_AVAILABLE),
}


class Sending:
    """Event loop only."""

    def __init__(self, brokers: Brokers, producer: AsyncProducer, transactions: Transactions, clients: Clients) -> None:
        self._brokers = brokers
        self._producer = producer
        self._transactions = transactions
        self._clients = clients
        self._taken: dict[str, tuple[TopicRoute, frozenset[int]]] = {}  # by topic: what it takes by its newest route

    async def send(self, caller: Caller, request: wire.SendMessageRequest) -> wire.SendMessageResponse:
        """An entry for each message, in their order; nothing is sent where one of them is refused.

        Raises:
            Refusal, PenstockError: see :func:`.messages.draft_of`; no such topic, or of another type.
        """
        if not request.messages:
            raise Refusal(Code.MESSAGE_CORRUPTED, "no message to send")
        if len(request.messages) > MESSAGES_MAX:
            raise Refusal(Code.MESSAGE_CORRUPTED, f"{len(request.messages)} messages: at most {MESSAGES_MAX} at once")
        topics = {topic_of(message.topic, caller.namespace) for message in request.messages}
        if len(topics) > 1:
            raise Refusal(Code.MESSAGE_CORRUPTED, "topic in message is not same")
        topic = topics.pop()
        drafts = [draft_of(message, caller) for message in request.messages]
        self._check_types(topic, await self._brokers.route(topic), drafts)
        self._clients.publishes(self._clients.heard(caller), topic)
        timeout_s = caller.timeout_s
        # No task for each message: those of a request are taken in their order, and end together.
        waiting = self._together(topic, drafts, timeout_s) or [
            self._started(topic, draft, timeout_s) for draft in drafts
        ]
        outcomes: list[SendReceipt | BaseException]
        if len(waiting) == 1:
            outcomes = [await _outcome(waiting[0])]
        else:
            outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        return response([entry(draft.message_id, *each) for draft, *each in zip(drafts, outcomes, strict=True)])

    def _check_types(self, topic: str, route: TopicRoute, drafts: Sequence[Draft]) -> None:
        """Make sure that the topic takes these. Raises Refusal."""
        taken = self.types_of(topic, route)
        for draft in drafts:
            if draft.type not in taken:
                expected = "|".join(MessageType.Name(each) for each in accepted_types(route))
                raise Refusal(
                    Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                    f"TopicMessageType validate failed, the expected type is {expected}, but actual type is "
                    f"{MessageType.Name(draft.type)}",
                )

    def types_of(self, topic: str, route: TopicRoute) -> frozenset[int]:
        """The types of messages that the topic takes. Raises Refusal: none."""
        known = self._taken.get(topic)
        if known is None or known[0] is not route:
            if len(self._taken) >= TOPICS_MAX:
                self._taken.clear()
            known = self._taken[topic] = route, _taken_by(topic, route)
        return known[1]

    def _together(self, topic: str, drafts: Sequence[Draft], timeout_s: float) -> list[asyncio.Future[SendReceipt]]:
        """Several messages that may go to any queue are on their way, to one, as RocketMQ's batches are; else none."""
        if len(drafts) == 1 or any(draft.type != NORMAL or isinstance(draft.body, Packed) for draft in drafts):
            return []  # whether a body is packed is said of a whole batch
        messages = [
            Message(topic, draft.body, draft.tag, draft.keys, draft.properties, message_id=draft.message_id)
            for draft in drafts
        ]
        try:
            return self._producer.send_batch_async(messages, timeout_s=timeout_s)
        except PenstockError:  # one of them is refused, and none is taken: alone, each has its own answer
            return []

    def _started(self, topic: str, draft: Draft, timeout_s: float) -> asyncio.Future[SendReceipt]:
        """The message is on its way; the future ends with its receipt, or what went wrong."""
        if draft.type == TRANSACTION:
            return asyncio.ensure_future(self._transactions.send(topic, draft, timeout_s))
        try:
            return self._producer.send_async(
                *(topic, draft.body, draft.tag, draft.keys, draft.properties, draft.sharding_key),
                deliver_at=draft.deliver_at_ms,
                message_id=draft.message_id,
                timeout_s=timeout_s,
            )
        except PenstockError as error:
            failed: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            return failed

    async def recall(self, caller: Caller, request: wire.RecallMessageRequest) -> wire.RecallMessageResponse:
        """Take a delayed message back before it is due.

        Raises:
            Refusal: no handle of that topic, a topic of another type, or the message was due already.
        """
        topic = topic_of(request.topic, caller.namespace)
        route = await self._brokers.route(topic)
        if MessageType.DELAY not in accepted_types(route):
            raise Refusal(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"topic {topic} takes no messages that could be recalled"
            )
        handle = request.recall_handle
        if not handle.strip() or len(handle) > RECALL_HANDLE_MAX:
            raise Refusal(Code.BAD_REQUEST, "recall handle is invalid")
        try:
            said = RecallHandle.decode(handle)
            if not any(each.broker_name == said.broker_name for each in (*route.queues, *route.absent)):
                raise InvalidArgument(f"topic {topic} is not at broker {said.broker_name[:64]!r}")
            in_time = await self._producer.recall(topic, handle, timeout_s=caller.timeout_s)
        except InvalidArgument as error:
            raise Refusal(Code.BAD_REQUEST, f"recall handle is invalid: {error.message}") from None
        if not in_time:
            raise Refusal(Code.BAD_REQUEST, "recall failed, timestamp invalid: the message was due already")
        return wire.RecallMessageResponse(status=ok(), message_id=said.unique_key)


def _taken_by(topic: str, route: TopicRoute) -> frozenset[int]:
    if not any(each.perm & PERM_WRITE and each.write_queues for each in (*route.queues, *route.absent)):
        raise Refusal(Code.FORBIDDEN, f"no writable queue: topic {topic}")
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return frozenset(MessageType.values())
    return frozenset(accepted_types(route))


async def _outcome(sent: asyncio.Future[SendReceipt]) -> SendReceipt | BaseException:
    try:
        return await sent
    except (PenstockError, Refusal) as error:
        return error


def response(entries: Sequence[wire.SendResultEntry]) -> wire.SendMessageResponse:
    return wire.SendMessageResponse(status=merged(entry.status for entry in entries), entries=entries)


def entry(message_id: str, outcome: SendReceipt | BaseException) -> wire.SendResultEntry:
    if isinstance(outcome, SendReceipt):
        return wire.SendResultEntry(
            status=STORED[outcome.status],
            message_id=message_id,
            transaction_id=message_id,
            offset=max(outcome.queue_offset, 0),
            recall_handle=outcome.recall_handle,
        )
    made = wire.SendResultEntry(message_id=message_id, transaction_id=message_id)
    if isinstance(outcome, InvalidArgument):  # our own limit of all properties together
        made.status.CopyFrom(Status(code=Code.MESSAGE_PROPERTIES_TOO_LARGE, message=outcome.message))
    elif isinstance(outcome, PenstockError | Refusal):
        made.status.CopyFrom(status_of(outcome, "SendMessage"))
    else:
        raise outcome
    return made
