"""Async tests without a plugin."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


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
