"""Async tests without a plugin, and event loops beside a test."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

import pytest


def in_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test, with its fixtures, in an event loop of its own."""

    @functools.wraps(test)
    def call(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return call


class Turns:
    """How often others had their turn while ``call`` was under way."""

    def __init__(self) -> None:
        self.count = 0

    async def of(self, call: Awaitable[Any]) -> Any:
        async def beat() -> None:
            while True:
                self.count += 1
                await asyncio.sleep(0)

        beating = asyncio.create_task(beat())
        try:
            return await call
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


class RunningLoop:
    """In a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self.thread.start()

    def close(self) -> None:
        """End it. May be called again."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join()
            self.loop.close()


@pytest.fixture
def running_loop() -> Iterator[RunningLoop]:
    made = RunningLoop()
    yield made
    made.close()
