"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: what becomes of deliveries."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from penstock.client import OutcomeUnknown, PenstockError, TopicNotFound
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code, Status
from penstock.proto.data_frames import Method
from penstock.proto.names import RETRY_PREFIX
from penstock.proto.receipts import Receipt
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from penstock.proto.wire.pop_pb2 import AcknowledgeReply, AcknowledgeRequest, ForwardRequest
from penstock.proto.wire.pop_pb2_grpc import PopStub

from ..brokers import Brokers
from ..callers import TIMEOUT_S, Caller
from ..messages import span_ms
from ..names import group_of, topic_of
from ..status import Refusal, merged, ok, status_of
from .handles import Together, changed, receipt_of, told_of
from .plain import ENTRIES_MAX, answer, read
from .renewal import Renewal

INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
_OK: Final = ok()
_EXPIRED: Final = Status(
    code=Code.INVALID_RECEIPT_HANDLE, message="INVALID_RECEIPT_HANDLE: the receipt handle is expired"
)
_LATE: Final = Status(code=Code.PROXY_TIMEOUT, message="the broker has not answered in time")
_OVER: Final = frozenset({Code.OK, Code.INVALID_RECEIPT_HANDLE})
"""Of these the delivery is over."""

_Waiting = tuple[Together, asyncio.Future[list[Status]]]
Routes = dict[str, TopicRoute | None]
"""By topic; None: not known for now, perhaps since its broker is away for a moment."""


class Acknowledgements:
    """Those of one broker group and consumer group: who comes while a request is under way goes with the next one."""

    def __init__(self, brokers: Brokers, broker_name: str, group: str) -> None:
        self._brokers = brokers
        self._broker_name = broker_name
        self._group = group
        self._waiting: deque[_Waiting] = deque()
        self._sending: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        return self._sending is None

    def add(self, deliveries: Together, timeout_s: float) -> asyncio.Future[list[Status]]:
        """What the broker says of each, within this time; the future ends with as many statuses in any case."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Status]] = loop.create_future()
        late = loop.call_later(timeout_s, _end, future, [_LATE] * len(deliveries.places))
        future.add_done_callback(lambda _: late.cancel())
        self._waiting.append((deliveries, future))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        return future

    async def _send(self) -> None:
        try:
            while self._waiting:
                taken = self._taken()
                told = await self._ask([deliveries for deliveries, _ in taken]) if taken else []
                for (_, future), statuses in zip(taken, told, strict=True):
                    _end(future, statuses)
        finally:
            self._sending = None

    def _taken(self) -> list[_Waiting]:
        """What goes together, without those for which nobody waits any more: a broker may be silent for long."""
        taken: list[_Waiting] = []
        count = 0
        while self._waiting:
            first = self._waiting[0]
            if not first[1].done():
                count += first[0].asked
                if taken and count > ENTRIES_MAX:
                    break
                taken.append(first)
            self._waiting.popleft()
        return taken

    async def _ask(self, asked: Sequence[Together]) -> list[list[Status]]:
        receipts = [part for each in asked for part in each.receipts]
        content = AcknowledgeRequest(group=self._group, receipts=receipts).SerializeToString()
        try:
            reply = await self._brokers.at_data_port(
                self._broker_name, Method.ACKNOWLEDGE, content, AcknowledgeReply.FromString, TIMEOUT_S
            )
            told = [[_OK if is_ok else _EXPIRED for is_ok in each] for each in told_of(asked, reply.statuses)]
        except Exception as error:  # noqa: BLE001  callers wait for their futures, whatever happens here
            return [[status_of(error, "AckMessage")] * len(each.places) for each in asked]
        return told


class Finishing:
    """Event loop only."""

    def __init__(self, brokers: Brokers, renewal: Renewal) -> None:
        self._brokers = brokers
        self._renewal = renewal
        self._lines: dict[tuple[str, ...], Acknowledgements] = {}

    async def acknowledge_plain(self, caller: Caller, content: bytes) -> bytes | None:
        """The answer, as bytes, where the request has receipts of what was received together.

        None: see :meth:`acknowledge`, nothing is done.

        Raises:
            Refusal: bad names.
        """
        plain = read(content)
        if plain is None:
            return None
        group, topic = group_of(plain.group, caller.namespace), topic_of(plain.topic, caller.namespace)
        first = plain.first
        if first.group != group or first.topic not in (topic, RETRY_PREFIX + group):
            return None
        if not await self._is_at_its_broker(first, {}):
            return None
        asked = Together.of_one(first, plain.offsets)
        statuses = await self._line(first.broker_name, group).add(asked, caller.timeout_s)
        if self._renewal.holds_any:
            for offset, status in zip(plain.offsets, statuses, strict=True):
                self._let_go(first._replace(offset=offset), status)
        if any(status is not _OK for status in statuses):
            request = wire.AckMessageRequest.FromString(content)
            return _response(request, statuses).SerializeToString()
        return answer(plain)

    async def acknowledge(self, caller: Caller, request: wire.AckMessageRequest) -> wire.AckMessageResponse:
        """An entry for each of the request, in their order: one bad handle harms no other.

        Raises:
            Refusal: no entries, or too many; bad names.
        """
        topic = topic_of(request.topic, caller.namespace)
        group = group_of(request.group, caller.namespace)
        if not request.entries:
            raise Refusal(Code.INTERNAL_SERVER_ERROR, "no entries to acknowledge")
        if len(request.entries) > ENTRIES_MAX:
            raise Refusal(Code.BAD_REQUEST, f"{len(request.entries)} entries: at most {ENTRIES_MAX} at once")
        texts = [entry.receipt_handle for entry in request.entries]
        statuses = await self._acknowledged(texts, group, topic, caller.timeout_s)
        return _response(request, statuses)

    async def _acknowledged(self, texts: Sequence[str], group: str, topic: str, timeout_s: float) -> list[Status]:
        """What becomes of each handle. One that is refused is not asked for; the others go to their brokers at once."""
        statuses = [_EXPIRED] * len(texts)
        asked: dict[str, list[tuple[int, Receipt]]] = {}  # by broker group
        routes: Routes = {}
        for index, text in enumerate(texts):
            try:
                handle = await self._handle(text, group, topic, routes)
            except Refusal as refused:
                statuses[index] = refused.status
            else:
                asked.setdefault(handle.broker_name, []).append((index, handle))
        waiting = [self.finish([handle for _, handle in each], timeout_s) for each in asked.values()]
        for each, told in zip(asked.values(), await asyncio.gather(*waiting), strict=True):
            for (index, handle), status in zip(each, told, strict=True):
                statuses[index] = status
                self._let_go(handle, status)
        return statuses

    def _let_go(self, handle: Receipt, status: Status) -> None:
        """Renew a delivery no longer that is over by this answer."""
        if status.code in _OVER:
            self._renewal.drop(handle)

    async def _handle(self, text: str, group: str, topic: str, routes: Routes) -> Receipt:
        """What ``text`` stands for. Raises Refusal: INVALID_RECEIPT_HANDLE, also of a broker without the topic.

        ``routes``: those that this request has looked up.
        """
        handle = receipt_of(text, group, topic)
        if not await self._is_at_its_broker(handle, routes):
            raise Refusal(
                Code.INVALID_RECEIPT_HANDLE,
                f"INVALID_RECEIPT_HANDLE: topic {handle.topic} is not at broker {handle.broker_name[:64]!r}",
            )
        return handle

    async def _is_at_its_broker(self, handle: Receipt, routes: Routes) -> bool:
        """True if its topic is, or may be, at the broker group that it names."""
        if handle.topic not in routes:
            try:
                routes[handle.topic] = await self._brokers.route(handle.topic)
            except TopicNotFound:
                routes[handle.topic] = TopicRoute(topic=handle.topic)
            except PenstockError:
                routes[handle.topic] = None
        route = routes[handle.topic]
        return route is None or any(each.broker_name == handle.broker_name for each in (*route.queues, *route.absent))

    def finish(self, handles: Sequence[Receipt], timeout_s: float = TIMEOUT_S) -> asyncio.Future[list[Status]]:
        """Acknowledge deliveries of one broker group to one consumer group, with others on their way there."""
        return self._line(handles[0].broker_name, handles[0].group).add(Together.of(handles), timeout_s)

    def _line(self, *key: str) -> Acknowledgements:
        """That of a broker group and consumer group."""
        line = self._lines.get(key)
        if line is None:
            self._lines = {known: each for known, each in self._lines.items() if not each.is_idle}
            line = self._lines[key] = Acknowledgements(self._brokers, *key)
        return line

    async def change(
        self, caller: Caller, request: wire.ChangeInvisibleDurationRequest
    ) -> wire.ChangeInvisibleDurationResponse:
        """The new handle; the old one where it was not changed, since clients keep whatever they are told."""
        text = request.receipt_handle
        try:
            topic = topic_of(request.topic, caller.namespace)
            group = group_of(request.group, caller.namespace)
            invisible_ms = span_ms(request.invisible_duration, "invisible_duration", Code.ILLEGAL_INVISIBLE_TIME)
            if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
                told = "small. min is 0" if invisible_ms < 0 else f"large. max is {INVISIBLE_MS_MAX}"
                raise Refusal(Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {told}")
            handle = await self._handle(text, group, topic, {})
            changed = await self._changed(handle, invisible_ms, caller.timeout_s)
        except (Refusal, PenstockError) as error:
            status = status_of(error, "ChangeInvisibleDuration")
            return wire.ChangeInvisibleDurationResponse(status=status, receipt_handle=text)
        self._renewal.drop(handle)
        return wire.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.text())

    async def _changed(self, handle: Receipt, invisible_ms: int, timeout_s: float) -> Receipt:
        place = handle.broker_name, handle.group
        reply, (is_changed,) = await changed(self._brokers, *place, [handle], invisible_ms, timeout_s)
        if not is_changed or reply.check_point < 0:  # acknowledged before: brokers have nothing to change, and no point
            self._renewal.drop(handle)
            raise Refusal(_EXPIRED.code, _EXPIRED.message)
        return handle._replace(check_point=reply.check_point, epoch=reply.epoch, visible_ms=reply.visible_ms)

    async def forward(
        self, caller: Caller, request: wire.ForwardMessageToDeadLetterQueueRequest
    ) -> wire.ForwardMessageToDeadLetterQueueResponse:
        """Have the message in the group's dead letters, and finished.

        A delivery that is over, or that a failover has cut off, is told as done: push consumers ask again every second
        until they hear OK, for ever. Its message is left to whoever has it then, or has gone with its topic.

        Raises:
            Refusal: INVALID_RECEIPT_HANDLE, for no handle, or another group's or topic's; bad names. PenstockError.
        """
        topic = topic_of(request.topic, caller.namespace)
        group = group_of(request.group, caller.namespace)
        handle = receipt_of(request.receipt_handle, group, topic)
        if await self._is_at_its_broker(handle, {}):
            asked = ForwardRequest(group=group, receipts=Together.of([handle]).receipts)
            place = handle.broker_name, "ForwardToDeadLetters"
            try:
                await self._brokers.at_master(*place, asked, caller.timeout_s, service=PopStub)
            except OutcomeUnknown as error:
                raise Refusal(Code.PROXY_TIMEOUT, error.message) from None
        self._renewal.drop(handle)
        return wire.ForwardMessageToDeadLetterQueueResponse(status=ok())


def _response(request: wire.AckMessageRequest, statuses: Sequence[Status]) -> wire.AckMessageResponse:
    entries = [
        wire.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=status)
        for entry, status in zip(request.entries, statuses, strict=True)
    ]
    return wire.AckMessageResponse(status=merged(statuses), entries=entries)


def _end(future: asyncio.Future[list[Status]], statuses: list[Status]) -> None:
    if not future.done():
        future.set_result(statuses)
