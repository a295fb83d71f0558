"""Coroutines that run at once as far as they wait for nothing; many never need a task."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


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
