"""Allocation strategies for any lists; RocketMQ's vectors are in tests/transcripts/rebalance.txt."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consume.group.rebalance import (
    STRATEGIES,
    ConsistentHash,
    allocate,
    average,
    average_by_circle,
)
from penstock.client.message import MessageQueue
from penstock.proto.errors import ConfigError


def queues(count: int, broker_name: str = "broker-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, index) for index in range(count)]


def test_consistent_hash_places_a_queue_by_md5_of_its_java_text() -> None:
    # md5("MessageQueue [topic=T, brokerName=broker-a, queueId=0]") and the points "c0-0" … "c1-9", computed by hand.
    import hashlib

    def place(text: str) -> int:
        return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)

    points = {place(f"{member}-{node}"): member for member in ("c0", "c1") for node in range(10)}
    for queue in queues(16):
        target = place(f"MessageQueue [topic=T, brokerName=broker-a, queueId={queue.queue_id}]")
        owner = points[min((point for point in points if point >= target), default=min(points))]
        assert list(ConsistentHash()(owner, [queue], ["c0", "c1"])) == [queue]


def test_consistent_hash_moves_only_the_queues_of_who_left() -> None:
    members, among = [f"c{index}" for index in range(5)], queues(64)
    before = {queue: member for member in members for queue in ConsistentHash()(member, among, members)}
    rest = members[:2] + members[3:]
    after = {queue: member for member in rest for queue in ConsistentHash()(member, among, rest)}
    assert set(after) == set(among)
    assert all(after[queue] == member for queue, member in before.items() if member != "c2")


def test_consistent_hash_needs_a_virtual_node() -> None:
    with pytest.raises(ConfigError, match="0 virtual nodes"):
        ConsistentHash(0)


def test_a_strategy_of_the_users_own_gets_sorted_lists_and_cannot_invent_queues() -> None:
    seen = []

    def own(client_id: str, among: object, members: object, /) -> list[MessageQueue]:
        seen.append((client_id, among, members))
        return [MessageQueue("T", "broker-a", 1), MessageQueue("T", "nowhere", 7)]

    among = queues(3)
    assert allocate(own, "b", reversed_set(among), ["c", "b"]) == {among[1]}
    assert seen == [("b", among, ["b", "c"])]


def reversed_set(among: list[MessageQueue]) -> list[MessageQueue]:
    return list(reversed(among))


names = st.text("abcdefgh", min_size=1, max_size=6)
rooms = st.sampled_from(["east", "west", "north"])


@settings(max_examples=80, deadline=None)
@given(
    members=st.sets(st.tuples(rooms, names).map("@".join), min_size=1, max_size=12),
    brokers=st.sets(st.tuples(rooms, names).map("@".join), min_size=1, max_size=4),
    per_broker=st.integers(1, 9),
    name=st.sampled_from(sorted(STRATEGIES)),
)
def test_every_queue_has_exactly_one_owner_when_views_agree(
    members: set[str], brokers: set[str], per_broker: int, name: str
) -> None:
    among = [MessageQueue("T", broker, index) for broker in brokers for index in range(per_broker)]
    owned = [queue for member in members for queue in allocate(STRATEGIES[name], member, among, members)]
    assert sorted(owned) == sorted(among)


@settings(max_examples=80, deadline=None)
@given(members=st.sets(names, min_size=1, max_size=12), count=st.integers(0, 40))
def test_average_shares_differ_by_one_at_most(members: set[str], count: int) -> None:
    for strategy in (average, average_by_circle):
        sizes = [len(allocate(strategy, member, queues(count), members)) for member in members]
        assert max(sizes) - min(sizes) <= 1
