"""How fast one slave is sent bytes: a bucket that fills at the configured rate. Times are monotonic seconds."""

from __future__ import annotations


class Throttle:
    """At most ``bytes_per_s`` on average, and ``burst_bytes`` at once; 0 bytes per second: no limit."""

    def __init__(self, bytes_per_s: int, burst_bytes: int, now: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._burst = burst_bytes
        self._held = float(burst_bytes)
        self._at = now

    def wait_s(self, size: int, now: float) -> float:
        """The seconds until ``size`` bytes, at most ``burst_bytes``, may be sent; 0: at once."""
        if not self._bytes_per_s:
            return 0.0
        assert size <= self._burst, f"{size} bytes never fit into a burst of {self._burst}"
        self._held = min(float(self._burst), self._held + (now - self._at) * self._bytes_per_s)
        self._at = now
        return max(0.0, (size - self._held) / self._bytes_per_s)

    def take(self, size: int) -> None:
        """Count ``size`` bytes as sent."""
        self._held -= size
