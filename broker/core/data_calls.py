"""Methods of the data port: those with one answer for one request, as :func:`.wire.service` is for gRPC's, and those
whose request stands, and has any number of answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from penstock.proto.data_frames import Method
from penstock.proto.errors import InvalidArgument
from penstock.proto.requests import decoded
from penstock.runtime.channel import reported
from penstock.runtime.data_port import Link
from penstock.runtime.data_sending import Data
from penstock.runtime.turns import Turns, begin

from .wire import REQUEST_BYTES_MAX, Answer

M = TypeVar("M", bound=Message)
S = TypeVar("S")

UNDER_WAY_MAX: Final = 1024
"""Requests for one method over one connection that have no answer yet; beyond it, nothing more is read from it."""


class DataCalls(Generic[M]):
    """One method, for all connections; event loop only. For :meth:`.feature.Feature.data_methods`."""

    def __init__(
        self,
        method: Method,
        kind: type[M],
        answer: Answer,
        *,
        before: Callable[[], None] | None = None,
        under_way_max: int = UNDER_WAY_MAX,
        may_end: bool = False,
    ) -> None:
        """``answer(request)``: as of a unary method of gRPC; ``before`` is called before it.

        It begins as the request is read, so what it does before it waits for something may not ask for the current
        task. With ``may_end`` a request of nothing cancels the one of its number, whose answer is nothing then.
        """
        self.method = method
        self.under_way_max = under_way_max
        self.may_end = may_end
        self._kind = kind
        self._answer = answer
        self._before = before
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = Turns()

    def __call__(self, link: Link) -> _Conversation[M]:
        """The calls over one connection."""
        return _Conversation(self, link)

    async def close(self) -> None:
        """Return when what was taken has its answer. Before, ``LogEvents.is_open`` was made false."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def request(self, content: memoryview) -> M:
        """What is asked. Raises what the caller is to be told."""
        return decoded(self._kind, content, REQUEST_BYTES_MAX)

    def start(self, number: int, request: M, link: Link) -> asyncio.Task[None] | None:
        """Answer; None if that is done, else the task that goes on with it, and that :meth:`close` waits for."""
        running, name = self._run(number, request, link), f"data call {self.method.name}"
        if self._turns.has_time:
            try:
                task = begin(running, name)
            except asyncio.CancelledError:  # of what it waited for: nobody else's call ends with it
                return None
        else:
            task = asyncio.create_task(running, name=name)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    async def found(self, request: M, link: Link) -> Sequence[Data]:
        """The pieces of the answer. Raises what the caller is to be told."""
        answer: Message = await self._answer(request)
        return [answer.SerializeToString()]

    async def _run(self, number: int, request: M, link: Link) -> None:
        try:
            await self._turns.have()
            if self._before is not None:
                self._before()
            pieces = await self.found(request, link)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            link.refuse(number, self.method, reported(error, self.method.name))
        else:
            link.answer(number, self.method, *pieces)


class _Conversation(Generic[M]):
    """The calls over one connection."""

    def __init__(self, calls: DataCalls[M], link: Link) -> None:
        self._calls = calls
        self._link = link
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by number, whose answers are to come

    def take(self, number: int, content: memoryview) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        calls, method = self._calls, self._calls.method
        if calls.may_end and not content:
            self._end(number)
            return
        try:
            if number in self._tasks:
                raise InvalidArgument(f"{method.name} {number} is under way: the next needs another number")
            request = calls.request(content)
        except Exception as error:  # noqa: BLE001  as above
            self._link.refuse(number, method, reported(error, method.name))
            return
        task = calls.start(number, request, self._link)
        if task is None:
            return
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._on_done(number))
        if len(self._tasks) >= calls.under_way_max:
            self._link.hold(True, method.name)

    def left(self) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        for task in self._tasks.values():
            task.cancel()

    def _end(self, number: int) -> None:
        task = self._tasks.get(number)
        if task is not None and task.cancel():  # else its answer is sent already
            self._link.answer(number, self._calls.method)

    def _on_done(self, number: int) -> None:
        del self._tasks[number]
        if len(self._tasks) == self._calls.under_way_max // 2:
            self._link.hold(False, self._calls.method.name)


class Standing(Generic[M, S]):
    """The requests for one method over one connection, of which the last one stands; event loop only."""

    def __init__(
        self,
        method: Method,
        kind: type[M],
        link: Link,
        enter: Callable[[int, M, Link, S | None], S],
        leave: Callable[[S], None],
    ) -> None:
        """``enter(number, request, link, the one that stood)`` has a request stand, or raises what its caller is told.

        ``leave`` is called with the last that it answered, when the connection has ended.
        """
        self._method = method
        self._kind = kind
        self._link = link
        self._enter = enter
        self._leave = leave
        self._stands: S | None = None

    def take(self, number: int, content: memoryview) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        try:
            request = decoded(self._kind, content, REQUEST_BYTES_MAX)
            self._stands = self._enter(number, request, self._link, self._stands)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            self._link.refuse(number, self._method, reported(error, self._method.name))

    def left(self) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        if self._stands is not None:
            self._leave(self._stands)
