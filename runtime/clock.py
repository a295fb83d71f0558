"""Time as the processes see it: one seam, so that tests move the clock instead of waiting."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Clock(Protocol):
    """Monotonic time for time-outs, expiry and leases; wall time only for timestamps that users see."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary point; never goes back, and does not jump when the wall clock is set.

        The time in which the machine was suspended counts: a lease runs out while nobody can look.
        """
        ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970 UTC; may jump."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        # Linux's CLOCK_MONOTONIC stands still during a suspend, and a master would believe in its lease afterwards.
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """Wall time that does not run ahead: nothing is deleted, or delivered, because somebody set the clock forward.

    It follows the wall clock back at once, by which things happen later, and forward only by ``tolerated_ms`` at a
    time, or when the jump has lasted for ``believed_after_s``: until then it goes on with monotonic time.
    """

    def __init__(
        self, wall_ms: int, monotonic_s: float, *, tolerated_ms: int = 60_000, believed_after_s: float = 6 * 3600.0
    ) -> None:
        self._tolerated_ms = tolerated_ms
        self._believed_after_s = believed_after_s
        self._now_ms = wall_ms
        self._at_s = monotonic_s
        self._ahead_since: float | None = None

    def now_ms(self, wall_ms: int, monotonic_s: float) -> int:
        """Milliseconds since 1970, given what both clocks say."""
        expected = self._now_ms + round(1000 * (monotonic_s - self._at_s))
        self._at_s = monotonic_s
        if wall_ms <= expected + self._tolerated_ms:
            self._now_ms, self._ahead_since = wall_ms, None
        else:
            if self._ahead_since is None:
                self._ahead_since = monotonic_s
            lasted = monotonic_s - self._ahead_since >= self._believed_after_s
            self._now_ms = wall_ms if lasted else expected
            if lasted:
                self._ahead_since = None
        return self._now_ms


def boot_id() -> str:
    """A text that is another after the machine has booted; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
