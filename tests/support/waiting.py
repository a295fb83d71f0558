"""Waiting on conditions instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S, POLL_S_MAX = 0.005, 0.1
PATIENCE_S = 30.0
"""No promise about time: only what never comes true lasts that long, however busy the machine is."""


def _pause_after(look_s: float) -> float:
    """Between two looks, three times what one takes: many ask every broker, and a wait is not to take the processor
    from what it waits for.
    """
    return min(max(POLL_S, 3 * look_s), POLL_S_MAX)


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "the condition") -> T:
    """The first true value of ``condition``; fails the test by name when it stays false for ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        looked_at = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last value {value!r}")
        time.sleep(_pause_after(now - looked_at))


async def eventually(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "the condition") -> T:
    """The same inside an event loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        looked_at = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last value {value!r}")
        await asyncio.sleep(_pause_after(now - looked_at))
