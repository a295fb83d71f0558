"""Real processes of a cluster: started, killed, frozen and started again, and always gone at the end.

Each node has a directory with its configuration, data and log, and a port that it keeps over restarts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.deploy import ports
from penstock.proto.errors import PenstockError
from penstock.proto.wire import broker_pb2
from tests.support.broker.running_broker import SMALL, sync_status
from tests.support.waiting import wait_until

START_TIMEOUT_S = 90.0  # the first start on a machine compiles kernels
STOP_TIMEOUT_S = 15.0
PORTS = range(24_000, 32_000)
"""Below what the system gives to outgoing connections, and apart from what `cluster up` looks for."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that stay this process's: no other that runs tests is given them."""
    first = random.SystemRandom().randrange(len(PORTS))
    tried = itertools.chain(PORTS[first:], PORTS[:first])
    found = list(itertools.islice((port for port in tried if ports.is_free(port) and ports.claim([port])), count))
    assert len(found) == count, f"no {count} free ports in {PORTS}"
    return found


class Node:
    """One process; ``kind`` is the module that it runs, without ``penstock.``."""

    def __init__(self, name: str, kind: str, directory: Path, port: int, settings: dict[str, object]) -> None:
        self.name = name
        self.kind = kind
        self.directory = directory
        self.address = f"127.0.0.1:{port}"
        self.settings = settings
        self.log_path = directory / f"{kind}.log"
        self.config_path = directory / f"{kind}.conf"
        self.module = [f"penstock.{kind}"]  # what Python runs, and its first arguments
        self.environment: dict[str, str] = {}  # beside this process's own
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the process; :meth:`wait_ready` waits for it."""
        assert not self.is_running, f"{self.name} runs already"
        self.config_path.touch(mode=0o600)  # it may hold a secret
        self.config_path.write_text("".join(f"{key} = {value}\n" for key, value in self.settings.items()))
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.module, "-c", str(self.config_path)],
                stdout=log,
                stderr=log,
                env=os.environ | self.environment,
            )

    def log(self) -> str:
        """What the process has logged since it was last started."""
        return self.log_path.read_bytes()[self._log_start :].decode(errors="replace")

    def wait_ready(self) -> None:
        """Wait until the process says that it serves."""

        def ready() -> re.Match[str] | None:
            assert self.is_running, f"{self.name} ended:\n{self.log()}"
            return re.search(rf"{self.kind} ready ", self.log())

        wait_until(ready, START_TIMEOUT_S, f"{self.name}'s ready line")

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        self._signal(signal.SIGKILL)
        assert self.process is not None
        self.process.wait(STOP_TIMEOUT_S)

    def freeze(self) -> None:
        """SIGSTOP: alive, connected and silent."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self._signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Start again after a kill or stop, and wait until it serves."""
        self.start()
        self.wait_ready()

    def end(self) -> None:
        """Be gone, in whatever state."""
        if self.is_running:
            self.thaw()
            self.kill()

    def _signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)


class BrokerNode(Node):
    """A broker process and what its store and status say."""

    def status(self) -> broker_pb2.BrokerStatus:
        return sync_status(self.address)

    def status_or_none(self) -> broker_pb2.BrokerStatus | None:
        """The status, or None while the broker does not answer."""
        try:
            return self.status()
        except PenstockError:
            return None

    @property
    def store(self) -> Path:
        return self.directory / "store"

    def log_bytes(self, start: int, end: int) -> bytes:
        """Bytes of the commit log's files as they lie on disk."""
        parts: list[bytes] = []
        for path in sorted((self.store / "commitlog").iterdir()):
            base, content = int(path.name), path.read_bytes()
            parts.append(content[max(0, start - base) : max(0, end - base)])
        return b"".join(parts)


@dataclass
class Cluster:
    """Nameservers and brokers by name: ``nameserver-0``, ``broker-a-0`` (master), ``broker-a-1`` …"""

    directory: Path
    nodes: dict[str, Node]

    @property
    def nameservers(self) -> str:
        """The address list for clients."""
        return ";".join(node.address for node in self.nodes.values() if node.kind == "nameserver")

    def broker(self, shard: str, broker_id: int) -> BrokerNode:
        node = self.nodes[f"broker-{shard}-{broker_id}"]
        assert isinstance(node, BrokerNode)
        return node

    def start(self, *names: str) -> None:
        """Start these nodes side by side, all by default, and wait until they serve.

        Nameservers first: a broker is ready when those that answer have taken it.
        """
        nodes = [self.nodes[name] for name in names] or list(self.nodes.values())
        for chosen in (True, False):
            together = [node for node in nodes if (node.kind == "nameserver") is chosen]
            for node in together:
                node.start()
            for node in together:
                node.wait_ready()


def wait_replicated(master: BrokerNode, *slaves: BrokerNode, timeout_s: float = 20) -> int:
    """Wait until the slaves have, and have dispatched, all of the master's log; its end."""

    def level() -> int | None:
        own = master.status_or_none()
        if own is None or own.dispatched_offset < own.max_offset:
            return None
        for slave in slaves:
            status = slave.status_or_none()
            if status is None or status.dispatched_offset < own.max_offset:
                return None
        return own.max_offset

    end = wait_until(level, timeout_s, f"{[slave.name for slave in slaves]} have all of {master.name}'s log")
    assert end is not None
    return end


@contextlib.contextmanager
def cluster(
    directory: Path, *, shards: int = 1, replicas: int = 2, nameservers: int = 1, **settings: object
) -> Iterator[Cluster]:
    """A cluster that is not started yet; ``settings`` go into every broker's configuration.

    Log files are small, so that a test crosses many of them. At the end every process is killed, whatever
    happened.
    """
    ports = iter(free_ports(nameservers + shards * replicas))
    nodes: dict[str, Node] = {}
    for number in range(nameservers):
        name, port = f"nameserver-{number}", next(ports)
        home = directory / name
        own: dict[str, object] = {"listenPort": port, "bindAddress": "127.0.0.1", "kvConfigPath": home / "kv.json"}
        nodes[name] = Node(name, "nameserver", home, port, own)
    role = settings.pop("brokerRole", "ASYNC_MASTER")
    for shard in "abcdefgh"[:shards]:
        for broker_id in range(replicas):
            name, port = f"broker-{shard}-{broker_id}", next(ports)
            home = directory / name
            own = SMALL | {
                "brokerName": f"broker-{shard}",
                "brokerId": broker_id,
                "brokerRole": role if broker_id == 0 else "SLAVE",
                "listenPort": port,
                "storePathRootDir": home / "store",
                "namesrvAddr": ";".join(node.address for node in nodes.values() if node.kind == "nameserver"),
            }
            nodes[name] = BrokerNode(name, "broker", home, port, own | settings)
    made = Cluster(directory, nodes)
    try:
        yield made
    finally:
        for node in nodes.values():
            node.end()
