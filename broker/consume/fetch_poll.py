"""A fetch from its beginning to its answer: without a task, where nothing but messages is waited for.

Most fetches ask for a few queues that have nothing yet, and are answered with what has just been dispatched: by the
call that tells of it. What takes longer has a task: many queues, conditions, records that may have to come from the
disk, large replies.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
from typing import Any, Final

from penstock.proto.wire.broker_pb2 import FetchHeader
from penstock.runtime.data.sending import Data

from ..core.dispatch import Fresh
from .answer import Answer
from .fetch import LARGE_BYTES, Fetch, asked, wait_s_of
from .fetch_waiters import Waiter, Wanted

QUEUES_AT_ONCE: Final = 64
READ_AT_ONCE: Final = 8
"""Queues that have something; of more, others have their turns in between."""

Make = Callable[[], Coroutine[Any, Any, Sequence[Data]]]


class Poll:
    """One fetch; event loop only.

    ``tell`` gets the pieces of its answer, ``refuse`` what went wrong: one of them is called once, unless it was
    cancelled before.
    """

    def __init__(
        self,
        fetch: Fetch,
        header: FetchHeader,
        connection: Hashable,
        tell: Callable[[Sequence[Data]], None],
        refuse: Callable[[Exception], None],
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        """Does the rest, where it takes longer."""
        self._fetch = fetch
        self._header = header
        self._connection = connection
        self._tell = tell
        self._refuse = refuse
        self._counted = 0  # queues, in the load
        self._waiter: Waiter | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._answer: Answer

    def start(self) -> None:
        """Answer at once, or as soon as there is something."""
        self._guarded(self._begin)

    def cancel(self) -> None:
        """Answer nothing any more. May be called again."""
        if self.task is not None:
            self.task.cancel()
        self._leave()

    def _begin(self) -> None:
        fetch, header = self._fetch, self._header
        count = fetch.count(header)
        if count > QUEUES_AT_ONCE or not fetch.turns.has_time:
            self._have_task(lambda: fetch.fetch(header, self._connection))
            return
        fetch.load.begin(self._connection, count)
        self._counted = count
        wanted = fetch.wanted(header)
        answer = self._answer = fetch.answer(header, wanted)
        fetch.catch_up(asked(header))
        ready = answer.find(wanted if header.in_order else fetch.rotated(wanted))
        if any(each.condition is not None for each in wanted) or self._takes_longer(ready):
            self._leave()
            self._have_task(lambda: fetch.fetch(header, self._connection))
            return
        self._read(ready)
        if answer.has_news or not header.max_wait_ms:
            self._finish()
            return
        # In order, nothing of the others can be told before there is something of the first.
        self._waiter = Waiter.of(wanted[:1] if header.in_order else wanted, self._on_woken, self._on_offered)
        fetch.waiters.add(self._waiter)  # nobody had a turn since the look: there is nothing to miss
        self._timer = asyncio.get_running_loop().call_later(wait_s_of(header), self._guarded, self._finish)

    def _takes_longer(self, ready: list[Wanted]) -> bool:
        answer = self._answer
        return bool(ready) and (
            len(ready) > READ_AT_ONCE or any(answer.absent_entries(ready)) or any(answer.absent(ready))
        )

    def _on_woken(self) -> None:
        self._guarded(self._look)

    def _on_offered(self, each: Wanted, fresh: Fresh) -> bool:
        self._guarded(lambda: self._take(each, fresh))
        return self._waiter is None

    def _take(self, each: Wanted, fresh: Fresh) -> None:
        may_take = self._waiter is not None and self._fetch.is_open and self._fetch.turns.has_time
        if may_take and self._answer.take(each, fresh):
            self._finish()

    def _look(self) -> None:
        if self._waiter is None:
            return  # it has its answer
        if self._fetch.is_open:
            if not self._fetch.turns.has_time:
                asyncio.get_running_loop().call_soon(self._on_woken)
                return
            self._read(self._answer.find(self._waiter.take_hits()))
            if not self._answer.has_news:
                return
        self._finish()

    def _read(self, ready: Iterable[Wanted]) -> None:
        for _ in self._answer.read(list(ready)):
            pass

    def _finish(self) -> None:
        """Answer with what there is."""
        if self._answer.record_bytes < LARGE_BYTES:
            pieces = self._answer.pieces(copied=True)
            self._leave()
            self._tell(pieces)
            return
        self._stop_waiting()
        self._have_task(lambda: self._fetch.made(self._answer))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001  the edge of the request: told to the caller and logged
            self._leave()
            self._refuse(error)

    def _have_task(self, make: Make) -> None:
        self.task = asyncio.create_task(self._made(make), name="fetch")

    async def _made(self, make: Make) -> None:
        try:
            pieces = await make()
        except Exception as error:  # noqa: BLE001  as above
            self._leave()
            self._refuse(error)
        else:
            self._leave()
            self._tell(pieces)

    def _stop_waiting(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            self._fetch.waiters.remove(waiter)
        if self._timer is not None:
            self._timer.cancel()

    def _leave(self) -> None:
        self._stop_waiting()
        if self._counted:
            self._fetch.load.end(self._connection, self._counted)
            self._counted = 0
