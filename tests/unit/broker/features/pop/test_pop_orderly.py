"""POP by an orderly group: one batch of a queue is out at a time, and comes again in its place."""

from __future__ import annotations

from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import DEAD, GROUP, Node, bodies, opened


@in_loop
async def test_an_orderly_group_has_one_batch_out_and_gets_it_again_in_place() -> None:
    node = opened()
    node.put_orderly()
    messages = await node.receive(3)
    assert bodies(messages) == [b"0", b"1", b"2"]
    assert await node.receive() == []
    await node.acknowledge(*messages[1:])
    assert await node.receive() == []
    await node.pass_s(30)
    assert node.records() == []
    again = await node.receive(3)
    assert bodies(again) == [b"0", b"1", b"2"]
    assert [each.redelivered for each in again] == [1, 1, 1]
    assert await node.acknowledge(messages[0]) == [RECEIPT_EXPIRED]
    await node.acknowledge(*again)
    assert bodies(await node.receive(3)) == [b"3", b"4", b"5"]
    await node.pass_s(1)
    assert node.committed() == 3


@in_loop
async def test_messages_of_an_orderly_group_die_after_so_many_tries_and_the_queue_goes_on() -> None:
    node = opened()
    node.put_orderly(retry_max_times=2)
    for tries in range(3):
        messages = await node.receive(3)
        assert [(each.record.body, each.redelivered) for each in messages] == [(b"%d" % n, tries) for n in range(3)]
        await node.acknowledge(messages[1])
        node.manual.advance(30)
        if tries == 2:
            assert await node.receive(3) == [], "not once more, however early somebody asks"
        await node.pass_s(1)
    assert [each.body for each in node.records(DEAD)] == [b"0", b"2"], "not the acknowledged one"
    assert node.records() == []
    assert bodies(await node.receive(3)) == [b"3", b"4", b"5"]
    after = Node.after(node)
    await after.pass_s(30)
    assert [(each.record.body, each.redelivered) for each in await after.receive(1)] == [(b"3", 1)]
    assert [each.body for each in after.records(DEAD)] == [b"0", b"2"]


@in_loop
async def test_messages_of_an_orderly_group_without_retries_are_given_out_once() -> None:
    node = opened()
    node.put_orderly(retry_max_times=0)
    await node.receive(3)
    await node.pass_s(30)
    assert [each.body for each in node.records(DEAD)] == [b"0", b"1", b"2"]
    assert bodies(await node.receive(3)) == [b"3", b"4", b"5"]


@in_loop
async def test_what_is_acknowledged_behind_a_dead_letter_does_not_come_again() -> None:
    node = opened()
    node.put_orderly()
    messages = await node.receive(3)
    await node.acknowledge(*messages[1:])
    await node.pop.forward(wire.ForwardRequest(group=GROUP, receipts=[messages[0].receipts]))
    assert bodies(await node.receive(3)) == [b"3", b"4", b"5"]
    assert [each.body for each in node.records(DEAD)] == [b"0"]


@in_loop
async def test_an_orderly_receiver_whose_answer_was_lost_is_given_the_same_batch_as_the_same_try() -> None:
    node = opened()
    node.put_orderly()
    first = await node.receive(3, attempt_id="a")
    again = await node.receive(3, attempt_id="a")
    assert bodies(again) == bodies(first)
    assert [each.redelivered for each in again] == [0, 0, 0]
    assert await node.receive(3, attempt_id="b") == []
    assert await node.acknowledge(first[0]) == [RECEIPT_EXPIRED]
    assert await node.acknowledge(*again) == []
