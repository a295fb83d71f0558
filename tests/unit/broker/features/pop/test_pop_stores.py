"""POP on a store that somebody else has shaped: log files that are to go, topics of other brokers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock.broker.core import reposting
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.pop import state
from penstock.broker.features.pop.pop import SETTLE_S
from penstock.proto import names
from penstock.proto.errors import BrokerUnavailable, NotMaster
from penstock.proto.wire import pop_pb2 as wire
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import DEAD, GROUP, RETRY, bodies, opened
from tests.support.waiting import eventually


@in_loop
async def test_a_retry_topic_that_nobody_may_write_takes_copies_all_the_same() -> None:
    node = opened()
    node.put_topic(Topic(RETRY, 1, 0, names.PERM_READ))
    given = await node.receive(2)
    await node.pass_s(31)
    assert [record.body for record in node.records()] == bodies(given)


def test_all_queues_get_out_of_retentions_way_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "STATED_AT_ONCE", 1)

    @in_loop
    async def run() -> None:
        node = opened()
        for queue_id in range(1, 4):
            node.fill(2, queue_id=queue_id)
        assert len(await node.receive(32, invisible_ms=600_000)) == 16
        node.fill(1)
        end = node.store.end_offset
        node.pop.state.make_way(end)
        for _ in range(6):
            await node.pass_s(SETTLE_S)
        assert min(queue.floor for queue in node.pop.state.queues.values() if len(queue)) > 0

    run()


@in_loop
async def test_a_load_that_outlasts_its_mastership_leaves_the_next_ones_queues_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = opened()
    await node.receive(10, invisible_ms=600_000)
    held: list[threading.Event] = []
    bring = reposting.bring

    def slow(parts: Any) -> None:
        held.append(threading.Event())
        assert held[-1].wait(60)
        bring(parts)

    async def load_anew() -> asyncio.Task[None]:
        node.change_role(master=False)
        node.change_role(master=True)
        node.settle()
        loading = asyncio.create_task(node.pop.state.load(node.journal))
        before = len(held)
        await eventually(lambda: len(held) > before)
        return loading

    monkeypatch.setattr(reposting, "bring", slow)
    first = await load_anew()
    second = await load_anew()
    held[0].set()
    with pytest.raises(BrokerUnavailable):
        await first
    assert (node.pop.state.in_flight, node.pop.state.queues) == (0, {})
    held[1].set()
    await second
    assert node.pop.state.in_flight == 10


@in_loop
async def test_a_mastership_that_ends_between_two_dead_letters_is_not_told_as_nothing_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = opened()
    receipts = [message.receipts for message in await node.receive(2, invisible_ms=600_000)]
    read = reposting.Reposter.read
    reads: list[Any] = []

    async def ending(self: Any, journal: Any, picked: Any, **how: Any) -> Any:
        reads.append(picked)
        if len(reads) == 2:
            node.change_role(master=False)
            return None
        return await read(self, journal, picked, **how)

    monkeypatch.setattr(reposting.Reposter, "read", ending)
    with pytest.raises(NotMaster) as told:
        await node.pop.forward(wire.ForwardRequest(group=GROUP, receipts=receipts))
    assert len(node.records(DEAD)) == 1
    assert "nothing was stored" not in told.value.message


@in_loop
async def test_a_receive_looks_for_old_messages_of_one_queue_also_where_they_are_in_memory() -> None:
    node = opened()
    for queue_id in range(1, 4):
        node.fill(2, queue_id=queue_id)
    looked: list[int] = []
    absent_until = node.store.reader.absent_until

    def noted(topic: str, queue_id: int, offset: int, max_bytes: int) -> Any:
        looked.append(queue_id)
        return absent_until(topic, queue_id, offset, max_bytes)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("penstock.broker.store.reading._RECENT_BYTES", 0)
        patched.setattr(node.store.reader, "absent_until", noted)
        await node.receive(1, tags="nobody's")
    assert len(looked) == 1
