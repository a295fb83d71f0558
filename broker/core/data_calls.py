"""Methods of the data port that have one answer for one request: what :func:`.wire.service` is for gRPC's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from google.protobuf.message import Message

from penstock.proto.data_frames import Method
from penstock.runtime.channel import decoded, reported
from penstock.runtime.data_port import Link

from .wire import REQUEST_BYTES_MAX, Answer

M = TypeVar("M", bound=Message)

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
        at_once: Callable[[M], Message | None] | None = None,
    ) -> None:
        """``answer(request)``: as of a unary method of gRPC; ``before`` is called before it.

        ``at_once(request)``: the answer if it waits for nothing, else None, and nothing was done.
        """
        self.method = method
        self._kind = kind
        self._answer = answer
        self._before = before
        self._at_once = at_once
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, link: Link) -> _Conversation[M]:
        """The calls over one connection."""
        return _Conversation(self, link)

    async def close(self) -> None:
        """Return when what was taken has its answer. Before, ``LogEvents.is_open`` was made false."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def answered(self, content: memoryview) -> bytes | M:
        """The answer if it waits for nothing, else the request. Raises what the caller is to be told."""
        request = decoded(self._kind, content, REQUEST_BYTES_MAX)
        if self._before is not None:
            self._before()
        found = None if self._at_once is None else self._at_once(request)
        return request if found is None else found.SerializeToString()

    def start(self, number: int, request: M, link: Link) -> asyncio.Task[None]:
        """A task that sends the answer, and that :meth:`close` waits for."""
        task = asyncio.create_task(self._run(number, request, link), name=f"data call {self.method.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, number: int, request: M, link: Link) -> None:
        try:
            found: Message = await self._answer(request)
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            link.refuse(number, self.method, reported(error, self.method.name))
        else:
            link.answer(number, self.method, found.SerializeToString())


class _Conversation(Generic[M]):
    """The calls over one connection."""

    def __init__(self, calls: DataCalls[M], link: Link) -> None:
        self._calls = calls
        self._link = link
        self._tasks: set[asyncio.Task[None]] = set()  # whose answers are to come

    def take(self, number: int, content: memoryview) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        method = self._calls.method
        try:
            found = self._calls.answered(content)
        except Exception as error:  # noqa: BLE001  as above
            self._link.refuse(number, method, reported(error, method.name))
            return
        if isinstance(found, bytes):
            self._link.answer(number, method, found)
            return
        task = self._calls.start(number, found, self._link)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        if len(self._tasks) >= UNDER_WAY_MAX:
            self._link.hold(True, method.name)

    def left(self) -> None:
        """See :class:`~penstock.runtime.data_port.Conversation`."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if len(self._tasks) == UNDER_WAY_MAX // 2:
            self._link.hold(False, self._calls.method.name)
