"""What a benchmark case runs on: a fresh cluster for each repetition, measured while a load runs."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from penstock.deploy import LocalCluster

from .health import await_replicas, broker_statuses, open_cluster
from .load.load import ensure_topic, run_load
from .load.plan import LoadPlan
from .load.worker import repeating
from .memory import fresh_page_us
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
    """Runs loads on fresh clusters. ``seconds`` is how long each measured load lasts."""

    seconds: float
    scratch: Path
    progress: Progress
    costs: list[Cost] = field(default_factory=list)

    @contextlib.contextmanager
    def cluster(self, *, replicas: int = 1, mode: str = "async", **settings: str) -> Iterator[Bench]:
        """One shard in a fresh directory, which is removed afterwards."""
        folder = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=self.scratch))
        cluster = open_cluster(str(folder), self.progress)
        try:
            cluster.up(shards=1, replicas=replicas, mode=mode, base_port=0, settings={**FULL_SIZE_FILES, **settings})
            await_replicas(cluster)
            yield Bench(self, cluster)
        finally:
            if (folder / "cluster.json").exists():
                cluster.down()
            shutil.rmtree(folder, ignore_errors=True)


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

    def warm(self, plan: LoadPlan) -> None:
        """Open what opens at first use: mapped files, connections' windows, the broker's buffers."""
        ensure_topic(plan)
        run_load(replace(plan, seconds=1.0, count=None, rate=None))

    def run(self, plan: LoadPlan) -> LoadReport:
        """Run the load and keep what it cost."""
        ensure_topic(plan)
        nodes = {state.node.name: psutil.Process(state.pid) for state in self.cluster.states() if state.pid}
        cost = Cost()
        before = {name: _cpu_s(process) for name, process in nodes.items()}
        log_before = self._log_end()
        began = time.monotonic()
        with _sampling(nodes, cost):
            report = run_load(plan, self.rig.progress)
        elapsed = time.monotonic() - began
        busy = report.seconds or elapsed
        shares = {name: round((_cpu_s(process) - before[name]) / busy, 2) for name, process in nodes.items()}
        cost.cpu_share = {**shares, **report.cpu_share}
        cost.log_bytes = self._log_end() - log_before
        self.rig.costs.append(cost)
        return report

    def keep_cost(self) -> None:
        """Keep what the brokers have and hold now, for a case without a measured load."""
        pids = [state.pid for state in self.cluster.states() if state.pid and state.node.is_broker]
        memory = max(own_memory_mib(pid) for pid in pids)
        self.rig.costs.append(Cost(log_bytes=self._log_end(), own_memory_mib=memory))

    def _log_end(self) -> int:
        masters = [node.address for node in self.cluster.plan.nodes if node.is_broker and not node.broker_id]
        return sum(status.max_offset for status in broker_statuses(masters, 5.0) if status is not None)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _sampling(nodes: dict[str, psutil.Process], cost: Cost) -> AbstractContextManager[None]:
    brokers = [process.pid for name, process in nodes.items() if name.startswith("broker")]

    def sample() -> None:
        cost.own_memory_mib = max(cost.own_memory_mib, *(own_memory_mib(pid) for pid in brokers))

    return repeating(sample, SAMPLE_PAUSE_S)


def own_memory_mib(pid: int) -> float:
    """Resident memory of a process besides mapped files, in MiB."""
    total = 0
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as source:
        for line in source:
            if line.startswith(("RssAnon:", "RssShmem:")):
                total += int(line.split()[1])
    return total / 1024


def python_step_ns() -> float:
    """What one turn of an empty loop of the interpreter costs, in ns: the best of five."""
    turns = 200_000
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(turns):
            pass
        best = min(best, time.perf_counter() - began)
    return round(best / turns * 1e9, 1)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name, with its family and model where the system tells them: one name may be of many makes."""
    told: dict[str, str] = {}
    with contextlib.suppress(OSError):
        first = cpuinfo.read_text().partition("\n\n")[0]
        told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    name = told.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in told and "model" in told:
        return f"{name} (family {told['cpu family']}, model {told['model']})"
    return name


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "processor": processor(),
        "processors": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "python_step_ns": python_step_ns(),
        "fresh_page_us": fresh_page_us(),
        "load_before": round(os.getloadavg()[0], 2),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
    }
