"""A data port that answers with what it is sent."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from penstock.proto.data_frames import Method
from penstock.runtime.data.port import DataPort, Link
from penstock.runtime.security.access import Access
from penstock.runtime.security.certificates import ServerTls
from tests.support.waiting import eventually


class Echo:
    """Answers with what it is sent; notes what becomes of the connection."""

    method = Method.APPEND

    def __init__(self, link: Link) -> None:
        self.link = link
        self.sizes: list[int] = []
        self.is_left = False
        made.append(self)

    def take(self, number: int, content: memoryview) -> None:
        self.sizes.append(len(content))
        self.link.answer(number, self.method, bytes(content))

    def left(self) -> None:
        self.is_left = True


class FetchEcho(Echo):
    """The same of another method."""

    method = Method.FETCH


made: list[Echo] = []


@contextlib.asynccontextmanager
async def echoing(
    tls: ServerTls | None = None, *, address: str = "", access: Access | None = None
) -> AsyncIterator[DataPort]:
    """The port; its conversations are in ``made``. ``address``: of its broker, for pipes."""
    made.clear()
    port = DataPort(access)
    port.methods |= {Method.APPEND: Echo, Method.FETCH: FetchEcho}
    await port.open("127.0.0.1", 0, "dataPort", tls)
    await port.start(address)
    try:
        yield port
    finally:
        port.close()
        await eventually(lambda: not port.connections, what="the connections' end")
