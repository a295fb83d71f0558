"""Finding single messages: by id, by key, by queue and offset."""

from __future__ import annotations

from penstock.formats.record.layout import parse_offset_message_id
from penstock.formats.record.reading import RecordBatch
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, MessageNotFound
from penstock.proto.wire.broker_pb2 import FetchHeader, MessageRecords, QueryMessagesRequest, ViewMessageRequest

from ..cluster import Calls, Listing, asked, store_host_of, unheard
from ..message import MessageView

FETCH_BYTES = 64 * 1024  # of the one message wanted; a larger one is returned all the same


def by_id(calls: Calls, message_id: str, topic: str | None, timeout_s: float) -> MessageView:
    """Both kinds of id have the same length and alphabet, so both are tried."""
    silent: list[str] = []
    if topic is not None:
        found = by_key(calls, topic, message_id, 0, 0, 1, timeout_s)
        if found:
            return found[0]
        silent = found.unreachable
    host, position = parse_offset_message_id(message_id)
    request = ViewMessageRequest(physical_offset=position)
    for name, shard in calls.directory.shards(timeout_s).items():
        if any(store_host_of(member.address) == host for member in shard.members):
            answers, _ = calls.at_each([shard], "ViewMessage", lambda _: request, timeout_s)
            for view in _views(answers.get(name), name):
                return view
    hint = "" if topic else "; if it is not an offset message id, name its topic"
    raise MessageNotFound(f"message {message_id}: no living broker at {host} holds it{unheard(silent)}{hint}")


def by_key(
    calls: Calls, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int, timeout_s: float
) -> Listing[MessageView]:
    """From the indexes of every broker group of the topic."""
    request = asked(
        QueryMessagesRequest,
        topic=topic,
        key=key,
        max_count=max_count,
        begin_timestamp_ms=begin_ms,
        end_timestamp_ms=end_ms,
    )
    if not key:
        raise InvalidArgument("a key may not be empty")
    if max_count < 1:
        raise InvalidArgument(f"max_count {max_count}: must be at least 1")
    route = calls.directory.existing_route(topic, timeout_s)
    answers, silent = calls.at_each(route.shards, "QueryMessages", lambda _: request, timeout_s)
    found = [view for name, answer in answers.items() for view in _views(answer, name)]
    found.sort(key=lambda view: (view.store_timestamp_ms, view.broker_name, view.physical_offset))
    return Listing(found[:max_count], [*silent, *(part.broker_name for part in route.absent)])


def at(calls: Calls, topic: str, queue_id: int, offset: int, broker_name: str | None, timeout_s: float) -> MessageView:
    wanted = asked(FetchHeader.Topic, topic=topic, queue_ids=[queue_id], offsets=[offset])
    if queue_id < 0 or offset < 0:
        raise InvalidArgument(f"queue {queue_id}, offset {offset}: neither may be negative")
    route = calls.directory.existing_route(topic, timeout_s)
    holders = sorted({part.broker_name for part in (*route.queues, *route.absent)})
    if broker_name is None:
        if len(holders) != 1:
            raise InvalidArgument(f"topic {topic} lies on {', '.join(holders)}: name the broker")
        broker_name = holders[0]
    if broker_name not in holders:
        raise InvalidArgument(f"topic {topic} is not on broker {broker_name!r}: {', '.join(holders)}")
    if broker_name not in {shard.broker_name for shard in route.shards}:
        raise BrokerUnavailable(f"topic {topic}: no member of {broker_name} lives, where the message would be")
    header = FetchHeader(client_id="admin", topics=[wanted], max_bytes=FETCH_BYTES, max_wait_ms=0)
    batch = RecordBatch(calls.fetch(broker_name, header, timeout_s)[1])
    if not len(batch) or batch.values("queue_offset")[0] != offset:
        raise MessageNotFound(f"topic {topic}, {broker_name}, queue {queue_id}: no message at offset {offset}")
    return MessageView(batch, 0, broker_name)


def _views(answer: MessageRecords | None, broker_name: str) -> list[MessageView]:
    if answer is None:
        return []
    return [MessageView(RecordBatch(record), 0, broker_name) for record in answer.records]
