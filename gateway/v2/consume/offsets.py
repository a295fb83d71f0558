"""PullMessage, GetOffset, UpdateOffset, QueryOffset: queues read and committed by offset, without POP."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Final

from penstock.client import InvalidArgument, MessageView, PenstockError
from penstock.client import MessageQueue as Queue
from penstock.client.cluster import topic_offsets
from penstock.formats.record.reading import RecordBatch
from penstock.gateway.v2.wire import service_pb2 as wire
from penstock.gateway.v2.wire.definition_pb2 import Code, MessageQueue, QueryOffsetPolicy, Status
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.wire import broker_pb2 as broker
from penstock.proto.wire.common_pb2 import TopicQueues

from ..brokers import Brokers
from ..callers import Caller
from ..clients import REQUEST_S
from ..messages import deliver, span_ms
from ..names import group_of, topic_of
from ..status import Refusal, ok
from .receiving import BATCH_MAX, LAST_S, MARGIN_S, POLL_MS_MAX, subscription_of

BYTES_MAX: Final = 8 * 1024 * 1024
OFFSET_MAX: Final = 2**63 - 1

Pulled = AsyncGenerator[wire.PullMessageResponse, None]


class Offsets:
    """Event loop only."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def get(self, caller: Caller, request: wire.GetOffsetRequest) -> wire.GetOffsetResponse:
        """What the group has committed. Raises Refusal: OFFSET_NOT_FOUND, nothing; bad names."""
        group = group_of(request.group, caller.namespace)
        place = await self._place(caller, request.message_queue)
        asked = broker.QueryOffsetsRequest(
            group=group, queues=[TopicQueues(topic=place.topic, queue_ids=[place.queue_id])]
        )
        reply = await self._brokers.at_master(place.broker_name, "QueryOffsets", asked, caller.timeout_s)
        offset = next((each for part in reply.offsets for each in part.offsets), -1)
        if offset < 0:
            raise Refusal(Code.OFFSET_NOT_FOUND, f"group {group} has committed nothing in queue {place.queue_id}")
        return wire.GetOffsetResponse(status=ok(), offset=offset)

    async def update(self, caller: Caller, request: wire.UpdateOffsetRequest) -> wire.UpdateOffsetResponse:
        """Commit. Raises Refusal: ILLEGAL_OFFSET; bad names. PenstockError."""
        group = group_of(request.group, caller.namespace)
        place = await self._place(caller, request.message_queue)
        if request.offset < 0:
            raise Refusal(Code.ILLEGAL_OFFSET, f"offset {request.offset}: must not be negative")
        asked = broker.CommitOffsetsRequest(
            group=group,
            client_id=caller.client_id,
            offsets=topic_offsets({place: request.offset}),
            force=True,
        )
        reply = await self._brokers.at_master(place.broker_name, "CommitOffsets", asked, caller.timeout_s)
        if reply.refused:
            raise Refusal(Code.FORBIDDEN, f"queue {place.queue_id} belongs to another consumer of group {group}")
        return wire.UpdateOffsetResponse(status=ok())

    async def query(self, caller: Caller, request: wire.QueryOffsetRequest) -> wire.QueryOffsetResponse:
        """The first offset, the one behind the last, or that of a time. Raises Refusal: BAD_REQUEST; bad names."""
        place = await self._place(caller, request.message_queue)
        policy = request.query_offset_policy
        if policy == QueryOffsetPolicy.TIMESTAMP:
            if not request.HasField("timestamp"):
                raise Refusal(Code.BAD_REQUEST, "policy TIMESTAMP without a timestamp")
            at_ms = span_ms(request.timestamp, "timestamp", Code.BAD_REQUEST)
            if not 0 <= at_ms <= OFFSET_MAX:
                raise Refusal(Code.BAD_REQUEST, f"timestamp {at_ms} ms: must be 0 or later")
            asked = broker.SearchOffsetRequest(topic=place.topic, queue_id=place.queue_id, timestamp_ms=at_ms)
            found = await self._brokers.at_master(place.broker_name, "SearchOffset", asked, caller.timeout_s)
            return wire.QueryOffsetResponse(status=ok(), offset=found.offset)
        if policy not in (QueryOffsetPolicy.BEGINNING, QueryOffsetPolicy.END):
            raise Refusal(Code.BAD_REQUEST, f"policy {policy} is not known")
        ranges = TopicQueues(topic=place.topic, queue_ids=[place.queue_id])
        reply = await self._brokers.at_master(place.broker_name, "QueryQueueRanges", ranges, caller.timeout_s)
        known: broker.QueueRange = reply.ranges[0]
        return wire.QueryOffsetResponse(
            status=ok(), offset=known.min_offset if policy == QueryOffsetPolicy.BEGINNING else known.max_offset
        )

    async def pull(self, caller: Caller, request: wire.PullMessageRequest) -> Pulled:
        """A status, the messages from the offset on, and the offset to go on from, also of an offset outside the queue.

        Raises:
            Refusal: ILLEGAL_OFFSET, a negative one; ILLEGAL_FILTER_EXPRESSION; bad names. PenstockError.
        """
        group = group_of(request.group, caller.namespace)
        place = await self._place(caller, request.message_queue)
        subscription = subscription_of(place.topic, request.filter_expression)
        if not 0 <= request.offset < OFFSET_MAX:
            raise Refusal(Code.ILLEGAL_OFFSET, f"offset {request.offset}: must be 0..{OFFSET_MAX - 1}")
        wait_s = span_ms(request.long_polling_timeout, "long_polling_timeout", Code.ILLEGAL_POLLING_TIME) / 1000
        wait_s = max(min(wait_s, POLL_MS_MAX / 1000, caller.deadline_s - MARGIN_S), 0.0)
        header = broker.FetchHeader(
            group=group, client_id=caller.client_id, max_bytes=BYTES_MAX, max_wait_ms=int(wait_s * 1000)
        )
        header.topics.add(
            topic=place.topic, queue_ids=[place.queue_id], offsets=[request.offset], filter=subscription.filter
        )
        timeout_s = min(wait_s + REQUEST_S, caller.deadline_s - LAST_S)
        try:
            answer = await self._brokers.at_data_port(
                place.broker_name, Method.FETCH, frames.pack(header), bytes, timeout_s
            )
        except InvalidArgument as error:
            raise Refusal(Code.ILLEGAL_FILTER_EXPRESSION, error.message) from None
        reply, records = frames.unpack(answer, broker.FetchReply, frames.ANSWER_FIELDS_MAX)
        count = min(max(request.batch_size, 1), BATCH_MAX)
        messages: list[wire.PullMessageResponse] = []
        next_offset = request.offset
        for result in reply.results:
            if result.status in (broker.FetchReply.OFFSET_TOO_SMALL, broker.FetchReply.OFFSET_OVERFLOW):
                told = f"offset {request.offset} is not within {result.min_offset}..{result.max_offset}"
                yield wire.PullMessageResponse(status=Status(code=Code.ILLEGAL_OFFSET, message=told))
                yield wire.PullMessageResponse(
                    next_offset=min(max(request.offset, result.min_offset), result.max_offset)
                )
                return
            if result.status in (broker.FetchReply.QUEUE_NOT_FOUND, broker.FetchReply.DAMAGED):
                raise PenstockError(result.problem or f"queue {place.queue_id} of topic {place.topic} cannot be read")
            next_offset = max(result.next_offset, next_offset)
            batch = RecordBatch(records[: result.bytes])
            for index in range(result.count):
                view = MessageView(batch, index, place.broker_name)
                if len(messages) == count:
                    next_offset = view.queue_offset
                    break
                if not subscription.tags or view.tag in subscription.tags:
                    messages.append(wire.PullMessageResponse())
                    deliver(messages[-1].message, view, request.message_queue.topic, caller.namespace)
        status = ok() if messages else Status(code=Code.MESSAGE_NOT_FOUND, message="no new message")
        yield wire.PullMessageResponse(status=status)
        for message in messages:
            yield message
        yield wire.PullMessageResponse(next_offset=next_offset)

    async def _place(self, caller: Caller, queue: MessageQueue) -> Queue:
        """The queue. Raises Refusal: BAD_REQUEST, no such queue. PenstockError: no such topic."""
        topic = topic_of(queue.topic, caller.namespace)
        route = await self._brokers.served_route(topic)
        known = {each.broker_name: each.read_queues for each in route.queues}
        if not 0 <= queue.id < known.get(queue.broker.name, 0):
            raise Refusal(
                Code.BAD_REQUEST, f"topic {topic} has no queue {queue.id} at broker {queue.broker.name[:64]!r}"
            )
        return Queue(topic, queue.broker.name, queue.id)
