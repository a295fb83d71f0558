"""The server's word on a call that it refused while the client was still writing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import grpc

T = TypeVar("T")

_FORGOTTEN = "Internal error from Core"
"""What gRPC's asyncio client reports in place of the server's status when a write of it meets the end of the call."""
_ATTEMPTS = 20


async def with_the_servers_word(call: Callable[[], Awaitable[T]]) -> T:
    """What ``call()`` answers or raises, made again while gRPC's client forgets what the server said."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return await call()
        except grpc.RpcError as error:
            if _FORGOTTEN not in str(error):
                raise
    return await call()
