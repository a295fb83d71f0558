"""What is attacked: a nameserver that elects, two brokers, each with a watchdog, and a client that must not suffer."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from penstock.client import Admin
from tests.support.cluster.cluster import BrokerNode, Cluster, Node, cluster
from tests.support.cluster.failover import TOPIC, Writer
from tests.support.waiting import wait_until

GROUP = "broker-a"
BROKER_SETTINGS = {
    "enableControllerMode": "true",
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": 2,
    "maxMessageSize": 4 << 20,
    "mappedFileSizeCommitLog": 64 << 20,
}


class WatchedNode:
    """A node of the cluster that runs under a watchdog."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.report = node.directory / "watch.json"
        node.module = ["tests.support.hostile.watched", node.kind]
        node.environment = {"WATCH_REPORT": str(self.report)}

    def stalls(self) -> list[dict[str, Any]]:
        """The longest stalls of its loop since the last time, the longest first."""
        self.report.unlink(missing_ok=True)
        assert self.node.process is not None
        self.node.process.send_signal(signal.SIGUSR2)
        wait_until(self.report.exists, what=f"{self.node.name}'s watchdog reports: its loop stands, or it is dead")
        return list(json.loads(self.report.read_text()))

    @property
    def memory(self) -> int:
        """Resident bytes that are its own: mapped files do not count."""
        assert self.node.process is not None
        held = psutil.Process(self.node.process.pid).memory_info()
        return int(held.rss - held.shared)


@dataclass
class Target:
    """The cluster under attack."""

    cluster: Cluster
    watched: list[WatchedNode]
    writer: Writer
    epoch: int  # of the master since the start

    @property
    def master(self) -> BrokerNode:
        return self.cluster.broker("a", 0)

    @property
    def nameserver(self) -> Node:
        return self.cluster.nodes["nameserver-0"]

    def check(self, what: str) -> dict[str, list[dict[str, Any]]]:
        """Fail unless all is as before ``what``: processes, master and epoch, and another client's sends.

        Returns each process's stalls since the last check.
        """
        for each in self.watched:
            assert each.node.is_running, f"{what}: {each.node.name} died:\n{each.node.log()[-3000:]}"
        self.writer.wait_acknowledged(5)
        assert self.writer.errors == [], f"{what}: another client's sends failed"
        status = self.master.status()
        assert (status.is_acting, status.epoch) == (True, self.epoch), f"{what}: another master"
        for each in self.watched:
            assert " ERROR " not in each.node.log(), f"{what}: {_errors(each.node)}"
        return {each.node.name: each.stalls() for each in self.watched}


def _errors(node: Node) -> str:
    return f"{node.name}: " + "\n".join(line for line in node.log().splitlines() if " ERROR " in line)[:2000]


@contextlib.contextmanager
def target(directory: Path, **settings: object) -> Iterator[Target]:
    """A target that has settled, with a writer at work. ``settings``: of the brokers, beside the usual."""
    with cluster(directory, replicas=2, **(BROKER_SETTINGS | settings)) as made:
        made.nodes["nameserver-0"].settings |= {
            "enableControllerInNamesrv": "true",
            "controllerStorePath": directory / "controller.json",
        }
        made.broker("a", 1).settings["brokerRole"] = "SYNC_MASTER"  # whoever is master
        watched = [WatchedNode(node) for node in made.nodes.values()]
        made.start()
        wait_until(lambda: sorted(made.broker("a", 0).status().sync_state_set) == [0, 1], what="both are in the set")
        with Admin(made.nameservers) as admin:
            admin.create_topic(TOPIC, queues=4)
        writer = Writer(made.nameservers, "bystander")
        try:
            found = Target(made, watched, writer, made.broker("a", 0).status().epoch)
            writer.wait_acknowledged(20)
            found.check("the start")
            yield found
        finally:
            writer.stop()
