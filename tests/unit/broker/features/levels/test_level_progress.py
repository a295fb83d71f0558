"""Progress of delay levels that does not fit the log, or its times: after power cuts, and where a clock was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later.later import Later
from penstock.broker.features.levels.level_table import LevelTable
from penstock.broker.features.levels.levels import DelayLevels
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.stores import batch
from tests.support.broker.timing import START
from tests.support.clock import ManualClock
from tests.unit.broker.features.levels.kit import Node


def delay(it: Kit, body: bytes) -> None:
    """A message of level 1, which is delivered a second later."""
    properties = encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"})
    it.store.append(names.SCHEDULE_TOPIC, batch(names.SCHEDULE_TOPIC, [body], properties=[properties]), queues=18)
    it.confirm()
    it.dispatch()


@pytest.mark.parametrize("left", [0, 1])
@in_loop
async def test_it_passes_over_nothing_that_comes_in_their_place(left: int) -> None:
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


@in_loop
async def test_after_a_clock_was_wrong_a_message_waits_its_level_from_when_it_is_seen(tmp_path: Path) -> None:
    clock = ManualClock(START + 86_400_000)
    node = Node(tmp_path, clock)
    node.delay(1, [b"from tomorrow"])
    clock.set_wall(START)
    node.close(unclean=True)
    again = Node(tmp_path, clock)
    await again.turn()
    assert again.delivered() == []
    await again.turn(1)
    assert again.delivered() == [b"from tomorrow"]


@in_loop
async def test_a_clock_that_was_set_ahead_and_back_brings_no_level_before_its_time(tmp_path: Path) -> None:
    """The log's times do not go back with the clock: for a day, all that is stored is of tomorrow."""

    clock = ManualClock(START)
    node = Node(tmp_path, clock)
    clock.set_wall(START + 86_400_000)
    node.delay(2, [b"a"])
    await node.turn()
    await node.turn(3)
    assert node.delivered() == []
    clock.set_wall(START + 3000)
    node.delay(2, [b"b"])
    await node.turn()
    await node.turn(2)
    assert node.delivered() == [b"a"]
    node.delay(2, [b"c"])
    await node.turn(2)
    assert node.delivered() == [b"a"]
    for _ in range(3):
        await node.turn(1)
    assert node.delivered() == [b"a", b"b"]
    for _ in range(3):
        await node.turn(1)
    assert node.delivered() == [b"a", b"b", b"c"]
