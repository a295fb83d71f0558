"""Looks at a cluster all through a drill: roles and epochs of the brokers, and the offsets of the group."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc

from penstock.client import Admin, PenstockError
from penstock.deploy import LocalCluster, Node
from penstock.judge.history import Op, Outcome, Recorder
from penstock.proto.wire.broker_pb2 import BrokerStatus
from penstock.proto.wire.broker_pb2_grpc import BrokerStub
from penstock.proto.wire.common_pb2 import Empty, Role
from penstock.runtime.channel import open_channel
from penstock.runtime.security.credentials import SecurityFiles

log = logging.getLogger(__name__)

STATUS_PAUSE_S = 0.1
STATUS_TIMEOUT_S = 0.25
POSITION_PAUSE_S = 0.3
POSITION_TIMEOUT_S = 1.0
FILE = "roles.jsonl"

_broker_stub: Callable[[grpc.Channel], Any] = BrokerStub  # the generated stubs carry no types


@dataclass(frozen=True, slots=True)
class Sample:
    """A broker at one moment. ``role`` empty: it did not answer. ``pid`` 0: its process was dead or frozen."""

    at_ns: int
    name: str
    shard: str
    role: str
    epoch: int
    max_offset: int = 0
    confirm_offset: int = 0
    dispatched_offset: int = 0
    lag_bytes: int = 0
    pid: int = 0


class _Watcher(threading.Thread):
    """Looks again and again, until it is stopped."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._done = threading.Event()

    def stop(self) -> None:
        """Look no more. May be called again."""
        self._done.set()
        if self.is_alive():
            self.join()


class RoleWatcher(_Watcher):
    """Asks every broker for its status ten times a second, and keeps the answers in a file and in memory."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        super().__init__("role-watcher")
        self.samples: list[Sample] = []
        self._cluster = cluster
        self._nodes = [node for node in cluster.plan.nodes if node.is_broker]
        self._path = folder / FILE
        self._latest: dict[str, Sample] = {}

    def latest(self, name: str) -> Sample | None:
        return self._latest.get(name)

    def run(self) -> None:
        security = SecurityFiles.from_environment().read()
        channels = {node.name: open_channel(node.address, security) for node in self._nodes}
        stubs = {name: _broker_stub(channel) for name, channel in channels.items()}
        try:
            with open(self._path, "a") as output:
                while not self._done.wait(STATUS_PAUSE_S):
                    self._look(stubs, output)
        finally:
            for channel in channels.values():
                channel.close()

    def _look(self, stubs: dict[str, Any], output: Any) -> None:
        calls = {name: stub.Status.future(Empty(), timeout=STATUS_TIMEOUT_S) for name, stub in stubs.items()}
        for node in self._nodes:
            state = self._cluster.state(node)
            sample = _sample(node, calls[node.name], state.pid or 0 if state.state == "running" else 0)
            self._latest[node.name] = sample
            self.samples.append(sample)
            output.write(json.dumps(asdict(sample)) + "\n")
        output.flush()


def _sample(node: Node, call: Any, pid: int) -> Sample:
    try:
        status: BrokerStatus = call.result()
    except grpc.RpcError:
        return Sample(time.monotonic_ns(), node.name, node.broker_name, "", 0, pid=pid)
    told = (Role.Name(status.role), status.epoch, status.max_offset, status.confirm_offset)
    more = (status.dispatched_offset, status.lag_bytes, pid)
    return Sample(time.monotonic_ns(), node.name, node.broker_name, *told, *more)


def read_samples(folder: Path) -> list[Sample]:
    """What a watcher left in ``folder``; nothing without its file."""
    path = folder / FILE
    return [Sample(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


class PositionWatcher(_Watcher):
    """Looks at the ends of every queue and at the group's committed offsets, as any client may."""

    def __init__(self, nameservers: str, group: str, topic: str, shards: Sequence[str], recorder: Recorder) -> None:
        super().__init__("position-watcher")
        self._nameservers = nameservers
        self._group = group
        self._topic = topic
        self._shards = {name: index for index, name in enumerate(shards)}
        self._recorder = recorder

    def run(self) -> None:
        with Admin(self._nameservers) as admin:
            while not self._done.wait(POSITION_PAUSE_S):
                start_ns = time.monotonic_ns()
                try:
                    found = admin.group_lag(self._group, timeout_s=POSITION_TIMEOUT_S)
                except PenstockError as error:  # expected while something is broken
                    log.info("positions not known error=%s", error)
                    continue
                now = time.monotonic_ns()
                for queue in found.queues:
                    # Of a shard that answered only in part, the committed offsets may be missing and look like none.
                    if queue.topic == self._topic and queue.broker_name not in found.unreachable:
                        self._recorder.add(
                            Op.POSITION,
                            Outcome.OK,
                            start_ns,
                            now,
                            shard=self._shards.get(queue.broker_name, -1),
                            queue=queue.queue_id,
                            offset=queue.committed_offset,
                            sequence=queue.min_offset,
                            position=queue.max_offset,
                        )
                self._recorder.flush()
