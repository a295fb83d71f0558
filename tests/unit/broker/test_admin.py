from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.broker.admin.topics import QUEUES_MAX
from penstock.broker.core.state import Topic
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
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker.broker_parts import Parts, in_loop
from tests.support.broker.fake_store import FakeStore


def creating(
    name: str = "orders", read: int = 0, write: int = 0, perm: int = 0, **how: bool
) -> broker_pb2.CreateTopicRequest:
    config = common_pb2.TopicConfig(topic=name, read_queues=read, write_queues=write, perm=perm)
    return broker_pb2.CreateTopicRequest(config=config, **how)


@in_loop
async def test_a_topic_is_created_once_with_defaults_and_a_repetition_is_harmless() -> None:
    parts = Parts()
    made = await parts.admin.create_topic(creating())
    assert replace(made, extra={}) == Topic("orders", 8, 8, 6)
    assert made.created_ms > 0
    end = parts.store.end_offset
    assert await parts.admin.create_topic(creating()) == made
    assert await parts.admin.create_topic(creating(read=3, write=3, auto=True)) == made
    assert parts.store.end_offset == end
    with pytest.raises(TopicExists, match="8 read queues"):
        await parts.admin.create_topic(creating(read=4, write=4))
    changed = await parts.admin.create_topic(creating(read=9, write=9, update=True))
    assert (changed.read_queues, changed.created_ms) == (9, made.created_ms)


@in_loop
async def test_automatic_creation_is_refused_where_it_is_off_and_deliberate_creation_is_not() -> None:
    parts = Parts(auto_create=False)
    with pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
        await parts.admin.create_topic(creating(auto=True))
    assert (await parts.admin.create_topic(creating())).name == "orders"


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (creating("no/slash"), InvalidName),
        (creating("x" * 128), InvalidName),
        (creating("rmq_sys_mine"), Forbidden),
        (creating(read=QUEUES_MAX + 1, write=1), InvalidArgument),
        (creating(read=-1, write=1), InvalidArgument),
        (creating(read=2, write=3), InvalidArgument),
        (creating(perm=1), InvalidArgument),
        (creating(perm=64), InvalidArgument),
    ],
)
def test_what_makes_no_topic_is_refused_by_name(
    request_: broker_pb2.CreateTopicRequest, error: type[PenstockError]
) -> None:
    @in_loop
    async def check() -> None:
        parts = Parts()
        with pytest.raises(error):
            await parts.admin.create_topic(request_)
        assert parts.store.end_offset == 0

    check()


@in_loop
async def test_queues_are_removed_in_two_steps_and_only_when_drained() -> None:
    parts = Parts()
    await parts.admin.create_topic(creating(read=4, write=4))
    parts.dispatch()
    await parts.append([b"x"] * 3, queue_id=3)
    parts.dispatch()
    parts.state_log.commit("billing", {"orders": {3: 1}})
    with pytest.raises(InvalidArgument, match="lower write_queues first"):
        await parts.admin.create_topic(creating(read=2, write=2, update=True))
    await parts.admin.create_topic(creating(write=2, update=True))
    with pytest.raises(InvalidArgument, match="queue 3 still has messages for group billing"):
        await parts.admin.create_topic(creating(read=2, write=2, update=True))
    parts.state_log.commit("billing", {"orders": {3: 3}})
    assert (await parts.admin.create_topic(creating(read=2, write=2, update=True))).read_queues == 2


@in_loop
async def test_deleting_a_topic_drops_its_queues_behind_everything_that_it_still_got() -> None:
    parts = Parts()
    await parts.admin.create_topic(creating())
    parts.dispatch()
    await parts.append([b"x"])
    deleting = asyncio.create_task(parts.admin.delete_topic("orders"))
    await asyncio.sleep(0)
    assert parts.state.topic("orders") is None, "gone for senders at once"
    with pytest.raises(NotEnoughReplicas, match="being deleted"):
        await parts.admin.create_topic(creating())
    parts.dispatch()
    await deleting
    assert parts.store.reader.queue_range("orders", 0) == (0, 0)
    await parts.admin.create_topic(creating())
    parts.dispatch()
    assert list((await parts.append([b"y"])).queue_offsets) == [0]
    with pytest.raises(TopicNotFound):
        await parts.admin.delete_topic("missing")
    with pytest.raises(Forbidden):
        await parts.admin.delete_topic("TBW102")


@in_loop
async def test_a_topic_is_not_made_anew_before_its_deletion_is_dispatched_even_if_nobody_waits_for_it() -> None:
    parts = Parts(sync_flush=True, store=FakeStore(flushes=False, confirms=False))
    parts.add_topic()
    parts.store.set_confirm(parts.store.end_offset)
    parts.dispatch()
    with pytest.raises(OutcomeUnknown, match="deletion of topic orders"):
        await parts.admin.delete_topic("orders")
    with pytest.raises(NotEnoughReplicas, match="being deleted"):
        await parts.admin.create_topic(creating())
    parts.store.set_confirm(parts.store.end_offset)
    parts.dispatch()
    with pytest.raises(OutcomeUnknown, match="topic orders"):
        await parts.admin.create_topic(creating())
    assert parts.state.topic("orders") is not None


@in_loop
async def test_changes_need_the_master_enough_replicas_and_their_word() -> None:
    parts = Parts(sync_flush=True, store=FakeStore(flushes=False))
    with pytest.raises(OutcomeUnknown, match="FLUSH_DISK_TIMEOUT"):
        await parts.admin.create_topic(creating())
    assert parts.state.topic("orders") is not None
    parts.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await parts.admin.create_topic(creating("other"))
    parts.role.is_master = False
    with pytest.raises(NotMaster):
        parts.admin.put_group(common_pb2.GroupConfig(group="billing", consume_enable=True))


@in_loop
async def test_groups_are_made_described_and_deleted_unless_they_have_members() -> None:
    parts = Parts()
    made = parts.admin.put_group(common_pb2.GroupConfig(group="billing", consume_enable=True))
    assert made.retry_max_times == 16
    parts.add_topic()
    parts.state_log.commit("billing", {"orders": {0: 4}})
    described = parts.admin.describe_group("billing")
    assert (described.generation, described.committed[0].offsets[0]) == (7, 4)
    parts.sessions.members = [broker_pb2.GroupMember(client_id="a")]
    with pytest.raises(InvalidArgument, match="1 members"):
        parts.admin.delete_group("billing")
    parts.sessions.members = []
    parts.admin.delete_group("billing")
    with pytest.raises(GroupNotFound):
        parts.admin.describe_group("billing")
    assert parts.state.committed("billing", "orders", 0) == -1
    with pytest.raises(InvalidArgument):
        parts.admin.put_group(common_pb2.GroupConfig(group="billing", retry_max_times=-1))


@in_loop
async def test_messages_are_viewed_by_position_and_queries_need_topic_and_key() -> None:
    parts = Parts()
    parts.add_topic()
    at = (await parts.append([b"look"])).physical_offset
    assert b"look" in parts.admin.view_message(at).records[0]
    with pytest.raises(MessageNotFound):
        parts.admin.view_message(at + 1)
    with pytest.raises(InvalidArgument):
        parts.admin.view_message(-1)
    with pytest.raises(InvalidArgument):
        parts.admin.query_messages(broker_pb2.QueryMessagesRequest(topic="orders"))
    with pytest.raises(TopicNotFound):
        parts.admin.query_messages(broker_pb2.QueryMessagesRequest(topic="missing", key="k"))
