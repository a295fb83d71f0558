"""Every limit on what one request, one client, or all of them may ask a broker for: each is an error by name."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.admin import administration
from penstock.broker.admin.administration import Administration
from penstock.broker.consume import consumer_sessions, fetch_load
from penstock.broker.consume import offsets as consume_offsets
from penstock.broker.consume.consume import Consume
from penstock.broker.consume.fetch_load import FetchLoad
from penstock.broker.consume.groups import MISMATCHES_MAX, Groups
from penstock.broker.core import wire
from penstock.broker.core.tables.topics import Topic
from penstock.broker.core.wire import QUEUES_MAX, REQUEST_BYTES_MAX
from penstock.broker.features.exactly_once.exactly_once import ExactlyOnce
from penstock.broker.features.exactly_once.writers import KEYS_MAX
from penstock.broker.limits import Limits
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import FlowControl, InvalidArgument, LimitReached, MessageTooLarge, TopicNotFound
from penstock.proto.wire.broker_pb2 import (
    CommitOffsetsRequest,
    CreateTopicRequest,
    FetchHeader,
    QueryMessagesRequest,
    QueryOffsetsRequest,
)
from penstock.proto.wire.common_pb2 import GroupConfig, TopicConfig, TopicOffsets, TopicQueues
from tests.support.broker.kit import Kit, in_loop
from tests.support.broker.requests import wanting
from tests.support.broker.running_broker import running
from tests.support.data import connected_to
from tests.support.waiting import eventually

MANY = range(QUEUES_MAX + 1)
TWICE = [3, 1, 3]

Ask = Callable[[Kit, list[int]], Awaitable[Any]]


def _ranges(kit: Kit, queue_ids: list[int]) -> Awaitable[Any]:
    return kit[Consume].offsets.ranges(TopicQueues(topic="orders", queue_ids=queue_ids))


def _commit(kit: Kit, queue_ids: list[int]) -> Awaitable[Any]:
    part = TopicOffsets(topic="orders", queue_ids=queue_ids, offsets=[0] * len(queue_ids))
    return kit[Consume].offsets.commit(CommitOffsetsRequest(group="billing", offsets=[part]))


def _fetch(kit: Kit, queue_ids: list[int]) -> Awaitable[Any]:
    part = FetchHeader.Topic(topic="orders", queue_ids=queue_ids, offsets=[0] * len(queue_ids))
    return kit.fetched(FetchHeader(topics=[part]))


def _query(kit: Kit, queue_ids: list[int]) -> Awaitable[Any]:
    part = TopicQueues(topic="orders", queue_ids=queue_ids)
    return kit[Consume].offsets.query(QueryOffsetsRequest(group="billing", queues=[part]))


@pytest.mark.parametrize("ask", [_ranges, _commit, _fetch, _query])
@in_loop
async def test_more_queues_than_a_topic_may_have_are_refused_before_they_are_looked_at(ask: Ask) -> None:
    kit = Kit()
    kit.add_topic()
    kit.store.reader.queue_range = lambda *_: pytest.fail("looked at")  # type: ignore[method-assign]
    with pytest.raises(InvalidArgument, match=str(QUEUES_MAX)):
        await ask(kit, list(MANY))


@pytest.mark.parametrize("ask", [_ranges, _commit, _fetch])
@in_loop
async def test_a_queue_that_is_named_twice_is_refused(ask: Ask) -> None:
    kit = Kit()
    kit.add_topic()
    with pytest.raises(InvalidArgument, match="named twice"):
        await ask(kit, TWICE)


@in_loop
async def test_very_many_topics_in_one_request_are_refused() -> None:
    kit = Kit()
    header = FetchHeader(topics=[FetchHeader.Topic()] * (QUEUES_MAX + 1))
    with pytest.raises(InvalidArgument, match="65537 topics"):
        await kit.fetched(header)
    with pytest.raises(InvalidArgument, match="65537 topics"):
        await kit[Consume].offsets.commit(CommitOffsetsRequest(group="g", offsets=[TopicOffsets()] * len(MANY)))
    part = FetchHeader.Topic(topic="x" * 256, queue_ids=[0], offsets=[0])
    with pytest.raises(InvalidArgument, match="at most 255"):
        await kit.fetched(FetchHeader(topics=[part]))


@pytest.mark.parametrize("ask", [_ranges, _commit, _fetch, _query])
@in_loop
async def test_others_have_their_turn_while_a_long_list_is_worked_through(ask: Ask) -> None:
    kit = Kit()
    kit.add_topic(queues=4 * wire.TURN)
    asking = asyncio.ensure_future(ask(kit, list(range(4 * wire.TURN))))
    turns = 0
    while not asking.done():
        turns += 1
        await asyncio.sleep(0)
    await asking
    assert turns >= 3 if ask is not _fetch else turns >= 1


def test_a_request_that_is_too_long_is_refused_unread_and_noise_by_name(tmp_path: Path) -> None:
    async def check() -> None:
        async with running(tmp_path) as (_, caller):
            query = caller.channel.unary_unary("/penstock.v1.Broker/QueryQueueRanges")
            caller.stub.QueryQueueRanges = query
            with pytest.raises(MessageTooLarge, match=str(REQUEST_BYTES_MAX)):
                await caller.call("QueryQueueRanges", bytes(REQUEST_BYTES_MAX + 1))
            with pytest.raises(InvalidArgument, match=r"no penstock\.v1\.TopicQueues"):
                await caller.call("QueryQueueRanges", b"\xff" * 9)

    asyncio.run(check())


def test_a_frame_with_a_very_long_header_is_refused_unread() -> None:
    message = frames.pack(FetchHeader(group="x" * (frames.HEADER_BYTES_MAX + 1)))
    with pytest.raises(MessageTooLarge, match=str(frames.HEADER_BYTES_MAX)):
        frames.unpack(message, FetchHeader)


IMPORTED = Topic("two", 8, 8, attributes={"a": "of a store of RocketMQ's"})
"""A topic whose attribute is not known here, and may be changed all the same."""


def creating(name: str, **attributes: str) -> CreateTopicRequest:
    return CreateTopicRequest(config=TopicConfig(topic=name, attributes=attributes), update=True)


@in_loop
async def test_topics_are_limited_in_number_and_in_what_they_carry() -> None:
    kit = Kit(maxTopicNum=2, maxAttributeBytes=256)
    kit.put_topic(IMPORTED)
    create = kit[Administration].create_topic
    await create(creating("one"))
    with pytest.raises(LimitReached, match="maxAttributeBytes"):
        await create(creating("two", a="x" * 256))
    await create(creating("two", a="x" * 255))
    with pytest.raises(LimitReached, match=r"there are 2 topics \(maxTopicNum\)"):
        await create(creating("three"))
    await create(creating("two", a="y"))
    deleting = asyncio.ensure_future(kit[Administration].delete_topic("one"))
    await asyncio.sleep(0)
    kit.dispatch()
    await deleting
    await create(creating("three"))


def test_what_nameservers_are_told_of_all_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "REGISTRATION_BYTES_MAX", 1000)

    @in_loop
    async def check() -> None:
        kit = Kit()
        for name in ("one", "two"):
            kit.put_topic(replace(IMPORTED, name=name))
        create = kit[Administration].create_topic
        await create(creating("one", a="x" * 800))
        with pytest.raises(LimitReached, match="fit into a registration"):
            await create(creating("two", a="x" * 200))
        await create(creating("one", a="x"))
        await create(creating("two", a="x" * 200))
        topics = kit.tables.topics
        assert topics.wire_bytes == sum(topic.wire_bytes for topic in topics.values())
        kit.delete_topic("one")
        assert topics.wire_bytes == sum(topic.wire_bytes for topic in topics.values())

    check()


@in_loop
async def test_groups_are_limited_however_they_are_made() -> None:
    kit = Kit(maxSubscriptionGroupNum=1, maxAttributeBytes=256)
    kit.add_topic()
    await _commit(kit, [0])
    with pytest.raises(LimitReached, match="maxSubscriptionGroupNum"):
        await kit[Consume].put_group(GroupConfig(group="other"))
    with pytest.raises(LimitReached, match="maxSubscriptionGroupNum"):
        kit[Consume].offsets.join_group("other")
    with pytest.raises(LimitReached, match="maxAttributeBytes"):
        await kit[Consume].put_group(GroupConfig(group="billing", attributes={"a": "x" * 256}))
    await kit[Consume].put_group(GroupConfig(group="billing", retry_max_times=3))


@in_loop
async def test_offsets_of_light_queues_that_do_not_exist_are_refused() -> None:
    kit = Kit(sizes={"lmq_enable": True, "multi_dispatch": True})
    part = TopicOffsets(topic="%LMQ%nowhere", queue_ids=[0], offsets=[0])
    with pytest.raises(TopicNotFound, match="light queue %LMQ%nowhere"):
        await kit[Consume].offsets.commit(CommitOffsetsRequest(group="billing", offsets=[part]))
    assert kit.tables.offsets.pairs() == []


def test_a_slave_keeps_offsets_for_its_master_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consume_offsets, "PENDING_MAX", 2)

    @in_loop
    async def check() -> None:
        kit = Kit()
        kit.add_topic()
        kit.change_role(master=False)
        await _commit(kit, [0, 1])
        await _commit(kit, [0, 1])
        with pytest.raises(FlowControl, match="2 offsets wait for the master"):
            await _commit(kit, [2])

    check()


def test_groups_that_came_and_went_leave_nothing_behind() -> None:
    groups = Groups()
    before = 0
    for number in range(1, 200):
        groups.join(number, f"g{number}", "a", {})
        generation, _ = groups.members(f"g{number}")
        assert generation > before
        before = generation
        groups.end(number)
    assert not [value for value in vars(groups).values() if isinstance(value, dict) and value]


def test_two_members_that_differ_in_everything_are_told_of_the_first_topics() -> None:
    groups = Groups()
    groups.join(1, "g", "a", {f"T{number}": "*" for number in range(50)})
    groups.join(2, "g", "b", {f"T{number}": "x" for number in range(50)})
    assert len(groups.mismatches(2)) == MISMATCHES_MAX


@in_loop
async def test_a_key_query_answers_no_more_than_its_limit() -> None:
    kit = Kit()
    kit.add_topic()
    asked: list[int] = []
    kit.store.lookup.query = lambda topic, key, count, *_: asked.append(count) or []  # type: ignore[assignment, func-returns-value]
    await kit[Administration].query_messages(QueryMessagesRequest(topic="orders", key="k", max_count=1 << 30))
    assert asked == [administration.QUERY_COUNT_MAX]


def test_fetches_under_way_are_limited_for_a_connection_and_for_all() -> None:
    load = FetchLoad(Limits(fetches_max=3, connection_fetches_max=2))
    with load.counted("a", 1), load.counted("a", 1):
        with pytest.raises(FlowControl, match="maxFetchesPerConnection=2"), load.counted("a", 1):
            pass
        with load.counted("b", 1), pytest.raises(FlowControl, match="maxWaitingFetches=3"), load.counted("c", 1):
            pass
    assert (load.fetches, load.queues, load._fetches_of) == (0, 0, {})
    with pytest.raises(FlowControl, match="queues are waited for"), load.counted("a", fetch_load.QUEUES_UNDER_WAY_MAX):
        pass


def test_replies_that_are_not_taken_are_limited_for_a_connection_and_for_all() -> None:
    load = FetchLoad(Limits(reply_bytes_max=32 << 20))
    releases = [load.hold(f"c{number % 3}", 8 << 20) for number in range(4)]
    with pytest.raises(FlowControl, match=r"bytes of replies are not taken \(maxFetchBytesHeld="), load.counted("d", 1):
        pass
    releases[1]()
    with load.counted("d", 1):
        pass
    with pytest.raises(FlowControl, match="to this connection are not taken"), load.counted("c0", 1):
        pass
    for release in (releases[0], *releases[2:]):
        release()
    assert (load.reply_bytes, load._bytes_of) == (0, {})


def test_a_broker_counts_its_fetches_and_lets_them_go(tmp_path: Path) -> None:
    async def check() -> None:
        async with (
            running(tmp_path, maxFetchesPerConnection=1) as (broker, caller),
            connected_to(broker.address) as connection,
        ):
            await caller.create_topic()
            load = broker.features[Consume].fetch.load
            waiting = frames.pack(wanting((0, 0), max_wait_ms=10_000))
            connection.send(1, Method.FETCH, waiting)
            await eventually(lambda: load.fetches == 1, what="the first one waits")
            with pytest.raises(FlowControl, match="maxFetchesPerConnection"):
                await connection.ask(Method.FETCH, waiting, 2)
            await caller.append()
            assert (await connection.receive())[0] == 1
            await connection.ask(Method.FETCH, waiting, 3)
            await eventually(lambda: load.fetches == 0 and load.reply_bytes == 0, what="nothing is held")

    asyncio.run(check())


@in_loop
async def test_lists_for_exactly_once_writers_are_limited() -> None:
    kit = Kit()
    writers, staging = kit[ExactlyOnce].writers, kit[ExactlyOnce].staging
    await writers.open_writer("w", "r1")
    keys = [f"k{number}" for number in range(KEYS_MAX + 1)]
    with pytest.raises(InvalidArgument, match="at most 25000"):
        await writers.give_up("w", 0, keys)
    with pytest.raises(InvalidArgument, match="at most 25000"):
        await writers.decide("w", "r1", 0, {key: {} for key in keys})
    with pytest.raises(InvalidArgument, match="at most 25000"):
        await staging.publish("w", 0, dict.fromkeys(keys, 1))
    assert consumer_sessions.CLAIMS_MAX == QUEUES_MAX
