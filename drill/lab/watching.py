"""Looks at a cluster all through a drill: roles and epochs of the brokers, and the offsets of the group."""

from __future__ import annotations

import contextlib
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


class RoleWatcher(threading.Thread):
    """Asks every broker for its status ten times a second, and keeps the answers in a file and in memory."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        super().__init__(name="role-watcher", daemon=True)
        self.samples: list[Sample] = []
        self._done = threading.Event()
        self._cluster = cluster
        self._nodes = [node for node in cluster.plan.nodes if node.is_broker]
        self._path = folder / FILE
        self._latest: dict[str, Sample] = {}

    def latest(self, name: str) -> Sample | None:
        return self._latest.get(name)

    def stop(self) -> None:
        """Look no more. May be called again."""
        self._done.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        security = SecurityFiles.from_environment().read()
        with contextlib.ExitStack() as opened, open(self._path, "a") as output:
            channels = [opened.enter_context(open_channel(node.address, security)) for node in self._nodes]
            stubs = {node.name: _broker_stub(channel) for node, channel in zip(self._nodes, channels, strict=True)}
            while not self._done.wait(STATUS_PAUSE_S):
                self._look(stubs, output)

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


def note_positions(admin: Admin, group: str, topic: str, shards: Sequence[str], recorder: Recorder) -> None:
    """Note the ends of every queue and the group's committed offsets, as far as brokers tell them now."""
    start_ns = time.monotonic_ns()
    try:
        found = admin.group_lag(group, timeout_s=POSITION_TIMEOUT_S)
    except PenstockError as error:  # expected while something is broken
        log.info("positions not known error=%s", error)
        return
    now = time.monotonic_ns()
    for queue in found.queues:
        # Of a shard that answered only in part, the committed offsets may be missing and look like none.
        if queue.topic == topic and queue.broker_name not in found.unreachable:
            recorder.add(
                Op.POSITION,
                Outcome.OK,
                start_ns,
                now,
                shard=shards.index(queue.broker_name) if queue.broker_name in shards else -1,
                queue=queue.queue_id,
                offset=queue.committed_offset,
                sequence=queue.min_offset,
                position=queue.max_offset,
            )
    recorder.flush()
