from __future__ import annotations

import pytest

from penstock.broker.core import state as kinds
from penstock.broker.core.state import Group, State, Topic, encode_offsets, encode_topic, encode_topic_deleted
from penstock.proto.errors import Corrupt
from tests.support.broker.broker_parts import Parts, in_loop

TOPIC = Topic("orders", 8, 4, 6, {"message.type": "FIFO"}, {"order": True, "topicSysFlag": 2})


def test_topic_and_group_survive_their_json_with_fields_that_only_rocketmq_knows() -> None:
    assert Topic.from_json(TOPIC.to_json()) == TOPIC
    group = Group("billing", False, 3, {"a": "b"}, {"consumeTimeoutMinute": 99})
    assert Group.from_json(group.to_json()) == group


def test_a_record_applied_twice_changes_nothing() -> None:
    state = State()
    state.apply(100, kinds.TOPIC, encode_topic(TOPIC))
    changes = state.topics.changes
    state.apply(100, kinds.TOPIC, encode_topic(TOPIC))
    assert state.topics.changes == changes


def test_an_older_record_does_not_replace_a_newer_one() -> None:
    state = State()
    state.apply(200, kinds.OFFSETS, encode_offsets("billing", {"orders": {0: 20}}))
    state.apply(100, kinds.OFFSETS, encode_offsets("billing", {"orders": {0: 10, 1: 5}}))
    assert state.offsets.row("billing", "orders") == {0: 20, 1: 5}


def test_records_below_a_deletion_do_not_bring_the_topic_or_its_offsets_back() -> None:
    state = State()
    state.apply(300, kinds.TOPIC_DELETED, encode_topic_deleted("orders"))
    state.apply(100, kinds.TOPIC, encode_topic(TOPIC))
    state.apply(200, kinds.OFFSETS, encode_offsets("billing", {"orders": {0: 1}}))
    assert state.topic("orders") is None
    assert state.committed("billing", "orders", 0) == -1
    state.apply(400, kinds.TOPIC, encode_topic(TOPIC))
    assert state.topic("orders") is not None


def test_a_deletion_of_a_topic_takes_its_offsets_and_a_deletion_of_a_group_its_own() -> None:
    state = State()
    for group in ("billing", "audit"):
        for topic in ("orders", "refunds"):
            state.apply(10, kinds.OFFSETS, encode_offsets(group, {topic: {0: 1}}))
    state.apply(20, kinds.TOPIC_DELETED, encode_topic_deleted("orders"))
    state.apply(30, kinds.GROUP_DELETED, kinds.encode_group_deleted("audit"))
    assert state.offsets.pairs() == [("billing", "refunds")]


def test_records_below_a_snapshots_position_are_ignored() -> None:
    state = State()
    state.offsets.load("billing", "orders", {0: 50})
    state.offsets.base = 1000
    state.apply(999, kinds.OFFSETS, encode_offsets("billing", {"orders": {0: 10}}))
    assert state.committed("billing", "orders", 0) == 50
    state.apply(1000, kinds.OFFSETS, encode_offsets("billing", {"orders": {0: 60}}))
    assert state.committed("billing", "orders", 0) == 60


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"topicName": "x"}', b"\xff\xfe"])
def test_a_malformed_state_record_is_corrupt_by_name(body: bytes) -> None:
    with pytest.raises(Corrupt, match="state record at physical offset 77"):
        State().apply(77, kinds.TOPIC, body)


def test_an_unknown_kind_is_left_alone() -> None:
    State().apply(1, "FROM_THE_FUTURE", b"{}")


@in_loop
async def test_the_masters_records_are_applied_at_once_a_slaves_at_dispatch() -> None:
    parts = Parts()
    told: list[str] = []
    parts.state.on_topics_changed = lambda updated, removed: told.extend([t.name for t in updated] + removed)
    parts.state_log.put_topic(TOPIC)
    parts.state_log.commit("billing", {"orders": {0: 17, 3: 4}, "refunds": {0: 2}})
    assert parts.state.topic("orders") == TOPIC
    parts.dispatch()
    assert told == ["orders"]
    replica = State()
    for result in parts.store.replay(0):
        for position, record in result.state_records:
            replica.apply_record(position, record)
    assert replica.offsets.row("billing", "orders") == {0: 17, 3: 4}
    assert replica.committed("billing", "refunds", 0) == 2
    assert replica.topics.get("orders") is not None


@in_loop
async def test_a_commit_of_many_queues_is_one_record_and_an_unchanged_one_none() -> None:
    parts = Parts()
    parts.state_log.commit("billing", {"orders": dict.fromkeys(range(500), 1)})
    assert len(parts.store.batches) == 1
    assert parts.state_log.commit("billing", {"orders": {3: 1}}) is None
    assert len(parts.store.batches) == 1
