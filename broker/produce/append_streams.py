"""``BrokerData/Append``: batches of one client in a stream, answered in the order in which they came.

One stream instead of a call per batch: setting up a call costs both ends more than everything else that is done for
a small batch. Order needs no numbers: what is acknowledged follows the log, so an answer rarely waits for an earlier
one that is not due itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc.aio

from penstock.proto.errors import PenstockError, to_bytes
from penstock.proto.wire.broker_pb2 import AppendAnswer
from penstock.runtime.channel import reported

from .send import Placed, Send

METHOD = "BrokerData/Append"
UNANSWERED_MAX = 1024  # batches of one stream; beyond it, nothing more is read from it
LAST_REQUESTS_S = 0.05
"""For so long a stopping broker still reads, to refuse by name what would else be lost with the connection."""

Context = Any  # grpc.aio.ServicerContext, whose stubs do not know the end of a stream
_END: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class AppendStreams:
    """Serves every open stream; event loop only."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: set[_Stream] = set()
        self._is_closed = False

    async def serve(self, _requests: object, context: Context) -> None:
        """One stream, until its client ends it or :meth:`close`."""
        stream = _Stream(self._send, context)
        if self._is_closed:
            return
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def is_answered(self) -> bool:
        """True if every batch that was read has its answer."""
        return not any(stream.owes for stream in self._open)

    async def close(self) -> None:
        """End every stream when it has answered what it read. Before, ``LogEvents.is_open`` was made false."""
        self._is_closed = True
        if self._open:
            await asyncio.sleep(LAST_REQUESTS_S)
        for stream in list(self._open):
            stream.end()


class _Stream:
    """Reads and places; answers at once what waits for nothing, the rest in a task of its own."""

    def __init__(self, send: Send, context: Context) -> None:
        self._send = send
        self._context = context
        self._task = asyncio.current_task()
        self._waiting: deque[Placed | PenstockError] = deque()  # each stays in it until its answer is written
        self._came = asyncio.Event()
        self._went = asyncio.Event()
        self._is_reading = False
        self._ending = asyncio.Event()

    @property
    def owes(self) -> bool:
        """True if an answer is not written yet."""
        return bool(self._waiting)

    def end(self) -> None:
        """Read nothing more."""
        self._ending.set()
        if self._is_reading and self._task is not None:
            self._task.cancel()

    async def run(self) -> None:
        """Until the client half-closes or :meth:`end`; everything that was read is answered."""
        answering = asyncio.create_task(self._answer_waiting())
        try:
            while (request := await self._read()) is not None:
                outcome = self._place(request)
                if not self._waiting and (isinstance(outcome, PenstockError) or outcome.is_settled):
                    await self._context.write(await self._answer(outcome))
                else:
                    self._waiting.append(outcome)
                    self._came.set()
                    await self._until_waiting(UNANSWERED_MAX, answering)
            await self._until_waiting(0, answering)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _read(self) -> Any:  # bytes, or None at the end
        if self._ending.is_set():
            return None
        self._is_reading = True
        try:
            request = await self._context.read()
        except asyncio.CancelledError:
            if not self._ending.is_set() or self._task is None:
                raise
            self._task.uncancel()
            return None
        finally:
            self._is_reading = False
        return None if request is _END else request

    def _place(self, request: bytes) -> Placed | PenstockError:
        try:
            return self._send.place(request)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            return reported(error, METHOD)

    async def _answer(self, outcome: Placed | PenstockError) -> bytes:
        if isinstance(outcome, Placed):
            try:
                return AppendAnswer(receipt=await self._send.acknowledge(outcome)).SerializeToString()
            except Exception as error:  # noqa: BLE001  as above
                outcome = reported(error, METHOD)
        return AppendAnswer(error=to_bytes(outcome)).SerializeToString()

    async def _answer_waiting(self) -> None:
        try:
            while True:
                while self._waiting:
                    await self._context.write(await self._answer(self._waiting[0]))
                    self._waiting.popleft()
                    self._went.set()
                self._came.clear()
                await self._came.wait()
        finally:
            self._went.set()

    async def _until_waiting(self, most: int, answering: asyncio.Task[None]) -> None:
        """Until at most ``most`` wait for their answers, or there is nobody to answer any more."""
        while len(self._waiting) > most and not answering.done():
            self._went.clear()
            await self._went.wait()
