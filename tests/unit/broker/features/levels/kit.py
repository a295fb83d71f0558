"""A broker with delay levels, and messages that have one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.broker.features.later.later import Later
from penstock.broker.features.levels.levels import DelayLevels
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from tests.support.broker.stores import batch
from tests.support.broker.timing import Timed
from tests.support.clock import ManualClock


class Node(Timed):
    """A broker with its delay levels, and with timers, which get what is moved."""

    def __init__(self, root: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        super().__init__(root, clock, features=(Later, DelayLevels), **settings)
        self.queues = self[DelayLevels].queues

    def delay(self, level: int, bodies: Sequence[bytes], *, topic: str = "orders", queue_id: int = 0) -> None:
        """Append messages with a level and dispatch them."""
        records = delayed(level, bodies, topic=topic, queue_id=queue_id)
        self.store.append(names.SCHEDULE_TOPIC, records, queues=18)
        self.dispatch()

    async def turn(self, seconds: float = 0.0) -> None:
        self.manual.advance(seconds)
        await self.queues.turn()
        await super().turn()


def delayed(level: int, bodies: Sequence[bytes], *, topic: str = "orders", queue_id: int = 0, **more: str) -> bytes:
    own = {"TAGS": "t", "DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)} | more
    return batch(names.SCHEDULE_TOPIC, bodies, level - 1, properties=[encode_properties(own)] * len(bodies))
