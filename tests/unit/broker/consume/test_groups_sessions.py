"""The ConsumerSession stream: what a member is sent, and when its session ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.consume import consumer_sessions
from penstock.broker.consume import session as one_session
from penstock.broker.consume.consumer_sessions import COMPARE_AFTER_S
from penstock.proto.errors import (
    BrokerUnavailable,
    FlowControl,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    PenstockError,
)
from penstock.proto.wire.broker_pb2 import ConsumerEvent, ConsumerRequest, Filter
from penstock.proto.wire.common_pb2 import Empty, TopicQueues
from tests.support.broker.members import Broker, Member, with_broker
from tests.support.waiting import eventually


@with_broker
async def test_every_member_is_told_of_every_change_at_once(broker: Broker) -> None:
    first = await broker.join("b")
    assert await first.next_members() == ["b"]
    second = await broker.join("a")
    assert await first.next_members() == ["a", "b"]
    assert await second.next_members() == ["a", "b"]
    second.leave()
    assert await first.next_members() == ["b"]
    assert await second.ended() is None


@with_broker
async def test_a_grant_carries_committed_offset_and_range(broker: Broker) -> None:
    broker.committed["g", "T", 3] = 17
    member = await broker.join("a")
    await member.next_members()
    member.claim(3, 4)
    granted = [(await member.next()).granted, (await member.next()).granted]
    assert [(each.queue_id, each.committed_offset) for each in granted] == [(3, 17), (4, -1)]
    assert (granted[0].topic, granted[0].min_offset, granted[0].max_offset) == ("T", 5, 50)


@with_broker
async def test_a_grant_counts_what_was_confirmed_and_not_dispatched_yet(broker: Broker) -> None:
    def dispatch() -> None:
        broker.queue_end = 60

    broker.catch_up = dispatch
    member = await broker.join("a")
    member.claim(3)
    while not (event := await member.next()).HasField("granted"):
        pass
    assert event.granted.max_offset == 60


@with_broker
async def test_a_held_queue_is_granted_with_what_the_holder_committed_last(broker: Broker) -> None:
    first, second = await broker.join("a"), await broker.join("b")
    first.claim(0)
    await first.next_grants(1)
    second.claim(0)
    second.beat()
    await eventually(lambda: not second.requests.qsize())
    assert broker.sessions.owns(first.session_id, "g", "T", 0)
    assert not broker.sessions.owns(second.session_id, "g", "T", 0)
    broker.committed["g", "T", 0] = 33
    first.release(0)
    while not (event := await second.next()).HasField("granted"):
        pass
    assert event.granted.committed_offset == 33
    assert broker.sessions.owns(second.session_id, "g", "T", 0)
    assert not broker.sessions.owns(0, "g", "T", 0)


@with_broker
async def test_a_heartbeat_is_answered_after_everything_before_it(broker: Broker) -> None:
    member = await broker.join("a")
    await member.next_members()
    member.claim(0)
    member.beat()
    member.claim(1)
    kinds = [(await member.next()).WhichOneof("event") for _ in range(3)]
    assert kinds == ["granted", "heartbeat", "granted"]


@with_broker
async def test_a_silent_session_is_ended_and_its_queues_go_to_who_waits(broker: Broker) -> None:
    silent, lively = await broker.join("a"), await broker.join("b")
    silent.claim(0)
    await silent.next_grants(1)
    lively.claim(0)
    for _ in range(3):
        broker.clock.advance(1.1)
        lively.beat()
        await eventually(lambda: not lively.requests.qsize())
    assert await lively.next_grants(1) == [0]
    assert "no heartbeat" in str(await silent.ended())
    assert [member.client_id for member in broker.sessions.describe("g")] == ["b"]


@with_broker
async def test_a_broken_stream_frees_its_queues_at_once(broker: Broker) -> None:
    first, second = await broker.join("a"), await broker.join("b")
    first.claim(0)
    await first.next_grants(1)
    second.claim(0)
    second.beat()
    await eventually(lambda: not second.requests.qsize())
    first.task.cancel()
    assert await second.next_grants(1) == [0]
    with pytest.raises(asyncio.CancelledError):
        await first.task
    broker.members.remove(first)


@with_broker
async def test_the_same_client_in_a_new_session_replaces_the_old_one(broker: Broker) -> None:
    old = await broker.join("a")
    old.claim(0)
    await old.next_grants(1)
    new = await broker.join("a")
    new.claim(0)
    assert await new.next_grants(1) == [0]
    assert isinstance(await old.ended(), BrokerUnavailable)
    assert "joined again" in str(old.error)


@with_broker
async def test_the_holder_is_told_of_a_reset(broker: Broker) -> None:
    member = await broker.join("a")
    await member.next_members()
    member.claim(2)
    await member.next_grants(1)
    broker.sessions.notify_reset("g", "T", 1, 5)
    broker.sessions.notify_reset("g", "T", 2, 7)
    reset = (await member.next()).reset
    assert (reset.topic, reset.queue_id, reset.offset) == ("T", 2, 7)
    broker.sessions.notify_reset("g", "T", 2, 3, by_session=member.session_id)
    broker.sessions.notify_reset("g", "T", 2, 8)
    assert (await member.next()).reset.offset == 8, "who says so is not told"


@with_broker
async def test_who_comes_again_is_told_of_a_reset_that_went_to_its_dead_session(broker: Broker) -> None:
    broker.committed["g", "T", 2] = 40
    old = await broker.join("a")
    old.claim(2)
    await old.next_grants(1)
    broker.committed["g", "T", 2] = 10
    broker.sessions.notify_reset("g", "T", 2, 10)
    new = await broker.join("a")
    await new.next_members()
    new.claim(2)
    assert (await new.next()).granted.committed_offset == 10
    assert (await new.next()).reset.offset == 10


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_reset_that_has_come_is_not_told_again(by_itself: bool) -> None:
    """Else a member that has read on, and has not committed, would go back with each break of its stream."""

    @with_broker
    async def run(broker: Broker) -> None:
        broker.committed["g", "T", 2] = 40
        old = await broker.join("a")
        old.claim(2)
        await old.next_grants(1)
        broker.committed["g", "T", 2] = 10
        broker.sessions.notify_reset("g", "T", 2, 10, by_session=old.session_id if by_itself else 0)
        if not by_itself:
            assert (await old.next()).reset.offset == 10
            old.beat()
            await old.next()
        new = await broker.join("a")
        await new.next_members()
        new.claim(2)
        assert (await new.next()).granted.committed_offset == 10
        new.beat()
        assert (await new.next()).HasField("heartbeat")

    run()


@with_broker
async def test_of_resets_that_nobody_was_there_for_the_newest_are_told(broker: Broker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_sessions, "RESETS_MAX", 2)
        for queue_id in (0, 1, 0, 2):
            broker.committed["g", "T", queue_id] = 7
            broker.sessions.notify_reset("g", "T", queue_id, 7)
    member = await broker.join("a")
    await member.next_members()
    member.claim(0, 1, 2)
    told = [await member.next() for _ in range(5)]
    assert [each.granted.queue_id for each in told if each.HasField("granted")] == [0, 1, 2]
    assert [each.reset.queue_id for each in told if each.HasField("reset")] == [0, 2]


@with_broker
async def test_describe_names_claims_and_subscriptions(broker: Broker) -> None:
    member = await broker.join("a", T=Filter(kind=Filter.TAG, expression="x || y"), U=Filter(kind=Filter.ALL))
    member.claim(1, 0)
    await member.next_grants(2)
    (described,) = broker.sessions.describe("g")
    assert described.client_id == "a"
    assert [(each.topic, list(each.queue_ids)) for each in described.claimed] == [("T", [0, 1])]
    assert dict(described.subscriptions) == {"T": "x || y", "U": "*"}
    assert broker.sessions.describe("nobody") == []


@with_broker
async def test_different_subscriptions_are_logged_by_name_and_told_to_both_members(broker: Broker) -> None:
    records: list[str] = []
    handler = consumer_sessions.logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    consumer_sessions.log.addHandler(handler)
    try:
        first = await broker.join("a", T=Filter(kind=Filter.ALL))
        broker.clock.advance(COMPARE_AFTER_S)
        await eventually(broker.all_compared)
        second = await broker.join("b", T=Filter(kind=Filter.TAG, expression="x"))
        broker.clock.advance(COMPARE_AFTER_S)
        told = [await next_mismatch(member) for member in (first, second)]
    finally:
        consumer_sessions.log.removeHandler(handler)
    (line,) = [line for line in records if line.startswith("subscription mismatch")]
    assert "topic=T client=b expression='x' other_client=a other_expression='*'" in line
    mismatch = ConsumerEvent.Mismatch
    assert told == [
        mismatch(topic="T", expression="*", other_client_id="b", other_expression="x"),
        mismatch(topic="T", expression="x", other_client_id="a", other_expression="*"),
    ]


@with_broker
async def test_topics_subscribed_one_after_the_other_are_no_mismatch(broker: Broker) -> None:
    everything = Filter(kind=Filter.ALL)
    first = await broker.join("a", T=everything, U=everything)
    second = await broker.join("b", T=everything)
    second.send_join("b", T=everything, U=everything)
    await eventually(lambda: "U" in broker.sessions.describe("g")[1].subscriptions)
    broker.clock.advance(COMPARE_AFTER_S)
    await eventually(broker.all_compared)
    for member in (first, second):
        member.beat()
        while not (event := await member.next()).HasField("heartbeat"):
            assert not event.HasField("mismatch")


async def next_mismatch(member: Member) -> ConsumerEvent.Mismatch:
    while not (event := await member.next()).HasField("mismatch"):
        continue
    return event.mismatch


def join_request(**fields: Any) -> ConsumerRequest:
    return ConsumerRequest(join=ConsumerRequest.Join(**fields))


@pytest.mark.parametrize(
    ("requests", "kind", "text"),
    [
        ([ConsumerRequest(heartbeat=Empty())], InvalidArgument, "must begin with join"),
        ([ConsumerRequest()], InvalidArgument, "must begin with join"),
        ([join_request(group="g g", client_id="a")], InvalidName, "group"),
        ([join_request(group="g", client_id="")], InvalidArgument, "client id of 0"),
        ([join_request(group="g", client_id="x" * 300)], InvalidArgument, "client id of 300"),
        ([join_request(group="secret", client_id="a")], GroupNotFound, "secret"),
        ([join_request(group="g", client_id="a"), ConsumerRequest()], InvalidArgument, "without content"),
        (
            [join_request(group="g", client_id="a"), join_request(group="h", client_id="a")],
            InvalidArgument,
            "not its group",
        ),
        (
            [
                join_request(group="g", client_id="a"),
                ConsumerRequest(claim=TopicQueues(topic="T", queue_ids=[-1])),
            ],
            InvalidArgument,
            "negative queue id",
        ),
        (
            [
                join_request(group="g", client_id="a"),
                ConsumerRequest(claim=TopicQueues(topic="T", queue_ids=range(consumer_sessions.CLAIMS_MAX + 1))),
            ],
            FlowControl,
            "claims more than",
        ),
    ],
)
def test_requests_that_make_no_sense_end_the_session_by_name(
    requests: list[ConsumerRequest], kind: type[PenstockError], text: str
) -> None:
    @with_broker
    async def body(broker: Broker) -> None:
        broker.forbidden.add("secret")
        member = broker.connect()
        for request in requests:
            member.requests.put_nowait(request)
        error = await member.ended()
        assert isinstance(error, kind)
        assert text in str(error)
        assert broker.sessions.describe("g") == []

    body()


def test_a_member_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_session, "OUTGOING_MAX", 20)

    @with_broker
    async def body(broker: Broker) -> None:
        slow, other = await broker.join("a"), await broker.join("b")
        slow.reads.clear()
        for _ in range(60):
            slow.beat()
        await eventually(lambda: [m.client_id for m in broker.sessions.describe("g")] == ["b"])
        slow.reads.set()
        assert isinstance(await slow.ended(), FlowControl)
        assert await other.next_members() is not None

    body()


@with_broker
async def test_close_ends_sessions_and_refuses_new_ones(broker: Broker) -> None:
    member = await broker.join("a")
    broker.sessions.close()
    assert isinstance(await member.ended(), BrokerUnavailable)
    late = broker.connect()
    assert isinstance(await late.ended(), BrokerUnavailable)


@with_broker
async def test_a_stream_that_breaks_keeps_a_locked_queue_for_its_member(broker: Broker) -> None:
    first, second = await broker.join("a", lock_ms=10_000), await broker.join("b", lock_ms=10_000)
    first.claim(0)
    await first.next_grants(1)
    second.claim(0)
    second.beat()
    first.leave()
    assert await first.ended() is None
    assert await second.next_members() == ["a", "b"]
    assert await second.next_members() == ["b"]
    assert not broker.sessions.owns(second.session_id, "g", "T", 0)
    for _ in range(4):  # heard meanwhile, each time before its silence would end it
        broker.clock.advance(2.9)
        second.beat()
        await eventually(lambda: not second.requests.qsize())
        assert not broker.sessions.owns(second.session_id, "g", "T", 0)
    broker.clock.advance(1.5)
    assert await second.next_grants(1) == [0]


@with_broker
async def test_a_master_that_may_not_be_the_only_one_answers_no_heartbeat_of_who_holds_locks(broker: Broker) -> None:
    holder, other = await broker.join("a", lock_ms=1000), await broker.join("b")
    holder.claim(0)
    await holder.next_grants(1)
    broker.is_acting = False
    other.beat()
    holder.beat()
    assert isinstance(await holder.ended(), BrokerUnavailable)
    while not (await other.next()).HasField("heartbeat"):
        pass


@with_broker
async def test_members_tell_a_new_master_what_they_held(broker: Broker) -> None:
    holder = await broker.join("a", lock_ms=1000)
    holder.claim(0)
    await holder.next_grants(1)
    broker.sessions.on_role(None)
    assert isinstance(await holder.ended(), BrokerUnavailable)
    broker.sessions.on_role(["g"])
    other, again = await broker.join("b", lock_ms=1000), await broker.join("a", lock_ms=1000)
    other.claim(0, 1)
    await eventually(lambda: not other.requests.qsize())
    again.reclaim(500, 0)
    assert await again.next_grants(1) == [0]
    broker.clock.advance(2.0)
    other.beat()
    again.beat()
    await eventually(lambda: not other.requests.qsize() and not again.requests.qsize())
    assert not broker.sessions.owns(other.session_id, "g", "T", 1)
    broker.clock.advance(2.1)
    assert await other.next_grants(1) == [1]


@with_broker
async def test_a_lock_that_is_no_time_is_refused(broker: Broker) -> None:
    member = broker.connect()
    member.send_join("a", lock_ms=-1)
    error = await member.ended()
    assert isinstance(error, InvalidArgument)
    assert "lock_ms -1: 0..86400000 are allowed" in error.message
