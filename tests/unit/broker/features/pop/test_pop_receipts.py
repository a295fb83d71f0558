"""Receipts: what they are good for, how long, and what makes them void."""

from __future__ import annotations

from penstock.formats.epochs import Epoch
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, RECEIPT_UNKNOWN
from penstock.replication import EpochHistory
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import START, Node, opened


@in_loop
async def test_a_receipt_that_a_failover_has_cut_off_does_not_finish_what_another_master_gave_out_since() -> None:
    """The next op has the place of the one that was cut off, perhaps for another message at the same offset."""
    node = opened()
    (before,) = await node.receive(1)
    node.role.epoch, node.role.history = 2, EpochHistory([Epoch(1, 0), Epoch(2, node.store.end_offset)])
    (message,) = await node.receive(1)
    assert await node.acknowledge(message._replace(epoch=1)) == [RECEIPT_UNKNOWN]
    assert await node.acknowledge(before._replace(epoch=1)) == []
    assert await node.acknowledge(message._replace(epoch=2)) == []


@in_loop
async def test_a_receipt_is_void_when_its_time_is_over_and_good_for_an_acknowledgement_twice() -> None:
    node = opened()
    first, second = await node.receive(2)
    assert await node.acknowledge(first) == []
    assert await node.acknowledge(first) == []
    node.manual.advance(30)
    assert await node.acknowledge(first, second) == [RECEIPT_EXPIRED, RECEIPT_EXPIRED]
    await node.pass_s(0)
    assert len(node.records()) == 1


@in_loop
async def test_receipts_of_others_are_refused() -> None:
    node = opened()
    (message,) = await node.receive(1)
    assert await node.acknowledge(message._replace(check_point=99)) == [RECEIPT_UNKNOWN]
    assert await node.acknowledge(message._replace(epoch=7)) == [RECEIPT_UNKNOWN]
    assert await node.acknowledge(message._replace(topic="others")) == [RECEIPT_UNKNOWN]
    request = wire.AcknowledgeRequest(group="others", receipts=[message.receipts])
    assert list((await node.pop.acknowledge(request)).statuses) == [RECEIPT_UNKNOWN]
    later = await node.receive(1)
    assert await node.acknowledge(message._replace(check_point=later[0].check_point)) == [RECEIPT_EXPIRED]
    assert await node.acknowledge(message) == []


@in_loop
async def test_a_renewed_receipt_is_good_for_longer_than_it_says_at_the_next_master_too() -> None:
    node = opened()
    first, second, third = await node.receive(3)
    for _ in range(3):
        node.manual.advance(20)
        assert [await node.renew(each, 30_000) for each in (first, second, third)] == [[], [], []]
    assert await node.acknowledge(first) == []
    assert await node.acknowledge(first) == [RECEIPT_EXPIRED], "nobody knows by what it is over"
    again = Node.after(node)
    await again.pass_s(29)
    assert await again.acknowledge(second) == []
    again.pop.state.record(again.journal, [queue.state() for queue in again.pop.state.queues.values() if len(queue)])
    again.settle()
    last = Node.after(again)
    assert await last.renew(third, 30_000) == []
    assert await last.renew(third._replace(visible_ms=START), 30_000) == []
    await last.pass_s(30)
    assert await last.renew(third, 30_000) == [RECEIPT_EXPIRED], "what is over is not put off"
    assert await last.acknowledge(third) == [RECEIPT_EXPIRED]
    assert [record.body for record in last.records()] == [b"2"]


@in_loop
async def test_a_renewed_receipt_is_void_once_the_time_is_changed_or_it_is_given_back() -> None:
    node = opened()
    first, second = await node.receive(2)
    await node.renew(first, 60_000)
    changed = await node.change(first, 60_000)
    assert await node.renew(first, 60_000) == [RECEIPT_EXPIRED]
    assert await node.acknowledge(changed) == []
    await node.renew(second, 60_000)
    assert await node.give_back(second) == []
    assert await node.renew(second, 60_000) == [RECEIPT_EXPIRED]
    (again,) = await node.receive(1)
    assert (again.record.body, again.redelivered) == (b"1", 0)


@in_loop
async def test_a_changed_time_counts_and_voids_the_old_receipt() -> None:
    node = opened()
    (message,) = await node.receive(1)
    changed = await node.change(message, 60_000)
    assert await node.acknowledge(message) == [RECEIPT_EXPIRED]
    await node.pass_s(59.9)
    assert node.records() == []
    changed = await node.change(changed, 0)
    await node.pass_s(0)
    assert [record.body for record in node.records()] == [b"0"]
    assert await node.acknowledge(changed) == [RECEIPT_EXPIRED]
