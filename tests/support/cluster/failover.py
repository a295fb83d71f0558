"""A writer and a reader around changes of master, for real clusters."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.bench.health import await_replicas, broker_statuses, open_cluster
from penstock.client import Admin, Message, Producer, PullConsumer, SendReceipt
from penstock.deploy import LocalCluster, Node
from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.common_pb2 import MASTER
from tests.support.client.traffic import PAUSE_S
from tests.support.waiting import wait_until

TOPIC = "orders"


@contextlib.contextmanager
def local_cluster(folder: Path, *, replicas_within_s: float = 60, **shape: Any) -> Iterator[LocalCluster]:
    """A running cluster whose slaves have caught up, on free ports; every process left is killed at the end.

    ``shape``: of :meth:`LocalCluster.up`.
    """
    made = open_cluster(str(folder))
    made.up(base_port=0, **shape)
    try:
        assert await_replicas(made, replicas_within_s) == []
        yield made
    finally:
        end_all(made)


def end_all(cluster: LocalCluster) -> None:
    """Kill every process that is left."""
    for state in cluster.states():
        if state.is_alive:
            cluster._signal(state.node.name, signal.SIGKILL)


class Writer:
    """Sends numbered messages one after the other and remembers what was said about each."""

    def __init__(self, nameservers: str, prefix: str) -> None:
        self.acknowledged: list[tuple[float, str, SendReceipt]] = []
        self.errors: list[tuple[str, PenstockError]] = []
        self._prefix = prefix
        self._stop = threading.Event()
        self._producer = Producer(nameservers, group="writers")
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_acknowledged(self, more: int, timeout_s: float = 30) -> None:
        """Until so many more are acknowledged."""
        wanted = len(self.acknowledged) + more
        wait_until(lambda: len(self.acknowledged) >= wanted, timeout_s, f"{more} more acknowledged: {self.errors[-3:]}")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            body = f"{self._prefix}-{number}"
            try:
                receipt = self._producer.send(TOPIC, body.encode(), timeout_s=20)
            except PenstockError as error:
                self.errors.append((body, error))
            else:
                self.acknowledged.append((time.monotonic(), body, receipt))
            self._stop.wait(PAUSE_S)


@contextlib.contextmanager
def writing(nameservers: str, prefix: str) -> Iterator[Writer]:
    """A writer that has stopped at the end."""
    writer = Writer(nameservers, prefix)
    try:
        yield writer
    finally:
        writer.stop()


def brokers(cluster: LocalCluster) -> list[tuple[Node, BrokerStatus | None]]:
    """Every running broker and what it says of itself."""
    nodes = [state.node for state in cluster.states() if state.state == "running" and state.node.is_broker]
    return list(zip(nodes, broker_statuses([node.address for node in nodes]), strict=True))


def master(cluster: LocalCluster) -> tuple[Node, BrokerStatus] | None:
    """The acting master of the one shard, if there is one now."""
    found = [
        (node, status)
        for node, status in brokers(cluster)
        if status is not None and status.role == MASTER and status.is_acting
    ]
    assert len(found) <= 1, f"two masters act: {[node.name for node, _ in found]}"
    return found[0] if found else None


def wait_master(cluster: LocalCluster, timeout_s: float = 30) -> tuple[Node, BrokerStatus]:
    """The acting master, once there is one and all running brokers are in its set."""

    def whole() -> tuple[Node, BrokerStatus] | None:
        found = master(cluster)
        if found is None or set(found[1].sync_state_set) != {node.broker_id for node, _ in brokers(cluster)}:
            return None
        return found

    found = wait_until(whole, timeout_s, "a master whose set is whole")
    assert found is not None
    return found


def kill_master(cluster: LocalCluster) -> None:
    """Kill the master, and start it again when another is."""
    old, _ = wait_master(cluster)
    cluster.kill(old.name)
    wait_until(lambda: wait_master(cluster)[0].name != old.name, 60, "another master")
    cluster.restart(old.name)


def create_topic(nameservers: str) -> None:
    with Admin(nameservers) as admin:
        admin.create_topic(TOPIC, queues=4)


def read_all(nameservers: str, least: int, timeout_s: float = 30) -> list[Message]:
    """Every message of the topic, at least so many."""
    found: list[Message] = []
    deadline = time.monotonic() + timeout_s
    with PullConsumer(nameservers, group=f"reader-{time.monotonic_ns()}", consume_from="first") as puller:
        puller.subscribe(TOPIC)
        while True:
            fresh = list(puller.poll(timeout_s=1, max_messages=1000))
            found += fresh
            if len(found) >= least and not fresh:
                return found
            assert time.monotonic() < deadline, f"read {len(found)} of {least} messages"


def assert_all_there(writer: Writer, found: list[Message]) -> None:
    """Every acknowledged message is where its receipt says, and nothing is there twice or was refused."""
    places = {(message.queue_id, message.queue_offset): bytes(message.body).decode() for message in found}
    bodies = [bytes(message.body).decode() for message in found]
    assert len(bodies) == len(set(bodies)) == len(places)
    for _, body, receipt in writer.acknowledged:
        assert places.get((receipt.queue_id, receipt.queue_offset)) == body
