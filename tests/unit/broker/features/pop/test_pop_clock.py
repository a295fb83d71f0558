"""The broker's clock is set while messages are in flight: they come again after the time for which they were given."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.broker.core.reposting import Reposter
from penstock.broker.features.pop.pop import SETTLE_S
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import START, Node, bodies, opened
from tests.support.waiting import eventually

HOUR_S = 3600


def steps_back(at_s: float) -> float:
    return -0.9 * at_s


def fast(at_s: float) -> float:
    return 1.5 * (at_s // 10)


def set_once(by_s: float) -> Callable[[float], float]:
    return lambda at_s: by_s * (at_s > 60)


@pytest.mark.parametrize(
    "wrong_s",
    [
        pytest.param(set_once(-HOUR_S), id="an hour back"),
        pytest.param(set_once(HOUR_S), id="an hour ahead, which is believed"),
        pytest.param(steps_back, id="back by nine tenths of a second each second"),
        pytest.param(fast, id="ahead by a second and a half every ten"),
    ],
)
@in_loop
async def test_a_message_comes_again_after_its_time_however_the_clock_is_set(wrong_s: Callable[[float], float]) -> None:
    node = opened()
    (given,) = await node.receive(1, invisible_ms=HOUR_S * 1000)
    came_s = 0
    for second in range(1, HOUR_S + 10):
        node.manual.set_wall(START + round(1000 * (second - 1 + wrong_s(second))))
        await node.pass_s(1)
        came_s = came_s or second * bool(node.records())
    assert [record.body for record in node.records()] == bodies([given])
    assert HOUR_S - 2 <= came_s <= HOUR_S + 2


@in_loop
async def test_a_receipt_is_good_for_as_long_as_its_message_was_given() -> None:
    node = opened()
    first, second = await node.receive(2, invisible_ms=30_000)
    node.manual.set_wall(START - HOUR_S * 1000)
    await node.pass_s(29)
    assert await node.acknowledge(first) == []
    await node.pass_s(2)
    assert await node.acknowledge(second) != []


@in_loop
async def test_who_is_master_next_knows_what_was_put_off() -> None:
    node = opened()
    given = await node.receive(2, invisible_ms=30_000)
    node.manual.set_wall(START - HOUR_S * 1000)
    await node.pass_s(SETTLE_S)
    await node.pass_s(SETTLE_S)
    successor = Node.after(node)
    await successor.pass_s(27)
    assert successor.records() == []
    await successor.pass_s(3)
    assert [record.body for record in successor.records()] == bodies(given)


@in_loop
async def test_a_clock_that_is_set_while_a_turn_waits_for_the_disk_makes_nothing_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, reads, may_go_on = opened(), 0, asyncio.Event()
    read = Reposter.read

    async def slow(*arguments: Any, **settings: Any) -> Any:
        nonlocal reads
        reads += 1
        await may_go_on.wait()
        return await read(*arguments, **settings)

    for group in ("one", "two"):
        await node.receive(1, group=group, invisible_ms=10_000)
        await node.receive(9, group=group, invisible_ms=HOUR_S * 1000)
    node.manual.advance(11)
    node.settle()
    monkeypatch.setattr(Reposter, "read", slow)
    turn = asyncio.create_task(node.pop.turn())
    await eventually(lambda: reads == 1)
    node.manual.set_wall(START - 2 * HOUR_S * 1000)
    await node.receive(1, group="three")
    may_go_on.set()
    await turn
    assert sum(len(node.records(f"%RETRY%{group}")) for group in ("one", "two")) <= 2
    assert node.pop.state.in_flight >= 18 + 1
