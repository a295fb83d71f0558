"""Master and slave as processes: killed, frozen and started late, under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.proto.errors import OutcomeUnknown
from tests.support.client.traffic import commit_offsets, committed_offsets, create_topic, missing, read_all, writing
from tests.support.cluster.cluster import BrokerNode, Cluster, cluster, wait_replicated
from tests.support.waiting import wait_until

SYNC = {"brokerRole": "SYNC_MASTER"}
ASYNC: dict[str, object] = {}
DURABLE = {"brokerRole": "SYNC_MASTER", "flushDiskType": "SYNC_FLUSH"}
# Those with the same settings stand together and share their processes.
sync = pytest.mark.parametrize("running", [SYNC], ids=["sync"], indirect=True)
asynchronous = pytest.mark.parametrize("running", [ASYNC], ids=["async"], indirect=True)
durable = pytest.mark.parametrize("running", [DURABLE], ids=["durable"], indirect=True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A shard of a master and one slave; parametrised with the brokers' settings."""
    with cluster(tmp_path_factory.mktemp("shard"), **request.param) as made:
        made.start()
        wait_until(lambda: in_sync(made.broker("a", 0)), what="the slave is in sync")
        create_topic(made.broker("a", 0).address)
        yield made


@pytest.fixture
def shard(running: Cluster) -> Cluster:
    """The same, whatever the test before left of it: both run, and the slave is in sync."""
    for node in running.nodes.values():
        if node.is_running:
            node.thaw()
        else:
            node.restart()
    wait_until(lambda: in_sync(running.broker("a", 0)), what="the slave is in sync")
    return running


def in_sync(master: BrokerNode) -> bool:
    status = master.status_or_none()
    return status is not None and any(replica.in_sync for replica in status.replicas)


def assert_same_logs(master: BrokerNode, slave: BrokerNode) -> None:
    """Both are level; their logs are the same bytes."""
    end = wait_replicated(master, slave)
    start = max(master.status().min_offset, slave.status().min_offset)
    assert master.log_bytes(start, end) == slave.log_bytes(start, end)
    assert end - start > 1000


@sync
def test_a_synchronous_slave_has_every_acknowledged_byte(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(500)
        history = writer.stop()
    assert history.unknown == 0
    assert not history.refused
    assert_same_logs(master, slave)
    assert missing(history, read_all(slave.address)) == []
    assert missing(history, read_all(master.address)) == []


@sync
def test_a_synchronous_master_refuses_by_name_while_its_slave_is_gone(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(200)
        slave.kill()
        wait_until(lambda: writer.history.refused["NotEnoughReplicas"] > 0, what="refusals by name")
        end = master.status().max_offset
        wait_until(lambda: writer.history.refused["NotEnoughReplicas"] > 50, what="more refusals")
        assert master.status().max_offset == end, "a refused message was stored"
        slave.restart()
        writer.wait_acknowledged(200)
        history = writer.stop()
    assert set(history.refused) == {"NotEnoughReplicas"}
    assert_same_logs(master, slave)
    assert missing(history, read_all(master.address)) == []


@sync
def test_groups_old_and_new_go_on_reading_while_the_slave_is_gone(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(200)
    commit_offsets(master.address, "billing", {0: 5})
    slave.kill()
    for group in ("billing", "audit"):
        with pytest.raises(OutcomeUnknown, match="FLUSH_SLAVE_TIMEOUT"):
            commit_offsets(master.address, group, {0: 7})
    wait_until(lambda: committed_offsets(master.address, "audit") == {0: 7}, what="what a new group begins at")
    assert committed_offsets(master.address, "billing") == {0: 5}, "that may not go back when this master is lost"
    slave.restart()
    wait_until(lambda: committed_offsets(master.address, "billing") == {0: 7}, what="it is confirmed")


@sync
def test_a_frozen_slave_is_noticed_and_counted_again_after_the_thaw(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(200)
        slave.freeze()
        wait_until(lambda: writer.history.refused["NotEnoughReplicas"] > 0, what="refusals by name")
        slave.thaw()
        writer.wait_acknowledged(200)
        history = writer.stop()
    assert_same_logs(master, slave)
    assert missing(history, read_all(slave.address)) == []


@asynchronous
def test_an_asynchronous_master_goes_on_without_its_slave_and_the_slave_catches_up(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address, batch_count=20) as writer:
        writer.wait_acknowledged(200)
        slave.kill()
        writer.wait_acknowledged(2000)
        slave.restart()
        wait_until(lambda: in_sync(master), what="the slave is back in sync, under load")
        history = writer.stop()
    assert history.unknown == 0
    assert not history.refused
    assert_same_logs(master, slave)
    assert missing(history, read_all(slave.address)) == []


@asynchronous
def test_offsets_committed_at_the_slave_reach_the_master_when_it_returns(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(200)
    wait_replicated(master, slave)
    commit_offsets(master.address, "billing", {0: 5, 1: 6})
    wait_until(lambda: committed_offsets(slave.address, "billing") == {0: 5, 1: 6}, what="the slave knows the commits")
    master.kill()
    commit_offsets(slave.address, "billing", {0: 15})
    assert committed_offsets(slave.address, "billing") == {0: 15, 1: 6}
    master.restart()
    wait_until(lambda: committed_offsets(master.address, "billing") == {0: 15, 1: 6}, what="the master took them over")


@durable
def test_a_killed_master_leaves_a_slave_that_serves_and_loses_nothing(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(500)
        master.kill()
        history = writer.stop()
    served = read_all(slave.address)
    confirmed_long_ago = list(history.acknowledged.items())[:400]
    assert [position for position, body in confirmed_long_ago if served.get(position) != body] == []
    master.restart()
    with writing(master.address) as writer:
        writer.wait_acknowledged(100)
        later = writer.stop()
    assert_same_logs(master, slave)
    for node in (master, slave):
        found = read_all(node.address)
        assert missing(history, found) == []
        assert missing(later, found) == []
        assert found.items() >= served.items(), "what was read before must not change"


@durable
def test_both_killed_at_once_lose_nothing_that_was_acknowledged(shard: Cluster) -> None:
    master, slave = shard.broker("a", 0), shard.broker("a", 1)
    with writing(master.address) as writer:
        writer.wait_acknowledged(300)
        slave.kill()
        master.kill()
        history = writer.stop()
    master.restart()
    slave.restart()
    wait_until(lambda: in_sync(master), what="the slave is in sync")
    assert_same_logs(master, slave)
    for node in (master, slave):
        assert missing(history, read_all(node.address)) == []


def test_a_slave_that_starts_late_and_empty_gets_all_files_under_load(tmp_path: Path) -> None:
    with cluster(tmp_path) as shard:
        master, slave = shard.broker("a", 0), shard.broker("a", 1)
        shard.start("nameserver-0", master.name)
        create_topic(master.address)
        with writing(master.address, batch_count=100) as writer:
            wait_until(lambda: master.status().max_offset > 3 << 20, what="more than three log files")
            shard.start(slave.name)
            wait_until(lambda: in_sync(master), what="the slave is in sync, under load")
            history = writer.stop()
        assert_same_logs(master, slave)
        assert missing(history, read_all(slave.address)) == []


def test_one_of_two_slaves_is_enough_for_two_copies(tmp_path: Path) -> None:
    with cluster(tmp_path, replicas=3, **SYNC) as shard:
        shard.start()
        master, first, second = (shard.broker("a", broker_id) for broker_id in range(3))
        wait_until(lambda: len(master.status().replicas) == 2, what="both slaves are connected")
        wait_until(lambda: all(replica.in_sync for replica in master.status().replicas), what="both are in sync")
        create_topic(master.address)
        with writing(master.address) as writer:
            writer.wait_acknowledged(100)
            first.kill()
            writer.wait_acknowledged(500)
            first.restart()
            wait_until(lambda: all(replica.in_sync for replica in master.status().replicas), what="both are back")
            history = writer.stop()
        assert history.unknown == 0
        assert not history.refused
        assert_same_logs(master, first)
        assert_same_logs(master, second)


def test_a_slave_of_another_cluster_is_refused_by_name_and_harms_nobody(tmp_path: Path) -> None:
    with cluster(tmp_path, **SYNC) as shard:
        master, slave = shard.broker("a", 0), shard.broker("a", 1)
        slave.settings |= {"brokerClusterName": "another", "haMasterAddress": master.address, "namesrvAddr": ""}
        shard.start("nameserver-0", master.name, slave.name)
        wait_until(lambda: "WrongCluster" in slave.log() and "brokerClusterName" in slave.log(), what="the refusal")
        assert slave.status().max_offset == 0
        assert not in_sync(master)
