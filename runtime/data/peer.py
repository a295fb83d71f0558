"""A broker's connection to the data port of another; for one reader on the event loop. Clients' are in ``link``.

What comes is received into one buffer that is used again, and handed over as views of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, VERSION, Kind, Method
from penstock.proto.errors import InvalidArgument, PenstockError, from_bytes
from penstock.proto.wire.data_pb2 import Hello

from ..security.credentials import PLAIN, Security
from ..security.signatures import signed
from .link import broken, never_connected
from .receiving import ANSWERS, Received, Receiving


class DataPeer(asyncio.BufferedProtocol):
    """One connection, until it breaks; made by :func:`connect`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._transport: Any = None
        self._receiving = Receiving()
        self._is_held = False  # nothing is read, for want of room
        self._waiting: asyncio.Future[Received] | None = None  # the reader, for the next frame
        self._error: PenstockError | None = None  # what ended it
        self._may_send = asyncio.Event()
        self._may_send.set()

    async def send(self, number: int, method: Method, content: bytes = b"") -> None:
        """Send a request; return when the connection takes more. Raises BrokerUnavailable: the connection broke."""
        if self._error is not None:
            raise self._error
        self._transport.write(HEAD.pack(len(content), number, method, Kind.REQUEST) + content)
        await self._may_send.wait()

    async def receive(self) -> Received:
        """The next answer to something else than a hello or a ping. Its content is gone at the next call.

        Raises:
            BrokerUnavailable: the connection broke. PenstockError: an answer that is an error.
        """
        while True:
            frame = self._next() or await self._wait()
            if frame.kind == Kind.ERROR:
                raise from_bytes(bytes(frame.content))
            if frame.method not in (Method.HELLO, Method.PING):
                return frame

    def close(self) -> None:
        self._transport.abort()

    def _next(self) -> Received | None:
        frame = self._receiving.next(FRAME_BYTES_MAX, ANSWERS)
        if frame is None and self._is_held:
            self._is_held = False
            self._transport.resume_reading()
        return frame

    async def _wait(self) -> Received:
        if self._error is not None:
            raise self._error
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            return await self._waiting
        finally:
            self._waiting = None

    # What asyncio calls.

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._error = broken(self._address, str(error or "it ended the connection"))
        self._may_send.set()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._error)

    def pause_writing(self) -> None:
        self._may_send.clear()

    def resume_writing(self) -> None:
        self._may_send.set()

    def get_buffer(self, _: int) -> memoryview:
        return self._receiving.room()

    def buffer_updated(self, count: int) -> None:
        self._receiving.came(count)
        if self._waiting is not None and not self._waiting.done():
            try:
                frame = self._next()
            except InvalidArgument as error:
                self._waiting.set_exception(error)
                return
            if frame is not None:
                self._waiting.set_result(frame)
        if not len(self._receiving.room()):
            self._is_held = True
            self._transport.pause_reading()


async def connect(address: str, port: int, security: Security = PLAIN) -> DataPeer:
    """A connection to ``port`` of the host in ``address``, whose greeting is sent; a refusal is what it receives.

    Raises:
        BrokerUnavailable: nobody is there; ``details['status']`` says that it is no answer.
    """
    host = address.rpartition(":")[0].strip("[]")
    tls = security.tls
    try:
        _, peer = await asyncio.get_running_loop().create_connection(
            lambda: DataPeer(address),
            host,
            port,
            ssl=None if tls is None else tls.context(),
            server_hostname=None if tls is None else tls.server_name or host,
        )
    except (OSError, ValueError) as error:  # TLS's errors among them; a name that is none is a UnicodeError
        raise never_connected(address, port, error) from error
    metadata = {} if security.credentials is None else dict(signed(security.credentials, int(time.time())))
    await peer.send(0, Method.HELLO, Hello(version=VERSION, metadata=metadata).SerializeToString())
    return peer
