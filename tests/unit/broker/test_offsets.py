from __future__ import annotations

import pytest

from penstock.broker.consume.offsets import TopicOffsets, each_queue, to_wire
from penstock.broker.core.state import (
    GROUP,
    GROUP_DELETED,
    TOPIC_DELETED,
    Group,
    encode_group,
    encode_group_deleted,
    encode_topic_deleted,
)
from penstock.proto.errors import (
    DiskFull,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    NotMaster,
    OffsetOutOfRange,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker.broker_parts import Parts, in_loop


async def with_messages(parts: Parts, count: int = 10) -> Parts:
    parts.add_topic()
    is_master, parts.role.is_master = parts.role.is_master, True
    await parts.append([b"x"] * count)
    parts.role.is_master = is_master
    parts.dispatch()
    return parts


def commit(
    parts: Parts, offset: int, *, topic: str = "orders", queue_id: int = 0, group: str = "billing", **settings: object
) -> list[int]:
    """Commit one queue; the refused queue ids."""
    request = broker_pb2.CommitOffsetsRequest(
        group=group,
        offsets=[TopicOffsets(topic=topic, queue_ids=[queue_id], offsets=[offset])],
        **settings,  # type: ignore[arg-type]
    )
    return [queue for part in parts.offsets.commit(request).refused for queue in part.queue_ids]


@in_loop
async def test_a_commit_creates_its_group_and_is_found_by_queries() -> None:
    parts = await with_messages(Parts())
    assert commit(parts, 7) == []
    assert parts.state.group("billing") is not None
    named = broker_pb2.QueryOffsetsRequest(
        group="billing", queues=[common_pb2.TopicQueues(topic="orders", queue_ids=[0, 1])]
    )
    assert list(each_queue(parts.offsets.query(named).offsets)) == [("orders", 0, 7), ("orders", 1, -1)]
    every = broker_pb2.QueryOffsetsRequest(group="billing")
    assert list(each_queue(parts.offsets.query(every).offsets)) == [("orders", 0, 7)]


@in_loop
async def test_offsets_go_forward_and_back_only_by_force_which_tells_the_holder() -> None:
    parts = await with_messages(Parts())
    commit(parts, 7)
    assert commit(parts, 3) == [0]
    assert parts.offsets.committed("billing", "orders", 0) == 7
    assert commit(parts, 3, force=True) == []
    assert parts.offsets.committed("billing", "orders", 0) == 3
    assert parts.sessions.resets == [("billing", "orders", 0, 3)]


@in_loop
async def test_a_member_commits_only_queues_that_its_session_holds() -> None:
    parts = await with_messages(Parts())
    assert commit(parts, 5, session_id=99) == [0]
    parts.sessions.owned.add((99, "billing", "orders", 0))
    assert commit(parts, 5, session_id=99) == []
    assert commit(parts, 50, session_id=99) == [0], "beyond the end: refused, its other queues go on"


@pytest.mark.parametrize(
    ("offset", "settings", "error"),
    [
        (-1, {}, InvalidArgument),
        (0, {"queue_id": -1}, InvalidArgument),
        (50, {}, OffsetOutOfRange),
        (0, {"queue_id": 4}, TopicNotFound),
        (0, {"topic": "missing"}, TopicNotFound),
        (0, {"group": "bad name"}, InvalidName),
    ],
)
def test_a_commit_that_makes_no_sense_is_refused_by_name(
    offset: int, settings: dict[str, object], error: type[PenstockError]
) -> None:
    @in_loop
    async def check() -> None:
        parts = await with_messages(Parts())
        with pytest.raises(error):
            commit(parts, offset, **settings)  # type: ignore[arg-type]

    check()


@in_loop
async def test_groups_are_not_created_where_that_is_off() -> None:
    parts = await with_messages(Parts(auto_create=False))
    with pytest.raises(GroupNotFound, match="autoCreateSubscriptionGroup"):
        commit(parts, 1)


@in_loop
async def test_a_slave_keeps_commits_and_offers_them_until_the_log_has_them() -> None:
    parts = await with_messages(Parts(master=False))
    assert commit(parts, 6) == []
    assert parts.offsets.committed("billing", "orders", 0) == 6
    assert parts.state.committed("billing", "orders", 0) == -1
    (offered,) = parts.pending.take()
    assert list(each_queue(offered.offsets)) == [("orders", 0, 6)]
    with pytest.raises(NotMaster):
        commit(parts, 1, force=True)
    parts.state_log.commit("billing", {"orders": {0: 6}})  # as the master's record would come
    assert parts.pending.take() == []
    parts.state_log.commit("billing", {"orders": {0: 2}})
    assert parts.offsets.committed("billing", "orders", 0) == 2, "a later reset is not undone"


@in_loop
async def test_a_slave_keeps_no_commit_that_its_log_has_already() -> None:
    parts = await with_messages(Parts(master=False))
    parts.state_log.commit("billing", {"orders": {0: 6}})
    assert commit(parts, 6) == []
    assert parts.pending.take() == []
    assert commit(parts, 7) == []
    assert [list(each_queue(offered.offsets)) for offered in parts.pending.take()] == [[("orders", 0, 7)]]


@in_loop
async def test_the_master_takes_only_greater_offsets_from_a_slave() -> None:
    parts = await with_messages(Parts())
    commit(parts, 7)
    from penstock.proto.wire.replication_pb2 import ReplicaReport

    for offset, expected in ((5, 7), (9, 9), (999, 9)):
        parts.offsets.take_from_slave(ReplicaReport.Commits(group="billing", offsets=to_wire({"orders": {0: offset}})))
        assert parts.offsets.committed("billing", "orders", 0) == expected


@in_loop
async def test_a_new_master_forgets_commits_behind_its_log() -> None:
    parts = await with_messages(Parts(master=False))
    for queue_id, offset in ((0, 999), (1, 0)):
        parts.pending.put("billing", "orders", queue_id, offset)
    parts.offsets.state_log = parts.state_log
    record, parts.state_log.commit = parts.state_log.commit, failing_for_want_of_space
    parts.offsets.take_over()
    assert parts.offsets.committed("billing", "orders", 1) == 0
    parts.state_log.commit = record
    parts.pending.put("billing", "orders", 0, 999)
    parts.offsets.take_over()
    assert parts.pending.take() == []
    assert parts.offsets.committed("billing", "orders", 0) == -1, "messages that come now are not passed over"
    assert parts.offsets.committed("billing", "orders", 1) == 0


def failing_for_want_of_space(group: str, offsets: object) -> None:
    raise DiskFull("no space")


@in_loop
async def test_offsets_beyond_a_log_that_lost_its_end_are_lowered() -> None:
    parts = await with_messages(Parts())
    parts.state.offsets.load("billing", "orders", {0: 500, 1: 0})
    parts.offsets.lower_to_log()
    assert parts.state.offsets.row("billing", "orders") == {0: 10, 1: 0}


@in_loop
async def test_ranges_and_searches_know_all_queues_of_a_topic_and_no_others() -> None:
    parts = await with_messages(Parts())
    ranges = parts.offsets.ranges(common_pb2.TopicQueues(topic="orders")).ranges
    assert [(each.queue_id, each.min_offset, each.max_offset) for each in ranges] == [
        (0, 0, 10),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert ranges[0].last_store_timestamp_ms > 0
    with pytest.raises(TopicNotFound):
        parts.offsets.ranges(common_pb2.TopicQueues(topic="missing"))
    with pytest.raises(InvalidArgument):
        parts.offsets.search(broker_pb2.SearchOffsetRequest(topic="orders", queue_id=4))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 queues with 1 offsets"):
        list(each_queue([TopicOffsets(topic="orders", queue_ids=[0, 1], offsets=[5])]))


@in_loop
async def test_what_was_committed_at_a_slave_goes_with_its_group_and_with_its_topic() -> None:
    parts = await with_messages(Parts(master=False))
    for group in ("billing", "audit"):
        parts.state.apply(1 << 40, GROUP, encode_group(Group(group)))
        commit(parts, 5, group=group)
    parts.state.apply(2 << 40, GROUP_DELETED, encode_group_deleted("billing"))
    assert [offered.group for offered in parts.pending.take()] == ["audit"]
    parts.state.apply(3 << 40, TOPIC_DELETED, encode_topic_deleted("orders"))
    assert parts.pending.take() == []
