"""What consumers ask, once it makes sense. Decisions only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

from penstock.proto import names
from penstock.proto.errors import Forbidden, InvalidArgument, TopicNotFound
from penstock.proto.requests import decoded
from penstock.proto.wire import pop_pb2 as wire

from ...core.tables.filters import wanted_by
from ...core.tables.tables import Tables
from ...core.wire import QUEUES_MAX, REQUEST_BYTES_MAX, check_count, check_queues
from ...store.filter.conditions import Condition
from .ops import Longs
from .queue import PopQueue

SUBSCRIPTIONS_MAX: Final = 64
MESSAGES_MAX: Final = 1024
MESSAGES_DEFAULT: Final = 32
BYTES_MAX: Final = 16 << 20
BYTES_DEFAULT: Final = 1 << 20
WAIT_MS_MAX: Final = 60_000
INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3600 * 1000
RECEIPTS_MAX: Final = 1024
ACKNOWLEDGED_MAX: Final = 8192
ATTEMPT_LENGTH_MAX: Final = 128
WANTS_KEPT_MAX: Final = 1024
WANT_BYTES_MAX: Final = 1024
"""Of a receive that is kept: more than most have."""
_NO_POINT: Final = (1 << 63) - 1


class Subscribed(NamedTuple):
    """A topic that a receive wants, its queues here, and which of its messages: all of them without a filter."""

    topic: str
    queue_ids: Collection[int]
    tags: frozenset[int] | None
    condition: Condition | None

    @property
    def takes_all(self) -> bool:
        """True without a filter."""
        return self.tags is None and self.condition is None


Looked = tuple[Subscribed, PopQueue]
"""A queue that a receive looks at, and what it wants of it."""


@dataclass(slots=True)
class Queues:
    """The queues of receives that ask alike, as long as ``changes`` tells of no change; the giver's."""

    changes: tuple[int, int] = (-1, -1)
    retries: list[Looked] = field(default_factory=list)
    own: list[Looked] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Wanted:
    """A receive that makes sense; one object for all that ask alike and name no attempt."""

    group: str
    subscribed: list[Subscribed]
    max_messages: int
    max_bytes: int
    invisible_ms: int
    wait_s: float
    begins_first: bool
    attempt: str = ""
    queues: Queues = field(default_factory=Queues)

    @classmethod
    def of(cls, header: wire.ReceiveHeader, tables: Tables, takes_sql: bool) -> Wanted:
        """What ``header`` asks for. Raises InvalidName, InvalidArgument, TopicNotFound, Forbidden: says why."""
        group = names.check_group(header.group)
        where = f"receive of group {group}"
        count = len(header.subscriptions)
        if not 1 <= count <= SUBSCRIPTIONS_MAX:
            raise InvalidArgument(f"{where}: {count} subscriptions: 1..{SUBSCRIPTIONS_MAX} are allowed")
        for name, value, most in (
            ("max_messages", header.max_messages, MESSAGES_MAX),
            ("max_bytes", header.max_bytes, BYTES_MAX),
            ("max_wait_ms", header.max_wait_ms, WAIT_MS_MAX),
        ):
            if not 0 <= value <= most:
                raise InvalidArgument(f"{where}: {name} {value}: 0..{most} are allowed")
        check_invisible(where, header.invisible_ms, INVISIBLE_MS_MIN)
        subscribed = [_subscribed(part, tables, takes_sql) for part in header.subscriptions]
        if len({part.topic for part in subscribed}) < count:
            raise InvalidArgument(f"{where}: a topic is named twice")
        return cls(
            group=group,
            subscribed=subscribed,
            max_messages=header.max_messages or MESSAGES_DEFAULT,
            max_bytes=header.max_bytes or BYTES_DEFAULT,
            invisible_ms=header.invisible_ms,
            wait_s=header.max_wait_ms / 1000,
            begins_first=header.begin == wire.ReceiveHeader.FIRST,
        )


class Wants:
    """What consumers ask for again and again, checked once as long as no topic changes; event loop only."""

    def __init__(self, tables: Tables, takes_sql: bool) -> None:
        self._tables = tables
        self._takes_sql = takes_sql
        self._known: dict[bytes, Wanted] = {}
        self._changes = -1

    def of(self, content: bytes) -> Wanted:
        """What a ``ReceiveHeader`` asks for, which is not decoded again either. See :meth:`Wanted.of`."""
        changes = self._tables.topics.changes
        if changes != self._changes or len(self._known) >= WANTS_KEPT_MAX:
            self._known.clear()
            self._changes = changes
        found = self._known.get(content)
        if found is not None:
            return found
        header = decoded(wire.ReceiveHeader, content, REQUEST_BYTES_MAX)
        attempt = header.attempt_id
        if len(attempt) > ATTEMPT_LENGTH_MAX:
            raise InvalidArgument(
                f"receive of group {header.group[: names.GROUP_LENGTH_MAX]}: an attempt_id has at most "
                f"{ATTEMPT_LENGTH_MAX} characters"
            )
        if attempt:  # gateways' clients make a new one for each receive
            header.attempt_id = ""
            content = header.SerializeToString()
            found = self._known.get(content)
        if found is None:
            found = Wanted.of(header, self._tables, self._takes_sql)
            if len(content) <= WANT_BYTES_MAX:
                self._known[content] = found
        return replace(found, attempt=attempt) if attempt else found


def check_invisible(where: str, invisible_ms: int, least: int) -> None:
    """Refuse a time that is too short or too long. Raises InvalidArgument."""
    if not least <= invisible_ms <= INVISIBLE_MS_MAX:
        size = "small" if invisible_ms < least else "large"
        raise InvalidArgument(
            f"{where}: the invisible time of {invisible_ms} ms is too {size}: {least}..{INVISIBLE_MS_MAX} are allowed"
        )


def _subscribed(part: wire.ReceiveHeader.Subscription, tables: Tables, takes_sql: bool) -> Subscribed:
    name = names.check_topic(part.topic)
    topic = tables.topics.get(name)
    if names.is_system_topic(name) or name.startswith((names.RETRY_PREFIX, names.LIGHT_PREFIX)):
        raise Forbidden(f"topic {name} is internal: receive from topics that messages are sent to")
    if topic is None:
        raise TopicNotFound(f"topic {name} does not exist at this broker: create it", topic=name)
    if not topic.is_readable:
        raise Forbidden(f"topic {name} may not be read: its perm is {topic.perm}")
    check_count("queues", len(part.queue_ids), QUEUES_MAX)
    if part.queue_ids:
        check_queues(name, part.queue_ids)
        if not 0 <= min(part.queue_ids) <= max(part.queue_ids) < topic.read_queues:
            raise TopicNotFound(f"topic {name} has queues 0..{topic.read_queues - 1} at this broker", topic=name)
    tags, condition = wanted_by(part.filter, takes_sql)
    return Subscribed(name, part.queue_ids or range(topic.read_queues), tags, condition)


class Receipts(NamedTuple):
    """Receipts of one queue and check point; offsets ascend."""

    topic: str
    queue_id: int
    point: int
    until_ms: int
    offsets: Longs


def receipts_of(group: str, parts: Collection[wire.Receipts], op_end: Callable[[int], int]) -> list[Receipts]:
    """The receipts of a request. Raises InvalidName, InvalidArgument: it says what is wrong.

    ``op_end(epoch)``: where the ops end, as far as a master of that epoch wrote them.
    """
    where = f"receipts of group {names.check_group(group)}"
    if not 1 <= len(parts) <= RECEIPTS_MAX:
        raise InvalidArgument(f"{where}: {len(parts)} parts: 1..{RECEIPTS_MAX} are allowed")
    total = sum(len(part.offsets) for part in parts)
    if not 1 <= total <= ACKNOWLEDGED_MAX:
        raise InvalidArgument(f"{where}: {total} messages: 1..{ACKNOWLEDGED_MAX} are allowed")
    ends = {epoch: op_end(epoch) for epoch in {part.epoch for part in parts}}
    found = []
    for part in parts:
        offsets = _ascending(part.offsets[:])
        if offsets is None or offsets[0] < 0 or part.queue_id < 0:
            raise InvalidArgument(f"{where}: offsets must ascend, and neither they nor the queue may be negative")
        # Another op may have come in the place of the one that it was given out by, and that a failover has cut off.
        point = part.check_point if part.check_point < ends[part.epoch] else _NO_POINT
        found.append(Receipts(names.check_topic(part.topic), part.queue_id, point, part.visible_ms, offsets))
    return found


def _ascending(offsets: list[int]) -> Longs | None:
    """The offsets, None if they do not ascend, or there are none."""
    if not offsets:
        return None
    first, count = offsets[0], len(offsets)
    if offsets == list(range(first, first + count)):  # as most are that were given together
        return first + np.arange(count)
    found = np.array(offsets, np.int64)
    return found if (found[1:] > found[:-1]).all() else None
