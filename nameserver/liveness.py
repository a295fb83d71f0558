"""How long a broker may be silent before the routes forget it.

A broker that dies is noticed at once, by the end of its stream. Silence is the other case: a frozen process, a
cut cable. A report is due every :data:`HEARTBEAT_INTERVAL_MS`; after :data:`EXPIRY_MS` without one, and one sweep
later at most, the broker is out: 2.5 s + 0.2 s, below the promised 3 s.
"""

from __future__ import annotations

HEARTBEAT_INTERVAL_MS = 500
ELECTABLE_INTERVAL_MS = 200
"""The same for brokers whose master is elected: several reports fit into the time after which one is old."""
EXPIRY_MS = 2500
SWEEP_INTERVAL_MS = 200
STALL_MS = 500
"""A sweep later than this by that much: the nameserver itself stood still, and the brokers' reports wait unread."""


class Liveness:
    """When each session was last heard. Pure: the time, in seconds of a monotonic clock, is passed in."""

    def __init__(self, expiry_ms: int = EXPIRY_MS) -> None:
        self._expiry_s = expiry_ms / 1000
        self._heard_s: dict[int, float] = {}  # session -> time of its last report, least recent first

    def heard(self, session: int, now_s: float) -> None:
        """Note a report of ``session``; the first one makes it known."""
        self._heard_s.pop(session, None)
        self._heard_s[session] = now_s

    def forget(self, session: int) -> None:
        """Stop expecting reports of ``session``."""
        self._heard_s.pop(session, None)

    def silent(self, now_s: float) -> list[int]:
        """The sessions not heard for the expiry time, the longest silent first."""
        found = []
        for session, heard_s in self._heard_s.items():
            if now_s - heard_s < self._expiry_s:
                break  # in order of their last report: all others were heard later
            found.append(session)
        return found

    def excuse(self, now_s: float) -> None:
        """Count everybody's silence from now: the nameserver stood still, not the others."""
        for session in self._heard_s:
            self._heard_s[session] = now_s
