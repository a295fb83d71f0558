"""A slave's log as replication sees it: the store, and with each cut of it the tables that follow from it.

Topics, groups, committed offsets and producer sequences are derived from the log. When its end goes, they go back to
what the rest of it says: files of theirs that know more are deleted before anything is cut, then they are read and
the log behind them is applied, as at a start. So a crash at any moment leaves a log and files that a start can join.
Where all of it goes, the files go behind it: they alone tell of what was recorded before the log's minimum.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from ..core.tables.snapshots import Snapshots
from ..core.tables.tables import Tables
from ..core.tables.topics import deleted_topic
from ..core.tables.uninterrupted import to_its_end
from ..store.disk import named_errors
from ..store.store import Store

log = logging.getLogger(__name__)


class FollowerLog:
    """Fits :class:`penstock.replication.interfaces.SlaveLog`; event loop only."""

    def __init__(self, store: Store, tables: Tables, *, log_has_all: bool, on_cut: Callable[[], None]) -> None:
        """``log_has_all``: the log alone can replace the files of the tables. ``on_cut()``: before each cut."""
        self.segment_bytes = store.segment_bytes
        self.read_bytes, self.append_bytes = store.read_bytes, store.append_bytes
        self.request_flush = store.request_flush
        self._store = store
        self._tables = tables
        self._snapshots = tables.files
        self._log_has_all = log_has_all
        self._on_cut = on_cut

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

    def keeps_state(self, offset: int) -> bool:
        """See :class:`penstock.replication.interfaces.SlaveLog`."""
        return self._snapshots.outlive(self._store.whole_below(offset))

    async def truncate_to(self, offset: int) -> None:
        """Let log and all derived of it end at ``offset``. Durable on return. Raises as :meth:`Store.truncate_to`."""
        whole = self._store.whole_below(offset)

        def cut() -> None:
            self._store.truncate_to(offset, rebuild=self._deletes_topics(whole))

        await to_its_end(self._cut(lambda: self._snapshots.delete_behind(whole), cut))

    async def start_over(self, offset: int) -> None:
        """Forget everything and begin at ``offset``. Durable on return; raises as :meth:`Store.truncate_to`.

        After a crash in between the log has its old bytes, or is empty, and begins here again.
        """

        def begin() -> None:
            self._store.truncate_to(self._store.min_offset, rebuild=True)
            for topic in self._store.queues():  # none, unless a start has taken their ends from the files
                self._store.drop_topic(topic)
            self._snapshots.delete_behind(0)
            self._store.start_at(offset)
            self._store.checkpoint()

        await to_its_end(self._cut(lambda: None, begin))

    async def recover(self) -> None:
        """Have the tables follow a cut that they could not follow at once. Raises StorageError: may be tried again."""
        if not self._snapshots.is_current:
            await to_its_end(self._reload())

    async def _cut(self, prepare: Callable[[], None], cut: Callable[[], None]) -> None:
        """Cut, and have the tables follow. What ``prepare`` raises has left them as they are."""
        async with self._exclusively():  # not while a snapshot is on its way into a file
            prepare()
            self._snapshots.is_current = False  # until they are read: that may fail when the cut has not
            self._on_cut()
            try:
                cut()
            finally:
                await self._load()

    async def _reload(self) -> None:
        async with self._exclusively():
            await self._load()

    @contextlib.asynccontextmanager
    async def _exclusively(self) -> AsyncIterator[None]:
        """Tables and files change together. What the disk does not do ends one attempt of a slave, not the broker."""
        with named_errors(str(self._snapshots.directory), "bringing the tables in line with the log"):
            async with self._snapshots.writing:
                yield

    def _deletes_topics(self, start: int) -> bool:
        """True if dispatch, from ``start`` on, has deleted queues that the log before it has messages of."""
        if start >= self._store.dispatched_offset:
            return False
        return any(deleted_topic(record) for result in self._store.replay(start) for _, record in result.state_records)

    async def _load(self) -> None:
        """The tables anew, from their files and the log; the event loop is free between two slices of it.

        Nobody sees tables that are half filled: they are filled beside the old ones, and take their place in one step,
        when they know everything that is dispatched. What is dispatched meanwhile is applied to the old ones, and read
        here once more. Nothing else changes tables meanwhile: a slave appends nothing of its own, and follows nobody
        before it is cut; the lock of the snapshots is held; and a change of role waits for the end (:meth:`_cut`).
        """
        store = self._store
        fresh = self._tables.fresh()
        snapshots = Snapshots(self._snapshots.directory, fresh)
        loaded = snapshots.load(store.min_offset, store.end_offset, log_has_all=self._log_has_all)
        deleted: set[str] = set()
        position = loaded.replay_from
        before = -1
        while before < position < store.dispatched_offset:
            before = position
            for result in store.replay(position):
                deleted |= fresh.take(result)
                position = result.end
                await asyncio.sleep(0)
        for topic in deleted:
            if fresh.topics.get(topic) is None:
                store.drop_topic(topic)
        self._tables.adopt(fresh)
        self._snapshots.adopt(snapshots)
        self._snapshots.is_current = True
        log.info("tables went back with the log topics=%d replayed_from=%d", len(fresh.topics), loaded.replay_from)
