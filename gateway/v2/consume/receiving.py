"""ReceiveMessage: a long poll at one broker group, as a stream that begins with a status and ends with the time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.client import InvalidArgument, PenstockError
from penstock.client.cluster import Sql, Subscription, master_of, parse_subscription
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.v2.wire.definition_pb2 import Code, FilterExpression, FilterType, Status
from penstock.gateway.v2.wire.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.names import PERM_READ
from penstock.proto.receipts import Receipt
from penstock.proto.wire.common_pb2 import TopicQueues
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.proto.wire.pop_pb2 import ReceiveHeader, ReceiveReply
from penstock.runtime.turns import Turns

from ..brokers import Brokers
from ..callers import Caller
from ..clients import REQUEST_S, Clients
from ..messages import span_ms, timestamp
from ..names import group_of, topic_of
from ..status import Refusal, ok
from .finishing import INVISIBLE_MS_MAX, Finishing
from .giving import Given, Giving
from .handles import changed
from .renewal import INVISIBLE_MS, Renewal

log = logging.getLogger(__name__)

BATCH_MAX: Final = 32
INVISIBLE_MS_MIN: Final = 10_000
POLL_MS_MAX: Final = 20_000
ATTEMPT_ID_LENGTH_MAX: Final = 128
BYTES_MAX: Final = 16 * 1024 * 1024
MARGIN_S: Final = 0.25
"""An answer is on its way so long before its caller gives up."""
LAST_S: Final = 0.1
"""And so long before, where the broker does not answer in time, or refuses all the while."""
SMALL_TOPIC: Final = 100_000
"""A new group begins with the oldest message of a broker group that has lost none, and has no more than these."""
_LONGER_S: Final = 0.005
_BEGINS: Final = 10_000
_ATTEMPTS: Final = 4096

Answers = AsyncGenerator[ReceiveMessageResponse | bytes | Callable[[], None], None]


class _Wish(NamedTuple):
    """What a client wants to receive."""

    group: str
    subscription: Subscription
    batch: int
    invisible_ms: int
    wait_s: float
    deadline_s: float
    """When the client gives up, by the loop's clock."""
    attempt_id: str


class Receiving:
    """Event loop only."""

    def __init__(self, brokers: Brokers, clients: Clients, finishing: Finishing, renewal: Renewal) -> None:
        self._brokers = brokers
        self._clients = clients
        self._finishing = finishing
        self._renewal = renewal
        self._begins: OrderedDict[tuple[str, str, str], Any] = OrderedDict()  # by group, topic, broker name
        # What push consumers' attempts were answered with last, by client, group, topic, broker name and queue.
        self._attempts: OrderedDict[tuple[str, str, str, str, int], tuple[str, list[Receipt]]] = OrderedDict()
        self._first = 0  # of the broker groups that come in question, moves on
        self._turns = Turns()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def receive(self, caller: Caller, request: ReceiveMessageRequest) -> Answers:
        """The answers; messages whose client goes before it has them all are given to others soon.

        Raises:
            Refusal, PenstockError.
        """
        client = self._clients.heard(caller)
        wish = _wish(caller, request, client.request_s)
        route = await self._brokers.served_route(wish.subscription.topic)
        broker_name = self._broker_of(route, request.message_queue.broker.name)
        place = caller.client_id, wish.group, route.topic, broker_name, request.message_queue.id
        await self._give_back_answered(place, wish)
        received: list[Given] = []
        is_told = False
        try:
            await self._poll(caller, request, wish, broker_name, received)
            if request.auto_renew:
                for receipt in _receipts_of(received):
                    self._renewal.hold(receipt, caller.client_id)
            status = ok() if received else Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
            yield ReceiveMessageResponse(status=status)
            for given in received:
                yield given.content
            yield ReceiveMessageResponse(delivery_timestamp=timestamp(time.time_ns() // 1_000_000))
            if received and request.auto_renew:  # they are renewed as long as the client lives, if it has them
                self._answered(place, wish.attempt_id, _receipts_of(received))
                yield partial(self._take_back, broker_name, wish.group, _receipts_of(received))
            is_told = True
        finally:
            if received and not is_told:
                self._take_back(broker_name, wish.group, _receipts_of(received))

    def _answered(self, place: tuple[str, str, str, str, int], attempt_id: str, receipts: list[Receipt]) -> None:
        if attempt_id:
            self._attempts[place] = attempt_id, receipts
            if len(self._attempts) > _ATTEMPTS:
                self._attempts.popitem(last=False)

    async def _give_back_answered(self, place: tuple[str, str, str, str, int], wish: _Wish) -> None:
        """Have come again what this attempt was answered with before.

        Clients make an attempt again only where the answer failed at their end, behind the connection that has shown
        it came: nobody would acknowledge these, and they would be renewed as long as the client lives. A broker that
        does not take them leaves half of the time to the receive.
        """
        answered, receipts = self._attempts.pop(place, ("", []))
        if wish.attempt_id and answered == wish.attempt_id:
            for receipt in receipts:
                self._renewal.drop(receipt)
            left_s = wish.deadline_s - asyncio.get_running_loop().time()
            await self._given_back(place[3], wish.group, receipts, min(REQUEST_S, left_s / 2))

    def _take_back(self, broker_name: str, group: str, receipts: list[Receipt]) -> None:
        """The client has not got these: others are to get them soon."""
        for receipt in receipts:
            self._renewal.drop(receipt)
        self._in_background(self._given_back(broker_name, group, receipts))

    async def _poll(
        self,
        caller: Caller,
        request: ReceiveMessageRequest,
        wish: _Wish,
        broker_name: str,
        received: list[Given],
    ) -> None:
        """Receive into ``received``; return when there is something, or not before the time is over."""
        topic = wish.subscription.topic
        header = ReceiveHeader(
            group=wish.group,
            client_id=caller.client_id,
            max_messages=wish.batch,
            max_bytes=BYTES_MAX,
            invisible_ms=wish.invisible_ms,
            begin=await self._begin(wish.group, topic, broker_name),
            attempt_id=wish.attempt_id,
        )
        header.subscriptions.append(ReceiveHeader.Subscription(topic=topic, filter=wish.subscription.filter))
        loop = asyncio.get_running_loop()
        until = min(loop.time() + wish.wait_s, wish.deadline_s - MARGIN_S)
        while not received:
            left_s = until - loop.time()
            if left_s < 0 and header.max_wait_ms:
                break
            header.max_wait_ms = max(int(left_s * 1000), 0)
            latest_s = wish.deadline_s - LAST_S - loop.time()
            answer = await self._received(broker_name, header, min(max(left_s, 0.0) + REQUEST_S, latest_s))
            try:
                await self._take(caller, request, wish, broker_name, answer, received)
            except asyncio.CancelledError:
                received.clear()
                self._give_back_all(broker_name, wish.group, answer)
                raise
            if not header.max_wait_ms:
                break
        if not received and (left_s := until - loop.time()) > -_LONGER_S:
            await asyncio.sleep(left_s + _LONGER_S)  # an empty answer never comes before the time that was asked for

    async def _received(self, broker_name: str, header: ReceiveHeader, timeout_s: float) -> bytes:
        """The answer; what comes when nobody waits for it any more is given back."""
        loop = asyncio.get_running_loop()

        def late(answer: bytes) -> None:
            if not len(answer):  # it was ended
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._give_back_all, broker_name, header.group, bytes(answer))

        content = header.SerializeToString()
        try:
            return await self._brokers.at_data_port(broker_name, Method.RECEIVE, content, bytes, timeout_s, late=late)
        except InvalidArgument as error:
            raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None

    async def _take(
        self,
        caller: Caller,
        request: ReceiveMessageRequest,
        wish: _Wish,
        broker_name: str,
        answer: bytes,
        received: list[Given],
    ) -> None:
        giving = Giving(request.message_queue.topic, caller.namespace, wish.subscription.tags, wish.invisible_ms)
        for first, batch, redelivered in _batches(wish.group, broker_name, answer):
            await self._turns.have()
            unwanted: list[Receipt] = []  # of another tag with the same hash
            for given in giving.given(batch, first, redelivered, unwanted):
                if given.receipts:
                    received.append(given)
                if unwanted:
                    self._finishing.finish(unwanted)
                    unwanted.clear()
                await self._turns.have()

    def _broker_of(self, route: TopicRoute, wanted: str) -> str:
        """The broker group that was named; of an unknown name any, each in turn."""
        with_master = {shard.broker_name for shard in route.shards if master_of(shard)}
        readable = [
            each.broker_name for each in route.queues if each.perm & PERM_READ and each.broker_name in with_master
        ]
        if wanted in readable:
            return wanted
        if not readable:
            raise Refusal(Code.FORBIDDEN, f"no readable queue: topic {route.topic}")
        self._first += 1
        return readable[self._first % len(readable)]

    async def _begin(self, group: str, topic: str, broker_name: str) -> Any:
        """Where a group begins that has committed nothing: see :data:`SMALL_TOPIC`."""
        key = group, topic, broker_name
        known = self._begins.get(key)
        if known is None:
            known = ReceiveHeader.LAST
            route = await self._brokers.route(topic)
            count = next((each.read_queues for each in route.queues if each.broker_name == broker_name), 0)
            asked = TopicQueues(topic=topic, queue_ids=range(count))
            ranges = (await self._brokers.at_master(broker_name, "QueryQueueRanges", asked, REQUEST_S)).ranges
            is_whole = all(each.min_offset <= 0 for each in ranges)
            if is_whole and sum(each.max_offset for each in ranges) <= SMALL_TOPIC:
                known = ReceiveHeader.FIRST
            self._begins[key] = known
            if len(self._begins) > _BEGINS:
                self._begins.popitem(last=False)
        return known

    def _give_back_all(self, broker_name: str, group: str, answer: bytes) -> None:
        """Have what came for nobody come again, but not messages that are damaged."""
        receipts: list[Receipt] = []
        try:
            for first, batch, _ in _batches(group, broker_name, answer):
                receipts += [first._replace(offset=offset) for offset in batch.values("queue_offset")]
        except PenstockError as error:
            log.warning("an answer that came late is not understood broker=%s error=%s", broker_name, error.message)
        if receipts:
            self._in_background(self._given_back(broker_name, group, receipts))

    async def _given_back(
        self, broker_name: str, group: str, handles: list[Receipt], timeout_s: float = REQUEST_S
    ) -> None:
        try:
            await changed(self._brokers, broker_name, group, handles, 1000, timeout_s, are_given_back=True)
        except PenstockError as error:
            log.info("messages of a client that is gone come again later group=%s error=%s", group, error.message)

    def _in_background(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _batches(group: str, broker_name: str, answer: bytes) -> Iterator[tuple[Receipt, RecordBatch, Sequence[int]]]:
    """Of each queue: the receipt of its offset 0, the messages, and how often each was given before, if any was."""
    reply, records = frames.unpack(answer, ReceiveReply, frames.ANSWER_FIELDS_MAX)
    start = 0
    for result in reply.results:
        place = group, result.topic, broker_name, result.queue_id, 0
        first = Receipt(*place, reply.check_point, reply.epoch, reply.visible_ms)
        yield first, RecordBatch(records[start : start + result.bytes]), result.redelivered
        start += result.bytes


def _receipts_of(received: Iterable[Given]) -> list[Receipt]:
    return [receipt for given in received for receipt in given.receipts]


def subscription_of(topic: str, given: FilterExpression) -> Subscription:
    """What a filter expression selects of a topic. Raises Refusal: ILLEGAL_FILTER_EXPRESSION."""
    expression = given.expression
    if given.type not in (FilterType.FILTER_TYPE_UNSPECIFIED, FilterType.TAG, FilterType.SQL):
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, f"filter type {given.type} is not known")
    try:
        return parse_subscription(topic, Sql(expression) if given.type == FilterType.SQL else expression)
    except InvalidArgument as error:
        raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None


def _wish(caller: Caller, request: ReceiveMessageRequest, request_s: float) -> _Wish:
    topic = topic_of(request.message_queue.topic, caller.namespace)
    group = group_of(request.group, caller.namespace)
    subscription = subscription_of(topic, request.filter_expression)
    if request.auto_renew:
        invisible_ms = INVISIBLE_MS
    else:
        invisible_ms = span_ms(request.invisible_duration, "invisible_duration", Code.ILLEGAL_INVISIBLE_TIME)
        if invisible_ms < INVISIBLE_MS_MIN:
            raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {INVISIBLE_MS_MIN}")
        if invisible_ms > INVISIBLE_MS_MAX:
            raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}")
    if len(request.attempt_id) > ATTEMPT_ID_LENGTH_MAX:
        raise Refusal(Code.BAD_REQUEST, f"attempt id: at most {ATTEMPT_ID_LENGTH_MAX} characters")
    if request.HasField("long_polling_timeout"):
        wait_s = span_ms(request.long_polling_timeout, "long_polling_timeout", Code.ILLEGAL_POLLING_TIME) / 1000
    else:
        wait_s = caller.deadline_s - request_s / 2
    wait_s = max(min(wait_s, POLL_MS_MAX / 1000, caller.deadline_s - MARGIN_S), 0.0)
    batch = min(max(request.batch_size, 1), BATCH_MAX)
    deadline_s = asyncio.get_running_loop().time() + caller.deadline_s
    return _Wish(group, subscription, batch, invisible_ms, wait_s, deadline_s, request.attempt_id)
