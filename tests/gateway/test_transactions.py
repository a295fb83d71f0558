"""Transactions at a gateway that takes part in those of many topics: each has its turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest

from penstock.client import BrokerUnavailable
from penstock.gateway.v2.produce.transactions import MEMBERS_MAX, TURNS_MAX, Transactions
from penstock.gateway.v2.status import Refusal
from penstock.gateway.v2.wire.definition_pb2 import Code
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from tests.support.waiting import eventually


class World:
    """Brokers with topics of one type, and publishers of all but those of ``gone``; what is made is kept."""

    def __init__(self, kind: str = "TRANSACTION") -> None:
        self.kind = kind
        self.gone: set[str] = set()
        self.away: set[str] = set()  # topics of which nothing can be asked
        self.on_route: Callable[[str], Awaitable[None]] | None = None
        self.may_make = asyncio.Event()
        self.may_make.set()
        self.made: list[str] = []
        self.closed: list[str] = []

    async def in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        await self.may_make.wait()
        await asyncio.sleep(0)
        return call(*arguments)

    async def route(self, topic: str) -> TopicRoute:
        if self.on_route is not None:
            await self.on_route(topic)
        if topic in self.away:
            raise BrokerUnavailable("away")
        return TopicRoute(topic=topic, exists=True, attributes={"message.type": self.kind})

    def publishers(self, topic: str) -> list[str]:
        return [] if topic in self.gone else ["somebody"]

    def make(self, group: str, _: object) -> Any:
        if group in self.away:
            raise RuntimeError("can't start new thread")
        self.made.append(group)
        return SimpleNamespace(group=group, close=lambda timeout_s: self.closed.append(group))


Scenario = Callable[[Any, Transactions], Awaitable[None]]


def played(scenario: Scenario, kind: str = "TRANSACTION") -> World:
    """What is left when it has been played, by a gateway that then closed."""

    async def play() -> World:
        world: Any = World(kind)
        transactions = Transactions(world, world, world.make)
        await scenario(world, transactions)
        await transactions.close()
        assert sorted(world.closed) == sorted(world.made)
        return world  # type: ignore[no-any-return]

    return asyncio.run(play())


def named(*topics: str) -> Any:
    """A producer that has told these topics."""
    return SimpleNamespace(topics=dict.fromkeys(topics))


async def half(transactions: Transactions, topic: str) -> None:
    """Somebody sends one."""
    async with transactions._member(topic):
        pass


ALL: Final = tuple(f"topic-{number:02}" for number in range(MEMBERS_MAX))


@pytest.mark.parametrize("kind", ["TRANSACTION", "MIXED"])
def test_transactions_of_many_topics_have_their_turns(kind: str) -> None:
    waiting = [f"waiting-{number}" for number in range(6)]

    async def scenario(world: Any, transactions: Transactions) -> None:
        transactions.on_producer(named(*ALL, *waiting))
        await eventually(lambda: not transactions._tasks)
        assert world.made == list(ALL)
        await half(transactions, "another")
        await transactions.sweep()
        await transactions.sweep()
        assert set(world.made) == {*ALL, *waiting, "another"}
        await eventually(lambda: len(world.closed) == 1 + 2 * TURNS_MAX)
        assert world.closed == list(ALL[: len(world.closed)]), "those that were used longest ago"

    played(scenario, kind)


def test_when_halves_of_so_many_topics_are_being_stored_another_one_waits() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for topic in ALL:
                await stack.enter_async_context(transactions._member(topic))
            with pytest.raises(Refusal) as refused:
                await half(transactions, "another")
            assert refused.value.status.code == Code.TOO_MANY_REQUESTS
        await half(transactions, "another")

    played(scenario)


def test_a_topic_whose_half_comes_in_its_turn_has_it_once() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        for topic in ALL:
            await half(transactions, topic)
        transactions.on_producer(named("first", "second"))
        await eventually(lambda: not transactions._tasks)

        async def meanwhile(topic: str) -> None:
            if topic == "first":
                await half(transactions, "second")

        world.on_route = meanwhile
        await transactions.sweep()
        assert world.made == [*ALL, "second", "first"]

    played(scenario)


def test_a_topic_that_cannot_join_keeps_its_turn_and_takes_no_place() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        for topic in ALL:
            await half(transactions, topic)
        world.away = {"away"}
        transactions.on_producer(named("away"))
        await eventually(lambda: not transactions._tasks)
        await transactions.sweep()
        assert (world.made, world.closed) == (list(ALL), [])
        world.away = set()
        await transactions.sweep()
        assert world.made == [*ALL, "away"]
        world.gone = {ALL[0]}  # which has had to leave
        await transactions.sweep()
        assert world.made == [*ALL, "away"]

    played(scenario)


def test_producers_that_could_not_be_made_take_no_places() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        world.away = set(ALL)
        world.may_make.clear()
        sending = [asyncio.create_task(half(transactions, topic)) for topic in ALL]
        await eventually(lambda: len(transactions._members) == MEMBERS_MAX)
        for task in sending:  # who waits for them has gone before they fail
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        world.may_make.set()
        await eventually(lambda: all(member.has_failed for member in transactions._members.values()))
        await transactions.sweep()
        with pytest.raises(RuntimeError):
            await half(transactions, ALL[0])
        world.away = set()
        await half(transactions, ALL[0])

    assert played(scenario).made == [ALL[0]]


def test_what_is_being_closed_is_closed_when_the_gateway_ends() -> None:
    async def scenario(world: Any, transactions: Transactions) -> None:
        await half(transactions, "topic")
        world.may_make.clear()  # nor closed
        transactions._leave("topic")
        asyncio.get_running_loop().call_later(0.01, world.may_make.set)

    played(scenario)
