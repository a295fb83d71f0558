"""Turns on the event loop: however much work comes at once, everything else goes on in between.

Many a coroutine never needs a task: :func:`begin` runs it at once as far as it waits for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Final

TURN_S: Final = 0.005
"""After so long others get their turn."""


@contextlib.asynccontextmanager
async def tasks_together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group of which one error itself comes out: the first of a task, else the body's; the rest is cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    """True if the caller is called by that loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def seen(done: asyncio.Future[Any]) -> None:
    """Have its error seen, also where nobody waits for the future any more; for ``add_done_callback``."""
    if not done.cancelled():
        done.exception()


class Turns:
    """What all who share this do in one round of the event loop is a turn; event loop only."""

    def __init__(self) -> None:
        self.number = 0
        """Of the turn. A task that finds the same one again has not waited for anything in between."""
        self._waiting: deque[Callable[[], None]] = deque()  # for the next turn, in order
        self._ends_s = 0.0  # of time.perf_counter(); 0: it has not begun
        self._having = asyncio.Lock()  # held by who waits for the next turn; the others follow one by one

    def ends_s(self) -> float:
        """Until when may be worked now, of :func:`time.perf_counter`; 0: the turn is over."""
        now_s = time.perf_counter()
        if not self._ends_s:
            self._ends_s = now_s + TURN_S
            asyncio.get_running_loop().call_soon(self._next)
            return self._ends_s
        return self._ends_s if now_s < self._ends_s else 0.0

    @property
    def has_time(self) -> bool:
        """True if there is time in this turn, and nobody waits for the next."""
        return bool(self.ends_s()) and not self._having.locked()

    async def have(self) -> None:
        """Return when there is time in a turn, which may be this one; those that wait come in their order."""
        if self.has_time:
            return
        async with self._having:
            while not self.ends_s():  # noqa: ASYNC110  gives way, waits for nothing
                await asyncio.sleep(0)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have ``go_on`` called in a next turn; this one is over."""
        self._waiting.append(go_on)

    def _next(self) -> None:
        self._ends_s = 0.0
        self.number += 1
        for _ in range(len(self._waiting)):
            self._waiting.popleft()()
            if not self.ends_s():
                break


def begin(running: Coroutine[Any, Any, None], name: str | None = None) -> asyncio.Task[None] | None:
    """Run it until it waits for something; the task that goes on with it, or None: it is done.

    For event loops. What runs here has no task of its own: it may await futures, locks and other coroutines, but use
    nothing that asks for the current task, such as ``asyncio.timeout``, before it has waited.

    Raises:
        What it raises before it waits; CancelledError too, if what it looks at was cancelled.
    """
    try:
        waits_for = running.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_Begun(running, waits_for), name=name)


class _Begun(Coroutine[Any, Any, None]):
    """A coroutine that has run as far as it waits for something, for a task to go on with."""

    def __init__(self, running: Coroutine[Any, Any, None], waits_for: Any) -> None:
        self._running = running
        self._waits_for = waits_for

    def send(self, value: Any) -> Any:
        waits_for, self._waits_for = self._waits_for, None
        return self._running.send(value) if waits_for is None else waits_for

    def throw(self, *error: Any) -> Any:
        """Also of a task that was cancelled before it began: it is for whoever waits."""
        self._waits_for = None
        return self._running.throw(*error)

    def close(self) -> None:
        self._running.close()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._running.__await__()
