"""Waiting on conditions instead of sleeping."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_S = 0.005
PATIENCE_S = 30.0
"""No promise about time: only what never comes true lasts that long, however busy the machine is."""


def wait_until(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "the condition") -> T:
    """The first true value of ``condition``; fails the test by name when it stays false for ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last value {value!r}")
        time.sleep(POLL_S)


async def eventually(condition: Callable[[], T], timeout_s: float = PATIENCE_S, what: str = "the condition") -> T:
    """The same inside an event loop."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout_s} s; last value {value!r}")
        await asyncio.sleep(POLL_S)
