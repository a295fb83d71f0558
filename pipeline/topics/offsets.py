"""Offsets of a query, as pure functions: their JSON, starts and ends, and how much of a backlog a batch takes.

Offsets are exclusive ends. Users write ``{"topic": {"broker": {"queue": offset}}}`` with -2 for the earliest and -1 for
the latest. A stream's own offset is::

    {"v": 1, "q": {topic: {broker: {queue: offset}}}, "created": {topic: {broker: ms}}, "epochs": {topic: {broker: 3}},
     "first": true, "init": {...}, "tasks": 8}

with every level sorted, since Spark compares the text. ``init`` says where queues begin in the batch that ends here, if
not where the batch before ended: queues that are new, or that lost messages, and every queue of the first batch. For
``first`` marks what ``initialOffset`` answered, which Spark does not store: it asks again after a crash in that batch.
``created`` tells a topic from one of the same name that was made anew, however far that has grown, and ``epochs`` tells
a log from one whose end a failover has cut off, however far that has grown.
``tasks`` is the number that the batch is shared by, so that it has the same partitions when it is repeated: an
idempotent writer knows its rows by them.
Layout of the users' JSON: rocketmq-spark; of the options: Spark's Kafka connector.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock.proto.errors import ConfigError, DataLoss

from ..options import Kind

VERSION = 1
EARLIEST, LATEST = -2, -1
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}")


class Queue(NamedTuple):
    """One queue of one topic at one broker group."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"


class Range(NamedTuple):
    """What a queue has: ``[minimum, maximum)``, and how long its records are on average."""

    minimum: int
    maximum: int
    mean_bytes: int = 0


class Slice(NamedTuple):
    """Messages ``[start, end)`` of a queue."""

    queue: Queue
    start: int
    end: int


Offsets = Mapping[Queue, int]
Ranges = Mapping[Queue, Range]
Created = Mapping[tuple[str, str], int]
"""Topic and broker group -> ms."""
Epochs = Mapping[tuple[str, str], int]
"""Topic and broker group -> the epoch of the log that offsets are of."""
Document = dict[str, Any]


def nested(offsets: Offsets) -> Document:
    """``{topic: {broker: {queue: offset}}}``, every level sorted (queues by number)."""
    found: Document = {}
    for queue in sorted(offsets):
        found.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return found


def flat(document: Mapping[str, Any]) -> dict[Queue, int]:
    """The inverse of :func:`nested`. Raises TypeError, ValueError or AttributeError for anything else."""
    return {
        Queue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in document.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def stream_offset(
    offsets: Offsets,
    *,
    created: Created | None = None,
    epochs: Epochs | None = None,
    first: bool = False,
    init: Offsets | None = None,
    group: str = "",
    tasks: int | None = None,
) -> Document:
    """A stream's offset. The only function that makes one, so that equal offsets are equal texts.

    ``group``: whose progress it is, for the listener that hears of it. ``tasks``: of the batch that ends here.
    """
    made: Document = {}
    for name, values in (("created", created), ("epochs", epochs)):
        for (topic, broker), value in sorted((values or {}).items()):
            made.setdefault(name, {}).setdefault(topic, {})[broker] = value
    if first:
        made["first"] = True
    if group:
        made["group"] = group
    if init is not None:
        made["init"] = nested(init)
    made["q"] = nested(offsets)
    if tasks is not None:
        made["tasks"] = tasks
    made["v"] = VERSION
    return made


def queues_of(document: Mapping[str, Any]) -> dict[Queue, int]:
    """The queues of a stream's offset.

    Raises ConfigError: it is no offset of this source: another source wrote the checkpoint, or a newer version.
    """
    return _part(document, "q")


def begin_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[Queue, int]:
    """Where the batch from ``start`` to ``end`` begins: as it was planned, whatever ``first`` start is told now."""
    for each in (start, end):
        _require_own(each)
    if end.get("first"):  # an empty first batch: its end is its start
        return queues_of(end)
    planned = _part(end, "init") if "init" in end else {}
    return planned if start.get("first") and planned else queues_of(start) | planned


def passed_over(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[Queue, int]:
    """How many messages the batch leaves out of queues that had lost them, which ``failOnDataLoss=false`` allows.

    Of a topic that was made anew nobody knows how many there were: 0.
    """
    if start.get("first") or "init" not in end:
        return {}
    before = queues_of(start)
    return {queue: max(0, offset - before[queue]) for queue, offset in _part(end, "init").items() if queue in before}


def _of_places(document: Mapping[str, Any], name: str) -> dict[tuple[str, str], int]:
    """A field of a stream's offset by topic and broker group. Raises ConfigError: as :func:`queues_of`."""
    _require_own(document)
    return {
        (topic, broker): int(value)
        for topic, brokers in document.get(name, {}).items()
        for broker, value in brokers.items()
    }


created_of = partial(_of_places, name="created")
"""When the topics of a stream's offset had been created at each broker group, as far as it was known then."""
epochs_of = partial(_of_places, name="epochs")
"""The epochs of the logs that a stream's offset is of, as far as they were known then."""


def _require_own(document: Any) -> None:
    """Raise ConfigError unless this source wrote it. Another source's may be any JSON, as the number of ``rate``."""
    if not isinstance(document, dict) or document.get("v") != VERSION:
        raise ConfigError(
            f"offset {json.dumps(document)[:200]}: not of version {VERSION} of the penstock source: the checkpoint "
            "belongs to another source, or to a newer version of this one"
        )


def _part(document: Mapping[str, Any], name: str) -> dict[Queue, int]:
    _require_own(document)
    try:
        return flat(document[name])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"offset {json.dumps(document)[:200]}: damaged ({error!r})") from error


def slices(begin: Offsets, end: Offsets) -> list[Slice]:
    """The messages between the two.

    Raises DataLoss: a queue's begin is above its end, so the end belongs to another history of the topic; or the two do
    not name the same queues.
    """
    found = []
    for queue in sorted(end):
        if queue not in begin:
            raise DataLoss(f"queue {queue} is in the batch's end, not in its begin: the checkpoint is damaged")
        start = begin[queue]
        if start > end[queue]:
            raise DataLoss(
                f"queue {queue}: the batch begins at {start} and ends at {end[queue]}: the topic was made anew, or its "
                "log lost its end; start with a new checkpoint"
            )
        if start < end[queue]:
            found.append(Slice(queue, start, end[queue]))
    missing = sorted(begin.keys() - end.keys())
    if missing:
        raise DataLoss(f"queue {missing[0]} is in the batch's begin, not in its end: the checkpoint is damaged")
    return found


def parse_user_offsets(option: str, text: str, times: Kind | None = None) -> dict[Queue, int]:
    """The offsets in an option's JSON; ``times``: it has times of this kind in their place.

    Raises ConfigError: no such JSON, or an offset below -2.
    """
    shape = '{"topic": {"broker": {"queue": %s}}}' % ("offset" if times is None else "time")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"option {option}: {text[:120]!r} is no JSON ({error}); expected {shape}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"option {option}: {text[:120]!r} is no JSON object; expected {shape}")
    found: dict[Queue, int] = {}
    for topic, brokers in document.items():
        for broker, queues in _items(option, f"topic {topic}", brokers, shape):
            for queue_id, offset in _items(option, f"broker {broker} of topic {topic}", queues, shape):
                where = f"option {option}: topic {topic}, broker {broker}, queue {queue_id}"
                if not _QUEUE_ID.fullmatch(queue_id):
                    raise ConfigError(f"{where}: a queue is a number, written without leading zeros")
                if times is not None:
                    found[Queue(topic, broker, int(queue_id))] = _time(where, offset, times)
                    continue
                if not isinstance(offset, int) or isinstance(offset, bool) or offset < EARLIEST:
                    raise ConfigError(f"{where}: offset {offset!r} is no whole number from -2 (earliest) on")
                found[Queue(topic, broker, int(queue_id))] = offset
    if not found:
        raise ConfigError(f"option {option}: names no queue; expected {shape}")
    return found


def _time(where: str, value: object, kind: Kind) -> int:
    try:
        if not isinstance(value, int | str) or isinstance(value, bool):
            raise ValueError(value)
        return int(kind.parse(str(value)))
    except ValueError:
        raise ConfigError(f"{where}: {value!r:.80}: expected {kind.expected}") from None


def _items(option: str, what: str, value: object, shape: str) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(f"option {option}: {what} has {value!r:.80} where an object is expected: {shape}")
    return value.items()


def resolve(option: str, given: Offsets, ranges: Ranges, *, complete: bool) -> dict[Queue, int]:
    """The given offsets with -2 and -1 replaced, checked against what is there.

    ``complete``: every queue must be named.
    Raises ConfigError: a queue that does not exist, or is missing, or an offset beyond its queue's end.
    """
    unknown = sorted(given.keys() - ranges.keys())
    if unknown:
        raise ConfigError(
            f"option {option}: queue {unknown[0]} is not among those that are read; there are "
            f"{', '.join(map(str, sorted(ranges)[:20]))}"
        )
    missing = sorted(ranges.keys() - given.keys())
    if missing and complete:
        raise ConfigError(f"option {option}: queue {missing[0]} is missing: name every queue (-2 earliest, -1 latest)")
    found = {}
    for queue, offset in given.items():
        low, high, _ = ranges[queue]
        if offset > high:
            raise ConfigError(f"option {option}: queue {queue}: offset {offset} is beyond its end {high}")
        found[queue] = low if offset == EARLIEST else high if offset == LATEST else offset
    return found


def limited(begin: Offsets, target: Offsets, most: int, cost: Mapping[Queue, int] | None = None) -> dict[Queue, int]:
    """How far to go so that about ``most`` are taken: each queue in proportion to its backlog, at least one message.

    ``cost``: what one message of a queue counts, 1 by default. Never beyond ``target``, never below ``begin``.
    """
    backlog = {queue: max(0, end - begin.get(queue, end)) for queue, end in target.items()}
    price = {queue: max(1, (cost or {}).get(queue, 1)) for queue in target}
    total = sum(count * price[queue] for queue, count in backlog.items())
    if total <= most:
        return dict(target)
    found = {}
    for queue, end in target.items():
        start = begin.get(queue, end)
        share = most * backlog[queue] // total  # messages: (most * backlog * price / total) / price
        found[queue] = min(end, start + max(share, 1)) if backlog[queue] else start
    return found


def at_least(begin: Offsets, target: Offsets) -> dict[Queue, int]:
    """``target``, where it is not below ``begin``: a slave that answers for its master may know less."""
    found = {queue: max(offset, begin.get(queue, offset)) for queue, offset in target.items()}
    return found | {queue: offset for queue, offset in begin.items() if queue not in found}


def backlog_of(begin: Offsets, target: Offsets) -> int:
    """Messages between the two."""
    return sum(max(0, end - begin.get(queue, end)) for queue, end in target.items())
