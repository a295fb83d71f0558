"""A channel whose every call is signed; for threads as for the event loop.

gRPC's own ways cost more: its call credentials go by a thread for each call, and its asyncio interceptors put a task
and a generator between a stream and its reader.
"""

from __future__ import annotations

from typing import Any, Self

from .credentials import Credentials
from .signatures import Signer

CALLS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
"""What makes a method of a server that can be called."""


class SignedChannel:
    """A ``grpc.Channel`` or ``grpc.aio.Channel`` whose calls are signed."""

    def __init__(self, channel: Any, credentials: Credentials) -> None:
        self._channel = channel
        self._signer = Signer(credentials)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._channel, name)
        if name not in CALLS:
            return found
        return lambda *args, **settings: SignedCall(found(*args, **settings), self._signer)

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


class SignedCall:
    """One method of a server, called with a signature."""

    def __init__(self, method: Any, signer: Signer) -> None:
        self._method = method
        self._signer = signer

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._method(*args, metadata=self._signer.metadata(), **settings)

    def future(self, *args: Any, **settings: Any) -> Any:
        return self._method.future(*args, metadata=self._signer.metadata(), **settings)
