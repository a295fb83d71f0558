"""Turns: who has much to do gives way, and nobody overtakes those that wait."""

from __future__ import annotations

import asyncio

import pytest

from penstock.runtime import turns
from penstock.runtime.turns import Turns
from tests.support.loops import in_own_loop


@in_own_loop
async def test_while_there_is_time_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)
    shared = Turns()
    assert shared.ends_s()
    number = shared.number
    await shared.have()
    assert shared.number == number


@in_own_loop
async def test_when_a_turn_is_over_others_go_on_before_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    shared = Turns()
    number = shared.number
    assert shared.ends_s()  # it begins
    assert not shared.ends_s()
    others: list[int] = []
    asyncio.get_running_loop().call_soon(others.append, shared.number)
    await shared.have()
    assert others == [number]
    assert shared.number > number


@in_own_loop
async def test_those_that_wait_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    shared = Turns()
    done: list[int] = []

    async def work(number: int) -> None:
        await shared.have()
        done.append(number)

    await asyncio.gather(*(work(number) for number in range(20)))
    assert done == list(range(20))
