"""POP of those who ask as somebody has asked before: what is kept of that holds only as long as it is true."""

from __future__ import annotations

import asyncio

import pytest

from penstock.proto.errors import InvalidArgument
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import GROUP, RETRY, bodies, opened
from tests.support.broker.stores import batch
from tests.support.waiting import eventually


@in_loop
async def test_a_reset_counts_for_who_asks_as_before() -> None:
    node = opened()
    assert bodies(await node.receive(3)) == [b"0", b"1", b"2"]
    node.commit(GROUP, {"orders": {0: 8}})
    assert bodies(await node.receive(3)) == [b"8", b"9"]
    node.commit(GROUP, {"orders": {0: 1}})
    assert bodies(await node.receive(3)) == [b"1", b"2", b"3"]


@in_loop
async def test_queues_that_a_topic_gets_are_received_from_too() -> None:
    node = opened()
    assert len(await node.receive()) == 10
    node.add_topic(queues=6)
    node.store.append("orders", batch("orders", [b"new"], 5), queues=6)
    node.settle()
    assert [message.record.queue_id for message in await node.receive()] == [5]


@in_loop
async def test_receives_that_differ_by_their_attempt_alone_are_known_too() -> None:
    node = opened()
    node.put_orderly()
    assert bodies(await node.receive(2, attempt_id="a")) == [b"0", b"1"]
    assert await node.receive(2, attempt_id="b") == []
    assert await node.receive(2) == []
    assert bodies(await node.receive(2, attempt_id="a")) == [b"0", b"1"]
    assert len(node.pop._wants._known) == 1
    with pytest.raises(InvalidArgument, match="at most 128"):
        await node.receive(2, attempt_id="a" * 129)


@in_loop
async def test_who_is_master_again_gives_out_nothing_twice() -> None:
    node = opened()
    assert bodies(await node.receive(4)) == [b"0", b"1", b"2", b"3"]
    node.change_role(master=False)
    node.change_role(master=True)
    assert bodies(await node.receive(4)) == [b"4", b"5", b"6", b"7"]


@in_loop
async def test_a_groups_first_retry_comes_to_who_waits_already() -> None:
    node = opened()
    node.pop.start()
    await node.receive(10, invisible_ms=10_000)
    waits = asyncio.create_task(node.receive(10, max_wait_ms=60_000))
    await eventually(lambda: bool(node.pop.waiters), what="a receive that waits")
    assert node.tables.topics.get(RETRY) is None
    await node.pass_s(11)
    assert bodies(await waits) == [b"%d" % number for number in range(10)]
