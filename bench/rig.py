"""What a benchmark case runs on: a fresh cluster for each turn, measured while a load runs."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from penstock.deploy import LocalCluster
from penstock.proto.errors import PenstockError

from .health import await_replicas, broker_statuses, open_cluster
from .load.load import ensure_topic, run_load
from .load.plan import LoadPlan
from .load.worker import repeating
from .machine import cpu_s, own_memory_mib
from .report import LoadReport

FULL_SIZE_FILES = {
    "mappedFileSizeCommitLog": str(1 << 30),
    "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000",
    "maxIndexNum": "20000000",
}
"""A broker's own defaults instead of the small files of local clusters."""
SAMPLE_PAUSE_S = 0.1

Progress = Callable[[str], None]


@dataclass(slots=True)
class Cost:
    """What the processes of a cluster used while a load ran."""

    cpu_share: dict[str, float] = field(default_factory=dict)
    log_bytes: int = 0
    own_memory_mib: float = 0.0  # the largest broker's, besides mapped files; its highest sample


@dataclass(slots=True)
class Rig:
    """Runs loads on fresh clusters. ``seconds`` is how long each measured load lasts.

    ``versions`` tells of what other systems the turns have run.
    """

    seconds: float
    scratch: Path
    progress: Progress
    costs: list[Cost] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A directory for the length of the ``with`` block."""
        found = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=self.scratch))
        try:
            yield found
        finally:
            shutil.rmtree(found, ignore_errors=True)

    @contextlib.contextmanager
    def cluster(
        self, *, shards: int = 1, replicas: int = 1, mode: str = "async", gateway: bool = False, **settings: str
    ) -> Iterator[Bench]:
        """A cluster in a fresh directory, which is removed afterwards."""
        with self.folder() as folder:
            cluster = open_cluster(str(folder), self.progress)
            settings = {**FULL_SIZE_FILES, **settings}
            try:
                cluster.up(
                    shards=shards,
                    replicas=replicas,
                    nameservers=1,
                    mode=mode,
                    base_port=0,
                    gateway=gateway,
                    settings=settings,
                )
                await_replicas(cluster)
                yield Bench(self, cluster)
            finally:
                if (folder / "cluster.json").exists():
                    cluster.down()


@dataclass(slots=True)
class Bench:
    """One cluster under test."""

    rig: Rig
    cluster: LocalCluster

    def plan(self, kind: str, **options: Any) -> LoadPlan:
        """A load on this cluster, for the rig's time unless a count is given."""
        if "count" not in options and kind != "consume":
            options.setdefault("seconds", self.rig.seconds)
        options.setdefault("probe", False)
        return LoadPlan(kind=kind, namesrv=self.cluster.plan.nameserver_addresses, topic="bench", **options)

    def prepare(self, plan: LoadPlan) -> None:
        """Run a load that is not measured."""
        ensure_topic(plan)
        run_load(plan, self.rig.progress)

    def warm(self, plan: LoadPlan) -> None:
        """Open what opens at first use: mapped files, connections' windows, the broker's buffers."""
        self.prepare(replace(plan, seconds=1.0, count=None, rate=None))

    def run(self, plan: LoadPlan) -> LoadReport:
        """Run the load and keep what it cost.

        Raises:
            PenstockError: a message was refused or is unknown, so the figures say nothing.
        """
        ensure_topic(plan)
        nodes = {state.node.name: psutil.Process(state.pid) for state in self.cluster.states() if state.pid}
        brokers = [broker.pid for broker in self.brokers()]
        cost = Cost()

        def sample() -> None:
            cost.own_memory_mib = max(cost.own_memory_mib, *(own_memory_mib(pid) for pid in brokers))

        before = {name: cpu_s(process) for name, process in nodes.items()}
        log_before = self._log_end()
        began = time.monotonic()
        with repeating(sample, SAMPLE_PAUSE_S):
            report = run_load(plan, self.rig.progress)
        busy = report.seconds or time.monotonic() - began
        shares = {name: round((cpu_s(process) - before[name]) / busy, 2) for name, process in nodes.items()}
        cost.cpu_share = {**shares, **report.cpu_share}
        cost.log_bytes = self._log_end() - log_before
        self.rig.costs.append(cost)
        if report.refused or report.unknown:
            raise PenstockError(f"no figure: {report.refused} refused, {report.unknown} unknown: {report.errors}")
        return report

    def rate(self, plan: LoadPlan) -> float:
        """Messages per second of the load, on a cluster that is warm."""
        self.warm(plan)
        return self.run(plan).messages_per_s

    def brokers(self) -> list[psutil.Process]:
        return [psutil.Process(state.pid) for state in self.cluster.states() if state.pid and state.node.is_broker]

    def keep_cost(self) -> None:
        """Keep what the brokers have and hold now, for a case without a measured load."""
        memory = max(own_memory_mib(broker.pid) for broker in self.brokers())
        self.rig.costs.append(Cost(log_bytes=self._log_end(), own_memory_mib=memory))

    def _log_end(self) -> int:
        masters = [node.address for node in self.cluster.plan.nodes if node.is_broker and not node.broker_id]
        return sum(status.max_offset for status in broker_statuses(masters, 5.0) if status is not None)
