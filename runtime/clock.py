"""Time as the processes see it: one seam, so that tests move the clock instead of waiting."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

log = logging.getLogger(__name__)

JUMP_MS: Final = 1000
BELIEVED_SHARE: Final = 0.1
BELIEVED_S: Final = 600.0
"""A wall clock that is set ahead by more than ``JUMP_MS`` brings nothing early, unless it stays so for this share of
the jump, or for this long. So a machine that was paused for a minute is followed in six seconds."""
LOOK_S: Final = 1.0
QUIET_S: Final = 60.0
"""So often at most, it is told that the wall clock was set."""
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
    time, or when the jump has lasted for ``believed_after_s``, or for ``believed_share`` of itself: until then it goes
    on with monotonic time.
    """

    def __init__(
        self,
        wall_ms: int,
        monotonic_s: float,
        *,
        tolerated_ms: int = 60_000,
        believed_after_s: float = 6 * 3600.0,
        believed_share: float = math.inf,
    ) -> None:
        self._tolerated_ms = tolerated_ms
        self._believed_after_s = believed_after_s
        self._believed_share = believed_share
        self._now_ms = float(wall_ms)  # with fractions: it may be looked at many times in a millisecond
        self._at_s = monotonic_s
        self._ahead: tuple[float, float] | None = None  # by how much at least, and since when

    @property
    def is_behind(self) -> bool:
        """True while the wall clock is ahead, and not believed."""
        return self._ahead is not None

    def reckoned_ms(self, monotonic_s: float) -> float:
        """What the wall clock says if nobody has set it since the last look."""
        return self._now_ms + 1000 * (monotonic_s - self._at_s)

    def now_ms(self, wall_ms: int, monotonic_s: float) -> int:
        """Milliseconds since 1970, given what both clocks say."""
        reckoned = self.reckoned_ms(monotonic_s)
        self._at_s = monotonic_s
        ahead = wall_ms - reckoned
        if ahead <= self._tolerated_ms:
            self._now_ms, self._ahead = float(wall_ms), None
        else:
            least, since = self._ahead or (ahead, monotonic_s)
            least = min(least, ahead)
            is_believed = monotonic_s - since >= min(self._believed_after_s, self._believed_share * least / 1000)
            self._now_ms, self._ahead = (reckoned + least, None) if is_believed else (reckoned, (least, since))
        return round(self._now_ms)


class DueClock:
    """A broker's clock, which also says what is due. It looks at itself always: a jump of hours ago is old news."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        now_s = clock.monotonic_s()
        rule = {"believed_after_s": BELIEVED_S, "believed_share": BELIEVED_SHARE}
        self._steady = SteadyClock(clock.wall_ms(), now_s, tolerated_ms=JUMP_MS, **rule)
        self._told_s: float | None = None

    @property
    def is_behind(self) -> bool:
        return self._steady.is_behind

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def due_ms(self) -> int:
        """Milliseconds since 1970, for what is to be done at a time: ahead of monotonic time by lasting jumps alone."""
        wall_ms, now_s = self._clock.wall_ms(), self._clock.monotonic_s()
        reckoned_ms, was_behind = self._steady.reckoned_ms(now_s), self._steady.is_behind
        found = self._steady.now_ms(wall_ms, now_s)
        is_ahead = self._steady.is_behind and not was_behind
        is_loud = self._told_s is None or now_s - self._told_s >= QUIET_S
        if (is_ahead or wall_ms < reckoned_ms - JUMP_MS) and is_loud:
            self._told_s = now_s
            log.warning(
                "wall clock was set %s wall=%s reckoned=%s seconds=%.1f: %s",
                *("ahead" if is_ahead else "back", _shown(wall_ms), _shown(reckoned_ms)),
                abs(wall_ms - reckoned_ms) / 1000,
                "what waits goes by the reckoned time, until it has stayed so for a tenth of that, or ten minutes"
                if is_ahead
                else "what waits comes as much later",
            )
        return found

    async def run(self) -> None:
        """Look at it, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.due_ms()


def boot_id() -> str:
    """A text that is another after the machine has booted; empty where the system does not tell."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _shown(time_ms: float) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
