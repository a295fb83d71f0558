"""Brokers whose messages wait for a time, by a clock that a test turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from penstock.broker.core.feature import Feature
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.formats.record.layout import Record
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from tests.support.broker.kit import Kit
from tests.support.broker.stores import batch, read
from tests.support.clock import ManualClock

START = 1_700_000_000_000
ORDERS = Topic("orders", 4, 4)


class Timed(Kit):
    """A broker with timers, and other features that have messages wait; :meth:`reopened` has the store alone."""

    def __init__(
        self,
        root: Path,
        clock: ManualClock | None = None,
        *,
        features: Sequence[type[Feature]] = (Later,),
        **settings: Any,
    ) -> None:
        self.manual = clock or ManualClock(START)
        super().__init__(root, features=features, clock=self.manual, **settings)
        self.timers = self[Later].timers
        if self.tables.topics.get("orders") is None:
            self.put_topic(ORDERS)
        self.dispatch()

    def reopened(self, *, unclean: bool = False) -> Self:
        if not unclean:
            self.snapshots.write_all(self.store.dispatched_offset)
        self.close(unclean=unclean)
        return type(self)(self.root, self.manual)

    async def turn(self, seconds: float = 0.0) -> None:
        self.manual.advance(seconds)
        await self.timers.turn()
        self.dispatch()

    def dispatch(self) -> None:
        if not self.role.holds:
            self.confirm()
        super().dispatch()

    def records(self, topic: str = "orders", queue_id: int = 0) -> list[Record]:
        self.dispatch()
        return read(self.store, topic, queue_id)

    def delivered(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]


class Node(Timed):
    """A broker with timers alone, and messages for them."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        sizes = {"consume_queue_bytes": 400}
        super().__init__(
            root, clock, sizes=sizes, **({"maxMessageSize": 1 << 18, "timerMaxDelaySec": 86_400} | settings)
        )

    def later(
        self, bodies: Sequence[bytes], delays_s: Sequence[float], *, topic: str = "orders", queue_id: int = 0
    ) -> None:
        """Append messages for later and dispatch them."""
        records = later_batch(bodies, [START + int(1000 * delay) for delay in delays_s], topic=topic, queue_id=queue_id)
        self.store.append(names.TIMER_TOPIC, records, queues=1)
        self.dispatch()

    def first_waiting(self) -> int | None:
        self.flush()
        return next((hold.offset for hold in self[Later].holds()), None)


def later_properties(topic: str, queue_id: int, due: int) -> bytes:
    where = {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    return encode_properties({"TIMER_DELIVER_MS": str(due), "TIMER_OUT_MS": str(due)} | where)


def later_batch(bodies: Sequence[bytes], due: Sequence[int], *, topic: str = "orders", queue_id: int = 0) -> bytes:
    properties = [later_properties(topic, queue_id, at) + encode_properties({"TAGS": "t"}) for at in due]
    return batch(names.TIMER_TOPIC, bodies, properties=properties, mark=(7, 0, 0, 1))
