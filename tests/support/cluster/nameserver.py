"""A real nameserver inside the test's event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.nameserver.config import NameserverConfig
from penstock.nameserver.server import serving
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_async_channel
from penstock.runtime.clock import Clock


@contextlib.asynccontextmanager
async def nameserver(directory: Path, *, port: int = 0, clock: Clock | None = None) -> AsyncIterator[str]:
    """The address of a nameserver that lives as long as the block; its key-value file lies in ``directory``."""
    config = NameserverConfig(listen_port=port, bind_address="127.0.0.1", kv_config_path=directory / "kvConfig.json")
    async with serving(config, clock=clock) as address:
        yield address


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[NameserverStub]:
    """A stub over a channel of its own."""
    async with open_async_channel(address) as channel:
        yield NameserverStub(channel)  # type: ignore[no-untyped-call]  # generated code
