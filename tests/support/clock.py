"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """A :class:`penstock.runtime.clock.Clock` whose two times move together, by :meth:`advance` alone."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._monotonic_s = 1000.0
        self._wall_ms = float(wall_ms)

    def monotonic_s(self) -> float:
        return self._monotonic_s

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def advance(self, seconds: float) -> None:
        assert seconds >= 0, "monotonic time does not go back"
        self._monotonic_s += seconds
        self._wall_ms += seconds * 1000

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock alone, as an operator or NTP would; it may go back."""
        self._wall_ms = float(wall_ms)
