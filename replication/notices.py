"""Log lines that may repeat many times a second, kept readable."""

from __future__ import annotations

import logging

from penstock.runtime.clock import Clock

KEYS_MAX = 256


class Notices:
    """Logs what is wrong when it is new for its key, and again after an interval with the count left out meanwhile."""

    def __init__(self, log: logging.Logger, clock: Clock, *, interval_s: float = 30.0) -> None:
        self._log = log
        self._clock = clock
        self._interval_s = interval_s
        self._last: dict[str, tuple[str, float, int]] = {}  # key -> text, when it was logged, repeats since

    def warn(self, key: str, text: str, level: int = logging.WARNING, **details: object) -> None:
        """Say ``text`` and ``details``, unless ``text`` was the last thing said about ``key``, not long ago."""
        now = self._clock.monotonic_s()
        last_text, said_at, repeats = self._last.get(key, ("", 0.0, 0))
        if text == last_text and now - said_at < self._interval_s:
            self._last[key] = (text, said_at, repeats + 1)
            return
        if len(self._last) >= KEYS_MAX:  # strangers choose the keys: their number must be bounded
            self._last.clear()
        self._last[key] = (text, now, 0)
        if text == last_text and repeats:
            details["repeats"] = repeats
        self._log.log(level, "%s%s", text, "".join(f" {name}={value}" for name, value in details.items()))
