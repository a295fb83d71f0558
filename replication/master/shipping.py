"""The master's end of one slave's stream: what is sent next, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.proto.errors import BrokerUnavailable, WrongStore
from penstock.runtime.clock import Clock
from penstock.runtime.data.link import SILENCE_S
from penstock.runtime.data.port import Link

from .. import frames
from ..config import ReplicationConfig
from ..interfaces import ReplicaLog
from .progress import Progress, ReplicaProgress
from .throttle import Throttle

if TYPE_CHECKING:
    from .primary import Primary

STAMPS_PER_S = 1_000_000


def stamp_of(seconds: float) -> int:
    """A time of the master's clock, as frames carry it."""
    return int(seconds * STAMPS_PER_S)


class SlaveStream:
    """Makes the frames for one slave, each just before it is sent.

    Nothing is queued: what the slave has not been sent stays in the log, what it has not acknowledged is at
    most ``window_bytes``. Frames show the log itself, and the next one is made when the system has taken the last. A
    slave that stops reading stops this stream's own generator and nobody else.
    """

    def __init__(
        self,
        replica: ReplicaProgress,
        store_instance: str,
        welcome: bytes,
        owner: Primary,
        link: Link,
        *,
        log: ReplicaLog,
        table: Progress,
        config: ReplicationConfig,
        epoch: int,
        clock: Clock,
    ) -> None:
        self.replica = replica
        self.store_instance = store_instance
        self._welcome = welcome
        self._owner = owner
        self._link = link
        self._log = log
        self._table = table
        self._config = config
        self._epoch = epoch
        self._clock = clock
        self._wake = asyncio.Event()
        self._last_frame_at = clock.monotonic_s()
        self._throttle = Throttle(config.transfer_bytes_per_s_max, config.frame_bytes, self._last_frame_at)
        self._held_until = 0.0  # the throttle lets the next bytes go then
        self._last_confirm = -1
        self._is_taken = True  # the system has all that was given to it
        self._ended = False
        self._error: Exception | None = None

    def wake(self) -> None:
        """Something may be sent: new bytes, a new confirm offset, room in the window, or the end."""
        self._wake.set()

    def hear(self, content: bytes | memoryview) -> None:
        """The slave says this; what cannot be true ends the stream."""
        try:
            self._owner.on_report(frames.decode_report(content), self)
        except Exception as error:  # noqa: BLE001  the edge of the report: the stream ends with it, and tells it
            self.leave(f"{type(error).__name__}: {error}", error)

    def leave(self, because: str = "connection lost", error: Exception | None = None) -> None:
        """Count the slave no more, and let :meth:`frames` end; the first reason stands."""
        if self.replica.connected:
            self._owner.on_end(self, because, error)

    def end(self, error: Exception | None) -> None:
        """Let :meth:`frames` end: with ``error``, or as done."""
        self._ended = True
        self._error = self._error or error
        self._wake.set()
        if not self._is_taken:
            self._link.abort()  # the log it shows may be cut from here on

    def on_taken(self) -> None:
        """The system has what was given last, or nobody wants it any more."""
        self._is_taken = True
        self._wake.set()

    async def frames(self) -> AsyncIterator[tuple[bytes | memoryview, ...]]:
        """Every message, in pieces, until the stream ends; the next one once :meth:`on_taken` was called."""
        self._is_taken = False
        yield (self._welcome,)
        while True:
            self._wake.clear()  # before looking: what happens from here on wakes again
            if self._ended:
                if self._error is not None:
                    raise self._error
                return
            now = self._clock.monotonic_s()
            silent_s = self._link.silent_s
            if silent_s >= SILENCE_S:
                raise BrokerUnavailable(f"slave {self.replica.broker_id}: nothing was heard for {silent_s:.1f} s")
            message = self._next(now) if self._is_taken else None
            if message is not None:
                self._last_frame_at = now
                self._last_confirm = self._table.confirm
                self._is_taken = False
                yield message
            else:
                await self._sleep(now)

    def _next(self, now: float) -> tuple[bytes | memoryview, ...] | None:
        replica, confirm, end = self.replica, self._table.confirm, self._log.end_offset
        room = self._config.window_bytes - replica.in_flight
        if replica.sent < end and room > 0:
            if replica.sent < self._log.min_offset:
                raise WrongStore(
                    f"slave {replica.broker_id} is at {replica.sent}, the log now begins at {self._log.min_offset}: "
                    "it was too slow for the retention; wipe its store, it will start over from there"
                )
            start = replica.sent
            wanted = min(self._config.frame_bytes, room, end - start)
            self._held_until = now + self._throttle.wait_s(wanted, now)
            if self._held_until <= now:
                view = self._log.read_bytes(start, wanted)
                assert len(view) > 0, f"nothing to read at {start} of a log that ends at {end}"
                self._throttle.take(len(view))
                replica.sent = start + len(view)
                return frames.data(self._epoch, start, view, confirm=confirm, end=end, stamp=self._stamped(now))
        if now >= self._due_at():
            return (frames.heartbeat(self._epoch, replica.sent, confirm=confirm, end=end, stamp=self._stamped(now)),)
        return None

    def _stamped(self, now: float) -> int:
        self.replica.stamped = stamp_of(now)
        return self.replica.stamped

    def _due_at(self) -> float:
        news = self._table.confirm > self._last_confirm
        interval_ms = self._config.confirm_interval_ms if news else self._config.heartbeat_interval_ms
        return self._last_frame_at + interval_ms / 1000

    async def _sleep(self, now: float) -> None:
        until = self._due_at()
        if not self._is_taken:
            until = now + self._config.heartbeat_interval_ms / 1000
        elif self._held_until > now:
            until = min(until, self._held_until)
        try:
            async with asyncio.timeout(max(0.0, until - now)):
                await self._wake.wait()
        except TimeoutError:
            return
