"""Administration of a real cluster in a thread."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from penstock.client import Admin, Producer, QueuePosition
from penstock.client.aio import AsyncAdmin
from penstock.proto.errors import (
    BrokerUnavailable,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
    MessageNotFound,
    NameserverUnavailable,
    OffsetOutOfRange,
    RouteNotFound,
    TopicExists,
    TopicNotFound,
)
from tests.support.client.running_cluster import RunningCluster


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(shards=2, topics={"orders": 2}) as cluster:
        yield cluster


@pytest.fixture
def admin(cluster: RunningCluster) -> Iterator[Admin]:
    with Admin(cluster.namesrv) as admin:
        yield admin


def store_two_in_each_queue(cluster: RunningCluster) -> None:
    for broker in cluster.brokers.values():
        for queue_id in range(2):
            broker.append("orders", [b"1", b"2"], queue_id)


def test_a_created_topic_is_on_every_broker_and_in_the_routes(cluster: RunningCluster, admin: Admin) -> None:
    info = admin.create_topic("fresh", queues=3)
    assert [(shard.broker_name, shard.read_queues, shard.perm) for shard in info.shards] == [
        ("broker-a", 3, 6),
        ("broker-b", 3, 6),
    ]
    assert info.queues == 6
    assert admin.create_topic("fresh", queues=3) == info
    assert admin.list_topics() == ["fresh", "orders"]
    with pytest.raises(TopicExists):
        admin.create_topic("fresh", queues=4)
    assert admin.update_topic("fresh", queues=5).queues == 10


def test_a_topic_may_lie_on_one_broker(cluster: RunningCluster, admin: Admin) -> None:
    info = admin.create_topic("here", queues=1, brokers=["broker-b"])
    assert [shard.broker_name for shard in info.shards] == ["broker-b"]


def test_lag_names_a_broker_group_that_registers_after_the_others_were_asked(
    cluster: RunningCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when nameservers and brokers start together: nothing was committed there as far as anybody was asked."""
    store_two_in_each_queue(cluster)
    cluster.brokers["broker-a"].commit("billing", "orders", {0: 1, 1: 2})
    cluster.brokers["broker-b"].commit("billing", "orders", {0: 2, 1: 2})
    directory = admin._calls.directory
    whole = directory.cluster(1.0)
    part = type(whole)(shards=[shard for shard in whole.shards if shard.broker_name == "broker-a"])
    monkeypatch.setattr(directory, "cluster", lambda timeout_s: part)
    lag = admin.group_lag("billing")
    assert lag.unreachable == ["broker-b"]
    assert [(queue.broker_name, queue.committed_offset) for queue in lag.queues] == [("broker-a", 1), ("broker-a", 2)]


def test_a_deleted_topic_is_gone(admin: Admin) -> None:
    admin.delete_topic("orders")
    assert admin.list_topics() == []
    for call in (admin.delete_topic, admin.topic, admin.topic_stats, admin.update_topic):
        with pytest.raises(TopicNotFound):
            call("orders")


def test_topic_stats_count_messages_per_queue(cluster: RunningCluster, admin: Admin) -> None:
    store_two_in_each_queue(cluster)
    stats = admin.topic_stats("orders")
    assert stats.messages == 8
    assert [(queue.broker_name, queue.queue_id, queue.messages) for queue in stats.queues] == [
        ("broker-a", 0, 2),
        ("broker-a", 1, 2),
        ("broker-b", 0, 2),
        ("broker-b", 1, 2),
    ]
    assert all(queue.last_store_timestamp_ms for queue in stats.queues)


def test_lag_is_what_is_stored_and_not_committed(cluster: RunningCluster, admin: Admin) -> None:
    store_two_in_each_queue(cluster)
    cluster.brokers["broker-a"].commit("billing", "orders", {0: 1, 1: 2})
    lag = admin.group_lag("billing")
    assert (lag.group, lag.lag) == ("billing", 5)
    assert [(queue.committed_offset, queue.lag) for queue in lag.queues] == [(1, 1), (2, 0), (-1, 2), (-1, 2)]
    assert lag.unreachable == []


def test_offsets_are_reset_by_end_time_and_number(cluster: RunningCluster, admin: Admin) -> None:
    store_two_in_each_queue(cluster)
    admin.create_group("billing")
    assert [position.offset for position in admin.reset_offset("billing", "orders", "last")] == [2, 2, 2, 2]
    assert admin.group_lag("billing").lag == 0
    assert [position.offset for position in admin.reset_offset("billing", "orders", "first")] == [0, 0, 0, 0]
    admin.reset_offset("billing", "orders", timestamp_ms=time.time_ns() // 1_000_000)
    assert admin.group_lag("billing").lag == 0
    with pytest.raises(InvalidArgument, match="lies in the future, nothing was changed"):
        admin.reset_offset("billing", "orders", timestamp_ms=1 << 60)
    admin.reset_offset("billing", "orders", offset=1, queues=[("broker-b", 1)])
    assert admin.group_lag("billing").lag == 1
    with pytest.raises(OffsetOutOfRange, match="nothing was changed"):
        admin.reset_offset("billing", "orders", offset=3)
    for wrong in ({}, {"to": "first", "offset": 1}, {"to": "middle"}, {"offset": 1, "queues": [("broker-b", 9)]}):
        with pytest.raises(InvalidArgument):
            admin.reset_offset("billing", "orders", **wrong)  # type: ignore[arg-type]


def test_misspelt_names_are_refused_with_the_nearest_and_make_nothing(cluster: RunningCluster, admin: Admin) -> None:
    admin.create_group("billing")
    with pytest.raises(GroupNotFound, match="did you mean 'billing'"):
        admin.reset_offset("biling", "orders", "first")
    with pytest.raises(TopicNotFound, match="did you mean 'orders'"):
        admin.reset_offset("billing", "order", "first")
    with pytest.raises(GroupNotFound, match="did you mean 'billing'"):
        admin.clone_offsets("billling", "audit")
    for group_call in (admin.group, admin.group_lag, admin.delete_group):
        with pytest.raises(GroupNotFound, match="did you mean 'billing'"):
            group_call("Billing2")
    for topic_call in (admin.topic, admin.topic_stats, admin.delete_topic, admin.update_topic):
        with pytest.raises(TopicNotFound, match="did you mean 'orders'"):
            topic_call("oders")
    with pytest.raises(TopicNotFound) as raised:
        admin.topic("something-else")
    assert "did you mean" not in str(raised.value)
    assert admin.list_groups() == ["billing"]
    assert admin.list_topics() == ["orders"]


def test_a_negative_time_out_is_refused(admin: Admin) -> None:
    for call in (admin.list_topics, admin.list_groups, admin.cluster):
        with pytest.raises(InvalidArgument, match="timeout_s=-1"):
            call(timeout_s=-1)
    with pytest.raises(InvalidArgument, match="timeout_s=-1"):
        admin.create_topic("fresh", brokers=["broker-a"], timeout_s=-1)
    assert admin.list_topics() == ["orders"]


def test_offsets_are_cloned(cluster: RunningCluster, admin: Admin) -> None:
    store_two_in_each_queue(cluster)
    cluster.brokers["broker-a"].commit("billing", "orders", {0: 1, 1: 2})
    positions = admin.clone_offsets("billing", "audit")
    assert [(position.broker_name, position.queue_id, position.offset) for position in positions] == [
        ("broker-a", 0, 1),
        ("broker-a", 1, 2),
    ]
    assert admin.group_lag("audit").lag == admin.group_lag("billing").lag
    with pytest.raises(TopicNotFound, match="did you mean 'orders'"):
        admin.clone_offsets("billing", "audit", "order")


def test_a_dry_run_tells_from_where_to_where_and_changes_nothing(cluster: RunningCluster, admin: Admin) -> None:
    store_two_in_each_queue(cluster)
    cluster.brokers["broker-a"].commit("billing", "orders", {0: 1})
    planned = admin.reset_offset("billing", "orders", "last", queues=[("broker-a", 0), ("broker-b", 1)], dry_run=True)
    assert planned == [
        QueuePosition("orders", "broker-a", 0, 2, former=1),
        QueuePosition("orders", "broker-b", 1, 2, former=-1),
    ]
    cloned = [QueuePosition("orders", "broker-a", 0, 1)]
    assert admin.clone_offsets("billing", "audit", dry_run=True) == cloned
    assert admin.list_groups() == ["billing"]
    assert admin.group_lag("billing").lag == 7
    assert admin.clone_offsets("billing", "audit") == cloned
    assert admin.clone_offsets("billing", "audit", dry_run=True)[0].former == 1
    with pytest.raises(OffsetOutOfRange):
        admin.reset_offset("billing", "orders", offset=3, dry_run=True)


def test_groups_are_created_listed_and_deleted(cluster: RunningCluster, admin: Admin) -> None:
    admin.create_group("billing", retry_max_times=3)
    assert admin.list_groups() == ["billing"]
    info = admin.group("billing")
    assert (info.group, info.consume_enable, info.retry_max_times, info.members) == ("billing", True, 3, [])
    admin.delete_group("billing")
    assert admin.list_groups() == []
    for call in (admin.group, admin.delete_group, admin.group_lag):
        with pytest.raises(GroupNotFound):
            call("billing")


def test_what_is_not_given_of_a_group_stays_as_it_is(cluster: RunningCluster, admin: Admin) -> None:
    made = admin.create_group("billing", consume_enable=False, retry_max_times=0, attributes={"a": "1"})
    assert (made.consume_enable, made.retry_max_times, made.attributes) == (False, 0, {"a": "1"})
    assert admin.create_group("billing", broadcast_enable=False) == replace(made, broadcast_enable=False)
    assert admin.create_group("billing", consume_enable=True, retry_max_times=5) == replace(
        made, broadcast_enable=False, consume_enable=True, retry_max_times=5
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"retry_max_times": "x"}, "retry_max_times='x': must be a whole number"),
        ({"retry_max_times": 2**40}, "retry_max_times=1099511627776: must be a whole number"),
        ({"retry_policy": [math.nan]}, "RetryPolicy"),
        ({"retry_policy": 5}, "retry_policy=5: must be a RetryPolicy, or a list of seconds"),
        ({"attributes": {"a": 5}}, "attributes={'a': 5}: must be a mapping of texts to texts"),
        ({"orderly": "x"}, "orderly='x': must be True or False"),
        ({"orderly": -1}, "orderly=-1: must be True or False"),
        ({"consume_enable": 2**70}, f"consume_enable={2**70}: must be True or False"),
        ({"retry_policy": b"15"}, "retry_policy=b'15': must be a RetryPolicy, or a list of seconds"),
    ],
)
def test_settings_of_a_group_of_a_wrong_type_are_refused_by_name(
    admin: Admin, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        admin.create_group("billing", **given)


@pytest.mark.parametrize(
    ("asks", "told"),
    [
        (lambda admin: admin.create_topic("x", brokers="broker-a"), "brokers='broker-a': must be a list of names"),
        (lambda admin: admin.update_topic("orders", brokers="broker-a"), "brokers='broker-a': must be a list of names"),
        (lambda admin: admin.create_topic("x", brokers={}), "brokers={}: must be a list of names"),
        (lambda admin: admin.create_topic("x", order_topic=None), "order_topic=None: must be True or False"),
        (lambda admin: admin.update_topic("orders", order_topic=1), "order_topic=1: must be True or False"),
        (lambda admin: admin.reset_offset("g", "orders", "first", dry_run=None), "dry_run=None: must be True or False"),
        (lambda admin: admin.clone_offsets("g", "h", dry_run="no"), "dry_run='no': must be True or False"),
        (lambda admin: admin.create_topic("x", attributes={"a": 5}), "attributes={'a': 5}: must be a mapping of texts"),
        (lambda admin: admin.create_topic("x", attributes=5), "attributes=5: must be a mapping of texts"),
        (lambda admin: admin.create_topic("x", perm="x"), "perm='x': must be a whole number"),
        (lambda admin: admin.create_topic("x", perm=0), "perm 0: READ 4, WRITE 2 or both, 6, are allowed"),
        (lambda admin: admin.update_topic("orders", perm=0), "perm 0: READ 4, WRITE 2 or both, 6, are allowed"),
        (lambda admin: admin.query_messages("orders", 5), "key=5: must be text"),
        (lambda admin: admin.message_by_id(5), "message id 5: expected 32 or 56 hexadecimal digits"),
        (lambda admin: admin.message_at("orders", "0", 0), "queue_ids=['0']: must be a whole number"),
        (lambda admin: admin.message_track(5), "message must be a MessageView, not 5"),
        (lambda admin: admin.reset_offset("g", "orders", offset="5"), "offset='5': must be a whole number"),
        (lambda admin: admin.reset_offset("g", "orders", timestamp_ms=math.nan), "timestamp_ms=nan: must be a whole"),
        (
            lambda admin: admin.reset_offset("g", "orders", "first", queues=5),
            "queues=5: must be a list of (",
        ),
        (
            lambda admin: admin.reset_offset("g", "orders", "first", queues=["broker-a:0"]),
            "queues: 'broker-a:0' must be (broker name, queue id), as ('broker-a', 3)",
        ),
        (lambda admin: admin.create_topic("x", brokers=[]), "brokers=[]: must name at least one broker group"),
        (lambda admin: admin.list_topics(timeout_s="5"), "timeout_s='5': must be 0 or more seconds"),
        (lambda admin: admin.list_topics(timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
        (lambda admin: admin.create_topic("x", timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
        (lambda admin: admin.topic("orders", timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
        (lambda admin: admin.group("g", timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
        (lambda admin: admin.cluster(timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
        (lambda admin: admin.forget_shard("broker-c", timeout_s=None), "timeout_s=None: must be 0 or more seconds"),
    ],
)
def test_arguments_of_a_wrong_type_are_refused_by_name(admin: Admin, asks: Callable[[Any], object], told: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(told)):
        asks(admin)


def test_no_group_is_said_to_be_missing_where_nobody_answers(cluster: RunningCluster, admin: Admin) -> None:
    admin.create_group("billing")
    faults = [each.faults for each in cluster.brokers.values()]
    with faults[0].holding("DescribeGroup"), faults[1].holding("DescribeGroup"):
        for ask in (admin.group, admin.group_lag):
            with pytest.raises(BrokerUnavailable, match="group 'billing': broker-a, broker-b did not answer"):
                ask("billing", timeout_s=0.3)


def test_the_cluster_lists_living_and_silent_members(cluster: RunningCluster, admin: Admin) -> None:
    info = admin.cluster()
    assert [(each.address, each.alive) for each in info.nameservers] == [(cluster.namesrv, True)]
    assert [(broker.name, broker.role, broker.alive) for broker in info.brokers] == [
        ("broker-a-0", "MASTER", True),
        ("broker-b-0", "MASTER", True),
    ]
    living = cluster.brokers["broker-b"]
    with living.faults.holding("Status"):
        silent = admin.cluster(timeout_s=0.3).brokers[1]
    assert (silent.address, silent.alive) == (living.address, False)


def test_a_dead_nameserver_is_listed_as_such(cluster: RunningCluster) -> None:
    with Admin(f"127.0.0.1:1;{cluster.namesrv}") as admin:
        assert [each.alive for each in admin.cluster().nameservers] == [False, True]
    with Admin("127.0.0.1:1") as admin, pytest.raises(NameserverUnavailable):
        admin.list_topics(timeout_s=0.5)


def test_messages_are_found_by_id_key_and_offset(cluster: RunningCluster, admin: Admin) -> None:
    with Producer(cluster.namesrv) as producer:
        receipt = producer.send("orders", b"one", keys=["k"], tag="t")
        producer.send("orders", b"two", keys=["k"])
    assert admin.message_by_id(receipt.offset_message_id).body == b"one"
    found = admin.message_at("orders", receipt.queue_id, receipt.queue_offset, broker_name=receipt.broker_name)
    assert (found.body, found.tag, found.message_id) == (b"one", "t", receipt.message_id)
    assert sorted(view.body for view in admin.query_messages("orders", "k")) in ([b"one", b"two"], [b"two"])
    with pytest.raises(MessageNotFound):
        admin.message_by_id("7F00000100000001" + "0" * 16)
    with pytest.raises(MessageNotFound, match="offset 99"):
        admin.message_at("orders", 0, 99, broker_name="broker-a")
    with pytest.raises(InvalidArgument, match="name the broker"):
        admin.message_at("orders", 0, 0)
    with pytest.raises(InvalidArgument):
        admin.message_by_id("not an id")
    with pytest.raises(InvalidArgument):
        admin.query_messages("orders", "")


def test_without_a_master_changes_are_refused_in_time(cluster: RunningCluster, admin: Admin) -> None:
    cluster.kill("broker-b")
    with pytest.raises(BrokerUnavailable, match="broker-b has no living master"):
        admin.create_topic("x", brokers=["broker-b"], timeout_s=0.2)
    cluster.kill("broker-a")
    with pytest.raises(RouteNotFound, match="no living master"):
        admin.create_topic("x", timeout_s=0.2)


def test_a_topic_that_a_group_without_master_has_still_is_not_called_deleted(
    cluster: RunningCluster, admin: Admin
) -> None:
    cluster.add_slave("broker-b")
    cluster.kill("broker-b")
    for _ in range(2):  # the second time, no master has it
        with pytest.raises(BrokerUnavailable, match="topic orders is still on broker-b, of which no master lives"):
            admin.delete_topic("orders")
    cluster.kill("broker-b-1")
    with pytest.raises(BrokerUnavailable, match="topic orders is still on broker-b, of which no master lives"):
        admin.delete_topic("orders")
    cluster.revive("broker-b")
    admin.delete_topic("orders")


def test_groups_and_topics_of_a_broker_group_that_is_down_are_named(cluster: RunningCluster, admin: Admin) -> None:
    admin.create_group("etl")
    admin.create_group("other")
    cluster.kill("broker-b")
    assert admin.topic("orders").absent == ["broker-b"]
    assert [shard.broker_name for shard in admin.topic("orders").shards] == ["broker-a"]
    assert admin.cluster().absent == ["broker-b"]
    assert admin.group_lag("etl").unreachable == ["broker-b"]
    with pytest.raises(RouteNotFound, match="broker-b do not answer; nothing was changed"):
        admin.clone_offsets("etl", "other")
    with pytest.raises(BrokerUnavailable, match="orders is changed at broker-a, and as it was at broker-b"):
        admin.update_topic("orders", queues=3)
    assert admin.topic("orders").queues == 3
    with pytest.raises(BrokerUnavailable, match="group other is set at broker-a, and not at broker-b, of"):
        admin.create_group("other", retry_max_times=3)
    assert admin.group("other").retry_max_times == 3
    with pytest.raises(BrokerUnavailable, match="group etl is deleted, but perhaps at broker-b"):
        admin.delete_group("etl")
    with pytest.raises(GroupNotFound, match="broker-b did not answer"):
        admin.delete_group("etl")
    with pytest.raises(InvalidArgument, match="lies on broker-a, broker-b: name the broker"):
        admin.message_at("orders", 0, 0)
    with pytest.raises(BrokerUnavailable, match="no member of broker-b lives"):
        admin.message_at("orders", 0, 0, broker_name="broker-b")
    admin.forget_shard("broker-b")
    assert admin.cluster().absent == []
    admin.delete_group("other")


def test_a_group_is_forgotten_by_all_nameservers_unless_one_knows_that_it_lives(cluster: RunningCluster) -> None:
    with (
        RunningCluster(shards=2, beside=cluster) as other,
        Admin(cluster.namesrv) as here,
        Admin(other.namesrv) as there,
        Admin(f"{cluster.namesrv};{other.namesrv}") as admin,
    ):
        cluster.kill("broker-b")  # as the first nameserver sees it
        with pytest.raises(InvalidArgument, match=f"broker-b is not gone: .* lives, says nameserver {other.namesrv}"):
            admin.forget_shard("broker-b")
        assert here.cluster().absent == ["broker-b"]
        other.kill("broker-b")
        there.forget_shard("broker-b")  # as by a nameserver that was started since
        admin.forget_shard("broker-b")
        assert here.cluster().absent == []
        with pytest.raises(InvalidArgument, match="broker-b is not known here"):
            admin.forget_shard("broker-b")
        cluster.kill("broker-a")
        other.kill("broker-a")
        other.stop_nameserver()
        with pytest.raises(NameserverUnavailable, match=f"not by all: nameserver {other.namesrv}"):
            admin.forget_shard("broker-a")
        assert here.cluster().absent == []


def test_bad_names_and_counts_are_refused(admin: Admin) -> None:
    with pytest.raises(InvalidName):
        admin.create_topic("no spaces")
    with pytest.raises(InvalidName):
        admin.create_group("no spaces")
    for count in (0, -1, 65_537):
        with pytest.raises(InvalidArgument, match="queues"):
            admin.create_topic("x", queues=count)


def test_the_asyncio_twin_answers_the_same(cluster: RunningCluster) -> None:
    async def run() -> None:
        async with AsyncAdmin(cluster.namesrv) as admin:
            await admin.create_topic("fresh", queues=1)
            assert await admin.list_topics() == ["fresh", "orders"]
            assert (await admin.topic_stats("fresh")).messages == 0
            assert len((await admin.cluster()).brokers) == 2

    asyncio.run(run())
