"""An unclean election with real processes: what only the former set had is given up, told, and cut off."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.proto.wire.common_pb2 import MASTER
from tests.support.client.traffic import create_topic, missing, read_all, writing
from tests.support.cluster.cluster import BrokerNode, cluster, wait_replicated
from tests.support.waiting import wait_until

ALONE = {"enableControllerMode": "true", "enableAutoInSyncReplicas": "true", "minInSyncReplicas": 1}


def acts(node: BrokerNode, *members: int) -> bool:
    status = node.status_or_none()
    is_master = status is not None and status.role == MASTER and status.is_acting
    return status is not None and is_master and tuple(status.sync_state_set) == members


def test_the_old_member_accepts_the_cut_and_reports_what_was_acknowledged(tmp_path: Path) -> None:
    with cluster(tmp_path, **ALONE) as shard:
        first, second, nameserver = shard.broker("a", 0), shard.broker("a", 1), shard.nodes["nameserver-0"]
        for node in (first, second):
            node.settings["brokerRole"] = "SYNC_MASTER"
        nameserver.settings |= {
            "enableControllerInNamesrv": "true",
            "enableElectUncleanMaster": "true",
            "controllerStorePath": tmp_path / "controller.json",
        }
        shard.start()
        wait_until(lambda: acts(first, 0, 1), what="both are in the set")
        create_topic(first.address)
        with writing(first.address) as writer:
            writer.wait_acknowledged(50)
            both = writer.stop()
        wait_replicated(first, second)
        second.kill()
        wait_until(lambda: acts(first, 0), what="the master is alone in the set")
        start = first.status().max_offset
        with writing(first.address) as writer:
            writer.wait_acknowledged(50)
            alone = writer.stop()
        end = first.status().confirm_offset
        assert first.stop() == 0  # so that its store knows exactly what was acknowledged

        second.restart()
        wait_until(lambda: acts(second, 1), what="the slave that was not in the set is master")
        assert "unclean election: what only the former set has is lost broker_name=broker-a" in nameserver.log()
        with writing(second.address) as writer:
            writer.wait_acknowledged(50)
            later = writer.stop()

        first.restart()
        wait_until(lambda: acts(second, 0, 1), what="the old member follows")
        wait_replicated(second, first)
        cut = re.search(
            r"ERROR .* log parts from the master's.* cut=\[(\d+), (\d+)\) known_acknowledged_bytes=(\d+)", first.log()
        )
        assert cut is not None
        assert [int(number) for number in cut.groups()] == [start, end, end - start]
        assert first.status().gave_up.startswith(f"[{start}, {end}): broker-a:1 never had it; {end - start} bytes")
        for node in (first, second):
            found = read_all(node.address)
            assert missing(both, found) == []
            assert missing(later, found) == []
            assert len(found) == len(both.acknowledged) + len(later.acknowledged), f"of {len(alone.acknowledged)} more"
