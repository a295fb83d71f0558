"""POP on a real store: nothing is given to two before its time, and what is acknowledged does not come again."""

from __future__ import annotations

import asyncio

import pytest

from penstock.broker.consume.consume import Consume
from penstock.broker.consume.offsets import to_wire
from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.table import LOADED
from penstock.broker.features.pop.table import PopTable
from penstock.formats.record.layout import offset_message_id
from penstock.formats.record.properties import decode_properties
from penstock.proto.errors import (
    DiskFull,
    FlowControl,
    Forbidden,
    InvalidArgument,
    LimitReached,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    TopicNotFound,
)
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, Filter
from penstock.proto.wire.common_pb2 import GroupConfig
from penstock.proto.wire.pop_pb2 import RECEIPT_OK, RECEIPT_UNKNOWN
from tests.support.broker.kit import SYNC, in_loop
from tests.support.broker.popping import DEAD, GROUP, RETRY, Node, bodies, opened


@in_loop
async def test_two_receivers_of_one_queue_get_different_messages() -> None:
    node = opened()
    first, second = await node.receive(4), await node.receive(4)
    assert bodies(first) == [b"0", b"1", b"2", b"3"]
    assert bodies(second) == [b"4", b"5", b"6", b"7"]
    assert bodies(await node.receive()) == [b"8", b"9"]
    assert await node.receive() == []


@in_loop
async def test_what_is_acknowledged_in_any_order_moves_the_groups_offset() -> None:
    node = opened()
    messages = await node.receive(4)
    assert await node.acknowledge(messages[1], messages[3]) == []
    await node.pass_s(1)
    assert node.committed() == 0
    assert await node.acknowledge(messages[0]) == []
    await node.pass_s(1)
    assert node.committed() == 2
    assert await node.acknowledge(messages[2]) == []
    await node.pass_s(1)
    assert node.committed() == 4
    assert node.metrics()["penstock_pop_in_flight", ""] == 0


@in_loop
async def test_what_is_not_acknowledged_in_time_comes_again_from_the_retry_topic() -> None:
    node = opened()
    messages = await node.receive(3)
    await node.acknowledge(messages[1])
    await node.pass_s(29.9)
    assert node.records() == []
    await node.pass_s(0.1)
    again = await node.receive(2)
    assert sorted(bodies(again)) == [b"0", b"2"] or bodies(await node.receive(2)) == [b"0", b"2"]
    copies = node.records()
    assert [record.reconsume_times for record in copies] == [1, 1]
    assert decode_properties(copies[0].properties)["RETRY_TOPIC"] == "orders"
    assert "TIMER_OUT_MS" not in decode_properties(copies[0].properties)
    await node.pass_s(1)
    assert node.committed() >= 3


@in_loop
async def test_a_group_whose_messages_cannot_come_again_keeps_no_other_groups() -> None:
    node = Node(maxTopicNum=2)  # orders, and one retry topic
    node.fill(2)
    await node.receive(1, group="full", invisible_ms=60_000)
    await node.receive(1, invisible_ms=10_000)
    await node.pass_s(11)
    await node.receive(2, invisible_ms=10_000)
    with pytest.raises(LimitReached, match="maxTopicNum"):
        await node.pass_s(60)
    assert b"1" in [record.body for record in node.records(RETRY)]


@in_loop
async def test_dead_letters_after_the_maximum_and_on_demand() -> None:
    node = opened()
    node.put_group(Group(GROUP, retry_max_times=1))
    (first,) = await node.receive(1)
    assert bodies([first]) == [b"0"]
    await node.pass_s(30)
    seen = await node.receive(32)
    assert b"0" in bodies(seen)
    await node.acknowledge(*(each for each in seen if each.record.body != b"0"))
    await node.pass_s(30)
    assert [record.body for record in node.records(DEAD)] == [b"0"]
    assert len(node.records()) == 1
    node.fill(1)
    (message,) = await node.receive(1)
    request = wire.ForwardRequest(group=GROUP, receipts=[message.receipts])
    assert not (await node.pop.forward(request)).statuses
    assert len(node.records(DEAD)) == 2
    assert not (await node.pop.forward(request)).statuses  # again: it was done
    assert len(node.records(DEAD)) == 2
    await node.pass_s(60)
    assert len(node.records()) == 1
    assert node.metrics()["penstock_pop_dead_total", GROUP] == 2


@pytest.mark.parametrize("reader", ["readers", GROUP])
@pytest.mark.parametrize("is_told", [True, False], ids=["on demand", "by its tries"])
@in_loop
async def test_who_consumes_dead_letters_gets_them_again_as_those_and_as_often_as_any_message(
    reader: str, *, is_told: bool
) -> None:
    node = opened()
    tries = 2
    node.put_group(Group(GROUP, retry_max_times=tries))
    (message,) = await node.receive(1)
    if is_told:
        await node.pop.forward(wire.ForwardRequest(group=GROUP, receipts=[message.receipts]))
        node.settle()
    else:
        for _ in range(tries):
            await node.change(message, 0)
            await node.pass_s(0)
            (message,) = [each for each in await node.receive() if each.topic == RETRY]
        await node.change(message, 0)
        await node.pass_s(0)
    (dead,) = node.records(DEAD)
    assert decode_properties(dead.properties)["DLQ_ORIGIN_TOPIC"] == "orders"
    node.put_group(Group(reader, retry_max_times=tries))
    told = []
    for number in range(tries + 1):
        (message,) = await node.receive(32, DEAD, group=reader)
        told.append(message.record.reconsume_times)
        assert (message.record.body, message.topic) == (b"0", f"%RETRY%{reader}" if number else DEAD)
        await node.change(message, 0, reader)
        await node.pass_s(0)
    assert told[1:] == [1, 2]
    last = node.records(f"%DLQ%{reader}")[-1]
    assert (last.body, last.reconsume_times) == (b"0", tries + 1)
    place = offset_message_id(dead.store_host, dead.physical_offset)
    assert decode_properties(last.properties).items() >= {
        ("DLQ_ORIGIN_TOPIC", DEAD),
        ("DLQ_ORIGIN_MESSAGE_ID", place),
        ("RETRY_TOPIC", DEAD),
    }


@in_loop
async def test_in_a_group_without_retries_what_is_not_acknowledged_in_time_is_a_dead_letter() -> None:
    node = opened()
    await node[Consume].put_group(GroupConfig(group=GROUP, retry_max_times=0))
    (message,) = await node.receive(1)
    await node.change(message, 0)
    await node.pass_s(0)
    assert [record.body for record in node.records(DEAD)] == [b"0"]
    await node.pass_s(60)
    assert node.records() == []


@in_loop
async def test_a_filter_leaves_out_what_is_finished_by_it() -> None:
    node = Node()
    node.fill(6, tags=("paid", "refunded"))
    messages = await node.receive(tags="refunded")
    assert bodies(messages) == [b"1", b"3", b"5"]
    await node.acknowledge(*messages)
    await node.pass_s(1)
    assert node.committed() == 6
    node.fill(6, tags=("paid", "refunded"))
    sql = Filter(kind=Filter.SQL92, expression="TAGS = 'paid'")
    header = wire.ReceiveHeader(
        group=GROUP, invisible_ms=10_000, subscriptions=[wire.ReceiveHeader.Subscription(topic="orders", filter=sql)]
    )
    assert b"".join(await node.pop.receive(header.SerializeToString())).count(b"TAGS\x01paid") == 3


@in_loop
async def test_a_retry_waits_for_a_receiver_of_its_own_topic() -> None:
    node = opened()
    node.fill(2, topic="quotes")
    await node.receive(2, "orders")
    await node.receive(2, "quotes")
    await node.pass_s(30)
    assert len(node.records()) == 4
    only = [each for _ in range(3) for each in await node.receive(8, "quotes")]
    assert [(each.topic, each.record.body) for each in only] == [(RETRY, b"0"), (RETRY, b"1")]
    await node.acknowledge(*only)
    again = Node.after(node)
    found = [each for _ in range(2) for each in await again.receive(2, "orders")]
    assert sorted(each.record.body for each in found if each.topic == RETRY) == [b"0", b"1"]


@in_loop
async def test_the_next_master_knows_what_is_in_flight_and_what_was_acknowledged() -> None:
    node = opened()
    messages = await node.receive(4)
    messages[2] = await node.change(messages[2], 60_000)
    await node.acknowledge(messages[1])
    again = Node.after(node)
    assert bodies(await again.receive()) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert await again.acknowledge(messages[0], messages[1]) == []
    await again.pass_s(30)
    assert [record.body for record in again.records()] == [b"3", *(b"%d" % number for number in range(4, 10))]
    assert await again.acknowledge(messages[2]) == []
    last = Node.after(again)
    await last.pass_s(100)
    assert len(last.records()) == 7


@in_loop
async def test_a_snapshot_that_knew_ops_which_a_power_cut_took_voids_none_that_are_left_or_new() -> None:
    node = opened()
    first = await node.receive(4)
    node.tables[PopTable].ops = 3
    node.change_role(master=False)
    node.change_role(master=True)
    second = await node.receive(4)
    assert bodies(second) == [b"4", b"5", b"6", b"7"], "the first ones are in flight"
    await node.acknowledge(first[1], second[1])
    again = Node.after(node)
    assert bodies(await again.receive()) == [b"8", b"9"]
    await again.pass_s(30)
    assert [record.body for record in again.records()] == [b"0", b"2", b"3", b"4", b"6", b"7", b"8", b"9"]


def test_nor_does_it_void_ops_by_a_reset_that_the_power_cut_took() -> None:
    table = PopTable()
    cuts = {f"orders@0@{GROUP}": 399, f"orders@1@{GROUP}": 400}
    table.load({"ops": 0, "position": 0, "held": 0, "groups": {GROUP: 1}, "offsets": {}, "cuts": cuts}, 400)
    assert [table.cut(GROUP, "orders", queue_id) for queue_id in (0, 1)] == [399, LOADED]


@in_loop
async def test_copies_that_a_crash_cut_off_are_posted_once() -> None:
    node = opened()
    await node.receive(3)
    node.manual.advance(30)
    left = node.fail_appends(to=RETRY)
    with pytest.raises(DiskFull):
        await node.pop.turn()
    left[0] = 100
    again = Node.after(node)
    await again.pass_s(0)
    assert [record.body for record in again.records()] == [b"0", b"1", b"2"]
    await Node.after(again).pass_s(0)
    await again.pass_s(0)
    assert len(again.records()) == 3


@in_loop
async def test_a_receive_and_an_acknowledgement_wait_until_they_are_safe() -> None:
    node = opened(**SYNC)
    (message,) = await node.receive(1)
    node.flushes = False
    with pytest.raises(OutcomeUnknown):
        await node.receive(1)
    with pytest.raises(OutcomeUnknown):
        await node.acknowledge(message)
    with pytest.raises(OutcomeUnknown):  # nothing new, and not safe yet
        await node.acknowledge(message)


@in_loop
async def test_what_was_given_to_one_who_has_gone_comes_again_at_once_and_is_not_counted() -> None:
    node = opened(**SYNC, syncFlushTimeout=60_000)
    node.flushes = False
    asked = asyncio.create_task(node.receive(3))
    while not node.pop.state.in_flight and not asked.done():  # noqa: ASYNC110  a turn or two
        await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    node.flushes = True
    await node.pass_s(0)
    again = await node.receive(3)
    assert [(each.record.body, each.topic, each.redelivered) for each in again] == [
        (b"%d" % number, "orders", 0) for number in range(3)
    ]
    assert node.records() == []


@in_loop
async def test_a_wait_ends_with_an_arrival_with_a_retry_and_with_its_time() -> None:
    node = opened()
    messages = await node.receive()
    assert len(messages) == 10
    node.pop.start()
    waiting = asyncio.create_task(node.receive(max_wait_ms=60_000))
    while not node.pop.waiters:  # noqa: ASYNC110  a turn or two
        await asyncio.sleep(0)
    node.fill(1)
    assert bodies(await waiting) == [b"0"]
    waiting = asyncio.create_task(node.receive(max_wait_ms=60_000))
    while not node.pop.waiters:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await node.pass_s(30)
    assert len(await waiting) == 11
    assert await node.receive(max_wait_ms=10) == []


@in_loop
async def test_a_reset_voids_what_was_given_out_and_counts_at_the_next_master_too() -> None:
    node = opened()
    messages = await node.receive(5)
    node.commit(GROUP, {"orders": {0: 2}})
    assert await node.acknowledge(messages[1], messages[2]) == [RECEIPT_OK, RECEIPT_UNKNOWN]
    again = Node.after(node)
    assert bodies(await again.receive()) == [b"%d" % number for number in range(2, 10)]
    await again.pass_s(1)
    again.commit(GROUP, {"orders": {0: 10}})
    await again.pass_s(60)
    assert again.records() == []
    assert again.metrics()["penstock_pop_in_flight", ""] == 0


@in_loop
async def test_a_reset_to_where_the_group_is_already_brings_back_what_was_acknowledged_beyond() -> None:
    node = opened()
    messages = await node.receive(5, invisible_ms=3_600_000)
    await node.acknowledge(*messages[1:])
    await node.pass_s(1)
    assert node.committed() == 0
    offsets = to_wire({"orders": {0: 0}})
    await node[Consume].offsets.commit(CommitOffsetsRequest(group=GROUP, force=True, offsets=offsets))
    again = Node.after(node)
    assert bodies(await again.receive()) == [b"%d" % number for number in range(10)]


@in_loop
async def test_what_retention_repeats_resets_nothing() -> None:
    node = opened()
    messages = await node.receive(5)
    await node.acknowledge(messages[3])
    node.repeat(node.store.end_offset)
    again = Node.after(node)
    assert bodies(await again.receive()) == [b"%d" % number for number in range(5, 10)]
    assert await again.acknowledge(*messages) == []


@in_loop
async def test_a_topic_made_anew_begins_anew() -> None:
    node = opened()
    await node.receive(5)
    node.delete_topic("orders")
    node.settle()
    node.fill(2)
    assert bodies(await node.receive()) == [b"0", b"1"]
    assert await Node.after(node).receive() == []


@in_loop
async def test_a_group_that_pops_needs_little_of_the_log() -> None:
    node = opened()
    messages = await node.receive(5)
    await node.pass_s(1)
    (hold,) = node.pop.holds()
    assert hold.offset > 0
    for number in range(20):
        messages[0] = await node.change(messages[0], 60_000 + number)
    await node.acknowledge(*messages[1:])
    assert hold.make_way is not None
    hold.make_way(node.store.end_offset)
    await node.pass_s(1)
    assert [kept.offset for kept in node.pop.holds()] == [hold.offset], "the message that is still in flight"
    again = Node.after(node)
    assert again.pop.state._table.ops >= 20
    assert bodies(await again.receive()) == [b"%d" % number for number in range(5, 10)]
    assert await again.acknowledge(messages[0]) == []
    await again.pass_s(31)
    await again.acknowledge(*await again.receive(), *await again.receive())
    await again.pass_s(1)
    assert list(again.pop.holds()) == []


@in_loop
async def test_memory_is_bounded_by_name() -> None:
    node = opened(popInflightMessageThreshold=4)
    messages = await node.receive(32)
    assert len(messages) == 4
    with pytest.raises(FlowControl, match="popInflightMessageThreshold"):
        await node.receive()
    await node.acknowledge(messages[0])
    assert bodies(await node.receive()) == [b"4"]
    small = opened(popInflightMessageMax=4)
    await small.receive(4)
    with pytest.raises(FlowControl, match="popInflightMessageMax"):
        await small.receive()


@in_loop
async def test_what_makes_no_sense_is_refused_by_name() -> None:
    node = opened()
    for settings, match in (
        ({"invisible_ms": 9_999}, "too small"),
        ({"invisible_ms": 43_200_001}, "too large"),
        ({"max_bytes": -1}, "max_bytes"),
        ({"attempt_id": "a" * 200}, "attempt_id"),
    ):
        with pytest.raises(InvalidArgument, match=match):
            await node.receive(1, **settings)
    with pytest.raises(InvalidArgument, match="max_messages"):
        await node.receive(1025)
    with pytest.raises(TopicNotFound):
        await node.receive(1, "nowhere")
    with pytest.raises(Forbidden):
        await node.receive(1, "rmq_sys_PENSTOCK_POP")
    with pytest.raises(InvalidArgument, match="0 parts"):
        await node.pop.acknowledge(wire.AcknowledgeRequest(group=GROUP))
    (message,) = await node.receive(1)
    twice = message.receipts
    twice.offsets.append(twice.offsets[0])
    with pytest.raises(InvalidArgument, match="ascend"):
        await node.pop.acknowledge(wire.AcknowledgeRequest(group=GROUP, receipts=[twice]))
    node.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await node.receive(1)
    node.change_role(master=False)
    with pytest.raises(NotMaster):
        await node.receive(1)


@in_loop
async def test_a_new_group_begins_at_the_end_and_that_is_remembered() -> None:
    node = opened()
    assert await node.receive(begin=wire.ReceiveHeader.LAST) == []
    node.fill(2)
    again = Node.after(node)
    assert bodies(await again.receive(begin=wire.ReceiveHeader.LAST)) == [b"0", b"1"]


@in_loop
async def test_a_receive_that_was_right_before_is_refused_once_its_topic_may_not_be_read() -> None:
    node = opened()
    for perm in (6, 6, 2, 6):
        node.add_topic(perm=perm)
        if perm == 6:
            assert len(await node.receive(2)) == 2
        else:
            with pytest.raises(Forbidden, match="may not be read"):
                await node.receive(2)
