"""Those who wait until everything below an offset of the log is confirmed, or synced."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class OffsetWaiters:
    """Futures by offset, resolved in the order of their offsets; event loop only, no polling."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, asyncio.Future[bool]]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    async def wait(self, end: int, timeout_s: float) -> bool:
        """True as soon as :meth:`on_reached` is called with ``end`` or more; False after ``timeout_s``."""
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        # Timed out entries leave from the front: offsets rise with time, so the oldest are the smallest and
        # the heap stays as small as the number of sends in flight even when nothing is ever confirmed.
        while self._heap and self._heap[0][2].done():
            heapq.heappop(self._heap)
        heapq.heappush(self._heap, (end, next(self._order), future))
        timer = loop.call_later(timeout_s, _resolve, future, False)
        try:
            return await future
        finally:
            timer.cancel()

    def on_reached(self, offset: int) -> None:
        """Everything below ``offset`` is confirmed, or synced."""
        heap = self._heap
        while heap and heap[0][0] <= offset:
            _resolve(heapq.heappop(heap)[2], True)

    def close(self) -> None:
        """Let all waiters go in vain."""
        for _, _, future in self._heap:
            _resolve(future, False)
        self._heap.clear()


def _resolve(future: asyncio.Future[bool], reached: bool) -> None:
    if not future.done():
        future.set_result(reached)
