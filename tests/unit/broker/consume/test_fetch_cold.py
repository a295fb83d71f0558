"""Fetches of what is not in memory: others go on, and no more is brought than the reply may hold."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from penstock.broker.consume.consume import Consume
from penstock.broker.store.absent import Absent, AbsentEntries
from penstock.broker.store.disk import Disk
from penstock.proto.wire.broker_pb2 import FetchHeader, Filter
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.broker.stores import bodies_of
from tests.support.waiting import eventually
from tests.unit.broker.consume.test_fetch import by_queue, in_order

NOTHING = Disk(), "", np.zeros(0, np.uint8), np.zeros(1, np.int64), np.zeros(1, np.int32)


def on_disk(parts: Kit, records: dict[int, Absent], entries: dict[int, AbsentEntries] | None = None) -> None:
    """Reads of these queues must have this brought first."""
    held: dict[int, AbsentEntries] = entries or {}
    parts.store.reader.absent = lambda topic, queue_id, *_: [records[queue_id]] if queue_id in records else []  # type: ignore[method-assign]
    parts.store.reader.absent_entries = lambda topic, queue_id, *_: [held[queue_id]] if queue_id in held else []  # type: ignore[method-assign]


class OnDisk(Absent):
    """Records that come from the disk when ``released`` is set."""

    released = threading.Event()

    def touch(self) -> None:
        assert self.released.wait(10)


@in_loop
async def test_sends_and_other_fetches_go_on_while_a_fetch_waits_for_the_disk() -> None:
    parts = Kit()
    parts.add_topic()
    for queue_id in (0, 1):
        await parts.append([b"old"], queue_id=queue_id)
    parts.dispatch()
    OnDisk.released.clear()
    on_disk(parts, {0: OnDisk(*NOTHING)})
    cold = asyncio.create_task(parts.fetched(wanting((0, 0))))
    await asyncio.sleep(0)
    await parts.append([b"new"], queue_id=1)
    parts.dispatch()
    reply, data = await parts.fetched(wanting((1, 0)))
    assert (by_queue(reply)[1].count, bodies_of(data)) == (2, [b"old", b"new"])
    assert not cold.done()
    OnDisk.released.set()
    reply, data = await cold
    assert (by_queue(reply)[0].next_offset, bodies_of(data)) == (1, [b"old"])


class EntriesOnDisk(AbsentEntries):
    """Entries that come from the disk when ``released`` is set."""

    released = threading.Event()
    asked = threading.Event()

    def bring(self) -> None:
        self.asked.set()
        assert self.released.wait(10)


async def cold_fetch(parts: Kit) -> asyncio.Task[Any]:
    """A fetch of one old message, which waits for the entry of its queue and then needs a thread for its record."""
    parts.add_topic()
    await parts.append([b"old"], queue_id=0)
    parts.dispatch()
    EntriesOnDisk.released.clear()
    EntriesOnDisk.asked.clear()
    OnDisk.released.set()
    on_disk(parts, {0: OnDisk(*NOTHING)}, {0: EntriesOnDisk(Disk(), "", 0, 0)})
    cold = asyncio.create_task(parts.fetched(wanting((0, 0))))
    await eventually(EntriesOnDisk.asked.is_set)
    return cold


@in_loop
async def test_entries_come_from_the_disk_before_the_records_that_they_name() -> None:
    parts = Kit()
    cold = await cold_fetch(parts)
    await parts.append([b"new"], queue_id=1)
    parts.dispatch()
    reply, _ = await parts.fetched(wanting((1, 0)))
    assert by_queue(reply)[1].count == 1
    assert not cold.done()
    EntriesOnDisk.released.set()
    reply, data = await cold
    assert (by_queue(reply)[0].next_offset, bodies_of(data)) == (1, [b"old"])


@in_loop
async def test_a_fetch_that_waits_for_the_disk_when_the_broker_stops_is_answered() -> None:
    parts = Kit()
    cold = await cold_fetch(parts)
    parts[Consume].fetch.close()  # there is no thread for the records any more
    EntriesOnDisk.released.set()
    reply, data = await cold
    assert (by_queue(reply)[0].next_offset, bodies_of(data)) == (1, [b"old"])


@in_loop
async def test_no_more_is_brought_from_the_disk_than_the_reply_may_hold() -> None:
    parts = Kit()
    parts.add_topic()
    brought: list[int] = []
    large_ones: dict[int, Absent] = {}

    class Large(Absent):
        def touch(self) -> None:
            brought.append(int(self.sizes[0]))

    for queue_id in range(4):
        await parts.append([b"old"], queue_id=queue_id)
        large = Large(Disk(), "", np.zeros(0, np.uint8), np.zeros(1, np.int64), np.array([1 << 20], np.int32))
        large_ones[queue_id] = large
    on_disk(parts, large_ones)
    parts.dispatch()
    reply, _ = await parts.fetched(wanting((0, 0), (1, 0), (2, 0), (3, 0), max_bytes=1 << 20))
    assert len(reply.results) == 4
    assert brought == [1 << 20]


@in_loop
async def test_in_order_all_is_brought_from_the_disk_that_the_reply_will_hold() -> None:
    parts = Kit()
    parts.add_topic()
    brought: list[list[int]] = []
    old: dict[int, Absent] = {}

    class Old(Absent):
        def touch(self) -> None:
            brought.append(self.sizes.tolist())

    for queue_id in range(3):
        await parts.append([b"old"] * 3, queue_id=queue_id)
        sizes = np.full(3, 1 << 18, np.int32)
        old[queue_id] = Old(Disk(), "", np.zeros(0, np.uint8), np.zeros(3, np.int64), sizes)
    on_disk(parts, old)
    parts.dispatch()
    await parts.fetched(in_order((0, 0, 2), (1, 0, 1), (2, 0, 3), max_bytes=1 << 20))
    assert brought == [[1 << 18] * 2, [1 << 18], [1 << 18] * 3]


def looked_at_in(parts: Kit) -> list[int]:
    """The queues whose old records are looked for, as they are."""
    found: list[int] = []
    absent = parts.store.reader.absent

    def noted(topic: str, queue_id: int, offset: int, max_bytes: int) -> list[Absent]:
        found.append(queue_id)
        return absent(topic, queue_id, offset, max_bytes)

    parts.store.reader.absent = noted  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "header",
    [
        in_order(*((queue_id, 0, 20) for queue_id in range(4)), max_bytes=5000),
        wanting(*((queue_id, 0) for queue_id in range(4)), kind=Filter.SQL92, expression="a IS NULL"),
    ],
    ids=["in order", "with a condition"],
)
def test_old_records_in_memory_count_as_what_the_reply_will_hold(
    header: FetchHeader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
    monkeypatch.setattr("penstock.broker.consume.answer.SEARCHED_BYTES", 5000)

    @in_loop
    async def run() -> None:
        parts = Kit()
        parts.add_topic()
        for queue_id in range(4):
            await parts.append([b"x" * 1000] * 20, queue_id=queue_id)
        parts.dispatch()
        looked = looked_at_in(parts)
        await parts.fetched(header)
        assert set(looked) < {0, 1, 2}

    run()
