"""Async tests without a plugin."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any


def in_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test, with its fixtures, in an event loop of its own."""

    @functools.wraps(test)
    def call(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return call
