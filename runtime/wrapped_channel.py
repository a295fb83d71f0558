"""A gRPC channel whose every call is made in a way of its own; for threads as for the event loop.

gRPC's own ways cost more: its call credentials go by a thread for each call, and its asyncio interceptors put a task
and a generator between a stream and its reader.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

CALLS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
"""What makes a method of a server that can be called."""


class _Method:
    """One method of a server."""

    def __init__(self, method: Any, begin: Callable[..., Any]) -> None:
        self._method = method
        self._begin = begin

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._begin(self._method, *args, **settings)

    def future(self, *args: Any, **settings: Any) -> Any:
        return self._begin(self._method.future, *args, **settings)


class WrappedChannel:
    """A ``grpc.Channel`` or ``grpc.aio.Channel`` whose calls are made by ``begin(call, *args, **settings)``."""

    def __init__(self, channel: Any, begin: Callable[..., Any]) -> None:
        self._channel = channel
        self._begin = begin

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if name not in CALLS:
            return found
        return lambda *args, **settings: _Method(found(*args, **settings), self._begin)

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
