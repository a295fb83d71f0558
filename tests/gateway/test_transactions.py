"""Transactions at a gateway that takes part in those of many topics: each has its turn."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.gateway.v2.produce.transactions import MEMBERS_MAX, TURNS_MAX, Transactions
from penstock.gateway.v2.status import Refusal
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from tests.support.waiting import eventually


class _Topics:
    """Brokers with topics of one type, and publishers of all; what is made is counted."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.made: list[str] = []
        self.closed: list[str] = []

    async def in_thread(self, call: Any, *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return call(*arguments)

    async def route(self, topic: str) -> TopicRoute:
        return TopicRoute(topic=topic, exists=True, attributes={"message.type": self.kind})

    def publishers(self, topic: str) -> list[str]:
        return ["somebody"]

    def make(self, group: str, _: Any) -> Any:
        self.made.append(group)
        return SimpleNamespace(group=group, close=lambda timeout_s: self.closed.append(group))


def test_transactions_of_many_topics_have_their_turns() -> None:
    world: Any = _Topics("TRANSACTION")

    async def scenario() -> None:
        transactions = Transactions(world, world, world.make)
        names = [f"topic-{number}" for number in range(MEMBERS_MAX + 6)]
        transactions.on_producer(SimpleNamespace(topics=dict.fromkeys(names)))  # type: ignore[arg-type]
        await eventually(lambda: not transactions._tasks)
        assert len(world.made) == MEMBERS_MAX
        async with transactions._member("another"):  # a half of one more topic
            await eventually(lambda: len(world.closed) == 1)
        assert world.closed == names[:1]
        for _ in range(2):
            await transactions.sweep()
        await eventually(lambda: len(world.closed) == 1 + 2 * TURNS_MAX)
        assert set(world.made) == {*names, "another"}, "each has had its turn"
        await transactions.close()

    asyncio.run(scenario())
    assert sorted(world.closed) == sorted(world.made)


def test_when_halves_of_so_many_topics_are_being_stored_another_one_waits() -> None:
    world: Any = _Topics("MIXED")

    async def scenario() -> None:
        transactions = Transactions(world, world, world.make)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(MEMBERS_MAX):
                await stack.enter_async_context(transactions._member(f"topic-{number}"))
            with pytest.raises(Refusal) as refused:
                async with transactions._member("another"):
                    pass
            assert refused.value.status.code == Code.TOO_MANY_REQUESTS
        async with transactions._member("another"):
            pass
        await transactions.close()

    asyncio.run(scenario())


def test_a_producer_that_names_mixed_topics_takes_no_place_before_its_first_half() -> None:
    world: Any = _Topics("MIXED")

    async def scenario() -> None:
        transactions = Transactions(world, world, world.make)
        transactions.on_producer(SimpleNamespace(topics={"topic": None}))  # type: ignore[arg-type]
        await eventually(lambda: not transactions._tasks)
        assert world.made == []
        await transactions.close()

    asyncio.run(scenario())
