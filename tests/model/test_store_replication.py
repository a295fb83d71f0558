"""Replication between real stores over a link that loses, repeats and cuts frames, with kills and changes of master.

What was confirmed by a master stays in every later master's log; at the end both logs are the same bytes, and so is
everything that follows from them. ``REPLICATION_SEED`` and ``REPLICATION_HISTORIES`` choose others; a failure prints
its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.core.tables import groups
from penstock.broker.core.tables.topics import Topic
from penstock.proto.errors import PenstockError
from penstock.replication import ReplicationConfig
from tests.model.test_replication_stream import FAULTS, Saboteur
from tests.support.replication.replica_nodes import Node, joined
from tests.support.waiting import eventually

FIRST = int(os.environ.get("REPLICATION_SEED", "1"))
HISTORIES = int(os.environ.get("REPLICATION_HISTORIES", "12"))
STEPS = 14
CONFIG = ReplicationConfig(
    sync=True,
    frame_bytes=700,
    window_bytes=2800,
    heartbeat_interval_ms=2,
    confirm_interval_ms=0,
    master_timeout_ms=2000,
    reconnect_min_ms=1,
    reconnect_max_ms=1,
)
WEIGHTS = {"append": 8, "state": 4, "link": 10, "kill_slave": 2, "stop_slave": 1, "fail_over": 3, "switch": 1}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # connections by the hundred
    yield
    logging.disable(before)


class Group:
    """A master and a slave, and what was confirmed by any master so far."""

    def __init__(self, root: Path, seed: int) -> None:
        self.numbers = random.Random(seed)
        durable = self.numbers.random() < 0.5
        values = {name: getattr(CONFIG, name) for name in CONFIG.__slots__} | {"flush_acknowledged": durable}
        config = ReplicationConfig(**values)
        self.master, self.slave = Node(root, 1, config), Node(root, 2, config)
        self.epoch = 1
        self.sequence = 0
        self.confirmed = b""
        self.cuts = 0
        self.lead(self.master)

    def lead(self, node: Node) -> None:
        """``node`` is the master of the next epoch."""
        self.epoch += 1
        node.lead(self.epoch)
        assert node.content().startswith(self.confirmed), "the new master lacks what was confirmed"

    def note(self) -> None:
        """What the master has confirmed must never change again."""
        confirm = self.master.log.confirm_offset  # whole batches: a part of one was acknowledged to nobody
        content = self.master.content()
        assert content.startswith(self.confirmed), "confirmed bytes changed"
        self.confirmed = content[: max(confirm, len(self.confirmed))]  # a new master has heard of less
        assert self.slave.store.end_offset >= confirm, "confirmed what the slave does not have"

    async def append(self) -> None:
        for _ in range(self.numbers.randint(1, 4)):
            self.sequence += 1
            count = self.numbers.randint(1, 3)
            bodies = [b"%06d" % self.sequence * self.numbers.choice((1, 20, 150)) for _ in range(count)]
            topic = self.numbers.choice(("orders", "clicks"))
            if self.master.tables.topics.get(topic) is None:  # a broker takes no messages of a topic it does not have
                self.master.put_topic(Topic(topic, 3, 3))
            self.master.append(topic, bodies, queue=self.numbers.randrange(3), sequence=self.sequence)

    async def state(self) -> None:
        log, name = self.master, self.numbers.choice(("orders", "clicks", "others"))
        match self.numbers.randrange(4):
            case 0:
                log.put_topic(Topic(name, self.numbers.randint(3, 9), 3))
            case 1:
                if log.tables.groups.get("billing") is None:
                    log.put_group(groups.Group("billing"))
            case 2:
                log.commit("billing", {name: {self.numbers.randrange(3): self.numbers.randrange(1000)}})
            case 3 if self.numbers.random() < 0.3:
                log.delete_topic(name)

    async def link(self) -> None:
        """One connection with a fault somewhere; or one that works for a while."""
        assert self.master.primary is not None
        fault = self.numbers.choice((*FAULTS, "none", "none"))
        saboteur = Saboteur(fault, self.numbers.randrange(8)) if fault != "none" else lambda _, message: [message]
        replica = self.slave.follow()
        with contextlib.suppress(PenstockError, TimeoutError):
            async with asyncio.timeout(0.04):
                await joined(replica, self.master.primary, saboteur)
        self.cuts += replica.last_loss != ""
        self.note()

    async def kill_slave(self) -> None:
        self.slave.kill()
        self.slave.open()

    async def stop_slave(self) -> None:
        self.slave.close()
        self.slave.open()

    async def fail_over(self) -> None:
        """The master is killed, the slave leads, and the old master comes back with what it had alone."""
        self.note()
        self.master.kill()
        self.master, self.slave = self.slave, self.master
        self.lead(self.master)
        self.slave.open()

    async def switch(self) -> None:
        """The two change roles, both alive."""
        self.note()
        self.master.leave()
        self.master, self.slave = self.slave, self.master
        self.lead(self.master)

    async def settle(self) -> None:
        """A link without faults, until both are level; then compare everything."""
        assert self.master.primary is not None
        replica = self.slave.follow()
        link = asyncio.create_task(joined(replica, self.master.primary, lambda _, message: [message]))
        end = self.master.store.end_offset

        def level() -> bool:
            if link.done():
                link.result()
            return (
                replica.connected and self.master.store.dispatched_offset == end == self.slave.store.dispatched_offset
            )

        try:
            await eventually(level, timeout_s=60, what="both level")
        finally:
            link.cancel()
            await asyncio.gather(link, return_exceptions=True)
        self.note()
        assert self.slave.content() == self.master.content()
        assert self.slave.content_of_tables() == self.master.content_of_tables()

    def close(self) -> None:
        for node in (self.master, self.slave):
            node.close()


async def _play(root: Path, seed: int) -> int:
    group = Group(root, seed)
    try:
        for name in group.numbers.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS):
            await getattr(group, name)()
        await group.settle()
        before = group.slave.content_of_tables()
        group.slave.close()
        group.slave.open()
        assert group.slave.content_of_tables() == before, "a restart changed the tables"
    finally:
        group.close()
    return group.cuts


@pytest.mark.timeout(1800)
def test_two_stores_become_the_same_whatever_happens_to_link_and_processes(tmp_path: Path) -> None:
    started, cuts = time.monotonic(), 0
    for seed in range(FIRST, FIRST + HISTORIES):
        try:
            cuts += asyncio.run(_play(tmp_path / str(seed), seed))
        except Exception as error:
            raise AssertionError(f"history {seed}: {type(error).__name__}: {error}") from error
    print(f"seeds {FIRST}..{FIRST + HISTORIES - 1}: {cuts} logs cut, {time.monotonic() - started:.1f} s")
