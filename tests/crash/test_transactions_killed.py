"""A broker that is killed at every step of transactions: no half is seen, none is forgotten, none is committed twice.

The steps are the appends to the log: a half, the op that decides, each batch that follows from it, a half that is
stored anew or parked, and what is recorded of all this. The broker dies just before and just after each of them; the
next one has the files alone, and the client makes its call again, as one that got no answer does.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.proto import names
from penstock.proto.errors import TransactionEnded
from penstock.proto.wire.transactions_pb2 import COMMIT, OPEN, PARKED, ROLLBACK
from tests.support.broker.kit import close_all
from tests.support.broker.transacting import START, Node, half_batch
from tests.support.clock import ManualClock

STEPS_MAX = 60
KILLS_MIN = 20
Step = Callable[[Node], Awaitable[Any]]


class Killed(BaseException):
    """The process is gone."""


class Life:
    """Brokers one after the other over the same files; the ``kill``-th append, and none after it, kills."""

    def __init__(self, root: Path, kill: int, *, after: bool) -> None:
        self.root, self.kill, self.after = root, kill, after
        self.appends = 0
        self.kills = 0
        self.manual = ManualClock(START)
        self.node = self._begin()
        for topic in ("orders", "bills"):
            self.node.put_topic(Topic(topic, 2, 2, 6))
        self.node.settle()
        self._watch()

    def _begin(self) -> Node:
        sizes = {"segment_bytes": 1 << 18, "consume_queue_bytes": 20_000}
        return Node(self.root, manual=self.manual, sizes=sizes, transactionCheckMax=2)

    def _watch(self) -> None:
        store = self.node.store
        append = store.append

        def watched(topic: str, *rest: Any, **more: Any) -> Any:
            self.appends += 1
            dies = self.appends == self.kill
            if dies and not self.after:
                raise Killed
            placed = append(topic, *rest, **more)
            if dies:
                raise Killed
            return placed

        store.append = watched  # type: ignore[method-assign]

    async def do(self, step: Step) -> None:
        """Do a step; again at the next broker if this one is killed."""
        try:
            await step(self.node)
        except Killed:
            self.kills += 1
            self.node.close(unclean=True)
            self.node = self._begin()
            self.node.settle()
            self._watch()
            await step(self.node)


def seen(node: Node) -> Counter[bytes]:
    return Counter(node.bodies("orders", 2) + node.bodies("bills", 2))


async def asked(node: Node, seconds: float) -> None:
    """A producer of the group is there for so long, and says nothing."""
    member = node.join()
    try:
        await node.pass_s(seconds)
    finally:
        member.left()


async def live(life: Life) -> None:
    batches = {
        "first": half_batch([b"commit 1", b"rollback", b"left"], "orders"),
        "second": half_batch([b"commit 2", b"commit 3"], "bills", 0),
    }

    def half(name: str) -> Step:
        return lambda node: node.append_bytes(batches[name])

    def end(resolution: int, *ranges: tuple[int, int]) -> Step:
        return lambda node: node.end(resolution, *ranges)

    def check_nothing_shown() -> None:
        assert not seen(life.node)

    await life.do(half("first"))
    await life.do(half("second"))
    life.node.settle()
    check_nothing_shown()
    await life.do(lambda node: asked(node, 7))  # all are stored anew
    life.node.settle()
    check_nothing_shown()
    await life.do(end(ROLLBACK, (1, 1)))
    await life.do(end(COMMIT, (0, 1), (3, 1)))
    expected = {b"commit 1", b"commit 2"}
    assert seen(life.node) == Counter(expected)
    life.node.transactions.checks.make_way(life.node.store.end_offset)
    await life.do(lambda node: node.pass_s(1))  # stored anew for retention
    await life.do(end(COMMIT, (4, 1)))
    expected |= {b"commit 3"}
    assert seen(life.node) == Counter(expected)
    for _ in range(3):  # the last one is asked about once more, and then parked
        await life.do(lambda node: asked(node, 31))
    await life.do(lambda node: node.pass_s(31))
    for resolution, ranges in ((ROLLBACK, (1, 1)), (COMMIT, (0, 1)), (COMMIT, (3, 1))):
        await life.do(end(resolution, ranges))
    with pytest.raises(TransactionEnded, match="half at 1 is rolled back"):
        await life.node.end(COMMIT, (1, 1))
    assert seen(life.node) == Counter(expected)
    (state,) = await life.node.states((2, 1))
    assert state == (PARKED, 1)
    assert Counter(record.body for record in life.node.records(names.PARKED_TOPIC)) == Counter([b"left"])
    states = [await life.node.states((offset, 1)) for offset in range(5)]
    assert not any(state == OPEN for found in states for state, _ in found)
    assert list(life.node.transactions.holds()) == []


async def one_life(kill: int, *, after: bool) -> Life:
    with tempfile.TemporaryDirectory(prefix="killed-") as directory:
        life = Life(Path(directory), kill, after=after)
        try:
            await live(life)
        finally:
            close_all()
        return life


def test_a_kill_at_each_step_shows_no_half_forgets_none_and_commits_none_twice() -> None:
    kills = 0
    for after in (False, True):
        for kill in range(1, STEPS_MAX):
            life = asyncio.run(one_life(kill, after=after))
            kills += life.kills
            if not life.kills:
                break
        else:
            raise AssertionError(f"more than {STEPS_MAX} steps")
    assert kills >= KILLS_MIN


def test_two_kills_in_a_row_are_no_different() -> None:
    """The second one dies while it makes good what the first has left."""
    for kill in range(1, STEPS_MAX, 3):
        for gap in (1, 2):
            life = asyncio.run(two_kills(kill, gap))
            if life.kills < 2:
                return


async def two_kills(kill: int, gap: int) -> Life:
    with tempfile.TemporaryDirectory(prefix="killed-") as directory:
        life = Life(Path(directory), kill, after=False)
        do = life.do

        async def twice(step: Step) -> None:
            kills = life.kills

            async def again(node: Node) -> Any:
                if life.kills > kills and life.kill == kill:  # after the first kill
                    life.kill = life.appends + gap
                return await step(node)

            try:
                await do(again)
            except Killed:
                life.kills += 1
                life.node.close(unclean=True)
                life.node = life._begin()
                life.node.settle()
                life._watch()
                await step(life.node)

        life.do = twice  # type: ignore[method-assign]
        try:
            await live(life)
        finally:
            close_all()
        return life
