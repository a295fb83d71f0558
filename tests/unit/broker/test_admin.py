from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from penstock.broker.admin.administration import Administration
from penstock.broker.admin.topics import QUEUES_MAX
from penstock.broker.consume.consume import Consume
from penstock.broker.core.tables.topics import Topic
from penstock.proto.errors import (
    Forbidden,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    PenstockError,
    TopicExists,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import CreateTopicRequest, GroupName, QueryMessagesRequest, ViewMessageRequest
from penstock.proto.wire.common_pb2 import GroupConfig, TopicConfig
from tests.support.broker.kit import SYNC, Kit, in_loop


def creating(name: str = "orders", read: int = 0, write: int = 0, perm: int = 0, **how: bool) -> CreateTopicRequest:
    config = TopicConfig(topic=name, read_queues=read, write_queues=write, perm=perm)
    return CreateTopicRequest(config=config, **how)


@in_loop
async def test_a_topic_is_created_once_with_defaults_and_a_repetition_is_harmless() -> None:
    parts = Kit()
    made = await parts[Administration].create_topic(creating())
    assert replace(made, extra={}) == Topic("orders", 8, 8, 6)
    assert made.created_ms > 0
    end = parts.store.end_offset
    assert await parts[Administration].create_topic(creating()) == made
    assert await parts[Administration].create_topic(creating(read=3, write=3, auto=True)) == made
    assert parts.store.end_offset == end
    with pytest.raises(TopicExists, match=r"8 read queues, 8 write queues, perm rw, not .*`penstock topic update`"):
        await parts[Administration].create_topic(creating(read=4, write=4))
    changed = await parts[Administration].create_topic(creating(read=9, write=9, update=True))
    assert (changed.read_queues, changed.created_ms) == (9, made.created_ms)


@in_loop
async def test_a_creation_that_is_asked_for_again_is_answered_when_it_is_confirmed() -> None:
    parts = Kit()
    parts.role.waits_for_replicas, parts.role.confirms, parts.role.holds = True, False, True
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="topic orders"):
            await parts[Administration].create_topic(creating())
    parts.role.confirms = True
    assert (await parts[Administration].create_topic(creating())).name == "orders"


@in_loop
async def test_only_automatic_creation_is_refused_where_it_is_off() -> None:
    parts = Kit(autoCreateTopicEnable=False)
    with pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
        await parts[Administration].create_topic(creating(auto=True))
    assert (await parts[Administration].create_topic(creating())).name == "orders"


@in_loop
async def test_producers_make_no_topic_above_the_limit() -> None:
    parts = Kit(autoCreateTopicMax=1)
    await parts[Administration].create_topic(creating("first", auto=True))
    with pytest.raises(TopicNotFound, match="there are 1 topics, autoCreateTopicMax is 1: create it"):
        await parts[Administration].create_topic(creating("second", auto=True))
    assert (await parts[Administration].create_topic(creating("second"))).name == "second"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (creating("no/slash"), InvalidName),
        (creating("x" * 128), InvalidName),
        (creating("rmq_sys_mine"), Forbidden),
        (creating("%RETRY%billing"), Forbidden),
        (creating("%DLQ%billing", auto=True), Forbidden),
        (creating(read=QUEUES_MAX + 1, write=1), InvalidArgument),
        (creating(read=-1, write=1), InvalidArgument),
        (creating(read=2, write=3), InvalidArgument),
        (creating(perm=1), InvalidArgument),
        (creating(perm=64), InvalidArgument),
    ],
)
@in_loop
async def test_what_makes_no_topic_is_refused_by_name(request_: CreateTopicRequest, error: type[PenstockError]) -> None:
    parts = Kit()
    with pytest.raises(error):
        await parts[Administration].create_topic(request_)
    assert parts.store.end_offset == 0


@in_loop
async def test_queues_are_removed_in_two_steps_and_only_when_drained() -> None:
    parts = Kit()
    await parts[Administration].create_topic(creating(read=4, write=4))
    parts.dispatch()
    await parts.append([b"x"] * 3, queue_id=3)
    parts.dispatch()
    parts.commit("billing", {"orders": {3: 1}})
    with pytest.raises(InvalidArgument, match="lower write_queues first"):
        await parts[Administration].create_topic(creating(read=2, write=2, update=True))
    await parts[Administration].create_topic(creating(write=2, update=True))
    with pytest.raises(InvalidArgument, match="queue 3 still has messages for group billing"):
        await parts[Administration].create_topic(creating(read=2, write=2, update=True))
    parts.commit("billing", {"orders": {2: 0, 3: 3}})
    await parts.append([b"x"], queue_id=2)
    parts.dispatch()
    parts.commit("audit", {"orders": {0: 0}})  # has not begun with the others
    with pytest.raises(InvalidArgument, match="queue 2 still has messages for group"):
        await parts[Administration].create_topic(creating(read=2, write=2, update=True))
    parts.commit("billing", {"orders": {2: 1}})
    with pytest.raises(InvalidArgument, match="penstock offset reset audit orders --to last"):
        await parts[Administration].create_topic(creating(read=2, write=2, update=True))
    parts.commit("audit", {"orders": {2: 1, 3: 3}})
    parts.role.holds = True
    await parts.append([b"of a producer that has not heard of it"], queue_id=2)
    with pytest.raises(InvalidArgument, match="queue 2 still has messages for group"):
        await parts[Administration].create_topic(creating(read=2, write=2, update=True))
    parts.role.holds = False
    parts.confirm()
    parts.dispatch()
    for group in ("billing", "audit"):
        parts.commit(group, {"orders": {2: 2}})
    assert (await parts[Administration].create_topic(creating(read=2, write=2, update=True))).read_queues == 2


@in_loop
async def test_deleting_a_topic_drops_its_queues_behind_everything_that_it_still_got() -> None:
    parts = Kit()
    await parts[Administration].create_topic(creating())
    parts.dispatch()
    await parts.append([b"x"])
    deleting = asyncio.create_task(parts[Administration].delete_topic("orders"))
    await asyncio.sleep(0)
    assert parts.tables.topics.get("orders") is None, "gone for senders at once"
    with pytest.raises(NotEnoughReplicas, match="being deleted"):
        await parts[Administration].create_topic(creating())
    parts.dispatch()
    await deleting
    assert parts.store.reader.queue_range("orders", 0) == (0, 0)
    await parts[Administration].create_topic(creating())
    parts.dispatch()
    assert list((await parts.append([b"y"])).queue_offsets) == [0]
    with pytest.raises(TopicNotFound):
        await parts[Administration].delete_topic("missing")
    with pytest.raises(Forbidden):
        await parts[Administration].delete_topic("TBW102")


@in_loop
async def test_a_topic_is_not_made_anew_before_its_deletion_is_dispatched() -> None:
    parts = Kit(**SYNC, flushes=False, holds=True)
    parts.add_topic()
    parts.confirm()
    parts.dispatch()
    with pytest.raises(OutcomeUnknown, match="deletion of topic orders"):
        await parts[Administration].delete_topic("orders")
    with pytest.raises(NotEnoughReplicas, match="being deleted"):
        await parts[Administration].create_topic(creating())
    parts.confirm()
    parts.dispatch()
    with contextlib.suppress(OutcomeUnknown):  # the checkpoint that a deletion wants may have synced it
        await parts[Administration].create_topic(creating())
    assert parts.tables.topics.get("orders") is not None


@in_loop
async def test_changes_need_the_master_enough_replicas_and_their_word() -> None:
    parts = Kit(**SYNC, flushes=False)
    with pytest.raises(OutcomeUnknown, match="FLUSH_DISK_TIMEOUT"):
        await parts[Administration].create_topic(creating())
    assert parts.tables.topics.get("orders") is not None
    parts.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await parts[Administration].create_topic(creating("other"))
    parts.role.is_master = False
    with pytest.raises(NotMaster):
        await parts[Consume].put_group(GroupConfig(group="billing", consume_enable=True))


@in_loop
async def test_groups_are_made_described_and_deleted_unless_they_have_members() -> None:
    parts = Kit()
    made = await parts[Consume].put_group(GroupConfig(group="billing", consume_enable=True))
    assert made.retry_max_times == 16
    parts.add_topic()
    parts.commit("billing", {"orders": {0: 4}})
    described = await parts[Consume].describe_group(GroupName(group="billing"))
    assert (described.generation, described.committed[0].offsets[0]) == (0, 4)
    groups = parts[Consume].sessions._groups
    groups.join(1, "billing", "a", {})
    described = await parts[Consume].describe_group(GroupName(group="billing"))
    assert (described.generation, described.members[0].client_id) == (1, "a")
    with pytest.raises(InvalidArgument, match="1 members"):
        await parts[Consume].delete_group("billing")
    groups.end(1)
    await parts[Consume].delete_group("billing")
    with pytest.raises(GroupNotFound):
        await parts[Consume].describe_group(GroupName(group="billing"))
    assert parts.tables.offsets.get("billing", "orders", 0) == -1
    with pytest.raises(InvalidArgument):
        await parts[Consume].put_group(GroupConfig(group="billing", retry_max_times=-1))


@in_loop
async def test_messages_are_viewed_by_position_and_queries_need_topic_and_key() -> None:
    parts = Kit()
    parts.add_topic()
    at = (await parts.append([b"look"])).physical_offset
    admin = parts[Administration]
    [record] = (await admin.view_message(ViewMessageRequest(physical_offset=at))).records
    assert b"look" in record
    with pytest.raises(MessageNotFound):
        await admin.view_message(ViewMessageRequest(physical_offset=at + 1))
    with pytest.raises(InvalidArgument):
        await admin.view_message(ViewMessageRequest(physical_offset=-1))
    with pytest.raises(InvalidArgument):
        await admin.query_messages(QueryMessagesRequest(topic="orders"))
    with pytest.raises(TopicNotFound):
        await admin.query_messages(QueryMessagesRequest(topic="missing", key="k"))


@in_loop
async def test_records_that_clients_may_not_read_are_not_viewed_either() -> None:
    parts = Kit()
    state = parts.put_topic(Topic("secret", 1, 1, 6))
    parts.dispatch()
    at = (await parts.append([b"hidden"], topic="secret")).physical_offset
    parts.put_topic(Topic("secret", 1, 1, 2))
    parts.dispatch()
    for offset in (0, at):
        with pytest.raises(Forbidden, match="clients may not read"):
            await parts[Administration].view_message(ViewMessageRequest(physical_offset=offset))
    assert 0 < state <= at
