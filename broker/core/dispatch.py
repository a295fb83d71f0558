"""The dispatch task: from bytes in the log to messages that can be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.formats.record.layout import FIXED_BYTES
from penstock.proto import names
from penstock.proto.errors import DiskFull
from penstock.runtime.busy_poll import PollingLoop

from ..store.store import Store
from .tables.tables import Tables

log = logging.getLogger(__name__)

SLICE_BYTES = 4 * 1024 * 1024
"""A slice holds the event loop for about a millisecond; between slices requests get their turn."""

TOPICS_MAX = 1024
"""Of what is not dispatched, so many topics are told apart."""

LINGER_S = 0.01
HURRY_BYTES = 1 << 20
IDLE_RECORDS = 8
"""Bytes that nobody waits for are dispatched together: after this time, when there are so many, or when nothing else is
to be done and so many records came alone. These are few enough to be in the processor's caches, and hold up no sender.
Whoever looks calls :meth:`Dispatcher.catch_up` first, so only the cost is late, never a message."""

DISK_FULL_RETRY_S = 2.0

ASKED_MAX = 64
"""Whoever asks for more queues of a topic than this is told what there may be without a look at each."""

Arrivals = dict[str, set[int]]
"""topic -> queue ids that have new messages."""

Asked = Iterable[tuple[str, Iterable[tuple[int, int]]]]
"""For each topic: queue ids, each with the offset of the message that is wanted next."""


class Fresh(NamedTuple):
    """A record that can be read, and is not dispatched: the log's bytes ``[start, end)``."""

    topic: str
    queue_id: int
    queue_offset: int
    start: int
    end: int


class Watcher(Protocol):
    """Who wants to know at once what can be read."""

    def __bool__(self) -> bool:
        """True if somebody waits for messages now."""

    def waits_for(self, topic: str) -> bool:
        """True if somebody may wait for messages of ``topic`` now."""

    def offer(self, fresh: Fresh) -> bool:
        """Give a record that is not dispatched yet to whoever waits for it. True if nobody here waits for it now."""
        return not self.waits_for(fresh.topic)

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
        self._progress = asyncio.Event()  # more than a slice is to be done, or the task has to try again
        self._soon: asyncio.Handle | None = None  # a slice that is dispatched in the loop's next round
        self._timer: asyncio.TimerHandle | None = None
        self._alone = 0  # records that came alone since the last slice
        self._is_idle_awaited = False  # the loop is told to dispatch when it has nothing else to do
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._fresh: Fresh | None = None  # a record that came alone, which is about to be offered
        # What is in a stretch of the log's end, by topic: the offset behind the newest record of each queue; None where
        # records have come together.
        self._ends: dict[str, dict[int, int] | None] = {}
        self._known = 0, 0  # this is the stretch
        self._is_wanted = False  # somebody waits for what is in it, besides the one that is about to be offered
        self._failure: Exception | None = None  # what another than the task met

    def poke(self) -> None:
        """There may be something to dispatch: bytes were appended, flushed or confirmed."""
        if self._soon is not None or self._progress.is_set():
            return
        behind = self._store.confirm_offset - self._store.dispatched_offset
        if behind <= 0:
            return
        if behind >= HURRY_BYTES or self._waiting or self._is_awaited():
            self._soon = asyncio.get_running_loop().call_soon(self._on_soon)
            return
        loop = asyncio.get_running_loop()
        if self._timer is None:
            self._timer = loop.call_later(LINGER_S, self._linger_ends)
        if self._alone >= IDLE_RECORDS and not self._is_idle_awaited and isinstance(loop, PollingLoop):
            self._is_idle_awaited = True
            loop.when_idle(self._on_idle)

    def on_appended(self, topic: str, start: int, end: int, fresh: Fresh | None = None) -> None:
        """Records of ``topic`` are in the log there; those that nobody waits for are seen a little later.

        ``fresh``: if it is one record. Whoever waits for it need not wait for its dispatch.
        """
        self._alone += fresh is not None
        begin, stop = self._known
        if stop != start or self._store.dispatched_offset >= start or len(self._ends) >= TOPICS_MAX:
            begin = start
            self._ends.clear()
            self._fresh, self._is_wanted = None, False
        self._known = begin, end
        if fresh is None:
            self._ends[topic] = None
        elif (ends := self._ends.setdefault(topic, {})) is not None:
            ends[fresh.queue_id] = fresh.queue_offset + 1
        if not self._is_wanted and any(watcher.waits_for(topic) for watcher in self.watchers):
            # What a state record says may be about the topic, and is not seen yet.
            may_offer = fresh is not None and self._fresh is None and names.STATE_TOPIC not in self._ends
            if may_offer:
                self._fresh = fresh
            else:
                self._is_wanted = True

    def hurry(self, asked: Asked | None = None) -> None:
        """Somebody waits from now on, for messages that are ``asked`` for if known, which may be in the log already."""
        if not self._is_wanted and asked is not None:
            self._is_wanted = self._has_any(asked)
        elif not self._is_wanted:
            waiting = [watcher for watcher in self.watchers if watcher]
            self._is_wanted = any(watcher.waits_for(topic) for watcher in waiting for topic in self._ends)
        self.poke()

    def on_role(self) -> None:
        """The log's end may be another than this broker has appended."""
        self._known, self._fresh = (0, 0), None
        self.poke()

    def catch_up(self, asked: Asked | None = None) -> None:
        """Have what is confirmed dispatched now: queues and tables are about to be looked at.

        Not if all that is looked for is ``asked``, and none of it is there. The task does what is more than a slice;
        what goes wrong is its end, but for a full disk.
        """
        if not self._is_behind or (asked is not None and self._is_known and not self._has_any(asked)):
            return
        try:
            self.dispatch_slice()
        except Exception as error:  # noqa: BLE001  the task raises it
            self._failure = error
            self._progress.set()
        else:
            if self._is_behind:
                self._progress.set()

    def hidden_records_max(self, topic: str, queue_id: int) -> int:
        """At most so many messages of the queue are in the log and not readable yet.

        A consumer may know them all the same, from before a restart: an offset that far above the end of its queue is
        not a wrong one.
        """
        store = self._store
        shown = store.dispatched_offset
        ends = self._ends.get(topic)
        is_there = self._has(topic) and (ends is None or queue_id in ends)
        if self._is_known and not is_there:
            shown = max(shown, self._known[1])
        return max(store.end_offset - shown, 0) // FIXED_BYTES

    async def wait_dispatched(self, end: int) -> None:
        """Return when everything below ``end`` is dispatched."""
        if self._store.dispatched_offset < end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((end, future))
            self._progress.set()
            await future

    async def run(self) -> None:
        """Dispatch until cancelled. Raises StorageError: the broker must stop rather than skip messages."""
        while True:
            await self._progress.wait()
            self._progress.clear()
            failure, self._failure = self._failure, None
            if failure is not None and not isinstance(failure, DiskFull):
                raise failure
            try:
                await self.drain()
            except DiskFull as error:
                # Nothing was taken, so the slice can be tried again when somebody has made space; reads go on.
                log.error("dispatch waits for space error=%s retry_s=%.0f", error, DISK_FULL_RETRY_S)
                await asyncio.sleep(DISK_FULL_RETRY_S)
                self._progress.set()

    def _on_soon(self) -> None:
        self._soon = None
        fresh = self._fresh
        if fresh is None or fresh.end > self._store.confirm_offset or not self._is_known:
            self.catch_up()
            return
        self._fresh = None
        if fresh.start >= self._store.dispatched_offset:
            for watcher in self.watchers:
                self._is_wanted |= not watcher.offer(fresh)
        self.poke()

    def _on_idle(self) -> None:
        self._is_idle_awaited = False
        if self._soon is None:
            self.catch_up()

    def _linger_ends(self) -> None:
        self._timer = None
        if self._soon is None:
            self.catch_up()

    async def drain(self) -> None:
        """Dispatch everything that is confirmed now, slice by slice; others have their turn between two."""
        while self._is_behind and self.dispatch_slice() and self._is_behind:  # noqa: ASYNC110  gives way, waits for nothing
            await asyncio.sleep(0)

    def _is_awaited(self) -> bool:
        """True if somebody may wait for what is confirmed and not dispatched."""
        return self._is_wanted or self._fresh is not None if self._is_known else any(self.watchers)

    def _has(self, topic: str) -> bool:
        """True if the known stretch may have records for queues of ``topic``."""
        return topic in self._ends or topic.startswith(names.LIGHT_PREFIX)

    def _has_any(self, asked: Asked) -> bool:
        """True if the known stretch may have something that is asked for."""
        if not self._ends:
            return False
        for topic, queues in asked:
            if self._has(topic):
                ends = self._ends.get(topic)
                if ends is None or _reaches(ends, queues):
                    return True
        return False

    @property
    def _is_known(self) -> bool:
        """True if all that is confirmed and not dispatched lies in the known stretch."""
        begin, stop = self._known
        return begin <= self._store.dispatched_offset and self._store.confirm_offset <= stop

    @property
    def _is_behind(self) -> bool:
        return self._store.dispatched_offset < self._store.confirm_offset

    def dispatch_slice(self) -> bool:
        """Dispatch one slice. True if there was one."""
        before, is_awaited = self._store.dispatched_offset, any(self.watchers)
        result = self._store.dispatch(SLICE_BYTES)
        self._alone = 0
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


def _reaches(ends: Mapping[int, int], queues: Iterable[tuple[int, int]]) -> bool:
    """True if one of the wanted offsets is not its queue's end, where nothing is yet, or there are many."""
    for number, (queue_id, offset) in enumerate(queues):
        if number >= ASKED_MAX or offset != ends.get(queue_id, offset):
            return True
    return False
