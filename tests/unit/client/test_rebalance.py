"""Allocation strategies: RocketMQ's rules, by vectors and for any lists."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.client.consume.group.rebalance import (
    STRATEGIES,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
    Strategy,
    allocate,
    average,
    average_by_circle,
    strategy_named,
)
from penstock.client.message import MessageQueue
from penstock.proto.errors import ConfigError


def queues(count: int, broker_name: str = "broker-a", topic: str = "T") -> list[MessageQueue]:
    return [MessageQueue(topic, broker_name, index) for index in range(count)]


def shares(strategy: Strategy, among: list[MessageQueue], members: list[str]) -> list[list[int]]:
    return [[queue.queue_id for queue in strategy(member, among, members)] for member in members]


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        # The vectors of RocketMQ's rule: blocks, the first (count mod members) ones longer by one.
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (8, 4, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (10, 4, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]),
        (6, 2, [[0, 1, 2], [3, 4, 5]]),
        (3, 3, [[0], [1], [2]]),
        (2, 3, [[0], [1], []]),
        (0, 2, [[], []]),
        (5, 1, [[0, 1, 2, 3, 4]]),
    ],
)
def test_average_gives_contiguous_blocks_as_rocketmq(count: int, members: int, expected: list[list[int]]) -> None:
    assert shares(average, queues(count), [f"c{index}" for index in range(members)]) == expected


def test_average_by_circle_deals_queues_like_cards() -> None:
    assert shares(average_by_circle, queues(8), ["a", "b", "c"]) == [[0, 3, 6], [1, 4, 7], [2, 5]]
    assert shares(average_by_circle, queues(1), ["a", "b"]) == [[0], []]


def test_a_client_that_is_not_a_member_gets_nothing() -> None:
    for strategy in STRATEGIES.values():
        assert list(strategy("x@stranger", queues(4, "x@b"), ["x@a", "x@b"])) == []


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


def test_machine_room_shares_only_its_rooms_queues() -> None:
    among = sorted([*queues(5, "room1@b"), *queues(3, "room2@b"), *queues(2, "plain"), *queues(1, "room1@b@x")])
    strategy = MachineRoom({"room1"})
    got = [strategy(member, among, ["c0", "c1"]) for member in ("c0", "c1")]
    # A block of 5 // 2 each, and the one left over to the first.
    assert [[queue.queue_id for queue in each] for each in got] == [[0, 1, 4], [2, 3]]
    assert all(queue.broker_name == "room1@b" for each in got for queue in each)


def test_nearby_room_takes_its_own_queues_and_shares_orphaned_rooms() -> None:
    members = ["east@1", "east@2", "west@1"]
    among = sorted([*queues(4, "east@b"), *queues(3, "west@b"), *queues(3, "north@b")])
    got = {member: MachineRoomNearby()(member, among, members) for member in members}
    assert {queue.broker_name for queue in got["west@1"]} == {"west@b", "north@b"}
    assert sum(queue.broker_name == "west@b" for queue in got["west@1"]) == 3
    assert [sum(queue.broker_name == "north@b" for queue in got[member]) for member in members] == [1, 1, 1]
    assert sorted(queue for each in got.values() for queue in each) == among


def test_nearby_room_says_which_name_has_no_room() -> None:
    with pytest.raises(ConfigError, match="broker 'plain' names no machine room"):
        MachineRoomNearby()("east@1", queues(1, "plain"), ["east@1"])


def test_configured_is_a_fixed_list() -> None:
    wanted = MessageQueue("T", "broker-a", 2)
    assert list(Configured([wanted])("c9", queues(4), ["c9"])) == [wanted]


def test_strategies_are_found_by_rocketmqs_names() -> None:
    assert strategy_named("avg") is average
    assert strategy_named(average_by_circle) is average_by_circle
    with pytest.raises(ConfigError, match="AVG_BY_CIRCLE"):
        strategy_named("ROUND")


def test_allocation_goes_topic_by_topic() -> None:
    among = [*queues(2, topic="A"), *queues(2, topic="B")]
    assert allocate(average, "c0", among, ["c0", "c1"]) == {queues(2, topic="A")[0], queues(2, topic="B")[0]}


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
