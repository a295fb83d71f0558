"""The dispatch task: from bytes in the log to messages that can be read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from penstock.formats.record.layout import FIXED_BYTES
from penstock.proto.errors import DiskFull, StorageError

from .tables.tables import Tables

if TYPE_CHECKING:
    from ..store.store import Store

log = logging.getLogger(__name__)

SLICE_BYTES = 4 * 1024 * 1024
"""A slice holds the event loop for about a millisecond; between slices requests get their turn."""

LINGER_S = 0.01
HURRY_BYTES = 1 << 20
"""Bytes that nobody waits for are dispatched together: after this time, or when there are so many. Whoever looks
calls :meth:`Dispatcher.catch_up` first, so only the cost is late, never a message."""

DISK_FULL_RETRY_S = 2.0

Arrivals = dict[str, set[int]]
"""topic -> queue ids that have new messages."""


class Watcher(Protocol):
    """Who wants to know at once what can be read."""

    def __bool__(self) -> bool:
        """True if somebody waits for messages now."""

    def waits_for(self, topic: str) -> bool:
        """True if somebody may wait for messages of ``topic`` now."""

    def on_arrived(self, arrivals: Arrivals) -> None:
        """These queues have new messages."""


class Dispatcher:
    """Runs the store's dispatch up to the confirm offset whenever there is progress; one task owns it.

    The tables take the state records and producer marks, then the watchers are told which queues have new messages.
    """

    def __init__(self, store: Store, tables: Tables) -> None:
        self.watchers: list[Watcher] = []
        self._store = store
        self._tables = tables
        self._progress = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._unwanted = 0, 0  # a stretch of the log's end for which no watcher waits

    def poke(self) -> None:
        """There may be something to dispatch: bytes were appended, flushed or confirmed."""
        if self._progress.is_set():
            return
        behind = self._store.confirm_offset - self._store.dispatched_offset
        if behind <= 0:
            return
        if behind >= HURRY_BYTES or self._waiting or (any(self.watchers) and not self._is_unwanted):
            self._progress.set()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._linger_ends)

    def on_appended(self, topic: str, start: int, end: int) -> None:
        """Records of ``topic`` are in the log there; those that nobody waits for are seen a little later."""
        if not any(watcher.waits_for(topic) for watcher in self.watchers):
            begin, stop = self._unwanted
            self._unwanted = begin if stop == start else start, end

    def hurry(self) -> None:
        """Somebody waits from now on for what may be in the log already."""
        self._unwanted = 0, 0
        self.poke()

    def catch_up(self) -> None:
        """Have what is confirmed dispatched now: queues and tables are about to be looked at.

        More than a slice, and a store that cannot, are left to the task.
        """
        if not self._is_behind:
            return
        try:
            self.dispatch_slice()
        except StorageError:
            self._progress.set()

    async def wait_dispatched(self, end: int) -> None:
        """Return when everything below ``end`` is dispatched."""
        if self._store.dispatched_offset < end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((end, future))
            self._progress.set()
            await future

    async def run(self) -> None:
        """Dispatch until cancelled.

        Raises:
            StorageError: the log cannot be dispatched; the broker must stop rather than skip messages.
        """
        while True:
            await self._progress.wait()
            self._progress.clear()
            try:
                await self.drain()
            except DiskFull as error:
                # Nothing was taken, so the slice can be tried again when somebody has made space; reads go on.
                log.error("dispatch waits for space error=%s retry_s=%.0f", error, DISK_FULL_RETRY_S)
                await asyncio.sleep(DISK_FULL_RETRY_S)
                self._progress.set()

    def _linger_ends(self) -> None:
        self._timer = None
        self._progress.set()

    async def drain(self) -> None:
        """Dispatch everything that is confirmed now, slice by slice; others have their turn between two."""
        while self._is_behind and self.dispatch_slice() and self._is_behind:  # noqa: ASYNC110  gives way, waits for nothing
            await asyncio.sleep(0)

    @property
    def _is_unwanted(self) -> bool:
        """True if nobody waits for what is confirmed and not dispatched."""
        begin, stop = self._unwanted
        return begin <= self._store.dispatched_offset and self._store.confirm_offset <= stop

    @property
    def _is_behind(self) -> bool:
        return self._store.dispatched_offset < self._store.confirm_offset

    def dispatch_slice(self) -> bool:
        """Dispatch one slice. True if there was one."""
        before, is_awaited = self._store.dispatched_offset, any(self.watchers)
        result = self._store.dispatch(SLICE_BYTES)
        arrivals: Arrivals = {}
        if result.arrived and is_awaited:
            for topic, queue_id, _ in result.arrived:
                arrivals.setdefault(topic, set()).add(queue_id)
        self._tables.take(result)
        if arrivals:
            for watcher in self.watchers:
                watcher.on_arrived(arrivals)
        if self._waiting:
            for end, future in self._waiting:
                if end <= result.end and not future.done():
                    future.set_result(None)
            self._waiting = [(end, future) for end, future in self._waiting if not future.done()]
        return result.end > before


def hidden_records_max(store: Store) -> int:
    """At most so many messages are in the log and not readable yet.

    A consumer may know them all the same, from before a restart: an offset that far above the end of its
    queue is not a wrong one.
    """
    return (store.end_offset - store.dispatched_offset) // FIXED_BYTES
