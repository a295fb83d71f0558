"""Progress of delay levels that is ahead of the log: its snapshot knew messages that a power cut took."""

from __future__ import annotations

import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.broker.features.levels.level_table import LevelTable
from penstock.broker.features.levels.levels import DelayLevels
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch
from tests.support.clock import ManualClock


def delay(it: Kit, body: bytes) -> None:
    """A message of level 1, which is delivered a second later."""
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"})
    it.store.append(names.SCHEDULE_TOPIC, batch(names.SCHEDULE_TOPIC, [body], properties=[properties]), queues=18)
    it.confirm()
    it.dispatch()


@pytest.mark.parametrize("left", [0, 1])
def test_it_passes_over_nothing_that_comes_in_their_place(left: int) -> None:
    @in_loop
    async def run() -> None:
        clock = ManualClock(1_700_000_000_000)
        it = Kit(features=(Later, DelayLevels), clock=clock)
        it.put_topic(Topic("orders", 1, 1))
        for _ in range(left):
            delay(it, b"delivered before")
        it.tables[LevelTable].load({"offsetTable": {"1": 2}}, 0)
        it.change_role(master=False)
        it.change_role(master=True)
        for body in (b"one", b"two", b"three"):
            delay(it, body)  # before the first turn
        clock.advance(2)
        await it[DelayLevels].queues.turn()
        it.confirm()
        assert it.bodies(queues=1) == [b"one", b"two", b"three"]

    run()
