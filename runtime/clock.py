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


def boot_id() -> str:
    """A text that is another after the machine has booted; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
