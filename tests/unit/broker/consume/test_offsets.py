from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest import mock

import pytest

from penstock.broker.admin.administration import Administration
from penstock.broker.consume import offsets
from penstock.broker.consume.consume import Consume
from penstock.broker.consume.offsets import each_queue, to_wire
from penstock.broker.core.tables.groups import GROUP, GROUP_DELETED, Group
from penstock.broker.core.tables.table import compact
from penstock.broker.core.tables.topics import TOPIC_DELETED
from penstock.proto.errors import (
    FlowControl,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    NotCurrent,
    NotMaster,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import (
    SEND_OK,
    CommitOffsetsRequest,
    GroupName,
    QueryOffsetsRequest,
    SearchOffsetRequest,
)
from penstock.proto.wire.common_pb2 import Empty, GroupConfig, TopicOffsets, TopicQueues
from tests.support.broker.kit import Kit, in_loop


async def with_messages(parts: Kit, count: int = 10) -> Kit:
    parts.add_topic()
    is_master = parts.role.is_master
    if not is_master:
        parts.change_role(master=True)
    await parts.append([b"x"] * count)
    if not is_master:
        parts.change_role(master=False)
    parts.dispatch()
    return parts


def queues(topic: str, *queue_ids: int) -> TopicQueues:
    return TopicQueues(topic=topic, queue_ids=queue_ids)


async def commit(
    parts: Kit, offset: int, *, topic: str = "orders", queue_id: int = 0, group: str = "billing", **settings: object
) -> list[int]:
    """Commit one queue; the refused queue ids."""
    part = TopicOffsets(topic=topic, queue_ids=[queue_id], offsets=[offset])
    request = CommitOffsetsRequest(group=group, offsets=[part], **settings)  # type: ignore[arg-type]
    return [queue for refused in (await parts[Consume].offsets.commit(request)).refused for queue in refused.queue_ids]


@in_loop
async def test_a_commit_creates_its_group_and_is_found_by_queries() -> None:
    parts = await with_messages(Kit())
    assert await commit(parts, 7) == []
    assert parts.tables.groups.get("billing") is not None
    query = parts[Consume].offsets.query
    [found] = (await query(QueryOffsetsRequest(group="billing", queues=[queues("orders", 0, 1)]))).offsets
    assert (found.topic, list(found.queue_ids), list(found.offsets)) == ("orders", [0, 1], [7, -1])
    [found] = (await query(QueryOffsetsRequest(group="billing"))).offsets
    assert (found.topic, list(found.queue_ids), list(found.offsets)) == ("orders", [0], [7])


@in_loop
async def test_offsets_go_forward_and_back_only_by_force_which_tells_the_holder() -> None:
    parts = await with_messages(Kit())
    resets: list[Any] = []
    parts[Consume].sessions.notify_reset = lambda *reset: resets.append(reset)  # type: ignore[method-assign]
    await commit(parts, 7)
    assert await commit(parts, 3) == [0]
    assert parts[Consume].pending.committed("billing", "orders", 0) == 7
    assert await commit(parts, 3, force=True) == []
    assert parts[Consume].pending.committed("billing", "orders", 0) == 3
    assert resets == [("billing", "orders", 0, 3, 0)]


@in_loop
async def test_a_member_commits_only_queues_that_its_session_holds() -> None:
    parts = await with_messages(Kit())
    assert await commit(parts, 5, session_id=99) == [0]
    groups = parts[Consume].sessions._groups
    groups.join(99, "billing", "a", {})
    groups.claim(99, "orders", [0])
    assert await commit(parts, 5, session_id=99) == []
    assert await commit(parts, 50, session_id=99) == [0], "beyond the end: refused, its other queues go on"


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
@in_loop
async def test_a_commit_that_makes_no_sense_is_refused_by_name(
    offset: int, settings: dict[str, object], error: type[PenstockError]
) -> None:
    parts = await with_messages(Kit())
    with pytest.raises(error):
        await commit(parts, offset, **settings)  # type: ignore[arg-type]


@in_loop
async def test_groups_are_not_created_where_that_is_off() -> None:
    parts = await with_messages(Kit(autoCreateSubscriptionGroup=False))
    with pytest.raises(GroupNotFound, match="autoCreateSubscriptionGroup"):
        await commit(parts, 1)


@in_loop
async def test_a_slave_keeps_commits_and_offers_them_until_the_log_has_them() -> None:
    parts = await with_messages(Kit(master=False))
    assert await commit(parts, 6) == []
    assert parts[Consume].pending.committed("billing", "orders", 0) == 6
    assert parts.tables.offsets.get("billing", "orders", 0) == -1
    (offered,) = parts[Consume].pending.take()
    assert list(each_queue(offered.offsets)) == [("orders", 0, 6)]
    with pytest.raises(NotMaster):
        await commit(parts, 1, force=True)
    parts.commit("billing", {"orders": {0: 6}})  # as the master's record would come
    assert parts[Consume].pending.take() == []
    parts.commit("billing", {"orders": {0: 2}})
    assert parts[Consume].pending.committed("billing", "orders", 0) == 2, "a later reset is not undone"


@in_loop
async def test_a_slave_keeps_no_commit_that_its_log_has_already() -> None:
    parts = await with_messages(Kit(master=False))
    parts.commit("billing", {"orders": {0: 6}})
    assert await commit(parts, 6) == []
    assert parts[Consume].pending.take() == []
    assert await commit(parts, 7) == []
    assert [list(each_queue(offered.offsets)) for offered in parts[Consume].pending.take()] == [[("orders", 0, 7)]]


@in_loop
async def test_the_master_takes_only_greater_offsets_from_a_slave() -> None:
    parts = await with_messages(Kit())
    await commit(parts, 7)
    from penstock.proto.wire.replication_pb2 import ReplicaReport

    for offset, expected in ((5, 7), (9, 9), (999, 9)):
        parts[Consume].offsets.take_from_slave(
            ReplicaReport.Commits(group="billing", offsets=to_wire({"orders": {0: offset}}))
        )
        assert parts[Consume].pending.committed("billing", "orders", 0) == expected


@in_loop
async def test_a_new_master_forgets_commits_behind_its_log() -> None:
    parts = await with_messages(Kit(master=False))
    for queue_id, offset in ((0, 999), (1, 0)):
        parts[Consume].pending.put("billing", "orders", queue_id, offset)
    left = parts.fail_appends()
    parts.change_role(master=True)
    assert parts[Consume].pending.committed("billing", "orders", 1) == 0
    left[0] = 100
    parts[Consume].pending.put("billing", "orders", 0, 999)
    parts[Consume].offsets.take_over()
    assert parts[Consume].pending.take() == []
    assert parts[Consume].pending.committed("billing", "orders", 0) == -1, "messages that come now are not passed over"
    assert parts[Consume].pending.committed("billing", "orders", 1) == 0


@in_loop
async def test_offsets_beyond_a_log_that_lost_its_end_are_lowered() -> None:
    parts = await with_messages(Kit())
    parts.tables.offsets.put_loaded("billing", "orders", {0: 500, 1: 0})
    parts.change_role(master=True)
    assert parts.tables.offsets.row("billing", "orders") == {0: 10, 1: 0}


@in_loop
async def test_who_cannot_lower_them_is_master_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    parts = await with_messages(Kit())
    parts.change_role(master=False)
    parts.tables.offsets.put_loaded("billing", "orders", {0: 500})
    parts.store.append = mock.Mock(side_effect=FlowControl("no buffer is free"))  # type: ignore[method-assign]
    parts.change_role(master=True)
    del parts.store.append
    assert "committed offsets stay above the log's end group=billing" in caplog.text
    assert (await parts.append([b"taken"])).status == SEND_OK


@in_loop
async def test_what_is_committed_as_the_mastership_ends_is_not_told_as_done() -> None:
    parts = await with_messages(Kit())
    parts.role.holds = parts.role.waits_for_replicas = True
    parts.role.confirms = False
    request = CommitOffsetsRequest(
        group="billing", force=True, offsets=[TopicOffsets(topic="orders", queue_ids=[0], offsets=[3])]
    )
    end = parts.store.end_offset
    committing = asyncio.create_task(parts[Consume].offsets.commit(request))
    await asyncio.sleep(0)
    assert parts.store.end_offset > end, "it has appended its record, and gives others their turn"
    parts.change_role(master=False)
    with pytest.raises((OutcomeUnknown, NotMaster)):
        await committing


@in_loop
async def test_who_is_elected_lowers_them_to_what_its_log_has_confirmed_or_not() -> None:
    """It was a slave when it started; what comes next in the queue is not passed over."""
    parts = await with_messages(Kit(holds=True))
    parts.confirm()
    parts.dispatch()
    await parts.append([b"not confirmed"])
    parts.change_role(master=False)
    parts.tables.offsets.put_loaded("billing", "orders", {0: 500, 3: 1})
    parts.tables.offsets.put_loaded("audit", "orders", {0: 11})
    parts.change_role(master=True)
    assert parts.tables.offsets.row("billing", "orders") == {0: 11, 3: 0}
    assert parts.tables.offsets.row("audit", "orders") == {0: 11}


@in_loop
async def test_ranges_and_searches_know_all_queues_of_a_topic_and_no_others() -> None:
    parts = await with_messages(Kit())
    ranges = (await parts[Consume].offsets.ranges(queues("orders"))).ranges
    assert [(each.queue_id, each.min_offset, each.max_offset) for each in ranges] == [
        (0, 0, 10),
        (1, 0, 0),
        (2, 0, 0),
        (3, 0, 0),
    ]
    assert ranges[0].last_store_timestamp_ms > 0
    with pytest.raises(TopicNotFound):
        await parts[Consume].offsets.ranges(queues("missing"))
    with pytest.raises(InvalidArgument):
        await parts[Consume].offsets.search(SearchOffsetRequest(topic="orders", queue_id=4))


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 queues with 1 offsets"):
        list(each_queue([TopicOffsets(topic="orders", queue_ids=[0, 1], offsets=[5])]))


@in_loop
async def test_what_was_committed_at_a_slave_goes_with_its_group_and_with_its_topic() -> None:
    parts = await with_messages(Kit(master=False))
    for group in ("billing", "audit"):
        parts.tables.apply(1 << 40, GROUP, compact(Group(group).to_json()))
        await commit(parts, 5, group=group)
    parts.tables.apply(2 << 40, GROUP_DELETED, b'{"groupName":"billing"}')
    assert [offered.group for offered in parts[Consume].pending.take()] == ["audit"]
    parts.tables.apply(3 << 40, TOPIC_DELETED, b'{"topicName":"orders"}')
    assert parts[Consume].pending.take() == []


@in_loop
async def test_a_broker_that_may_be_behind_says_nothing_of_what_was_committed() -> None:
    parts = await with_messages(Kit())
    await commit(parts, 7)
    consume, parts.role.is_current = parts[Consume], False
    session = consume._consumer_session(no_requests(), None)
    for asked in (
        consume.offsets.query(QueryOffsetsRequest(group="billing")),
        consume.describe_group(GroupName(group="billing")),
        anext(session),
    ):
        with pytest.raises(NotCurrent, match="may lack what was acknowledged"):
            await asked


async def no_requests() -> AsyncIterator[Any]:
    return
    yield


@in_loop
async def test_commits_and_groups_are_answered_and_shown_when_replicas_have_confirmed_them() -> None:
    parts = await with_messages(Kit())
    consume, query = parts[Consume], parts[Consume].offsets.query
    asked = QueryOffsetsRequest(group="billing", queues=[queues("orders", 0)])
    await commit(parts, 3)
    parts.role.waits_for_replicas, parts.role.confirms, parts.role.holds = True, False, True
    for _ in range(2):  # the second one has nothing new to say
        with pytest.raises(OutcomeUnknown, match="offsets of group billing"):
            await commit(parts, 7)
    for call in (
        query(asked),
        consume.describe_group(GroupName(group="billing")),
        consume._list_groups(Empty()),
        parts[Administration]._list_topics(Empty()),
    ):
        with pytest.raises(NotCurrent, match="cannot be shown"):
            await call
    with pytest.raises(OutcomeUnknown, match="group other"):
        await consume.put_group(GroupConfig(group="other", consume_enable=True))
    with pytest.raises(OutcomeUnknown, match="deletion of group other"):
        await consume.delete_group("other")
    parts.role.enough = False  # nothing would be confirmed while the replicas are away, and consumers go on reading
    assert (await query(asked)).offsets[0].offsets == [3], "7 may vanish with this master"
    parts.role.is_acting = False  # nor would another master's have been seen
    with pytest.raises(NotCurrent, match="cannot be shown"):
        await query(asked)
    parts.role.enough = parts.role.is_acting = parts.role.confirms = True
    assert await commit(parts, 7) == []
    assert (await query(asked)).offsets[0].offsets == [7]


@in_loop
async def test_what_a_slave_was_told_is_shown_when_replicas_have_confirmed_it() -> None:
    parts = await with_messages(Kit())
    asked = QueryOffsetsRequest(group="billing", queues=[queues("orders", 0)])
    await commit(parts, 3)
    parts.role.waits_for_replicas, parts.role.confirms, parts.role.holds = True, False, True
    parts.role.enough = False
    parts[Consume].pending.put("billing", "orders", 0, 7)
    parts[Consume].offsets.take_over()
    assert (await parts[Consume].offsets.query(asked)).offsets[0].offsets == [3], "7 may vanish with this master"
    parts.role.enough = parts.role.confirms = True
    assert await commit(parts, 8) == []
    assert (await parts[Consume].offsets.query(asked)).offsets[0].offsets == [8]


@in_loop
async def test_what_a_new_master_has_found_in_its_log_is_shown_when_it_is_confirmed() -> None:
    parts = await with_messages(Kit())
    parts.role.waits_for_replicas, parts.role.confirms, parts.role.holds = True, False, True
    with pytest.raises(OutcomeUnknown):
        await commit(parts, 3)
    parts.change_role(master=False)
    parts.change_role(master=True)
    for parts.role.enough in (True, False):
        with pytest.raises(NotCurrent, match="cannot be shown"):
            await parts[Consume].offsets.query(QueryOffsetsRequest(group="billing"))
    parts.confirm()
    assert (await parts[Consume].offsets.query(QueryOffsetsRequest(group="billing"))).offsets[0].offsets == [3]


@in_loop
async def test_a_reset_that_many_who_broadcast_are_told_of_leaves_others_their_turn() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "TURN", 8)
        node = await with_messages(Kit())
        turns, told = 0, list[int]()
        sessions = node[Consume].sessions
        sessions.notify_reset = lambda *reset: told.append(turns)  # type: ignore[method-assign]
        for session_id in range(7):
            sessions._groups.join(session_id, "billing", f"c{session_id}", {"orders": "*"}, broadcasting=True)

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(others())
        asked = TopicOffsets(topic="orders", queue_ids=range(4), offsets=[0] * 4)
        await node[Consume].offsets.commit(CommitOffsetsRequest(group="billing", offsets=[asked], force=True))
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
        assert len(set(told)) == 4
