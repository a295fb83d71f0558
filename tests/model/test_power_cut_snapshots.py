"""A power cut takes the log's end and leaves snapshots that know it: what comes after is served as ever.

With ASYNC_FLUSH nothing waits for the log's sync but the tables' files. A random life is cut at a random byte of what
is not synced; the next master has the files, and half of the log's newest. Whatever is there, or comes, reaches whoever
wants it.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.broker.features.levels.levels import DelayLevels
from penstock.broker.features.transactions.transactions import Transactions
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from penstock.proto.errors import TransactionEnded
from penstock.proto.wire.transactions_pb2 import COMMIT, ROLLBACK, EndRequest, HalfRange
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import Node
from tests.support.broker.stores import batch, bodies, patch
from tests.support.broker.transacting import half_batch
from tests.support.clock import ManualClock

SEEDS = 12
STEPS = 40
QUEUES = 2
READER = "billing"
SIZES = {"segment_bytes": 1 << 20, "consume_queue_bytes": 40_000}


class Life:
    """A broker, and what it is asked."""

    def __init__(self, node: Node, random_: random.Random, name: str) -> None:
        self.node, self.random, self.name = node, random_, name
        self.number = 0
        self.done: set[bytes] = set()  # acknowledged by consumers that pop
        self.halves: dict[int, bytes] = {}  # by offset

    def body(self, kind: str) -> bytes:
        self.number += 1
        return f"{self.name}-{kind}-{self.number}".encode()

    async def send(self) -> list[bytes]:
        sent = [self.body("plain") for _ in range(self.random.randint(1, 4))]
        self.node.store.append("orders", batch("orders", sent, self.random.randrange(QUEUES)), queues=QUEUES)
        self.node.settle()
        return sent

    async def commit_offsets(self) -> None:
        self.node.commit(READER, {"orders": dict(enumerate(self.node.store.queue_ends("orders")))})
        self.node.settle()

    async def pop(self) -> set[bytes]:
        messages = await self.node.receive(self.random.randint(1, 6))
        done = [message for message in messages if self.random.random() < 0.7]
        if done:
            await self.node.acknowledge(*done)
        self.done.update(message.record.body for message in done)
        return {message.record.body for message in messages}

    async def half(self) -> None:
        body = self.body("half")
        receipt = await self.node.append_bytes(half_batch([body], queue_id=0))
        self.node.settle()
        self.halves[receipt.queue_offsets[0]] = body

    async def decide(self) -> None:
        if self.halves:
            offset = self.random.choice(list(self.halves))
            del self.halves[offset]
            await self.end(offset, self.random.choice([COMMIT, COMMIT, ROLLBACK]))

    async def end(self, offset: int, resolution: int) -> None:
        request = EndRequest(group="payments", resolution=resolution)  # type: ignore[arg-type]
        request.halves.append(HalfRange(offset=offset, count=1))
        await self.node[Transactions].end(request)
        self.node.settle()

    async def delay(self) -> bytes:
        body = self.body("later")
        properties = [encode_properties({"DELAY": "1", "REAL_TOPIC": "orders", "REAL_QID": "0"})]
        records = batch(names.SCHEDULE_TOPIC, [body], properties=properties)
        self.node.store.append(names.SCHEDULE_TOPIC, records, queues=18)
        self.node.settle()
        return body

    async def pass_time(self) -> None:
        await self.node.pass_s(2)
        await self.node[DelayLevels].queues.turn()
        self.node.settle()

    async def live(self, steps: int) -> None:
        kinds = (self.send, self.commit_offsets, self.pop, self.half, self.decide, self.delay, self.pass_time)
        for _ in range(steps):
            await self.random.choice(kinds)()

    async def drain(self) -> set[bytes]:
        """All that consumers who pop get until nothing comes any more."""
        found: set[bytes] = set()
        for _ in range(2):
            while messages := await self.node.receive(32):
                found.update(message.record.body for message in messages)
                await self.node.acknowledge(*messages)
            await self.node.pass_s(31)
        return found


def contents(node: Node, topic: str, queues: int = QUEUES) -> list[bytes]:
    node.settle()
    return [body for queue_id in range(queues) for body in bodies(node.store, topic, queue_id)]


async def cut_life(root: Path, random_: random.Random) -> tuple[Node, Life]:
    """The broker that begins behind a power cut, and the life before it."""
    before = Node(root, manual=ManualClock(int(time.time() * 1000)), sizes=SIZES)  # lanes of a former year are dropped
    before.add_topic("orders", QUEUES)
    life = Life(before, random_, "old")
    await life.live(STEPS)
    await before.snapshots.write_changed(lambda: before.store.dispatched_offset, at_once=True)
    await life.live(random_.randint(0, STEPS // 2))
    safe, end = before.store.flushed_offset, before.store.end_offset
    before.close(unclean=True)
    cut = random_.randint(safe, end)
    patch(root, cut, bytes(end - cut), segment_bytes=SIZES["segment_bytes"])
    after = Node(root, manual=before.manual, sizes=SIZES)
    after.settle()
    return after, life


def check_ends(node: Node) -> None:
    ends = node.store.queue_ends("orders")
    for queue_id in range(QUEUES):
        committed = node.tables.offsets.get(READER, "orders", queue_id)
        assert committed <= (ends[queue_id] if queue_id < len(ends) else 0)


@pytest.mark.parametrize("seed", range(SEEDS))
@in_loop
async def test_whatever_is_left_or_comes_reaches_who_wants_it(seed: int, tmp_path: Path) -> None:
    node, before = await cut_life(tmp_path, random.Random(seed))
    check_ends(node)
    life = Life(node, random.Random(seed), "new")
    new = [body for _ in range(4) for body in await life.send()]
    delayed = [await life.delay() for _ in range(2)]
    await check_halves(life)
    for _ in range(3):
        await life.pass_time()
    check_delayed(node, delayed)
    found = await life.drain()
    left: Sequence[bytes] = contents(node, "orders")
    assert set(left) - before.done <= found
    assert {*new, *delayed} <= found


async def check_halves(life: Life) -> None:
    """Halves are decided as ever, and one that is committed is there once, however often that is said."""
    await life.half()
    for offset, body in enumerate(contents(life.node, names.HALF_TOPIC, 1)):
        is_committed = True
        for _ in range(2):
            with contextlib.suppress(TransactionEnded):
                await life.end(offset, COMMIT)
                continue
            is_committed = False
        assert Counter(contents(life.node, "orders"))[body] == is_committed, (offset, body)


def check_delayed(node: Node, new: Sequence[bytes]) -> None:
    told = Counter(contents(node, "orders"))
    for body in (*contents(node, names.SCHEDULE_TOPIC, 1), *new):
        assert told[body] == 1, body
