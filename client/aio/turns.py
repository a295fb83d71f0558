"""Calls that would block the event loop, done in threads: each by itself, or in the order in which they were made."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Self, TypeVar

from penstock.proto.errors import BufferFull
from penstock.runtime.turns import seen

P = ParamSpec("P")
R = TypeVar("R")

WAITING_MAX = 10_000
_AT_ONCE: Final = 64
"""Calls that are made without a pause for the event loop."""


def in_thread(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """The twin of ``method``, which may block: a coroutine function with its signature, that has a thread call it.

    The twin's class keeps the object with that method as ``_sync``.
    """

    @functools.wraps(method)
    async def call(twin: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(_awaitable(method), twin._sync, *args, **kwargs)

    return call


async def to_the_end(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call it in a thread, also if who waits, or the whole program, is cancelled before a thread is free."""
    call = functools.partial(contextvars.copy_context().run, _awaitable(function), *args, **kwargs)
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, call))


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
            return run_in(here, function(*arguments))

        return call

    return {name: called(each) if inspect.iscoroutinefunction(each) else each for name, each in settings.items()}


def run_in(loop: asyncio.AbstractEventLoop, running: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that runs in ``loop``, waited for in another thread.

    ``SystemExit`` is raised here alone: in a task it would end the loop, and the program with it.

    Raises:
        RuntimeError: by the coroutine, or the loop ended before it began.
    """

    async def guarded() -> tuple[Any, SystemExit | None]:
        try:
            return await running, None
        except SystemExit as error:
            return None, error

    guard = guarded()
    try:
        result, error = asyncio.run_coroutine_threadsafe(guard, loop).result()
    except RuntimeError:
        guard.close()
        running.close()
        raise
    if error is not None:
        raise error
    return result


class Twin:
    """What every twin is: an object underneath, and ``async with``, which ends it in a thread."""

    _sync: AbstractContextManager[Any]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *outcome: Any) -> None:
        await to_the_end(self._sync.__exit__, *outcome)


class Turns:
    """One line of calls per topic that may block. Event loop only.

    A call waits until the one before it has been taken, so that messages of one topic keep their order and a topic
    occupies one thread at most. Calls that would not block any more when their turn comes need no thread: a line is
    over soon after what it waited for has come, however many line up meanwhile.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[_Turn]] = {}  # a task each, that ends with its line
        self._waiting = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def is_waiting(self, topic: str) -> bool:
        """True if a call for ``topic`` has not been taken yet: the next one has to line up behind it."""
        return topic in self._lines

    def line_up(
        self, topic: str, call: Callable[[], Any], blocks: Callable[[], bool] = lambda: True
    ) -> asyncio.Future[Any]:
        """Make ``call`` when its turn has come, in a thread if it ``blocks`` then; its result or error.

        Cancelling the future takes the call back if it has not begun.

        Raises:
            BufferFull: too many calls wait already; this one was not taken.
        """
        if self._waiting >= WAITING_MAX:
            raise BufferFull(f"topic {topic}: {WAITING_MAX} sends wait for room in the buffer: await some of them")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(seen)  # one-way sends have nobody else who would look at their error
        line = self._lines.get(topic)
        if line is None:
            line = self._lines[topic] = deque()
            task = loop.create_task(self._take(topic, line))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        line.append(_Turn(call, blocks, future))
        self._waiting += 1
        return future

    async def settled(self, timeout_s: float) -> int:
        """Wait until every call that waits now has been taken or has failed; how many are not within ``timeout_s``."""
        waiting = [turn.future for line in self._lines.values() for turn in line]
        return len((await asyncio.wait(waiting, timeout=timeout_s))[1]) if waiting else 0

    async def _take(self, topic: str, line: deque[_Turn]) -> None:
        """Take the turns of a line until it is empty."""
        at_once = 0
        try:
            while line:
                turn = line[0]  # it stays there until it is taken: the line is what others wait behind
                if not turn.future.done():
                    try:
                        is_blocking = turn.blocks()
                        call = _awaitable(turn.call)
                        result = await asyncio.to_thread(call) if is_blocking else call()
                    except Exception as error:  # noqa: BLE001  told to who waits for it
                        _end(turn.future, error=error)
                    else:
                        _end(turn.future, result)
                        at_once += not is_blocking
                line.popleft()
                self._waiting -= 1
                if at_once >= _AT_ONCE:
                    at_once = 0
                    await asyncio.sleep(0)
        finally:
            del self._lines[topic]
            self._waiting -= len(line)
            for turn in line:
                turn.future.cancel()


class _Turn(NamedTuple):
    call: Callable[[], Any]
    blocks: Callable[[], bool]
    future: asyncio.Future[Any]


def _awaitable(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, which may call a user's, with errors that whoever awaits it gets.

    It raises RuntimeError in place of StopIteration: no future of a loop takes that, and its owner would wait for ever.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            raise RuntimeError(f"a function that was handed in raised {error!r}: raise another error") from error

    return call


def _end(future: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
    if future.done():
        return  # its owner does not wait any more
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
