"""Telling what will be deleted unread, before it is, and what was."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Final

from ..core.metrics import Families
from ..core.tables.tables import Tables
from ..store.recovery.cleaning import HOUR_MS
from ..store.store import Store
from .unread import Unread, unread_below

log = logging.getLogger(__name__)

FORESEE_S: Final = 60.0
LINES_MAX: Final = 50


class Forewarning:
    """Unread messages that the next deletion takes, and those that are gone; event loop only.

    ``expiring``: the former, as last looked at. ``lost``: (topic, group) -> the latter since the start.
    """

    def __init__(self, store: Store, tables: Tables, *, protected: bool) -> None:
        """``protected``: unread messages are kept until the disk forces it; the warning says so."""
        self._store = store
        self._tables = tables
        self._protected = protected
        self._looked = (-1, 0.0)  # (where the log begins after the next deletion, when that was looked at)
        self._warned: dict[tuple[str, str], int] = {}
        self.expiring: list[Unread] = []
        self.lost: dict[tuple[str, str], int] = {}

    async def look(self, end: int, now_ms: int, now_s: float) -> None:
        """The next deletion lets the log begin at ``end``: find out whom that hurts, and warn once of each.

        Short-lived topics are looked at as they will be in an hour, or a quarter of their time. Does nothing when
        the answer can hardly have changed since the last time.
        """
        if end == self._looked[0] and now_s - self._looked[1] < FORESEE_S:
            return
        self._looked = end, now_s
        self.expiring = await unread_below(self._tables, self._store, self._minimum_after(end, now_ms))
        fresh = [unread for unread in self.expiring if self._warned.get(unread[:2]) != end]
        self._warned = {unread[:2]: end for unread in self.expiring}
        topics: dict[str, list[Unread]] = {}
        for unread in fresh:
            topics.setdefault(unread.topic, []).append(unread)
        for topic, rows in list(topics.items())[:LINES_MAX]:
            log.warning(
                "unread messages are about to be deleted topic=%s messages=%d groups=%d log_begins_at=%d protected=%s",
                topic,
                max(row.messages for row in rows),
                len(rows),
                end,
                self._protected,
            )
        for unread in fresh[:LINES_MAX]:
            log.warning(
                "group has not read messages that are about to be deleted group=%s topic=%s messages=%d",
                unread.group,
                unread.topic,
                unread.messages,
            )
        if len(fresh) > LINES_MAX:
            log.warning("and more groups: see the metrics groups=%d", len(fresh) - LINES_MAX)

    async def on_delete(self, end: int) -> None:
        """The log is about to begin at ``end``: count and tell what that loses."""
        first_from = self._store.removal.first_from
        minimum = partial(first_from, physical_offset=end)
        minimum_now = partial(first_from, physical_offset=self._store.min_offset)
        for lost in await unread_below(self._tables, self._store, minimum, minimum_now):
            self.on_lost(lost)

    def on_lost(self, lost: Unread) -> None:
        """Messages go that the group has not read."""
        self.lost[lost[:2]] = self.lost.get(lost[:2], 0) + lost.messages
        log.error("unread messages deleted group=%s topic=%s messages=%d", lost.group, lost.topic, lost.messages)

    def describe(self, families: Families) -> None:
        """Add the metrics."""
        topics: dict[str, int] = {}
        for unread in self.expiring:
            topics[unread.topic] = max(unread.messages, topics.get(unread.topic, 0))
        families.gauges(
            "penstock_topic_unread_expiring_messages",
            "Messages that the next deletion takes and some group has not read",
            ("topic",),
            [((topic,), count) for topic, count in topics.items()],
        )
        families.gauges(
            "penstock_group_unread_expiring_messages",
            "Messages that the next deletion takes and the group has not read",
            ("topic", "consumer_group"),
            [((unread.topic, unread.group), unread.messages) for unread in self.expiring],
        )
        families.counters(
            "penstock_unread_deleted_messages",
            "Messages deleted before the group had read them",
            ("topic", "consumer_group"),
            list(self.lost.items()),
        )

    def _minimum_after(self, end: int, now_ms: int) -> Callable[[str, int], int]:
        @cache
        def minimum(topic: str, queue_id: int) -> int:
            found = self._store.removal.first_from(topic, queue_id, end)
            config = self._tables.topics.get(topic)
            kept_ms = None if config is None else config.retention_ms
            if kept_ms is None:
                return found
            soon_ms = now_ms - kept_ms + min(HOUR_MS, kept_ms // 4)
            return max(found, self._store.lookup.search_offset(topic, queue_id, soon_ms))

        return minimum
