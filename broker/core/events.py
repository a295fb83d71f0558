"""What follows when the log has moved, or somebody else is to write it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.proto.errors import StorageError
from penstock.proto.wire.replication_pb2 import ReplicaReport

from ..store.store import Store
from .journal import Journal

if TYPE_CHECKING:
    from .core import Core
    from .dispatch import Dispatcher, Fresh

Commits = ReplicaReport.Commits


class LogEvents:
    """The five events of a log, the change of role, and the store's end; event loop only."""

    def __init__(self, store: Store, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self.journal: Journal | None = None
        """Of a master; written by :meth:`on_role` alone."""
        self.is_open = True
        """False once the broker stops, or its disk has failed: nothing is taken from clients any more."""
        self.on_commits: Callable[[Commits], None] = lambda commits: None
        """Offsets were committed at a slave; set by whoever keeps offsets."""
        self.pending_commits: Callable[[], list[Commits]] = list
        """What was committed here at a slave and the master does not have yet; set likewise."""
        self.cuts = 0
        """How often the log's end was cut off: what is read before one is not what the log has behind it."""
        self.abort_unsent: Callable[[], None] = lambda: None
        """End the connections with views of the log that are not sent; set by whoever sends them."""

    def attach(self, core: Core) -> None:
        """The core whose log it is. A role that is just being made tells what is confirmed already, no more."""
        self._core = core
        self._role = core.role
        self._acknowledgements = core.acknowledgements

    def listen(self, loop: asyncio.AbstractEventLoop, on_fatal: Callable[[StorageError], None]) -> None:
        """Have the flusher's thread report to the event loop."""

        def tell(callback: Callable[..., None], value: object) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(callback, value)

        self._store.on_flushed = lambda offset: tell(self.on_flushed, offset)
        self._store.on_committed = lambda end: tell(self.on_committed, end)
        self._store.on_fatal = lambda error: tell(on_fatal, error)

    def on_appended(self, topic: str, start: int, end: int, fresh: Fresh | None = None) -> None:
        """This master has appended records of ``topic``, one if it is ``fresh``: flush, replication, dispatch begin."""
        self._dispatcher.on_appended(topic, start, end, fresh)
        self._acknowledgements.start(end)
        self._role.on_appended()
        self._dispatcher.poke()

    def on_received(self) -> None:
        """The master's bytes have come."""
        self._dispatcher.poke()

    def on_cut(self) -> None:
        """The log's end is about to be cut off."""
        self.cuts += 1
        self.abort_unsent()

    def on_committed(self, end: int) -> None:
        """What was appended to buffers is in the log up to ``end``, unless it has been cut since."""
        self._role.on_appended()
        self._acknowledgements.on_committed(min(end, self._store.end_offset))

    def on_flushed(self, offset: int) -> None:
        """The log is synced up to ``offset``, unless it has been cut since."""
        offset = min(offset, self._store.flushed_offset)
        self._acknowledgements.on_flushed(offset)
        self._role.on_flushed(offset)

    def on_confirmed(self, offset: int) -> None:
        """Enough replicas have everything below ``offset``: readers may see it."""
        self._store.set_confirm(offset)
        self._dispatcher.poke()

    def on_role(self) -> None:
        """The broker has become master, or slave: the features work for that role now.

        A master's tables know everything that is in its log, confirmed or not, before anything is written.
        """
        core = self._core
        if self.journal is not None:
            self.journal.is_over = True
        self.journal = Journal(core) if core.role.is_master else None
        if self.journal is not None:
            for result in self._store.undispatched():
                core.tables.take(result)
            self.on_flushed(self._store.flushed_offset)
            core.role.on_appended()
        for feature in core.features.made:
            feature.on_role(self.journal)
        self._dispatcher.on_role()

    def on_fatal(self, error: StorageError) -> None:
        """The store failed for good: acknowledge nothing any more."""
        self.is_open = False
        self._acknowledgements.fail(error)
