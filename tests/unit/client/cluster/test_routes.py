"""The route cache: fed by the watch, kept through nameservers that know nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.client import Admin
from penstock.client.cluster.connections import Connections
from penstock.client.cluster.directory import Directory
from penstock.client.cluster.routes import completed, merge
from penstock.proto.errors import NameserverUnavailable, RouteNotFound, TopicNotFound
from penstock.proto.wire.broker_pb2 import TopicName
from penstock.proto.wire.common_pb2 import MASTER, SLAVE
from penstock.proto.wire.nameserver_pb2 import QueueData, RouteUpdate, ShardMember, ShardView, TopicRoute
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(shards=2, topics={"t": 4}) as cluster:
        yield cluster


@pytest.fixture
def routes(cluster: RunningCluster) -> Iterator[Directory]:
    connections = Connections(cluster.namesrv)
    routes = Directory(connections)
    yield routes
    routes.close()
    connections.close()


def shard(name: str, *members: tuple[int, int]) -> ShardView:
    found = [ShardMember(broker_id=broker_id, role=role, address=f"{name}:{broker_id}") for broker_id, role in members]
    return ShardView(broker_name=name, members=found)


def route(*names: str, exists: bool = True, others: tuple[str, ...] = ()) -> TopicRoute:
    queues = [QueueData(broker_name=name, read_queues=1, write_queues=1, perm=6) for name in names]
    return TopicRoute(
        topic="t", exists=exists, queues=queues, shards=[shard(name, (0, MASTER)) for name in (*names, *others)]
    )


@contextlib.contextmanager
def told_directory() -> Iterator[Directory]:
    """A directory that hears of no nameserver, but of :func:`told`."""
    with (
        contextlib.closing(Connections("127.0.0.1:1")) as connections,
        contextlib.closing(Directory(connections)) as made,
    ):
        yield made


def told(routes: Directory, *updated: TopicRoute) -> None:
    routes._on_update(RouteUpdate(routes=updated))


def test_a_topic_is_looked_up_once_and_then_watched(cluster: RunningCluster, routes: Directory) -> None:
    found = routes.topic("t")
    assert [queues.broker_name for queues in found.queues] == ["broker-a", "broker-b"]
    assert routes.master("broker-a") == cluster.brokers["broker-a"].address
    cluster.kill("broker-a")
    wait_until(lambda: routes.master("broker-a") is None, what="the master's end")
    assert [queues.broker_name for queues in routes.topic("t").queues] == ["broker-b"]
    cluster.revive("broker-a")
    wait_until(lambda: routes.master("broker-a"), what="the master's return")


def test_listeners_hear_each_change_and_a_failing_one_harms_nobody(
    cluster: RunningCluster, routes: Directory, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[TopicRoute] = []

    def fail(_: TopicRoute) -> None:
        raise ValueError("listener's own mistake")

    routes.add_listener(fail)
    routes.add_listener(heard.append)
    routes.topic("t")
    wait_until(lambda: len(heard) == 1, what="the first route")
    cluster.create_topic("t", queues=6)
    wait_until(lambda: heard[-1].queues[0].read_queues == 6, what="the changed route")
    assert "route listener failed" in caplog.text
    routes.remove_listener(heard.append)


def test_an_unknown_topic_is_not_found_until_it_is_created(cluster: RunningCluster, routes: Directory) -> None:
    with pytest.raises(TopicNotFound, match="does not exist"):
        routes.topic("new")
    cluster.create_topic("new")
    assert routes.wait_for("new", lambda found: found.exists, 60.0)
    assert routes.topic("new").exists


def test_without_living_brokers_the_route_is_missing_not_the_topic() -> None:
    with RunningCluster() as cluster:
        cluster.kill("broker-a")
        connections = Connections(cluster.namesrv)
        routes = Directory(connections)
        with pytest.raises(RouteNotFound, match="no living broker"):
            routes.topic("t")
        routes.close()
        connections.close()


def test_without_nameservers_a_lookup_ends_in_time() -> None:
    connections = Connections("127.0.0.1:1")
    routes = Directory(connections)
    with pytest.raises(NameserverUnavailable, match=r"127\.0\.0\.1:1"):
        routes.topic("t", timeout_s=0.3)
    routes.close()
    connections.close()


def test_the_watch_moves_to_a_living_nameserver(cluster: RunningCluster) -> None:
    with RunningCluster(shards=2, topics={"t": 4}, beside=cluster) as other:
        connections = Connections(f"{other.namesrv};{cluster.namesrv}")
        routes = Directory(connections)
        routes.topic("t")
        other.stop_nameserver()
        cluster.create_topic("t", queues=7)
        assert routes.wait_for("t", lambda found: found.queues[0].read_queues == 7, 10.0)
        routes.close()
        connections.close()


def test_reading_prefers_the_suggested_member_then_the_master_then_a_slave(
    cluster: RunningCluster, routes: Directory
) -> None:
    slave = cluster.add_slave()
    routes.topic("t")
    assert routes.readable("broker-a") == (0, cluster.brokers["broker-a"].address)
    assert routes.readable("broker-a", suggested_id=1) == (1, slave.address)
    assert routes.readable("broker-a", suggested_id=7) == (0, cluster.brokers["broker-a"].address)
    cluster.kill("broker-a")
    wait_until(lambda: routes.readable("broker-a") == (1, slave.address), what="the slave")
    assert routes.readable("nowhere") is None


def test_a_nameserver_that_knows_nothing_takes_nothing_away() -> None:
    known = route("a", "b")
    assert merge(known, TopicRoute(topic="t")) is known
    assert merge(None, TopicRoute(topic="t")) == TopicRoute(topic="t")


def test_a_nameserver_that_has_just_started_takes_no_master_and_no_group_away() -> None:
    known = route("broker-a", "broker-b")
    for each in known.shards:
        each.epoch = 3
    fresh = route("broker-a")
    fresh.shards[0].CopyFrom(shard("broker-a", (1, SLAVE)))
    assert completed(known, fresh) == known
    fresh.shards[0].CopyFrom(shard("broker-a", (0, SLAVE), (1, MASTER)))
    fresh.shards[0].epoch = 4
    whole = completed(known, fresh)
    assert list(whole.shards) == [fresh.shards[0], known.shards[1]]
    assert whole.queues == known.queues
    fresh.shards[0].CopyFrom(shard("broker-a", (1, SLAVE)))
    fresh.shards[0].epoch = 3
    assert completed(known, fresh).shards[0] == fresh.shards[0], "it has heard of that master, and of its end"
    assert completed(None, fresh) == fresh


def test_queues_of_groups_that_another_nameserver_does_not_know_stay_known() -> None:
    merged = merge(route("a"), route(exists=False, others=("b",)))
    assert merged.exists
    assert [queues.broker_name for queues in merged.queues] == ["a"]
    assert not merged.shards


def test_queues_of_groups_that_the_nameserver_knows_no_more_are_gone() -> None:
    down = TopicRoute(topic="t", exists=True, queues=route("a").queues, absent=route("a").queues)
    gone = route(exists=False, others=("b",))
    assert merge(down, gone, down) is gone
    assert merge(down, gone, gone).exists


def test_a_group_that_is_down_is_part_of_new_routes_until_it_is_forgotten(
    cluster: RunningCluster, routes: Directory
) -> None:
    for name in cluster.brokers:
        cluster.kill(name)
    cluster.revive("broker-b")
    cluster.brokers["broker-b"].call("DeleteTopic", TopicName(topic="t"))
    wait_until(lambda: len(cluster.route("t").queues) == 1, what="the route without broker-b")
    found = routes.topic("t")
    assert found.exists
    assert not found.shards
    assert [queues.broker_name for queues in found.queues] == ["broker-a"]
    assert routes.readable("broker-a") is None
    with Admin(cluster.namesrv) as admin:
        admin.forget_shard("broker-a")
    assert routes.wait_for("t", lambda route: not route.exists, 30.0)


def test_a_topic_deleted_at_living_groups_is_gone() -> None:
    assert not merge(route("a"), route(exists=False, others=("a",))).exists


def test_a_slave_is_no_master() -> None:
    with told_directory() as routes:
        told(routes, TopicRoute(topic="t", exists=True, shards=[shard("a", (1, SLAVE))]))
        assert routes.master("a") is None
        assert routes.readable("a") == (1, "a:1")


def test_a_topic_that_comes_into_being_at_one_group_takes_no_other_group_away() -> None:
    with told_directory() as routes:
        told(routes, route("a", "b"))
        new = route(exists=False, others=("a", "b"))
        new.topic = "%RETRY%g"
        told(routes, new)
        new.CopyFrom(route("b"))
        new.topic = "%RETRY%g"
        told(routes, new)
        assert routes.master("a") == "a:0"
        told(routes, route("b"))
        assert routes.master("a") is None
        assert routes.master("b") == "b:0"
