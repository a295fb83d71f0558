"""A broker with delay levels, and messages that have one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.broker.features.levels.levels import DelayLevels
from penstock.formats.record.layout import Record
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from penstock.proto.errors import DiskFull
from tests.support.broker.kit import Kit
from tests.support.broker.stores import batch, read
from tests.support.clock import ManualClock

START = 1_700_000_000_000


class Node(Kit):
    """A broker with its delay levels, and with timers, which get what is moved."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        self.manual = clock or ManualClock(START)
        super().__init__(root, features=(Later, DelayLevels), clock=self.manual, **settings)
        self.queues = self[DelayLevels].queues
        if self.tables.topic("orders") is None:
            self.put_topic(Topic("orders", 4, 4))
        self.dispatch()

    def reopened(self, *, unclean: bool = False) -> Node:
        if not unclean:
            self.snapshots.write_all(self.store.dispatched_offset)
        self.close(unclean=unclean)
        return Node(self.root, self.manual)

    def delay(self, level: int, bodies: Sequence[bytes], *, topic: str = "orders", queue_id: int = 0) -> None:
        """Append messages with a level and dispatch them."""
        records = delayed(level, bodies, topic=topic, queue_id=queue_id)
        self.store.append(names.SCHEDULE_TOPIC, records, queues=18)
        self.dispatch()

    async def turn(self, seconds: float = 0.0) -> None:
        self.manual.advance(seconds)
        await self.queues.turn()
        await self[Later].timers.turn()
        self.dispatch()

    def dispatch(self) -> None:
        self.confirm()
        super().dispatch()

    def records(self, topic: str = "orders", queue_id: int = 0) -> list[Record]:
        self.dispatch()
        return read(self.store, topic, queue_id)

    def delivered(self, topic: str = "orders", queue_id: int = 0) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    def fail_appends(self, after: int) -> list[int]:
        """Let so many appends succeed; each one behind them finds no space, until the number is raised again."""
        append, left = self.store.append, [after]

        def failing(topic: str, records: Any, **settings: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise DiskFull("no space")
            return append(topic, records, **settings)

        self.store.append = failing  # type: ignore[method-assign]
        return left


def delayed(level: int, bodies: Sequence[bytes], *, topic: str = "orders", queue_id: int = 0, **more: str) -> bytes:
    own = {"TAGS": "t", "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)} | more
    return batch(names.SCHEDULE_TOPIC, bodies, level - 1, properties=[encode_properties(own)] * len(bodies))
