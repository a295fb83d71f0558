"""Waits that look again and again before they sleep: a wake-up takes longer than a small request.

Who waits looks for one window, if the wait before took no longer than a wake-up or two. That is the rule of KVM's halt
polling (Linux, ``Documentation/virt/kvm/halt-polling.rst``); differs: where nothing comes in time, fewer and fewer
waits look. Between two looks the processor is yielded; where others keep it for long, that was a look in vain.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")
Events = list[tuple[selectors.SelectorKey, int]]

WINDOW_S: Final = 200e-6
SHORT_WINDOWS: Final = 2
"""A sleep of so many windows was a short wait: it has the wake-ups in it that looking saves."""
SKIPPED_MAX: Final = 63


class BusyPoll:
    """Waits, one after the other."""

    def __init__(self, window_s: float = WINDOW_S, clock: Callable[[], float] = time.perf_counter) -> None:
        """``window_s``: how long is looked, where there is another processor for who is waited for."""
        self.window_s = window_s
        self._is_alone = len(os.sched_getaffinity(0)) == 1
        self._clock = clock
        self._is_short = False  # the last wait was
        self._skipped = 0  # waits that do not look, after one that looked in vain; half as many after each that found
        self._skips = 0  # of these, how many are left

    def wait(self, look: Callable[[], T | None], sleep: Callable[[], T]) -> T:
        """What ``look`` finds, while it may come at once, else what ``sleep`` gives. Errors of both come out."""
        if self._is_alone:
            return sleep()
        begun = self._clock()
        if self._skips:
            self._skips -= 1
        elif self._is_short:
            while self._clock() - begun < self.window_s:
                found = look()
                if found is not None:
                    self._skipped //= 2
                    return found
                os.sched_yield()
            self._skips = self._skipped = min(2 * self._skipped + 1, SKIPPED_MAX)
        self._is_short = False
        slept = sleep()
        self._is_short = self._clock() - begun < self.window_s * SHORT_WINDOWS
        return slept


class PollingLoop(asyncio.SelectorEventLoop):
    """An event loop that waits so where something is expected at once."""

    def __init__(self) -> None:
        self._polling = _PollingSelector()
        super().__init__(self._polling)

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call it once, as soon as there is nothing else to do, before the loop waits."""
        self._polling.idle.append(partial(self.call_soon, callback))

    def expect(self, window_s: float) -> None:
        """Something may come at once: look for it, for so long, before the loop sleeps again."""
        self._polling.waits.window_s = window_s
        self._polling.is_expecting = True


class _PollingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.waits = BusyPoll()
        self.is_expecting = False  # until the loop sleeps
        self.idle: list[Callable[[], object]] = []  # what is called when nothing is left to do and a look finds nothing

    def select(self, timeout: float | None = None) -> Events:
        select = super().select
        if self.idle and timeout != 0:
            found = select(0)
            if not found:  # one at a time: what comes meanwhile goes first
                self.idle.pop(0)()
            return found
        if not self.is_expecting or (timeout is not None and timeout < self.waits.window_s):
            self.is_expecting = self.is_expecting and timeout == 0
            return select(timeout)
        until = None if timeout is None else time.monotonic() + timeout

        def sleep() -> Events:
            self.is_expecting = False
            return select(None if until is None else max(until - time.monotonic(), 0.0))

        return self.waits.wait(lambda: select(0) or None, sleep)
