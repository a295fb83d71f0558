"""The story of one message: what clients have told in a trace topic, and its broker's record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from penstock.formats import trace
from penstock.formats.record.properties import ORIGIN_MESSAGE_ID, UNIQ_KEY
from penstock.proto.errors import Forbidden, InvalidArgument, MessageNotFound, TopicNotFound

from ..cluster import Calls, unheard
from ..message import MessageView
from . import admin_results as results
from . import message_lookup

TRACES_MAX = 1000
"""Trace messages about one message; brokers answer with no more."""

T = TypeVar("T", bound=trace.Context)
R = TypeVar("R", results.TracedEnd, results.TracedRecall)
Told = dict[trace.Context, str]
"""Contexts, with the address of who told each."""


def message_trace(
    calls: Calls, message_id: str, topic: str | None, trace_topic: str, timeout_s: float
) -> results.MessageTrace:
    """See :meth:`~penstock.client.Admin.trace`."""
    told, silent = _told(calls, message_id, trace_topic, timeout_s)
    topics = [
        each.topic for each in told if isinstance(each, (trace.Pub, trace.EndTransaction, trace.Recall)) and each.topic
    ]
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
        for context in trace.decode(view.body):
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


def _by_time(told: Told, kind: type[T], result: type[R]) -> list[R]:
    """What was told of that kind, as ``result``."""
    found = sorted((context for context, _ in _of(told, kind)), key=lambda each: each.timestamp_ms)
    return [result(**results.same_fields(result, each)) for each in found]


def _story(message_id: str, topic: str, told: Told, record: MessageView | None) -> results.MessageTrace:
    sends = sorted(_of(told, trace.Pub), key=lambda each: each[0].timestamp_ms)
    tags = [send.tags for send, _ in sends if send.tags]
    keys = [context.keys for context in told if context.keys]
    stored = None if record is None else results.StoredMessage(**results.same_fields(results.StoredMessage, record))
    return results.MessageTrace(
        message_id=message_id,
        topic=topic,
        tag=(record.tag or "") if record is not None else next(iter(tags), ""),
        keys=record.keys if record is not None else next(iter(keys), "").split(),
        sends=[_send(*each) for each in sends],
        stored=stored,
        consumptions=_consumptions(_of(told, trace.SubBefore), _of(told, trace.SubAfter)),
        ends=_by_time(told, trace.EndTransaction, results.TracedEnd),
        recalls=_by_time(told, trace.Recall, results.TracedRecall),
    )


def _send(send: trace.Pub, host: str) -> results.TracedSend:
    kind = _name(trace.MessageType, send.message_type)
    own = {"client_host": send.client_host or host, "message_type": kind}
    return results.TracedSend(**{**results.same_fields(results.TracedSend, send), **own})


def _consumptions(
    begins: Sequence[tuple[trace.SubBefore, str]], ends: Sequence[tuple[trace.SubAfter, str]]
) -> list[results.TracedConsumption]:
    """By group, in the order of their first attempts. An end belongs to the begin of the same request."""
    of_request = {end.request_id: (end, host) for end, host in ends}
    attempts: dict[str, list[results.TracedAttempt]] = {}
    for begin, host in begins:
        end, _ = of_request.pop(begin.request_id, (None, ""))
        attempts.setdefault(begin.group, []).append(_attempt(begin.timestamp_ms, host, begin.retry_times, end))
    for end, host in of_request.values():
        attempts.setdefault(end.group, []).append(_attempt(end.timestamp_ms - end.cost_ms, host, 0, end))
    for found in attempts.values():
        found.sort(key=lambda each: (each.timestamp_ms, each.retry_times))
    return [
        results.TracedConsumption(group, any(each.success for each in found), found)
        for group, found in sorted(attempts.items(), key=lambda each: each[1][0].timestamp_ms)
    ]


def _attempt(timestamp_ms: int, host: str, retry_times: int, end: trace.SubAfter | None) -> results.TracedAttempt:
    if end is None:
        return results.TracedAttempt(timestamp_ms, host, retry_times, None, None, None)
    return results.TracedAttempt(
        timestamp_ms, host, retry_times, end.cost_ms, end.success, _name(trace.ReturnCode, end.code)
    )


def _name(kind: type[trace.MessageType] | type[trace.ReturnCode], number: int) -> str:
    known: Iterable[trace.MessageType | trace.ReturnCode] = kind
    return next((each.name for each in known if each == number), str(number))
