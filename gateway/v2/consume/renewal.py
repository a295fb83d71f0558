"""Deliveries to push consumers: invisible to others as long as their client lives and works on them.

A push consumer names no time. Its messages are invisible for a minute, and for another one before that is over, and so
on for three hours at most. The handle that the client has stays good all the while, at every gateway. When the client
is gone, by its own word or since nothing was heard of it, others get a message after a second; when the gateway is
gone, after a minute.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.client import PenstockError
from penstock.proto.receipts import Receipt

from ..brokers import Brokers
from .handles import changed

log = logging.getLogger(__name__)

INVISIBLE_MS: Final = 60_000
AHEAD_S: Final = 20.0
"""A delivery is renewed so long before its time is over."""
LIFE_S: Final = 3 * 3600.0
HELD_MAX: Final = 200_000
"""Deliveries that are renewed at a time; of further ones the clients have the first minute."""
GONE_MS: Final = 1000
LOOK_S: Final = 1.0
FAILURES_MAX: Final = 3
_TOGETHER: Final = 512
_TIMEOUT_S: Final = 5.0


@dataclass(slots=True)
class _Held:
    handle: Receipt
    client_id: str
    given_s: float
    due_s: float
    failures: int = 0


class Renewal:
    """Event loop only."""

    def __init__(self, brokers: Brokers, is_living: Callable[[str], bool]) -> None:
        self._brokers = brokers
        self._is_living = is_living
        self._held: dict[Receipt, _Held] = {}
        self._due: list[tuple[float, Receipt]] = []  # a heap, with some that are over
        self._clients: dict[str, set[Receipt]] = defaultdict(set)
        self._left: dict[Receipt, _Held] = {}  # of clients that have said that they end

    def hold(self, handle: Receipt, client_id: str) -> None:
        if len(self._held) >= HELD_MAX:
            return
        now = time.monotonic()
        held = _Held(handle, client_id, now, now + INVISIBLE_MS / 1000 - AHEAD_S)
        self._held[handle] = held
        self._clients[client_id].add(handle)
        heapq.heappush(self._due, (held.due_s, handle))

    @property
    def holds_any(self) -> bool:
        return bool(self._held)

    def drop(self, handle: Receipt) -> None:
        held = self._held.pop(handle, None)
        if held is not None:
            handles = self._clients[held.client_id]
            handles.discard(handle)
            if not handles:
                del self._clients[held.client_id]

    def gone(self, client_id: str) -> None:
        """The client has said that it ends: others are to get its messages soon."""
        self._left.update((handle, self._held[handle]) for handle in self._clients.get(client_id, ()))

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await self.look()
            except Exception:
                log.exception("renewal of deliveries failed, and goes on")

    async def look(self) -> None:
        """Renew what is due, and let go what clients held that are gone."""
        silent = [client_id for client_id in self._clients if not self._is_living(client_id)]
        left, self._left = self._left, {}
        gone = left | {handle: self._held[handle] for client_id in silent for handle in self._clients[client_id]}
        try:
            await self._change([held for held in gone.values() if self._is_held(held)], GONE_MS)
        finally:  # what could not be let go
            self._left.update((handle, held) for handle, held in left.items() if self._is_held(held))
        await self._change_due()

    def _is_held(self, held: _Held) -> bool:
        return self._held.get(held.handle) is held

    async def _change_due(self) -> None:
        now = time.monotonic()
        due: list[_Held] = []
        while self._due and self._due[0][0] <= now:
            due_s, handle = heapq.heappop(self._due)
            held = self._held.get(handle)
            if held is None or held.due_s != due_s or self._left.get(handle) is held:
                continue  # over, or renewed since, or to be let go
            if now - held.given_s >= LIFE_S:
                self.drop(handle)
            else:
                due.append(held)
        await self._change(due, INVISIBLE_MS)

    async def _change(self, deliveries: Sequence[_Held], invisible_ms: int) -> None:
        together: dict[tuple[str, str], list[_Held]] = defaultdict(list)
        for held in deliveries:
            together[held.handle.broker_name, held.handle.group].append(held)
        # All at once: a broker group that does not answer is not to hold up what others keep.
        await asyncio.gather(*(self._change_at(*key, each, invisible_ms) for key, each in together.items()))

    async def _change_at(self, broker_name: str, group: str, deliveries: Sequence[_Held], invisible_ms: int) -> None:
        for start in range(0, len(deliveries), _TOGETHER):
            some = deliveries[start : start + _TOGETHER]
            if not await self._ask(broker_name, group, some, invisible_ms):  # nor will it be for the others
                self._put_off(deliveries[start + _TOGETHER :])
                return

    async def _ask(self, broker_name: str, group: str, deliveries: Sequence[_Held], invisible_ms: int) -> bool:
        """False: the broker could not be asked."""
        handles = [held.handle for held in deliveries]
        try:
            _, are_changed = await changed(
                self._brokers, broker_name, group, handles, invisible_ms, _TIMEOUT_S, keeps_receipts=True
            )
        except PenstockError as error:
            log.info("deliveries not renewed broker=%s group=%s error=%s", broker_name, group, error.message)
            self._put_off(deliveries)
            return False
        for held, is_changed in zip(deliveries, are_changed, strict=True):
            if not is_changed or invisible_ms != INVISIBLE_MS:
                self.drop(held.handle)
                continue
            held.failures = 0
            self._again(held, INVISIBLE_MS / 1000 - AHEAD_S)
        return True

    def _put_off(self, deliveries: Sequence[_Held]) -> None:
        for held in deliveries:
            held.failures += 1
            self._again(held, LOOK_S) if held.failures < FAILURES_MAX else self.drop(held.handle)

    def _again(self, held: _Held, after_s: float) -> None:
        held.due_s = time.monotonic() + after_s
        heapq.heappush(self._due, (held.due_s, held.handle))
