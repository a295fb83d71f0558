"""A slave's log as replication sees it: the store, and with each cut of it the tables that follow from it.

Topics, groups, committed offsets and producer sequences are derived from the log. When its end goes, they go back to
what the rest of it says: files of theirs that know more are deleted before anything is cut, then they are read and
the log behind them is applied, as at a start. So a crash at any moment leaves a log and files that a start can join.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..store.store import Store
from .dispatch import apply
from .producers import ProducerTable
from .snapshots import Snapshots
from .state import State, deleted_topic

log = logging.getLogger(__name__)


class FollowerLog:
    """Fits :class:`penstock.replication.interfaces.SlaveLog`; event loop only."""

    def __init__(
        self, store: Store, state: State, producers: ProducerTable, snapshots: Snapshots, *, log_has_all: bool
    ) -> None:
        """``log_has_all``: the log alone can replace the files of the tables."""
        self._store = store
        self._state = state
        self._producers = producers
        self._snapshots = snapshots
        self._log_has_all = log_has_all

    @property
    def min_offset(self) -> int:
        return self._store.min_offset

    @property
    def end_offset(self) -> int:
        return self._store.end_offset

    @property
    def flushed_offset(self) -> int:
        return self._store.flushed_offset

    @property
    def confirm_offset(self) -> int:
        """As far as this broker knows, what lies below was acknowledged to somebody, or seen.

        The master's confirm offset may divide a batch, of which a new master then cuts its part off: nobody was
        promised that.
        """
        return self._store.whole_below(self._store.confirm_offset)

    @property
    def segment_bytes(self) -> int:
        return self._store.segment_bytes

    def read_bytes(self, start: int, max_bytes: int) -> memoryview:
        """See :meth:`Store.read_bytes`."""
        return self._store.read_bytes(start, max_bytes)

    def append_bytes(self, start: int, data: memoryview) -> int:
        """See :meth:`Store.append_bytes`."""
        return self._store.append_bytes(start, data)

    def start_at(self, offset: int) -> None:
        """See :meth:`Store.start_at`."""
        self._store.start_at(offset)

    def request_flush(self, end: int) -> None:
        """See :meth:`Store.request_flush`."""
        self._store.request_flush(end)

    async def truncate_to(self, offset: int) -> None:
        """Let the log end at ``offset``, and everything derived from it. Durable on return.

        Raises:
            As :meth:`Store.truncate_to`.
        """
        whole = self._store.whole_below(offset)
        await self._cut(whole, lambda: self._store.truncate_to(offset, rebuild=self._deletes_topics(whole)))

    async def start_over(self, offset: int) -> None:
        """Forget everything and begin at ``offset``.

        Raises:
            As :meth:`Store.start_over`.
        """
        await self._cut(0, lambda: self._store.start_over(offset))

    async def _cut(self, whole: int, cut: Callable[[], None]) -> None:
        async with self._snapshots.writing:  # not while one is on its way into a file
            self._snapshots.delete_behind(whole)
            try:
                cut()
            finally:
                self._load()

    def _deletes_topics(self, start: int) -> bool:
        """Whether dispatch, from ``start`` on, has deleted queues that the log before it has messages of."""
        if start >= self._store.dispatched_offset:
            return False
        return any(deleted_topic(record) for result in self._store.replay(start) for _, record in result.state_records)

    def _load(self) -> None:
        """The tables anew, from their files and the log."""
        store, state = self._store, self._state
        before = {topic.name: topic for topic in state.topics.values()}
        on_topics, state.on_topics_changed = state.on_topics_changed, lambda updated, removed: None
        on_offsets, state.on_offsets_applied = state.on_offsets_applied, lambda group, topic, offsets: None
        try:
            state.clear()
            self._producers.clear()
            loaded = self._snapshots.load(store.min_offset, store.end_offset, log_has_all=self._log_has_all)
            deleted: set[str] = set()
            for result in store.replay(loaded.replay_from):
                deleted |= apply(result, state, self._producers)
            for topic in deleted:
                if state.topic(topic) is None:
                    store.drop_topic(topic)
        finally:
            state.on_topics_changed, state.on_offsets_applied = on_topics, on_offsets
        after = {topic.name: topic for topic in state.topics.values()}
        updated = [topic for name, topic in after.items() if before.get(name) != topic]
        removed = [name for name in before if name not in after]
        if updated or removed:
            on_topics(updated, removed)
        log.info("tables went back with the log topics=%d replayed_from=%d", len(after), loaded.replay_from)
