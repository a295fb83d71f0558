"""The master's end of the data port's method REPLICATE: one stream of a slave over one connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument
from penstock.runtime.channel import reported
from penstock.runtime.data.port import Link
from penstock.runtime.turns import Turns

from .primary import Primary
from .shipping import SlaveStream


class Slaves:
    """Begins the conversations with slaves; event loop only."""

    def __init__(self, primary: Callable[[], Primary]) -> None:
        """``primary()``: what slaves follow now; raises NotMaster where this broker is none."""
        self.primary = primary
        self.turns = Turns()
        """Of all streams: however many slaves there are, the event loop goes on in between."""
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, link: Link) -> _Conversation:
        """The stream over one connection."""
        return _Conversation(self, link)

    def start(self, conversation: _Conversation, number: int, stream: SlaveStream) -> None:
        """Send what the slave is to get, in a task of its own."""
        task = asyncio.create_task(conversation.run(number, stream), name=f"slave {stream.replica.broker_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Return when all streams, which have ended, are told so."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _Conversation:
    """The stream over one connection: the number of its hello is that of all its reports."""

    def __init__(self, slaves: Slaves, link: Link) -> None:
        self._slaves = slaves
        self._link = link
        self._number = 0
        self._stream: SlaveStream | None = None

    def take(self, number: int, content: memoryview) -> None:
        try:
            if self._stream is None:
                self._stream = self._slaves.primary().admit(content, self._link)
                self._number = number
                self._slaves.start(self, number, self._stream)
            elif number == self._number:
                self._stream.hear(content)
            else:
                raise InvalidArgument(f"REPLICATE {self._number} stands: another needs another connection")
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            self._link.refuse(number, Method.REPLICATE, reported(error, Method.REPLICATE.name))

    def left(self) -> None:
        if self._stream is not None:
            self._stream.leave()

    async def run(self, number: int, stream: SlaveStream) -> None:
        """Send what the stream gives until it ends, then say why, and close."""
        try:
            async for pieces in stream.frames():
                self._link.answer(number, Method.REPLICATE, *pieces, on_taken=stream.on_taken)
                await self._slaves.turns.have()
        except Exception as error:  # noqa: BLE001  the edge of the stream: told to the slave and logged
            stream.leave(f"{type(error).__name__}: {error}")
            self._link.refuse(number, Method.REPLICATE, reported(error, Method.REPLICATE.name))
        self._link.close()
