"""Messages that their receiver gives back without having begun: the next one gets them, and no try is counted."""

from __future__ import annotations

import asyncio

from penstock.broker.core.tables.groups import Group
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import DEAD, GROUP, RETRY, Node, Received, bodies, opened


def counted(messages: list[Received]) -> list[tuple[bytes, str, int]]:
    return [(each.record.body, each.topic, each.redelivered + each.record.reconsume_times) for each in messages]


@in_loop
async def test_messages_that_are_given_back_again_and_again_come_first_and_do_not_die() -> None:
    node = opened()
    node.put_group(Group(GROUP, retry_max_times=2))
    for _ in range(5):
        messages = await node.receive(2)
        assert counted(messages) == [(b"0", "orders", 0), (b"1", "orders", 0)]
        assert await node.give_back(*messages) == []
        assert await node.acknowledge(messages[0]) == [RECEIPT_EXPIRED]
        assert await node.give_back(messages[0]) == [RECEIPT_EXPIRED]
        await node.pass_s(50)
    assert (node.records(), node.records(DEAD), node.committed()) == ([], [], 0)
    assert bodies(await node.receive(4)) == [b"0", b"1", b"2", b"3"]


@in_loop
async def test_what_is_given_back_and_that_nobody_receives_holds_up_nothing_for_long() -> None:
    node = opened()
    first, *others = await node.receive(4)
    await node.acknowledge(*others)
    await node.give_back(first)
    await node.pass_s(50)
    assert (len(node.records()), node.pop.state.in_flight) == (0, 1)
    await node.pass_s(20)
    assert (len(node.records()), node.pop.state.in_flight, node.committed()) == (1, 0, 4)


@in_loop
async def test_what_was_given_back_is_known_to_the_next_master_and_to_statements() -> None:
    node = opened()
    first, second = await node.receive(2)
    await node.give_back(first)
    after = Node.after(node)
    await after.pass_s(1)
    assert counted(await after.receive(1)) == [(b"0", "orders", 0)]
    assert await after.acknowledge(second) == []


@in_loop
async def test_a_copy_in_the_retry_topic_that_is_given_back_goes_to_those_who_want_its_own_topic() -> None:
    node = opened()
    node.fill(1, "others")
    await node.receive(1)
    await node.pass_s(30)
    while (copies := await node.receive(1)) and copies[0].topic != RETRY:
        await node.acknowledge(*copies)
    assert counted(copies) == [(b"0", RETRY, 1)]
    await node.give_back(*copies)
    await node.pass_s(50)
    others = [*await node.receive(8, "others"), *await node.receive(8, "others")]
    assert [each.topic for each in others] == ["others"]
    given = [*await node.receive(32), *await node.receive(32)]
    assert counted([each for each in given if each.topic == RETRY]) == [(b"0", RETRY, 1)]
    assert len(node.records()) == 1


@in_loop
async def test_a_batch_of_an_orderly_group_that_is_given_back_is_not_counted() -> None:
    node = opened()
    node.put_orderly(retry_max_times=1)
    for _ in range(3):
        messages = await node.receive(2)
        assert counted(messages) == [(b"0", "orders", 0), (b"1", "orders", 0)]
        await node.give_back(*messages)
        await node.pass_s(60)
    await node.receive(2)
    await node.pass_s(30)
    for _ in range(3):
        messages = await node.receive(2)
        assert counted(messages) == [(b"0", "orders", 1), (b"1", "orders", 1)]
        await node.give_back(*messages)
        await node.pass_s(60)
    assert node.records(DEAD) == []
    await node.acknowledge(*await node.receive(2))
    assert bodies(await node.receive(1)) == [b"2"]


@in_loop
async def test_one_who_waits_gets_at_once_what_is_given_back() -> None:
    node = opened()
    messages = await node.receive()
    waiting = asyncio.create_task(node.receive(1, max_wait_ms=60_000))
    while not node.pop.waiters.count:  # noqa: ASYNC110  a turn or two
        await asyncio.sleep(0)
    await node.give_back(messages[3])
    assert bodies(await waiting) == [b"3"]
