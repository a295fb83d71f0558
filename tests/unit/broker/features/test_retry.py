"""Messages that come back from consumers, on a real store with the timers that deliver what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.consume.consume import Consume
from penstock.broker.core.tables.groups import GROUP, Group
from penstock.broker.core.tables.retry_policy import RetryPolicy
from penstock.broker.features.later.later import Later
from penstock.broker.features.retry.retry import Retry
from penstock.formats.record.layout import Record, offset_message_id
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.proto import names
from penstock.proto.errors import (
    DiskFull,
    FlowControl,
    Forbidden,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    LimitReached,
    MessageTooLarge,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
    SyncFailed,
    TopicNotFound,
)
from penstock.proto.wire.common_pb2 import GroupConfig
from penstock.proto.wire.common_pb2 import RetryPolicy as WirePolicy
from penstock.proto.wire.retry_pb2 import SendBackReply, SendBackRequest
from tests.support.broker.kit import SYNC, Kit, in_loop
from tests.support.broker.stores import batch, read
from tests.support.clock import ManualClock

START = 1_700_000_000_000
RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"


class Node(Kit):
    """A broker with a topic ``orders`` of four queues and ten messages in the first."""

    def __init__(self, **settings: Any) -> None:
        self.manual = ManualClock(START)
        super().__init__(clock=self.manual, **settings)

    def fill(self, bodies: Sequence[bytes] = tuple(b"%d" % number for number in range(10))) -> None:
        self.add_topic()
        properties = [encode_properties({"TAGS": "paid", "KEYS": "k"})] * len(bodies)
        self.store.append("orders", batch("orders", bodies, properties=properties), queues=4)
        self.settle()

    def settle(self) -> None:
        self.confirm()
        self.dispatch()

    async def send_back(
        self, offsets: Sequence[int] = (5,), sequence: int = 1, topic: str = "orders", **more: Any
    ) -> SendBackReply:
        reply = await self[Retry].send_back(asking(offsets, sequence, topic, **more))
        self.settle()
        return reply

    async def pass_s(self, seconds: float) -> None:
        self.manual.advance(seconds)
        await self[Later].timers.turn()
        self.settle()

    def records(self, topic: str = RETRY) -> list[Record]:
        self.settle()
        return read(self.store, topic)


def asking(offsets: Sequence[int] = (5,), sequence: int = 1, topic: str = "orders", **more: Any) -> SendBackRequest:
    settings: dict[str, Any] = {"group": "billing", "queue_id": 0, "producer_id": 99} | more
    return SendBackRequest(topic=topic, offsets=offsets, sequence=sequence, **settings)


def bodies(records: Sequence[Record]) -> list[bytes]:
    return [record.body for record in records]


def filled(**settings: Any) -> Node:
    node = Node(**settings)
    node.fill()
    return node


@in_loop
async def test_a_message_comes_again_as_it_was_at_its_time_and_waits_longer_each_time() -> None:
    node = filled()
    origin = read(node.store, "orders")[5]
    assert await node.send_back() == SendBackReply(later=1)
    await node.pass_s(9.9)
    assert node.records() == []
    await node.pass_s(0.2)
    (again,) = node.records()
    assert (again.body, again.reconsume_times, again.queue_id, again.born_timestamp_ms) == (
        *(b"5", 1, 0),
        origin.born_timestamp_ms,
    )
    found = decode_properties(again.properties)
    told = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": offset_message_id(origin.store_host, origin.physical_offset)}
    assert found.items() >= ({"TAGS": "paid", "KEYS": "k"} | told).items()
    await node.send_back([0], 2, RETRY)
    await node.pass_s(29)
    assert len(node.records()) == 1
    await node.pass_s(2)
    assert [record.reconsume_times for record in node.records()] == [1, 2]
    assert decode_properties(node.records()[1].properties).items() >= told.items()


@in_loop
async def test_what_is_stored_when_the_disk_fails_may_be_known_to_the_next_master() -> None:
    node = filled(**SYNC)
    node.core.acknowledgements.fail(SyncFailed("the disk syncs no more"))
    with pytest.raises(OutcomeUnknown, match="the disk syncs no more: ask again"):
        await node.send_back()
    again = Kit.restarted(node)
    assert await again[Retry].send_back(asking()) == SendBackReply(later=1)
    assert len(read(again.store, names.TIMER_TOPIC)) == 1


@in_loop
async def test_who_failed_often_enough_is_a_dead_letter_once_and_says_where_it_came_from() -> None:
    node = filled(brokerRole="ASYNC_MASTER")
    node.put_group(Group("billing", retry_max_times=1))
    origin = read(node.store, "orders")[5]
    await node.send_back()
    await node.pass_s(11)
    assert await node.send_back([0], 2, RETRY) == SendBackReply(dead=1)
    (dead,) = node.records(DEAD)
    place = offset_message_id(origin.store_host, origin.physical_offset)
    assert (dead.body, dead.reconsume_times) == (b"5", 2)
    assert decode_properties(dead.properties).items() >= {
        ("RETRY_TOPIC", "orders"),
        ("DLQ_ORIGIN_TOPIC", "orders"),
        ("ORIGIN_MESSAGE_ID", place),
        ("DLQ_ORIGIN_MESSAGE_ID", place),
    }
    await node.pass_s(10_000)
    assert len(node.records()) == 1


@in_loop
async def test_a_dead_letter_that_is_sent_back_is_tried_anew_and_forgets_that_it_was_dead() -> None:
    node = filled()
    await node.send_back(delay_levels=[-1], reconsume_times=[16])
    assert await node.send_back([0], 2, DEAD, delay_levels=[1]) == SendBackReply(later=1)
    await node.pass_s(1)
    (again,) = node.records()
    assert (again.body, again.reconsume_times) == (b"5", 1)
    found = decode_properties(again.properties)
    assert found["RETRY_TOPIC"] == "orders"
    assert "DLQ_ORIGIN_TOPIC" not in found


@in_loop
async def test_another_group_that_consumes_dead_letters_gets_them_again_as_those() -> None:
    node = filled()
    node.put_group(Group("other", retry_max_times=1))
    await node.send_back(delay_levels=[-1], reconsume_times=[16])
    (dead,) = node.records(DEAD)
    assert await node.send_back([0], 2, DEAD, delay_levels=[1], group="other") == SendBackReply(later=1)
    await node.pass_s(1)
    (again,) = node.records("%RETRY%other")
    assert (again.body, again.reconsume_times) == (b"5", 1)
    found = decode_properties(again.properties)
    place = offset_message_id(dead.store_host, dead.physical_offset)
    assert (found["RETRY_TOPIC"], found["ORIGIN_MESSAGE_ID"]) == (DEAD, place)
    assert await node.send_back([0], 3, "%RETRY%other", group="other") == SendBackReply(dead=1)
    (last,) = node.records("%DLQ%other")
    assert (last.reconsume_times, decode_properties(last.properties)["DLQ_ORIGIN_TOPIC"]) == (2, DEAD)


@in_loop
async def test_levels_counts_and_limits_of_the_consumer_come_before_the_groups() -> None:
    node = filled()
    reply = await node.send_back(
        [1, 2, 3, 4], delay_levels=[1, -1, 18, 0], reconsume_times=[0, 0, 0, 7], max_reconsume_times=7
    )
    assert reply == SendBackReply(later=2, dead=2)
    assert [(record.body, record.reconsume_times) for record in node.records(DEAD)] == [(b"2", 1), (b"4", 8)]
    await node.pass_s(1)
    assert bodies(node.records()) == [b"1"]
    await node.pass_s(7200)
    assert bodies(node.records()) == [b"1", b"3"]


@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy(), [10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200, 7200]),
        (RetryPolicy((1000, 60_000)), [1, 60, 60]),
        (RetryPolicy((), 5000, 7_200_000, 2), [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120, 7200, 7200]),
    ],
    ids=["levels", "table", "exponential"],
)
@in_loop
async def test_each_policy_waits_as_rocketmqs_of_that_name(policy: RetryPolicy, waits: list[int]) -> None:
    node = filled()
    node.put_group(Group("billing", retry_policy=policy))
    for times, seconds in enumerate(waits):
        await node.send_back([5], times + 1, reconsume_times=[times], max_reconsume_times=100)
        await node.pass_s(seconds - 0.1)
        assert len(node.records()) == times
        await node.pass_s(0.2)
        assert node.records()[-1].reconsume_times == times + 1


@in_loop
async def test_a_group_keeps_its_policy_until_another_is_asked_for() -> None:
    node = Node()
    exponential = WirePolicy(initial_ms=1000, max_ms=9000, multiplier=3)
    made = await node[Consume].put_group(GroupConfig(group="billing", retry_policy=exponential, retry_queues=3))
    assert made.retry_policy == RetryPolicy((), 1000, 9000, 3)
    assert (await node[Consume].put_group(GroupConfig(group="billing", retry_max_times=4))) == replace(
        made, retry_max_times=4
    )
    back_to_levels = await node[Consume].put_group(GroupConfig(group="billing", retry_policy=WirePolicy()))
    assert (back_to_levels.retry_policy, back_to_levels.retry_queues) == (RetryPolicy(), 3)
    with pytest.raises(InvalidArgument, match="retry_queues -1"):
        await node[Consume].put_group(GroupConfig(group="billing", retry_queues=-1))


@in_loop
async def test_in_a_group_without_retries_who_fails_is_a_dead_letter_at_once() -> None:
    node = filled(brokerRole="ASYNC_MASTER")
    await node[Consume].put_group(GroupConfig(group="billing", retry_max_times=0))
    assert await node.send_back() == SendBackReply(dead=1)
    (dead,) = node.records(DEAD)
    assert (dead.body, dead.reconsume_times) == (b"5", 1)
    await node.pass_s(10_000)
    assert node.records() == []


@in_loop
async def test_a_repeated_call_stores_nothing_and_answers_the_same_also_at_the_next_master() -> None:
    node = filled()
    request = asking([1, 2, 3], delay_levels=[0, -1, 0])
    first = await node[Retry].send_back(request)
    node.settle()
    end = node.store.end_offset
    assert await node[Retry].send_back(request) == first
    again = Kit.restarted(node)
    assert await again[Retry].send_back(request) == first
    assert again.store.end_offset == end
    await again[Retry].send_back(asking([4], 3))
    with pytest.raises(InvalidArgument, match="sequences of a lane must grow"):
        await again[Retry].send_back(asking([4], 2))


@pytest.mark.parametrize("failing", range(4))
@pytest.mark.parametrize("changed", [0, 100])
@in_loop
async def test_a_call_that_was_cut_short_anywhere_is_finished_once(failing: int, changed: int) -> None:
    """Topic, topic, batch, batch; then another broker with the log, and a group that allows another number of tries."""

    node = filled()
    node.put_group(Group("billing", retry_max_times=2))
    request = asking([1, 2, 3], reconsume_times=[2, 0, 2])
    left = node.fail_appends(failing)
    with pytest.raises(DiskFull):
        await node[Retry].send_back(request)
    left[0] = 100
    node.settle()
    again = Kit.restarted(node, clock=node.manual)
    again.put_group(Group("billing", retry_max_times=changed))
    for _ in range(2):
        await again[Retry].send_back(request)
        again.confirm()
        again.dispatch()
    node.manual.advance(7200)
    await again[Later].timers.turn()
    again.confirm()
    again.dispatch()
    come = [sorted(bodies(read(again.store, name))) if name in again.tables.topics else [] for name in (RETRY, DEAD)]
    if failing < 3:  # nothing was in the log: the group's new number counts
        assert come == ([[b"1", b"2", b"3"], []] if changed else [[], [b"1", b"2", b"3"]])
    else:
        assert come == [[b"2"], [b"1", b"3"]]


@in_loop
async def test_both_topics_are_read_not_written_and_go_with_their_group() -> None:
    node = filled()
    node.put_group(Group("billing", retry_queues=2))
    await node.send_back([1, 2], delay_levels=[0, -1])
    shapes = {name: (topic.read_queues, topic.perm) for name, topic in topics(node).items()}
    assert shapes == {RETRY: (2, 6), DEAD: (1, 6)}, "a RocketMQ that goes on with the store refuses its clients without"
    with pytest.raises(Forbidden, match="may not be written"):
        await node.append([b"mine"], topic=RETRY)
    node.put_group(Group("billing", retry_queues=4))
    await node.send_back([3], 2)
    assert topics(node)[RETRY].read_queues == 4
    node.role.holds = True
    await node[Consume].delete_group("billing")
    assert topics(node) == {}
    with pytest.raises(NotEnoughReplicas, match="is being deleted"):
        await node.send_back([4], 3, delay_levels=[-1])
    node.role.holds = False
    node.settle()
    await node.send_back([4], 3, delay_levels=[-1])
    assert [(record.body, record.queue_offset) for record in node.records(DEAD)] == [(b"4", 0)]


def topics(node: Kit) -> dict[str, Any]:
    return {topic.name: topic for topic in node.tables.topics.values() if topic.name.startswith("%")}


@in_loop
async def test_without_retry_queues_a_failed_message_is_a_dead_letter() -> None:
    node = filled()
    node.journal.put(GROUP, Group("billing").to_json() | {"retryQueueNums": 0})
    assert await node.send_back() == SendBackReply(dead=1)


@in_loop
async def test_what_the_log_has_no_more_is_told_and_the_rest_is_done() -> None:
    node = filled()
    assert await node.send_back([8, 9, 10, 77]) == SendBackReply(later=2, gone=[10, 77])
    assert await node.send_back([77], 2) == SendBackReply(gone=[77])


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"offsets": []}, InvalidArgument, "0 offsets: 1..4096"),
        ({"offsets": range(4097)}, InvalidArgument, "4097 offsets"),
        ({"offsets": [2, 1]}, InvalidArgument, "must ascend"),
        ({"offsets": [2, 2]}, InvalidArgument, "must ascend"),
        ({"offsets": [-1]}, InvalidArgument, "negative"),
        ({"queue_id": -1}, InvalidArgument, "negative"),
        ({"queue_id": 4}, TopicNotFound, "no queue 4"),
        ({"topic": "missing"}, TopicNotFound, "missing"),
        ({"topic": "rmq_sys_wheel_timer"}, Forbidden, "internal"),
        ({"topic": ""}, InvalidName, "blank"),
        ({"group": "a b"}, InvalidName, "a b"),
        ({"delay_levels": [1, 2]}, InvalidArgument, "2 delay_levels for 1 offsets"),
        ({"reconsume_times": [1, 2]}, InvalidArgument, "2 reconsume_times for 1 offsets"),
        ({"reconsume_times": [-1]}, InvalidArgument, "reconsume_times must be 0"),
        ({"producer_id": 0}, InvalidArgument, "producer_id"),
        ({"sequence": 0}, InvalidArgument, "sequence"),
    ],
)
@in_loop
async def test_what_makes_no_sense_is_refused_by_name(
    wrong: dict[str, Any], error: type[PenstockError], message: str
) -> None:
    node = filled()
    end = node.store.end_offset
    with pytest.raises(error, match=message):
        await node.send_back(**wrong)
    assert node.store.end_offset == end


@in_loop
async def test_a_broker_that_may_not_write_or_is_full_says_so() -> None:
    node = filled(timerMessagesMax=1, autoCreateSubscriptionGroup="false")
    with pytest.raises(GroupNotFound):
        await node.send_back()
    node.put_group(Group("billing"))
    await node.send_back()
    await node.pass_s(0)
    with pytest.raises(FlowControl, match="timerMessagesMax"):
        await node.send_back([6], 2)
    assert await node.send_back([6], 3, delay_levels=[-1]) == SendBackReply(dead=1)
    node.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await node.send_back([7], 4)
    node.change_role(master=False)
    with pytest.raises(NotMaster):
        await node.send_back([7], 4)


@in_loop
async def test_a_call_that_is_refused_has_stored_none_of_its_messages() -> None:
    node = filled(maxTopicNum=2)  # there is room for the retry topic, and for no other
    with pytest.raises(LimitReached, match="maxTopicNum"):
        await node.send_back([1, 2], reconsume_times=[0, 99])
    await node.send_back([1], 2)
    await node.pass_s(60)
    assert bodies(node.records()) == [b"1"]


@in_loop
async def test_the_answer_waits_until_the_copies_are_safe() -> None:
    node = filled(**SYNC, flushes=False)
    with pytest.raises(OutcomeUnknown, match="send-back of group billing"):
        await node.send_back()
    node.flushes = True
    assert await node.send_back() == SendBackReply(later=1)
    await node.pass_s(11)
    assert bodies(node.records()) == [b"5"]


@in_loop
async def test_many_large_messages_come_back_in_parts_and_a_single_one_always() -> None:
    node = Node(maxMessageSize=1 << 16, sizes={"segment_bytes": 1 << 20})
    node.fill([bytes([number]) * 60_000 for number in range(4)])
    with pytest.raises(MessageTooLarge, match="send fewer at once"):
        await node.send_back([0, 1, 2, 3])
    for offset in range(4):
        await node.send_back([offset], offset + 1)
    await node.pass_s(11)
    assert len(node.records()) == 4


@in_loop
async def test_metrics_count_by_group() -> None:
    node = filled()
    await node.send_back([1, 2, 3], delay_levels=[0, 0, -1])
    metrics = node.metrics()
    assert metrics["penstock_retry_messages_total", "billing"] == 2
    assert metrics["penstock_dlq_messages_total", "billing"] == 1
