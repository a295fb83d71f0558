"""TCP connections that come late, and are cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Self


class Forwarder:
    """Forwards connections in the running loop to ``target``, ``host:port``, for the length of an ``async with``.

    Each is forwarded ``delay_s`` after it was made, and cut behind as many bytes towards who made it as the next of
    ``limits`` says; None: not at all.
    """

    def __init__(
        self,
        target: str,
        *,
        delay_s: float = 0.0,
        limits: Iterable[int | None] = (),
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_end`` is called behind each connection. Those behind the last of ``limits`` are not cut."""
        self._target = target
        self._delay_s = delay_s
        self._limits: Iterator[int | None] = itertools.chain(limits, itertools.repeat(None))
        self._on_end = on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limit = next(self._limits)
        self.connections += 1
        host, _, port = self._target.rpartition(":")
        await asyncio.sleep(self._delay_s)
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        upward = asyncio.create_task(_pump(reader, up_writer, None))
        downward = asyncio.create_task(_pump(up_reader, writer, limit))
        self._tasks |= {upward, downward}
        await asyncio.wait({upward, downward}, return_when=asyncio.FIRST_COMPLETED)
        for task, end in ((upward, up_writer), (downward, writer)):
            task.cancel()
            end.transport.abort()
        await asyncio.gather(upward, downward, return_exceptions=True)
        self._tasks -= {upward, downward}
        self._on_end()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None) -> None:
    passed = 0
    while data := await reader.read(65536):
        if limit is not None and passed + len(data) >= limit:
            writer.write(data[: limit - passed])
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return
        passed += len(data)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
