"""A cluster whose registers are in etcd: several nameservers elect, any of them may die, and so may etcd."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.bench.health import broker_statuses
from penstock.broker.group.held_membership import FILE_NAME
from penstock.cli.main import cli
from penstock.deploy import LocalCluster
from tests.support.cluster.failover import assert_all_there, create_topic, local_cluster, read_all, wait_master, writing
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed (Debian: etcd-server)")


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[LocalCluster]:
    alone = {"enableAutoInSyncReplicas": "true", "minInSyncReplicas": "1"}
    shape = {"shards": 1, "replicas": 2, "nameservers": 2, "mode": "sync", "coordinator": "etcd", "settings": alone}
    with local_cluster(tmp_path / "cluster", **shape) as made:
        yield made


def test_any_nameserver_elects_etcd_may_be_away_and_everything_is_there_after_a_stop(shard: LocalCluster) -> None:
    nameservers = shard.plan.nameserver_addresses
    create_topic(nameservers)
    first, before = wait_master(shard)
    with writing(nameservers, "etcd") as writer:
        writer.wait_acknowledged(20)

        shard.kill("coordinator-0")
        killed_at = writer.acknowledged[-1][0]
        wait_until(lambda: writer.acknowledged[-1][0] > killed_at + 1.0, 30, "sends while etcd is away")
        assert wait_master(shard)[1].epoch == before.epoch

        shard.restart("coordinator-0")
        shard.kill("nameserver-0")
        shard.kill(first.name)
        writer.wait_acknowledged(20)
        shard.up()
        second, after = wait_master(shard)
        assert (second.name != first.name, after.epoch > before.epoch) == (True, True)
    assert writer.errors == []

    assert shard.down()[-1] == "coordinator-0"
    shard.up()
    assert wait_master(shard)[1].epoch > after.epoch
    assert_all_there(writer, read_all(nameservers, len(writer.acknowledged)))


def test_brokers_that_run_on_say_that_their_coordinator_was_wiped(shard: LocalCluster) -> None:
    wait_master(shard)
    stores = [shard.directory / node.name / "store" for node in shard.plan.nodes if node.is_broker]
    wait_until(lambda: all((store / FILE_NAME).exists() for store in stores), 30, "both to know whose they are")
    shard.kill("coordinator-0")
    shutil.rmtree(shard.directory / "coordinator-0" / "etcd")
    shard.restart("coordinator-0")
    addresses = [node.address for node in shard.plan.nodes if node.is_broker]

    def told() -> bool:
        troubles = [status.coordination_trouble for status in broker_statuses(addresses) if status is not None]
        return len(troubles) == 2 and all("restore the former one" in each for each in troubles)

    wait_until(told, 30, "both brokers' word")
    shown = CliRunner().invoke(cli, ["cluster", "status", "--dir", str(shard.directory)])
    assert shown.exit_code == 0
    assert shown.output.count("cannot read its group's register, no election: ") == 2
