"""Distance on one machine: what passes ``127.0.0.2`` arrives later than it was sent, as from another continent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Iterator

FAR_HOST = "127.0.0.2"


@contextlib.contextmanager
def far_away(ports: Iterable[int], delay_s: float) -> Iterator[dict[int, int]]:
    """Ports of ``127.0.0.1`` are reached at ``127.0.0.2`` too, over a way of ``delay_s`` in each direction.

    Yields how many connections each port was asked for; the first byte of one comes after a round trip at the
    earliest, as behind a TCP handshake.
    """
    asked = dict.fromkeys(ports, 0)
    is_open, stopped = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Bytes leave ``delay_s`` after they came, in their order."""
        with contextlib.suppress(OSError):
            while part := await source.read(65536):
                loops[0].call_later(delay_s, to.write, part)
        await asyncio.sleep(delay_s)
        to.close()

    async def connect(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked[port] += 1
        try:
            await asyncio.sleep(2 * delay_s)
            there, to = await asyncio.open_connection("127.0.0.1", port)
            try:
                await asyncio.gather(carry(reader, to), carry(there, writer))
            finally:
                to.close()
        except (OSError, asyncio.CancelledError):
            pass  # nobody listens there, or the distance ends
        finally:
            writer.close()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with contextlib.AsyncExitStack() as servers:
            for port in asked:
                opened = await asyncio.start_server(lambda *ends, port=port: connect(port, *ends), FAR_HOST, port)
                servers.callback(opened.close)
            is_open.set()
            await stopped.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="distance")
    thread.start()
    try:
        assert is_open.wait(30), "the far ports could not be opened"
        yield asked
    finally:
        loops[0].call_soon_threadsafe(stopped.set)
        thread.join()
