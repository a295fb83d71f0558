"""A nameserver that is far away, or busy when a client connects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from penstock.client import Admin
from tests.support.cluster.nameserver import nameserver
from tests.support.loops import in_own_loop

FAR_S = 0.4


@contextlib.asynccontextmanager
async def far_away(address: str) -> AsyncIterator[str]:
    """An address from which everything gets to ``address``, the answer to a new connection after ``FAR_S``."""
    host, port = address.split(":")

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while part := await source.read(65536):
                to.write(part)
        finally:
            to.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(FAR_S)
        there, to = await asyncio.open_connection(host, int(port))
        await asyncio.gather(copy(reader, to), copy(there, writer), return_exceptions=True)

    async with await asyncio.start_server(forward, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@in_own_loop
async def test_the_first_call_waits_for_a_connection_that_takes_its_time(tmp_path: Path) -> None:
    def topics(address: str) -> list[str]:
        with Admin(address) as admin:
            return admin.list_topics()

    async with nameserver(tmp_path) as near, far_away(near) as address:
        assert await asyncio.to_thread(topics, address) == []
