"""Order topics: a sharding key keeps its queue, also while its broker group is away."""

from __future__ import annotations

import asyncio

import pytest

from penstock.client import Admin, Message, Producer
from penstock.client.aio import AsyncAdmin
from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.sharding.key_moves import KEY_AWAY_S
from penstock.formats.attributes.order_conf import ORDER_CONF, order_conf, ordered_shards, parse_order_conf
from penstock.formats.hashing import string_hash
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, InvalidName
from tests.support.client.lanes import NOW, bodies, lanes, part, start
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

CONF = (("a", 1), ("b", 1))
KEYS = [f"key-{number}" for number in range(12)]


def homes(conf: tuple[tuple[str, int], ...] = (("broker-a", 4), ("broker-b", 4))) -> dict[str, str]:
    """The broker group of each key, by RocketMQ's rule over all queues."""
    names = [name for name, count in conf for _ in range(count)]
    return {key: names[abs(string_hash(key)) % len(names)] for key in KEYS}


def test_keys_of_a_group_that_is_away_wait_for_it_and_others_go_on() -> None:
    topic = lanes(("a", 1))
    topic.adopt(WriteQueues([("a", 1)], ordered=CONF), NOW)
    topic.add([part(b"a1", hashes=[0]), part(b"b1", hashes=[1]), part(b"b2", hashes=[1])])
    (other,) = start(topic)
    assert (other.lane.broker_name, bodies(other)) == ("a", [b"a1"])
    topic.acknowledged(other)
    later = NOW + 5 * KEY_AWAY_S
    assert start(topic, later) == []
    assert topic.next_due(later) > later
    topic.adopt(WriteQueues(CONF, ordered=CONF), later)
    (home,) = start(topic, later)
    assert (home.lane.broker_name, bodies(home)) == ("b", [b"b1", b"b2"])


def test_a_key_that_waited_too_long_is_refused_with_the_reason() -> None:
    topic = lanes(("a", 1))
    topic.adopt(WriteQueues([("a", 1)], ordered=CONF), NOW)
    topic.add([part(b"b1", hashes=[1], deadline=NOW + 1)])
    assert start(topic) == []
    (failure,) = topic.expire(NOW + 1)
    assert isinstance(failure.error, BrokerUnavailable)
    assert "without a living master (b), which keeps it: this is an order topic" in failure.error.message


def test_a_batch_of_unknown_outcome_stays_whatever_the_configuration_says() -> None:
    topic = lanes(("a", 1), ("b", 1), retry_another_shard_on_unknown=True)
    topic.adopt(WriteQueues(CONF, ordered=CONF), NOW)
    topic.add([part(b"b1", hashes=[1])])
    (batch,) = start(topic)
    topic.on_error(batch, BrokerUnavailable("broken", status="UNAVAILABLE"), NOW)
    topic.adopt(WriteQueues([("a", 1)], ordered=CONF), NOW)
    assert start(topic, NOW + 9) == []
    topic.adopt(WriteQueues(CONF, ordered=CONF), NOW + 10)
    assert start(topic, NOW + 10) == [batch]


def test_keys_move_when_the_topics_queues_are_changed_and_in_order() -> None:
    topic = lanes(("a", 1))
    topic.adopt(WriteQueues([("a", 1), ("b", 1)], ordered=(("a", 1),)), NOW)
    topic.add([part(b"1", hashes=[1])])
    (first,) = start(topic)
    assert first.lane.broker_name == "a"
    topic.adopt(WriteQueues(CONF, ordered=CONF), NOW)
    topic.add([part(b"2", hashes=[1])])
    assert start(topic) == []  # the first is under way
    topic.acknowledged(first)
    (second,) = start(topic)
    assert (second.lane.broker_name, bodies(second)) == ("b", [b"2"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        ";",
        "a",
        "a:",
        "a:0",
        "a:-1",
        "a:65537",
        "a:1;a:2",
        "a:1;",
        "a:٣",
        "a b:1",
        ":1",
        "a:1" * 30_000,
        ";".join(f"b{number}:65536" for number in range(17)),
    ],
)
def test_a_configuration_that_is_none_is_refused_and_ignored_in_routes(text: str) -> None:
    with pytest.raises((InvalidArgument, InvalidName)):
        parse_order_conf(text)
    assert ordered_shards({ORDER_CONF: text}) == ()


def test_a_configuration_can_be_written_and_read() -> None:
    assert order_conf({"broker-b": 8, "broker-a": 65_536}) == "broker-a:65536;broker-b:8"
    assert parse_order_conf("broker-b:8;broker-a:65536") == (("broker-a", 65_536), ("broker-b", 8))


def test_a_producer_that_comes_while_a_group_is_away_knows_its_keys() -> None:
    with RunningCluster(shards=2) as cluster, Admin(cluster.namesrv) as admin:
        assert admin.create_topic("steps", queues=4, order_topic=True).is_ordered
        cluster.kill("broker-b")
        with Producer(cluster.namesrv, delivery_timeout_s=60) as producer:
            sent = {key: producer.send_async("steps", b"1", sharding_key=key, timeout_s=60) for key in KEYS}
            for key, home in homes().items():
                if home == "broker-a":
                    assert sent[key].result(30).broker_name == home
            assert set(homes().values()) == {"broker-a", "broker-b"}
            lost = next(key for key, home in homes().items() if home == "broker-b")
            with pytest.raises(BrokerUnavailable, match=r"\(broker-b\), which keeps it: this is an order topic"):
                producer.send("steps", b"2", sharding_key=lost, timeout_s=2 * KEY_AWAY_S)
            assert not any(sent[key].done() for key, home in homes().items() if home == "broker-b")
            with pytest.raises(BrokerUnavailable, match="no member of broker-b lives: nothing was changed"):
                admin.update_topic("steps", queues=8)
            with pytest.raises(BrokerUnavailable, match="broker-b has no living master, and would never get keys"):
                admin.create_topic("others", order_topic=True)
            cluster.revive("broker-b")
            assert {key: each.result(30).broker_name for key, each in sent.items()} == homes()
            seen = [producer.send("steps", b"3", selector=lambda queues, _: queues[5], timeout_s=30)]
            assert (seen[0].broker_name, seen[0].queue_id) == ("broker-b", 1)


def test_an_order_topic_grows_shrinks_and_ceases_without_a_refused_message() -> None:
    with RunningCluster(shards=2) as cluster, Admin(cluster.namesrv) as admin:
        admin.create_topic("steps", queues=2, order_topic=True, type="FIFO")
        with Producer(cluster.namesrv) as producer:
            for change in ({"queues": 4}, {"write_queues": 2}, {"order_topic": False}, {"order_topic": True}):
                info = admin.update_topic("steps", **change)  # type: ignore[arg-type]
                producer.send_batch([Message("steps", b"x", sharding_key=key) for key in KEYS])
                assert info.message_type == "FIFO"
                assert info.is_ordered is change.get("order_topic", True)
            assert info.attributes[ORDER_CONF] == "broker-a:2;broker-b:2"
        with pytest.raises(InvalidArgument, match="order topic: change it at all its broker groups"):
            admin.update_topic("steps", queues=8, brokers=["broker-a"])
        with pytest.raises(InvalidArgument, match="must be as broker-a:8;broker-b:8"):
            admin.create_topic("other", attributes={ORDER_CONF: "all"})


def test_the_twin_makes_order_topics() -> None:
    async def check(namesrv: str) -> None:
        async with AsyncAdmin(namesrv) as admin:
            assert (await admin.create_topic("steps", queues=2, order_topic=True)).is_ordered

    with RunningCluster() as cluster:
        asyncio.run(check(cluster.namesrv))
        wait_until(lambda: cluster.brokers["broker-a"].topics()["steps"].attributes[ORDER_CONF] == "broker-a:2")
