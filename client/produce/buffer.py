"""Flow control: the limit on what is accepted and not yet acknowledged, and waiting for room or for all of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from penstock.proto.errors import BufferFull, OutcomeUnknown

from ..message import FailedDelivery
from .parts import Part


class Buffer:
    """How much is accepted and not yet settled; who flushes or needs room waits here. Thread-safe.

    Each sealed part holds a ticket, in order of acceptance, until all its messages are settled.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._changed = threading.Condition()
        self._used = 0
        self._last_ticket = 0
        self._live: dict[int, int] = {}  # ticket -> messages to settle, oldest first
        self.trouble = ""  # that the last try of a batch ended with; empty once one is acknowledged; of any thread

    @property
    def used(self) -> int:
        return self._used

    @property
    def pending(self) -> int:
        with self._changed:
            return sum(self._live.values())

    def has_room(self, cost: int) -> bool:
        return self._used + cost <= self.bytes_max or not self._used

    def room(self, most: int) -> int:
        """How much there is room for, at most so much."""
        return max(min(most, self.bytes_max - self._used), 0)

    def wait_for_room(self, cost: int, timeout_s: float, on_wait: Callable[[], None]) -> None:
        """Return when ``cost`` fits; calls ``on_wait`` once before it waits.

        More than the whole buffer fits when the buffer is empty.

        Raises:
            BufferFull: it did not within ``timeout_s``.
        """
        if self.has_room(cost):
            return
        on_wait()
        with self._changed:
            if not self._changed.wait_for(lambda: self.has_room(cost), timeout_s):
                raise BufferFull(
                    f"buffer full: {self._used} of {self.bytes_max} bytes wait for acknowledgement, and none "
                    f"came within {timeout_s:.3g} s: raise buffer_bytes, or look at the brokers{self._told()}"
                )

    def hold(self, cost: int, count: int) -> int:
        """Count ``count`` messages in, whatever room there is; the ticket to settle them with."""
        with self._changed:
            self._used += cost
            self._last_ticket += 1
            self._live[self._last_ticket] = count
            return self._last_ticket

    def merge(self, ticket: int, other: int) -> None:
        """The messages held under ``other`` are held under ``ticket`` from now on."""
        with self._changed:
            self._live[ticket] = self._live.get(ticket, 0) + self._live.pop(other, 0)

    def settle(self, part: Part) -> None:
        """Count the messages of ``part`` out."""
        with self._changed:
            self._used -= part.held_bytes
            left = self._live.get(part.ticket, 0) - part.count
            if left > 0:
                self._live[part.ticket] = left
            else:
                self._live.pop(part.ticket, None)
            self._changed.notify_all()

    def late(self, waited_s: float) -> FailedDelivery:
        """What is told of everything that is held after so long."""
        left = self.pending
        told = f"{left} messages are not acknowledged after {waited_s:g} s; delivery goes on{self._told()}"
        return FailedDelivery("", left, OutcomeUnknown(told))

    def _told(self) -> str:
        return f"; the last try ended with: {self.trouble}" if self.trouble else ""

    def wait_settled(self, timeout_s: float) -> bool:
        """Wait for everything that is held now. Returns True if it is settled within ``timeout_s``."""
        with self._changed:
            last = self._last_ticket
            return self._changed.wait_for(lambda: not self._live or next(iter(self._live)) > last, timeout_s)
