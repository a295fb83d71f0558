"""Changes of master with real processes: three brokers in durable mode, one nameserver with the coordinator's file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.bench.health import switch_master
from penstock.deploy import LocalCluster
from penstock.proto.errors import InvalidArgument
from penstock.proto.wire.common_pb2 import SLAVE
from tests.support.cluster.failover import (
    assert_all_there,
    brokers,
    master,
    read_all,
    wait_master,
    writing,
)
from tests.support.waiting import wait_until


@pytest.fixture
def whole(shard: LocalCluster) -> LocalCluster:
    """The shard with everybody running and in the set."""
    wait_master(shard)
    return shard


def epoch(cluster: LocalCluster) -> int:
    found = master(cluster)
    assert found is not None
    return found[1].epoch


def test_a_killed_master_is_replaced_and_comes_back_as_slave(whole: LocalCluster) -> None:
    nameservers = whole.plan.nameserver_addresses
    old, before = wait_master(whole)
    with writing(nameservers, "kill") as writer:
        writer.wait_acknowledged(30)
        whole.kill(old.name)
        writer.wait_acknowledged(30)
        whole.restart(old.name)
        new, after = wait_master(whole)
        writer.wait_acknowledged(30)
    assert writer.errors == []
    assert (new.name != old.name, after.epoch > before.epoch) == (True, True)
    assert_all_there(
        writer, [m for m in read_all(nameservers, len(writer.acknowledged)) if bytes(m.body).startswith(b"kill-")]
    )


def test_a_frozen_master_is_replaced_and_acknowledges_nothing_when_it_wakes(whole: LocalCluster) -> None:
    nameservers = whole.plan.nameserver_addresses
    old, before = wait_master(whole)
    with writing(nameservers, "freeze") as writer:
        writer.wait_acknowledged(30)
        whole.freeze(old.name)
        writer.wait_acknowledged(30)
        whole.thaw(old.name)
        wait_until(lambda: any(n == old and s and s.role == SLAVE for n, s in brokers(whole)), 30, "it is a slave")
        _, after = wait_master(whole)
        writer.wait_acknowledged(20)
    assert writer.errors == []
    assert after.epoch > before.epoch
    assert_all_there(
        writer, [m for m in read_all(nameservers, len(writer.acknowledged)) if bytes(m.body).startswith(b"freeze-")]
    )


def test_two_elections_in_a_row_leave_nobody_out_who_has_everything(whole: LocalCluster) -> None:
    """Master after master dies. The first two come back, the last one does not: both have what was acknowledged."""
    nameservers = whole.plan.nameserver_addresses
    with writing(nameservers, "row") as writer:
        writer.wait_acknowledged(20)
        killed = []
        for _ in range(3):
            found = wait_until(lambda: master(whole), 30, "a master")
            assert found is not None
            dying, _ = found
            whole.kill(dying.name)
            killed.append(dying.name)
        for name in killed[:2]:
            whole.restart(name)
        writer.wait_acknowledged(20)
        whole.restart(killed[2])
        wait_master(whole)
    assert_all_there(
        writer, [m for m in read_all(nameservers, len(writer.acknowledged)) if bytes(m.body).startswith(b"row-")]
    )


def test_a_planned_switch_refuses_no_message(whole: LocalCluster) -> None:
    nameservers = whole.plan.nameserver_addresses
    addresses = [node.address for node in whole.plan.nodes if node.is_broker]
    with writing(nameservers, "switch") as writer:
        for _ in range(3):
            old, status = wait_master(whole)
            to_id = (old.broker_id + 1) % 3
            writer.wait_acknowledged(20)
            reply = switch_master(addresses, "broker-a", to_id)
            assert (reply.epoch, reply.former_broker_id) == (status.epoch + 1, old.broker_id)
            new, _ = wait_master(whole)
            assert new.broker_id == to_id
        writer.wait_acknowledged(20)
    assert writer.errors == []
    assert_all_there(
        writer, [m for m in read_all(nameservers, len(writer.acknowledged)) if bytes(m.body).startswith(b"switch-")]
    )


def test_a_master_that_is_stopped_hands_over_first(whole: LocalCluster) -> None:
    nameservers = whole.plan.nameserver_addresses
    old, before = wait_master(whole)
    try:
        with writing(nameservers, "stop") as writer:
            writer.wait_acknowledged(20)
            assert whole.stop(old.name).exit_code == 0
            new, after = wait_master(whole)
            assert (new.name != old.name, after.epoch) == (True, before.epoch + 1)
            assert any(f"elected epoch={after.epoch} begins_in_ms=0" in line for line in whole.log_lines(new.name, 50))
            writer.wait_acknowledged(20)
        assert writer.errors == []
    finally:
        whole.start(old.name)
    wait_master(whole)


def test_a_switch_to_a_slave_that_is_not_in_sync_is_refused_and_changes_nothing(whole: LocalCluster) -> None:
    addresses = [node.address for node in whole.plan.nodes if node.is_broker]
    old, status = wait_master(whole)
    slave = next(node for node, _ in brokers(whole) if node != old)
    whole.kill(slave.name)
    wait_until(
        lambda: (found := master(whole)) and slave.broker_id not in found[1].sync_state_set, 30, "it left the set"
    )
    with pytest.raises(InvalidArgument, match=f"broker {slave.broker_id} is not in sync"):
        switch_master(addresses, "broker-a", slave.broker_id)
    with pytest.raises(InvalidArgument, match="master already"):
        switch_master(addresses, "broker-a", old.broker_id)
    assert epoch(whole) == status.epoch
    whole.restart(slave.name)


def test_without_nameserver_and_coordinator_the_shard_goes_on(whole: LocalCluster) -> None:
    nameservers = whole.plan.nameserver_addresses
    old, before = wait_master(whole)
    with writing(nameservers, "alone") as writer:
        writer.wait_acknowledged(20)
        whole.kill("nameserver-0")
        killed_at = writer.acknowledged[-1][0]
        wait_until(lambda: writer.acknowledged[-1][0] > killed_at + 2.0, 30, "sends two seconds later")
        whole.restart("nameserver-0")
        new, after = wait_master(whole)
        writer.wait_acknowledged(20)
    assert (writer.errors, new, after.epoch) == ([], old, before.epoch)


def test_a_master_without_slaves_and_coordinator_stops_acting(whole: LocalCluster) -> None:
    old, _ = wait_master(whole)
    slaves = [node.name for node, _ in brokers(whole) if node != old]
    for name in [*slaves, "nameserver-0"]:
        whole.freeze(name)
    try:
        wait_until(lambda: master(whole) is None, 30, "nobody acts")
    finally:
        for name in [*slaves, "nameserver-0"]:
            whole.thaw(name)
    wait_master(whole)


def test_another_coordinator_is_refused_by_name(whole: LocalCluster) -> None:
    path = whole.directory / "nameserver-0" / "controller.json"
    whole.kill("nameserver-0")
    content = path.read_text()
    path.write_text(json.dumps({"coordinator": "another", "registers": {}}))
    old, before = wait_master(whole)
    whole.restart("nameserver-0")
    wait_until(
        lambda: any("knows nothing of the group's epochs" in line for line in whole.log_lines(old.name, 200)),
        30,
        "the refusal",
    )
    whole.kill("nameserver-0")
    path.write_text(content)
    whole.restart("nameserver-0")
    assert wait_master(whole)[1].epoch == before.epoch


def test_a_damaged_coordinator_file_is_refused_by_name(tmp_path: Path, whole: LocalCluster) -> None:
    path = whole.directory / "nameserver-0" / "controller.json"
    whole.kill("nameserver-0")
    content = path.read_text()
    path.write_text(content[: len(content) // 2])
    with pytest.raises(Exception, match="coordinator's file is damaged"):
        whole.restart("nameserver-0", 30)
    path.write_text(content)
    whole.restart("nameserver-0")
    wait_master(whole)
