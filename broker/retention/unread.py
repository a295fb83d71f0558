"""Who has not read yet what a deletion would remove."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from ..core.feature import Hold
from ..core.tables.tables import Tables
from ..store.store import Store

_QUEUES_AT_ONCE = 100


class Unread(NamedTuple):
    """Messages of a topic that a group has not consumed."""

    topic: str
    group: str
    messages: int


NewMinimum = Callable[[str, int], int]


class _Behind(NamedTuple):
    """A queue of which a group has messages left: ``[first, end)``."""

    group: str
    topic: str
    queue_id: int
    first: int
    end: int


async def unread_below(
    tables: Tables, store: Store, new_minimum: NewMinimum, old_minimum: NewMinimum | None = None
) -> list[Unread]:
    """For each topic and group how many messages it would lose if the queues began at ``new_minimum``.

    ``old_minimum``: where they begin now, if that is more than the queues know. Groups count that have ever
    committed an offset in the topic. Gives way to others in between.
    """
    lost: dict[tuple[str, str], int] = {}
    async for behind in _each_behind(tables, store):
        first = behind.first
        if old_minimum is not None:
            first = max(first, old_minimum(behind.topic, behind.queue_id))
        count = min(new_minimum(behind.topic, behind.queue_id), behind.end) - first
        if count > 0:
            lost[behind.topic, behind.group] = lost.get((behind.topic, behind.group), 0) + count
    return [Unread(topic, group, messages) for (topic, group), messages in sorted(lost.items())]


async def first_unread(tables: Tables, store: Store) -> Hold | None:
    """Where in the log the first message lies that some group has not consumed, and whose it is."""
    found: Hold | None = None
    async for behind in _each_behind(tables, store):
        at = store.removal.physical_at(behind.topic, behind.queue_id, behind.first)
        if at is not None and at >= 0 and (found is None or at < found.offset):
            found = Hold(f"group {behind.group} has not read topic {behind.topic} queue {behind.queue_id}", at)
    return found


async def _each_behind(tables: Tables, store: Store) -> AsyncIterator[_Behind]:
    seen = 0
    for group, topic in tables.offsets.pairs():
        for queue_id, offset in tables.offsets.row(group, topic).items():
            low, high = store.reader.queue_range(topic, queue_id)
            if max(offset, low) < high:
                yield _Behind(group, topic, queue_id, max(offset, low), high)
            seen += 1
            if seen % _QUEUES_AT_ONCE == 0:
                await asyncio.sleep(0)
