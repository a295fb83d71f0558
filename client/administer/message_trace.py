"""The story of one message: what clients have told in a trace topic, and its broker's record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from penstock.formats.record.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY
from penstock.formats.trace import (
    Context,
    EndTransaction,
    MessageType,
    Pub,
    Recall,
    ReturnCode,
    SubAfter,
    SubBefore,
    decode,
)
from penstock.proto.errors import Forbidden, InvalidArgument, MessageNotFound, TopicNotFound

from ..cluster import Calls, unheard
from ..message import MessageView
from . import message_lookup
from .admin_results import (
    MessageTrace,
    StoredMessage,
    TracedAttempt,
    TracedConsumption,
    TracedEnd,
    TracedRecall,
    TracedSend,
)

TRACES_MAX = 1000
"""Trace messages about one message; brokers answer with no more."""

T = TypeVar("T", bound=Context)
Told = dict[Context, str]
"""Contexts, with the address of who told each."""


def message_trace(calls: Calls, message_id: str, topic: str | None, trace_topic: str, timeout_s: float) -> MessageTrace:
    """See :meth:`~penstock.client.Admin.trace`."""
    told, silent = _told(calls, message_id, trace_topic, timeout_s)
    topics = [each.topic for each in told if isinstance(each, (Pub, EndTransaction, Recall)) and each.topic]
    record = _record(calls, message_id, topic or next(iter(topics), None), timeout_s)
    if record is not None and not told:
        # Somebody may ask by its place for a message that has an id of its producer.
        found = record.all_properties
        message_id = found.get(UNIQ_KEY) or found.get(ORIGIN_MESSAGE_ID) or message_id
        told, silent = _told(calls, message_id, trace_topic, timeout_s)
    if record is None and not told:
        hint = "" if topic else "; nor is there a record at such a place: name its topic"
        raise MessageNotFound(f"message {message_id}: {untraced(trace_topic)}{hint}{unheard(silent)}")
    return _story(message_id, topic or next(iter(topics), record.topic if record is not None else ""), told, record)


def untraced(trace_topic: str) -> str:
    """What to do about a message that nobody has traced."""
    return (
        f"topic {trace_topic} has no trace of it: producers and consumers trace with trace=True, or a share of the "
        "messages, and need a moment to tell; traces go with their log files, as any message"
    )


def _told(calls: Calls, message_id: str, trace_topic: str, timeout_s: float) -> tuple[Told, list[str]]:
    """And the broker groups that did not answer."""
    try:
        views = message_lookup.by_key(calls, trace_topic, message_id, 0, 0, TRACES_MAX, timeout_s)
    except TopicNotFound:
        return {}, []
    found: Told = {}
    for view in views:
        host = view.born_host.rpartition(":")[0]
        for context in decode(view.body):
            if context.message_id == message_id:
                found.setdefault(context, host)  # a trace message that was sent again tells nothing new
    return found, views.unreachable


def _record(calls: Calls, message_id: str, topic: str | None, timeout_s: float) -> MessageView | None:
    try:
        return message_lookup.by_id(calls, message_id, topic, timeout_s)
    except (MessageNotFound, TopicNotFound, InvalidArgument, Forbidden):
        return None


def _of(told: Told, kind: type[T]) -> list[tuple[T, str]]:
    return [(context, host) for context, host in told.items() if isinstance(context, kind)]


def _story(message_id: str, topic: str, told: Told, record: MessageView | None) -> MessageTrace:
    sends = sorted(_of(told, Pub), key=lambda each: each[0].timestamp_ms)
    tags = [send.tags for send, _ in sends if send.tags]
    keys = [context.keys for context in told if context.keys]
    return MessageTrace(
        message_id=message_id,
        topic=topic,
        tag=(record.tag or "") if record is not None else next(iter(tags), ""),
        keys=record.keys if record is not None else next(iter(keys), "").split(),
        sends=[_send(*each) for each in sends],
        stored=_stored(record) if record is not None else None,
        consumptions=_consumptions(_of(told, SubBefore), _of(told, SubAfter)),
        ends=[
            TracedEnd(each.timestamp_ms, each.group, each.transaction_id, each.state, each.from_check)
            for each, _ in sorted(_of(told, EndTransaction), key=lambda each: each[0].timestamp_ms)
        ],
        recalls=[
            TracedRecall(each.timestamp_ms, each.group, each.success)
            for each, _ in sorted(_of(told, Recall), key=lambda each: each[0].timestamp_ms)
        ],
    )


def _send(send: Pub, host: str) -> TracedSend:
    return TracedSend(
        timestamp_ms=send.timestamp_ms,
        group=send.group,
        client_host=send.client_host or host,
        store_host=send.store_host,
        body_bytes=send.body_bytes,
        cost_ms=send.cost_ms,
        success=send.success,
        message_type=_name(MessageType, send.message_type),
        offset_message_id=send.offset_message_id,
    )


def _stored(record: MessageView) -> StoredMessage:
    return StoredMessage(
        topic=record.topic,
        broker_name=record.broker_name,
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
        store_timestamp_ms=record.store_timestamp_ms,
        store_host=record.store_host,
        offset_message_id=record.offset_message_id,
    )


def _consumptions(
    begins: Sequence[tuple[SubBefore, str]], ends: Sequence[tuple[SubAfter, str]]
) -> list[TracedConsumption]:
    """By group, in the order of their first attempts. An end belongs to the begin of the same request."""
    of_request = {end.request_id: (end, host) for end, host in ends}
    attempts: dict[str, list[TracedAttempt]] = {}
    for begin, host in begins:
        end, _ = of_request.pop(begin.request_id, (None, ""))
        attempts.setdefault(begin.group, []).append(_attempt(begin.timestamp_ms, host, begin.retry_times, end))
    for end, host in of_request.values():
        attempts.setdefault(end.group, []).append(_attempt(end.timestamp_ms - end.cost_ms, host, 0, end))
    for found in attempts.values():
        found.sort(key=lambda each: (each.timestamp_ms, each.retry_times))
    return [
        TracedConsumption(group, any(each.success for each in found), found)
        for group, found in sorted(attempts.items(), key=lambda each: each[1][0].timestamp_ms)
    ]


def _attempt(timestamp_ms: int, host: str, retry_times: int, end: SubAfter | None) -> TracedAttempt:
    if end is None:
        return TracedAttempt(timestamp_ms, host, retry_times, None, None, None)
    return TracedAttempt(timestamp_ms, host, retry_times, end.cost_ms, end.success, _name(ReturnCode, end.code))


def _name(kind: type[MessageType] | type[ReturnCode], number: int) -> str:
    known: Iterable[MessageType | ReturnCode] = kind
    return next((each.name for each in known if each == number), str(number))
