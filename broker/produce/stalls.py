"""Refusing messages while the disk holds up appends: RocketMQ's "page cache busy"."""

from __future__ import annotations

import logging

from penstock.proto.errors import FlowControl
from penstock.runtime.clock import Clock

log = logging.getLogger(__name__)

PAUSE_S = 0.2


class AppendStalls:
    """Watches how long appends hold the event loop; event loop only.

    An append usually takes microseconds. One that took longer than ``limit_s`` waited for memory or for a file: the
    disk cannot keep up. Nothing can be refused while it lasts, since one thread does it all; what has piled up
    behind it is refused for ``PAUSE_S``, so that it goes to another broker, and the disk gets time.
    """

    def __init__(self, limit_s: float, clock: Clock) -> None:
        self._limit_s = limit_s
        self._clock = clock
        self._until_s = 0.0
        self.stalls = 0
        self.refused = 0

    def check(self) -> None:
        """Refuse what comes too early after a stall. Raises FlowControl: try again, or elsewhere."""
        if self._until_s and self._clock.monotonic_s() < self._until_s:
            self.refused += 1
            raise FlowControl(
                f"page cache busy: an append took longer than osPageCacheBusyTimeOutMills={self._limit_s * 1000:.0f}; "
                "nothing was stored, try again"
            )

    def on_append(self, seconds: float) -> None:
        """An append took that long."""
        if seconds > self._limit_s:
            self.stalls += 1
            self._until_s = self._clock.monotonic_s() + PAUSE_S
            log.warning("append stalled seconds=%.2f refusing_s=%.1f", seconds, PAUSE_S)
