"""Broker groups whose last member went: what is remembered of them, for how long, and what a return changes."""

from __future__ import annotations

import tracemalloc

import pytest

from penstock.nameserver.routes import RouteTable
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.common_pb2 import SLAVE, TopicConfig
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from tests.support.broker.registrations import members_of, queues_of, registration


def test_when_all_members_are_gone_the_shard_is_remembered_as_absent() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T",)), 0.0)
    table.register(2, registration(broker_id=1, role=SLAVE, topics=("T",)), 0.0)
    table.unregister(1)
    change = table.unregister(2)
    assert change.topics == {"T"}
    route = table.route("T")
    assert route.exists
    assert queues_of(route) == {"broker-a": 4}
    assert [queues.broker_name for queues in route.absent] == ["broker-a"]
    assert not route.shards
    assert table.holders.topics() == ["T"]
    assert not table.cluster().shards
    assert [shard.broker_name for shard in table.cluster().absent] == ["broker-a"]


def test_an_absent_shard_is_no_place_for_messages_and_told_beside_those_that_live() -> None:
    table = RouteTable()
    table.register(1, registration("broker-a", topics=("T",)), 0.0)
    table.register(2, registration("broker-b", topics=("T", "U")), 0.0)
    table.unregister(2)
    route = table.route("T")
    assert queues_of(route) == {"broker-a": 4}
    assert [queues.broker_name for queues in route.absent] == ["broker-b"]
    assert [shard.broker_name for shard in table.route("new").shards] == ["broker-a"]
    change = table.register(3, registration("broker-b", topics=("T",)), 1.0)  # U was deleted meanwhile
    assert change.topics == {"T", "U"}
    assert not table.route("T").absent
    assert not table.route("U").exists


def test_a_slave_that_is_back_first_takes_no_topics_from_its_group() -> None:
    table = RouteTable()
    table.register(1, registration(topics=("T", "U")), 0.0)
    table.unregister(1)
    change = table.register(2, registration(broker_id=1, role=SLAVE, topics=()), 1.0)
    assert change.topics == {"T", "U"}
    for topic in change.topics:
        assert queues_of(table.route(topic)) == {"broker-a": 4}
        assert members_of(table.route(topic)) == {"broker-a": {1: "SLAVE"}}
        assert not table.route(topic).absent
    table.register(3, registration(topics=("T",)), 2.0)
    assert table.holders.topics() == ["T"], "what a master says counts"


def test_an_absent_shard_is_forgotten_by_name_and_a_living_one_is_not() -> None:
    table = RouteTable()
    table.register(1, registration("broker-a", topics=("T",)), 0.0)
    with pytest.raises(InvalidArgument, match=r"broker group broker-a is not gone: .* lives; stop it first"):
        table.forget("broker-a")
    with pytest.raises(InvalidArgument, match="broker group broker-b is not known here, and none is absent"):
        table.forget("broker-b")
    table.unregister(1)
    with pytest.raises(InvalidArgument, match="broker-b is not known here: absent are broker-a"):
        table.forget("broker-b")
    assert table.forget("broker-a").topics == {"T"}
    assert not table.route("T").exists
    assert table.holders.topics() == []


@pytest.mark.parametrize("bound", [("ABSENT_TOPICS_MAX", 3), ("ABSENT_SHARDS_MAX", 1)])
def test_the_memory_of_absent_shards_is_bounded_and_whose_end_that_is_is_told(
    monkeypatch: pytest.MonkeyPatch, bound: tuple[str, int]
) -> None:
    monkeypatch.setattr(f"penstock.nameserver.routes.{bound[0]}", bound[1])
    table = RouteTable()
    for number, name in enumerate(("broker-a", "broker-b")):
        table.register(number, registration(name, topics=("T", f"only-{name}")), 0.0)
    assert table.unregister(0).topics == {"T", "only-broker-a"}
    assert table.unregister(1).topics == {"T", "only-broker-a", "only-broker-b"}
    assert [shard.broker_name for shard in table.cluster().absent] == ["broker-b"]
    assert not table.route("only-broker-a").exists
    table.register(2, registration("broker-b", topics=("T",)), 1.0)
    assert not table.cluster().absent
    table.unregister(2)
    assert [shard.broker_name for shard in table.cluster().absent] == ["broker-b"]


def test_long_attributes_of_absent_shards_count_as_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.routes.ABSENT_TOPICS_MAX", 10)
    table = RouteTable()
    for number, (name, size) in enumerate((("broker-a", 4000), ("broker-b", 1000), ("broker-c", 1000))):
        table.register(number, registration(name, topics=()), 0.0)
        config = TopicConfig(topic=name, read_queues=1, write_queues=1, perm=6, attributes={"long": "x" * size})
        table.topics_changed(number, BrokerReport.TopicChanges(updated=[config]), 0.0)
        table.unregister(number)
        assert table.holders.topics() == (
            [] if size == 4000 else sorted(f"broker-{letter}" for letter in "bc"[:number])
        )


def test_what_absent_shards_are_remembered_with_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two full groups, as strangers may register them."""
    topics_max = 10_000
    monkeypatch.setattr("penstock.nameserver.routes.ABSENT_TOPICS_MAX", topics_max)
    tracemalloc.start()
    try:
        table = RouteTable()
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2):
            topics = tuple(f"topic-{number}-{each}" for each in range(topics_max // 2))
            table.register(number, registration(f"broker-{number}", topics=topics), 0.0)
            table.unregister(number)
        while table.holders.is_behind:
            table.holders.step()
        held = tracemalloc.get_traced_memory()[0] - before
        assert len(table.holders.topics()) == topics_max
    finally:
        tracemalloc.stop()
    assert held < topics_max * 400
    assert table._absent["broker-0"]["topic-0-0"] is table._absent["broker-1"]["topic-1-7"], "what all have is shared"


def test_a_topic_of_absent_shards_alone_keeps_its_attributes() -> None:
    table = RouteTable()
    table.register(1, registration(), 0.0)
    config = TopicConfig(topic="T", read_queues=1, write_queues=1, perm=6, attributes={"retention.ms": "5"})
    table.topics_changed(1, BrokerReport.TopicChanges(updated=[config]), 0.0)
    table.unregister(1)
    assert dict(table.route("T").attributes) == {"retention.ms": "5"}
