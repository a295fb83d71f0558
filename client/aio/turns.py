"""Calls that would block the event loop, done in threads: each by itself, or in the order in which they were made."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from penstock.proto.errors import BufferFull

P = ParamSpec("P")
R = TypeVar("R")

WAITING_MAX = 10_000


def in_thread(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The twin of ``method``, which may block: a coroutine function with its signature, that has a thread call it.

    The twin's class keeps the object with that method as ``_sync``.
    """

    @functools.wraps(method)
    async def call(twin: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, twin._sync, *args, **kwargs)

    return call


def at_once(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The twin of ``method``, which never blocks: the same method of the object underneath."""

    @functools.wraps(method)
    def call(twin: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(twin._sync, *args, **kwargs)

    return call


def in_loop(settings: dict[str, Any], loop: Callable[[], asyncio.AbstractEventLoop | None]) -> dict[str, Any]:
    """``settings`` that other threads can call: a coroutine function among them runs in the loop, and is waited for."""

    def called(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            here = loop()
            assert here is not None, "nothing is told before the twin has begun"
            running = function(*arguments)
            try:
                return asyncio.run_coroutine_threadsafe(running, here).result()
            except RuntimeError:
                running.close()  # the loop ended before it began
                raise

        return call

    return {name: called(each) if inspect.iscoroutinefunction(each) else each for name, each in settings.items()}


class Twin:
    """What every twin is: an object underneath, and ``async with``, which ends it in a thread."""

    _sync: AbstractContextManager[Any]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._sync.__exit__, kind, error, trace)


class Turns:
    """One line of blocking calls per topic. Event loop only.

    A call waits until the one before it has been taken, so that messages of one topic keep their order and a topic
    occupies one thread at most.
    """

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[Any]] = {}
        self._waiting = 0

    def is_waiting(self, topic: str) -> bool:
        """True if a call for ``topic`` has not been taken yet: the next one has to line up behind it."""
        return topic in self._last

    def line_up(self, topic: str, call: Callable[[], Any]) -> asyncio.Task[Any]:
        """Make ``call`` in a thread when its turn has come; the task ends with its result or error.

        Raises:
            BufferFull: too many calls wait already; this one was not taken.
        """
        if self._waiting >= WAITING_MAX:
            raise BufferFull(f"topic {topic}: {WAITING_MAX} sends wait for room in the buffer: await some of them")
        task = asyncio.get_running_loop().create_task(self._take_turn(self._last.get(topic), call))
        self._last[topic] = task
        self._waiting += 1
        task.add_done_callback(lambda _: self._leave(topic, task))
        return task

    async def settled(self) -> None:
        """Return when every call that waits now has been taken or has failed."""
        if self._last:
            await asyncio.wait(list(self._last.values()))

    async def _take_turn(self, former: asyncio.Task[Any] | None, call: Callable[[], Any]) -> Any:
        if former is not None:
            await asyncio.wait([former])
        return await asyncio.to_thread(call)

    def _leave(self, topic: str, task: asyncio.Task[Any]) -> None:
        self._waiting -= 1
        if self._last.get(topic) is task:
            del self._last[topic]
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()  # one-way sends have nobody else who would look
