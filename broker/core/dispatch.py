"""The dispatch task: from bytes in the log to messages that can be read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock.formats.record.layout import FIXED_BYTES
from penstock.proto.errors import DiskFull, StorageError

from .producers import ProducerTable
from .state import State

if TYPE_CHECKING:
    from ..store.results import DispatchResult

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


class DispatchStore(Protocol):
    """What of the store this module needs."""

    @property
    def confirm_offset(self) -> int: ...
    @property
    def dispatched_offset(self) -> int: ...
    def dispatch(self, max_bytes: int = SLICE_BYTES) -> DispatchResult: ...


class Dispatcher:
    """Runs the store's dispatch up to the confirm offset whenever there is progress; one task owns it.

    Applies state records and producer marks, then tells ``on_arrived`` which queues have new messages. ``is_awaited``
    tells whether somebody waits for any.
    """

    def __init__(
        self,
        store: DispatchStore,
        state: State,
        producers: ProducerTable,
        on_arrived: Callable[[Arrivals], None],
        is_awaited: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store = store
        self._state = state
        self._producers = producers
        self._on_arrived = on_arrived
        self._is_awaited = is_awaited
        self._progress = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def poke(self) -> None:
        """There may be something to dispatch: bytes were appended, flushed or confirmed."""
        if self._progress.is_set():
            return
        behind = self._store.confirm_offset - self._store.dispatched_offset
        if behind >= HURRY_BYTES or self._waiting or self._is_awaited():
            self._progress.set()
        elif behind > 0 and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LINGER_S, self._linger_ends)

    def catch_up(self) -> None:
        """Have what is confirmed dispatched now: queues and tables are about to be looked at.

        More than a slice, and a store that cannot, are left to the task.
        """
        if self._store.dispatched_offset >= self._store.confirm_offset:
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
        """Dispatch everything that is confirmed now, slice by slice."""
        while self.dispatch_slice():  # noqa: ASYNC110  gives way, waits for nothing
            await asyncio.sleep(0)

    def dispatch_slice(self) -> bool:
        """Dispatch one slice; whether there was one."""
        before = self._store.dispatched_offset
        result = self._store.dispatch(SLICE_BYTES)
        arrivals: Arrivals = {}
        if result.arrived and self._is_awaited():
            for topic, queue_id, _ in result.arrived:
                arrivals.setdefault(topic, set()).add(queue_id)
        apply(result, self._state, self._producers)
        if arrivals:
            self._on_arrived(arrivals)
        if self._waiting:
            for end, future in self._waiting:
                if end <= result.end and not future.done():
                    future.set_result(None)
            self._waiting = [(end, future) for end, future in self._waiting if not future.done()]
        return result.end > before


class LogEnds(Protocol):
    """Where a log ends, and how much of it can be read by queue."""

    @property
    def dispatched_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


def hidden_records_max(log: LogEnds) -> int:
    """At most so many messages are in the log and not readable yet.

    A consumer may know them all the same, from before a restart: an offset that far above the end of its
    queue is not a wrong one.
    """
    return (log.end_offset - log.dispatched_offset) // FIXED_BYTES


def apply(result: DispatchResult, state: State, producers: ProducerTable) -> set[str]:
    """Bring the derived tables up to the end of a dispatched, or replayed, slice; the topics it deletes."""
    deleted = {state.apply_record(position, record) for position, record in result.state_records}
    for batch in result.marks:
        producers.restore(batch)
    return deleted - {""}
