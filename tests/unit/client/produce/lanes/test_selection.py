"""Choice of queues and avoidance of slow brokers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.health import BrokerHealth
from penstock.proto.wire.common_pb2 import MASTER, SLAVE
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardMember, ShardView, TopicRoute


@pytest.mark.parametrize(
    ("latency_ms", "avoid_ms"),
    [(0, 0), (49, 0), (100, 0), (549, 0), (550, 2000), (1800, 5000), (3000, 6000), (5000, 10000), (20000, 30000)],
)
def test_a_slow_broker_is_avoided_as_long_as_rocketmq_does(latency_ms: int, avoid_ms: int) -> None:
    health = BrokerHealth()
    health.on_latency("a", latency_ms, 1000)
    assert health.is_avoided("a", 1000 + avoid_ms - 1) is (avoid_ms > 0)
    assert not health.is_avoided("a", 1000 + avoid_ms)


def test_a_failure_counts_as_ten_seconds_and_a_quick_answer_ends_it() -> None:
    health = BrokerHealth()
    health.on_failure("a", 0)
    assert health.is_avoided("a", 9_999)
    assert not health.is_avoided("b", 0)
    health.on_latency("a", 1, 10)
    assert not health.is_avoided("a", 11)


def test_only_writable_queues_of_living_masters_count() -> None:
    route = TopicRoute(
        topic="t",
        exists=True,
        queues=[
            QueueData(broker_name="a", read_queues=4, write_queues=2, perm=6),
            QueueData(broker_name="b", read_queues=4, write_queues=4, perm=4),
            QueueData(broker_name="c", read_queues=4, write_queues=4, perm=6),
        ],
        shards=[
            ShardView(broker_name="a", members=[ShardMember(role=MASTER, address="x:1")]),
            ShardView(broker_name="b", members=[ShardMember(role=MASTER, address="x:2")]),
            ShardView(broker_name="c", members=[ShardMember(broker_id=1, role=SLAVE, address="x:3")]),
        ],
    )
    queues = WriteQueues.of(route)
    assert queues.shards == (("a", 2),)
    assert "a" in queues
    assert "c" not in queues


@pytest.mark.parametrize(
    ("perms", "absent", "is_closed"),
    [
        ((4, 4), (), True),
        ((4,), (4,), True),
        ((4, 6), (), False),
        ((4,), (6,), False),
        ((6,), (), False),
        ((), (), False),
    ],
)
def test_a_topic_is_closed_when_no_group_takes_messages_for_it_also_none_that_is_down(
    perms: tuple[int, ...], absent: tuple[int, ...], is_closed: bool
) -> None:
    def queues(prefix: str, perms: tuple[int, ...]) -> list[QueueData]:
        return [
            QueueData(broker_name=f"{prefix}{number}", read_queues=4, write_queues=4, perm=perm)
            for number, perm in enumerate(perms)
        ]

    route = TopicRoute(topic="t", exists=True, queues=queues("a", perms), absent=queues("b", absent))
    assert WriteQueues.of(route).is_closed is is_closed, "whether or not a group has a master now"


def test_rotation_visits_every_queue_once_and_changes_brokers() -> None:
    queues = WriteQueues([("b", 3), ("a", 2)])
    turn, seen = 0, []
    for _ in range(queues.total):
        found = queues.next_queue(turn, lambda name, queue_id: True)
        assert found is not None
        turn = found[0]
        seen.append(found[1:])
    assert seen == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2)]


def test_no_free_queue_is_no_queue() -> None:
    assert WriteQueues([("a", 2)]).next_queue(0, lambda name, queue_id: False) is None
    assert WriteQueues([]).next_queue(0, lambda name, queue_id: True) is None


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50),
)
def test_columnar_choice_by_hash_equals_the_choice_of_one(counts: list[int], hashes: list[int]) -> None:
    queues = WriteQueues([(f"broker-{number}", count) for number, count in enumerate(counts)])
    shards, queue_ids = queues.split_by_hash(np.array(hashes, dtype=np.int32))
    expected = [queues.queue(abs(value) % sum(counts)) for value in hashes]
    assert [(queues.shards[s][0], q) for s, q in zip(shards.tolist(), queue_ids.tolist(), strict=True)] == expected
