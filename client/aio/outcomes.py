"""Outcomes of sends, from the client's threads into an event loop: those that come together with one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from penstock.runtime.turns import runs_here

T = TypeVar("T")


class Outcomes:
    """Ends futures of one event loop as futures of other threads end.

    ``asyncio.wrap_future`` wakes the loop for each of them, by a byte through a socket. The receipts of a batch come
    one right after the other, so here the first one wakes it and those until it looks come along.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._ended: deque[tuple[Callable[[Future[Any]], None], Future[Any]]] = deque()
        self._is_called = False  # the loop will look at _ended

    def follow(self, future: Future[T]) -> asyncio.Future[T]:
        """A future of the loop that ends as ``future`` will. Cancelling it takes back nothing."""
        mine: asyncio.Future[T] = self.loop.create_future()
        self.tell(future, functools.partial(_settle, mine))
        return mine

    def tell(self, future: Future[T], on_end: Callable[[Future[T]], None]) -> None:
        """Have the loop call ``on_end``, which may not raise, with ``future`` once that has ended."""
        future.add_done_callback(functools.partial(self._on_end, on_end))

    def _on_end(self, on_end: Callable[[Future[Any]], None], future: Future[Any]) -> None:
        if runs_here(self.loop):
            on_end(future)
            return
        with self._lock:
            if self.loop.is_closed():
                return
            self._ended.append((on_end, future))
            if self._is_called:
                return
            self._is_called = True
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nobody waits any more
            self.loop.call_soon_threadsafe(self._settle_all)

    def _settle_all(self) -> None:
        with self._lock:
            self._is_called = False
            ended, self._ended = self._ended, deque()
        for on_end, future in ended:
            on_end(future)


def _settle(mine: asyncio.Future[Any], future: Future[Any]) -> None:
    """End ``mine`` as ``future`` has ended, unless its owner does not wait any more."""
    if mine.done():
        return
    if future.cancelled():
        mine.cancel()
    elif (error := future.exception()) is not None:  # the same for all of a batch: not raised here
        mine.set_exception(error)
    else:
        mine.set_result(future.result())
