"""Fetches of consumers over the data port: those of one connection wait side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply
from penstock.runtime.channel import reported
from penstock.runtime.data.port import Link
from penstock.runtime.data.sending import Data

from .fetch import Fetch
from .fetch_poll import Poll

NOTHING = frames.pack(FetchReply())


class FetchStreams:
    """Serves every connection that fetches; event loop only."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._open: set[_Stream] = set()

    def begin(self, link: Link) -> _Stream:
        """The fetches of one connection."""
        stream = _Stream(self._fetch, link, self._open)
        self._open.add(stream)
        return stream

    async def close(self) -> None:
        """Return when every fetch has its answer. Before, ``Fetch.close`` was called."""
        tasks = [poll.task for stream in self._open for poll in stream.waiting.values() if poll.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


class _Stream:
    """Begins what comes, and answers it whenever it is due."""

    def __init__(self, fetch: Fetch, link: Link, others: set[_Stream]) -> None:
        self.waiting: dict[int, Poll] = {}  # by number
        self._fetch = fetch
        self._link = link
        self._others = others

    def take(self, number: int, content: memoryview) -> None:
        if not content:
            self._end_wait(number)
            return
        try:
            if number in self.waiting:
                raise InvalidArgument(f"fetch {number} is under way: the next needs another number")
            header, _ = frames.unpack(content, FetchHeader)
        except PenstockError as error:
            self._link.refuse(number, Method.FETCH, error)
            return
        tell, refuse = partial(self._tell, number), partial(self._refuse, number)
        poll = self.waiting[number] = Poll(self._fetch, header, self, tell, refuse)
        poll.start()

    def left(self) -> None:
        self._others.discard(self)
        for poll in self.waiting.values():
            poll.cancel()

    def _end_wait(self, number: int) -> None:
        """Answer the fetch that there is nothing, if it has no answer yet."""
        poll = self.waiting.pop(number, None)
        if poll is not None:
            poll.cancel()
            self._link.answer(number, Method.FETCH, NOTHING)

    def _tell(self, number: int, pieces: Sequence[Data]) -> None:
        self.waiting.pop(number, None)
        release = self._fetch.load.hold(self, sum(map(len, pieces)))
        self._link.answer(number, Method.FETCH, *pieces, on_taken=release)

    def _refuse(self, number: int, error: Exception) -> None:
        self.waiting.pop(number, None)
        self._link.refuse(number, Method.FETCH, reported(error, "fetch"))
