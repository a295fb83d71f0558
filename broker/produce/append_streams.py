"""Appends: batches over the data port, answered in the order in which they came.

Order needs no numbers: what is acknowledged follows the log, so an answer rarely waits for an earlier one that is not
due itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from penstock.proto.data_frames import Method
from penstock.proto.errors import PenstockError
from penstock.runtime.channel import reported
from penstock.runtime.data_port import Link

from .send import Placed, Send

UNANSWERED_MAX = 1024  # batches of one stream; beyond it, nothing more is read from it
LAST_REQUESTS_S = 0.05
"""For so long a stopping broker still reads, to refuse by name what would else be lost with the connection."""


class AppendStreams:
    """Serves every open stream; event loop only."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._open: set[_Stream] = set()

    def begin(self, link: Link) -> _Stream:
        """One stream, until its client ends it or :meth:`close`."""
        stream = _Stream(self._send, link, self._open.discard)
        self._open.add(stream)
        return stream

    def is_answered(self) -> bool:
        """True if every batch that was read has its answer."""
        return not any(stream.owes for stream in self._open)

    async def close(self) -> None:
        """End every stream when it has answered what it read. Before, ``LogEvents.is_open`` was made false."""
        if self._open:
            await asyncio.sleep(LAST_REQUESTS_S)
        await asyncio.gather(*(stream.end() for stream in list(self._open)))


class _Stream:
    """Places what comes; answers at once what waits for nothing, the rest in a task of its own."""

    def __init__(self, send: Send, link: Link, on_left: Callable[[_Stream], None]) -> None:
        self._send = send
        self._link = link
        self._on_left = on_left
        self._waiting: deque[tuple[int, Placed | PenstockError]] = deque()  # in it until the answer is sent
        self._answering: asyncio.Task[None] | None = None  # while anything waits

    @property
    def owes(self) -> bool:
        """True if an answer is not sent yet."""
        return bool(self._waiting)

    def take(self, number: int, content: memoryview) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        outcome = self._place(content)
        if not self._waiting and (isinstance(outcome, PenstockError) or outcome.is_settled):
            self._answer(number, outcome)
            return
        self._waiting.append((number, outcome))
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer_waiting(), name="append answers")
        elif len(self._waiting) == UNANSWERED_MAX:
            self._link.hold(True)

    def left(self) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        self._on_left(self)
        if self._answering is not None:
            self._answering.cancel()

    async def end(self) -> None:
        """Read nothing more, and close when everything that was read is answered."""
        self._link.hold(True)
        if self._answering is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._answering
        self._link.close()

    def _place(self, content: memoryview) -> Placed | PenstockError:
        try:
            return self._send.place(content)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            return reported(error, "append")

    def _answer(self, number: int, outcome: Placed | PenstockError) -> None:
        if isinstance(outcome, PenstockError):
            self._link.refuse(number, Method.APPEND, outcome)
        else:
            self._link.answer(number, Method.APPEND, self._send.receipt(outcome).SerializeToString())

    async def _answer_waiting(self) -> None:
        waiting = self._waiting
        while waiting:
            number, outcome = waiting[0]
            if isinstance(outcome, Placed):
                try:
                    receipt = await self._send.acknowledge(outcome)
                except Exception as error:  # noqa: BLE001  as above
                    outcome = reported(error, "append")
                else:
                    self._link.answer(number, Method.APPEND, receipt.SerializeToString())
            if isinstance(outcome, PenstockError):
                self._link.refuse(number, Method.APPEND, outcome)
            waiting.popleft()
            if len(waiting) == UNANSWERED_MAX // 2:
                self._link.hold(False)
        self._answering = None
