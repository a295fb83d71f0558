"""Work that is not to be left half done when whoever waits for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for ``work``; who is cancelled meanwhile, however often, goes when it is over."""
    working = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not working.done():
        try:
            await asyncio.wait((working,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    working.result()
