"""What is attacked: a nameserver, brokers and a gateway, each with a watchdog, and a client that must not suffer."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from penstock.client import Admin
from tests.support.cluster.cluster import BrokerNode, Cluster, Node, cluster, free_ports
from tests.support.cluster.failover import TOPIC, Writer
from tests.support.waiting import wait_until

from .watched import SERVED, Stall

GROUP = "broker-a"
BROKER_SETTINGS = {"maxMessageSize": 4 << 20, "mappedFileSizeCommitLog": 64 << 20}
ELECTED_SETTINGS = {"enableControllerMode": "true", "inSyncReplicas": 2}


class WatchedNode:
    """A node of the cluster that runs under a watchdog."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.report = node.directory / "watch.json"
        node.module = ["tests.support.hostile.watched", node.kind]
        node.environment = {"WATCH_REPORT": str(self.report)}

    def stalls(self) -> list[Stall]:
        """The longest stalls of its loop since the last time, the longest first."""
        self.report.unlink(missing_ok=True)
        assert self.node.process is not None
        self.node.process.send_signal(signal.SIGUSR2)
        wait_until(self.report.exists, what=f"{self.node.name}'s watchdog reports: its loop stands, or it is dead")
        return [Stall(**each) for each in json.loads(self.report.read_text())]

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
    memory_before: dict[str, int] = field(default_factory=dict)  # by process, bytes

    @property
    def master(self) -> BrokerNode:
        return self.cluster.broker("a", 0)

    @property
    def nameserver(self) -> Node:
        return self.cluster.nodes["nameserver-0"]

    @property
    def gateway(self) -> Node:
        return self.cluster.nodes["gateway"]

    def memory(self) -> dict[str, int]:
        """What each process has for itself, in bytes."""
        return {each.node.name: each.memory for each in self.watched}

    def note_memory(self) -> None:
        """What is in use now is what should be at the end."""
        self.memory_before = self.memory()

    def has_kept_its_master(self) -> bool:
        """True if the master of the start acts, in the same epoch."""
        status = self.master.status()
        return status.is_acting and status.epoch == self.epoch

    def check(self, what: str) -> dict[str, list[Stall]]:
        """Fail unless all is as before ``what``: processes, another client's sends, and no error in a log.

        Returns each process's stalls since the last check.
        """
        for each in self.watched:
            assert each.node.is_running, f"{what}: {each.node.name} died:\n{each.node.log()[-3000:]}"
        self.writer.wait_acknowledged(5)
        errors, self.writer.errors = self.writer.errors, []
        assert errors == [], f"{what}: another client's sends failed"
        for each in self.watched:
            assert " ERROR " not in each.node.log(), f"{what}: {_errors(each.node)}"
        return {each.node.name: each.stalls() for each in self.watched}

    def served_methods(self) -> list[str]:
        """What the processes serve, as they registered it."""
        files = [each.report.with_name(SERVED) for each in self.watched]
        return sorted({path for file in files for path in json.loads(file.read_text())})


def _errors(node: Node) -> str:
    return f"{node.name}: " + "\n".join(line for line in node.log().splitlines() if " ERROR " in line)[:2000]


@contextlib.contextmanager
def target(directory: Path, *, is_elected: bool) -> Iterator[Target]:
    """A target that has settled, with a writer at work: one broker, or, ``is_elected``, a master with a slave.

    Only where masters are elected has one a lease to lose, which it also does on a machine that is busy enough.
    """
    settings = BROKER_SETTINGS | (ELECTED_SETTINGS if is_elected else {})
    role = "SYNC_MASTER" if is_elected else "ASYNC_MASTER"
    with cluster(directory, replicas=2 if is_elected else 1, brokerRole=role, **settings) as made:
        made.nodes["nameserver-0"].settings |= {
            "enableControllerInNamesrv": "true",
            "controllerStorePath": directory / "controller.json",
        }
        for node in made.nodes.values():
            if node.kind == "broker":
                node.settings["brokerRole"] = role  # of each that may be master
        (port,) = free_ports(1)
        own: dict[str, object] = {"namesrvAddr": made.nameservers, "listenPort": port, "bindAddress": "127.0.0.1"}
        made.nodes["gateway"] = Node("gateway", "gateway", directory / "gateway", port, own)
        watched = [WatchedNode(node) for node in made.nodes.values()]
        made.start()
        if is_elected:
            wait_until(lambda: len(made.broker("a", 0).status().sync_state_set) == 2, what="both are in the set")
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
