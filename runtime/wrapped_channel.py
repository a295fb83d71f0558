"""A gRPC channel whose every call is made in a way of its own; for threads as for the event loop.

gRPC's own ways cost more: its call credentials go by a thread for each call, and its asyncio interceptors put a task
and a generator between a stream and its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

CALLS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
"""What makes a method of a server that can be called."""


class WrappedChannel:
    """A ``grpc.Channel`` or ``grpc.aio.Channel``; each method of a server that it makes goes through ``wrap``."""

    def __init__(self, channel: Any, wrap: Callable[[Any], Any]) -> None:
        self._channel = channel
        self._wrap = wrap

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if name not in CALLS:
            return found
        return lambda *args, **settings: self._wrap(found(*args, **settings))

    def __enter__(self) -> Self:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: Any) -> Any:
        return self._channel.__exit__(*error)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._channel.__aexit__(*error)
