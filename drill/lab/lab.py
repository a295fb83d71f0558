"""The cluster of one drill with everything around it: network, disks, clients, watchers. Gone when it is closed."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from penstock.bench.health import await_replicas, broker_statuses, cluster_views, serves
from penstock.bench.load.crew import Worker
from penstock.client import Admin
from penstock.client.cluster import again
from penstock.deploy import DeployError, LocalCluster, Node, NodeState, Place
from penstock.judge.conditions import Stop, Window
from penstock.judge.history import SUFFIX
from penstock.proto.errors import OutcomeUnknown
from penstock.proto.wire.broker_pb2 import BrokerStatus

from ..load import EACH, PLACES
from .disks import SmallDisk
from .levels import behind
from .network import Network
from .schedule import DrillFailed, FaultPlan, Shape, Timing
from .watching import RoleWatcher

Progress = Callable[[str], None]
Need = Literal["network", "small disk", "slow disk", "slow catch-up", "throttle"]
"""What a drill needs beside processes: packets that can be lost, a disk that can be filled or slowed down, or slaves
that catch up slowly, or not too quickly."""

SERVE_TIMEOUT_S = 60.0
LEVEL_TIMEOUT_S = 60.0
TOPIC_TIMEOUT_S = 30.0
POLL_S = 0.05
CATCH_UP_FACTORS: Mapping[Need, int] = {"slow catch-up": 2, "throttle": 8}
"""So many times its shard's load a slave is sent at most."""
THROTTLE_LEAST = 64 << 10
WORKER = "penstock.drill.load.worker"
COORDINATOR = "coordinator-0"
OBSERVER_CLIENTS = 10
"""Clients below this number watch and read; the others are producers and consumers."""


class Lab:
    """Fresh processes under ``folder``. ``folder/cluster`` holds the cluster, the rest what the drill records."""

    def __init__(
        self,
        folder: Path,
        shape: Shape,
        timing: Timing,
        plan: FaultPlan,
        *,
        need: Need | None = None,
        existing: Path | None = None,
        progress: Progress,
        tell: Progress,
    ) -> None:
        """``existing``: the directory of a cluster that runs, is used and left running; else the drill starts one.

        ``progress`` is called several times a second, never within a call to the cluster: what it raises ends the
        drill, and everything is taken away. ``tell`` is called with what is to stay readable.
        """
        self.folder = folder
        self.shape = shape
        self.timing = timing
        self.plan = plan
        self.run = plan.seed & 0xFFFF_FFFF
        self.owns_cluster = existing is None
        self.topic = "drill" if self.owns_cluster else f"drill-{folder.name.replace('.', '-')}"
        self.group = f"{self.topic}-consumers"
        self.orderly_group = f"{self.topic}-orderly"
        self.pop_group = f"{self.topic}-simple"
        self.promises = f"{self.topic}-promises"  # topic of what is not shown when it is sent
        self.log_starts: dict[str, int] = {}
        self.network: Network | None = None
        self.windows: list[Window] = []
        self.stops: list[Stop] = []
        self.notes: list[str] = []
        self.workers: dict[str, Worker] = {}
        self.watcher: RoleWatcher | None = None
        self.phase = "starting"
        self._progress = progress
        self._tell = tell
        self._need = need
        self._disks: dict[str, SmallDisk] = {}
        self._undo: list[Callable[[], object]] = []
        self._open: list[tuple[str, str, int]] = []
        self._next_client = OBSERVER_CLIENTS
        self.cluster = LocalCluster(existing or folder / "cluster", self._probe, self._show, wrap=self._wrap)

    # Making it.

    def make(self) -> None:
        """Start the cluster and make the topic; returns when every replica is level."""
        if self._need == "network":
            self.network = Network([*self._place_names(), *self._client_names()])
            self.network.make()
        if self._need == "small disk":
            name = self.names_of(self.victim_shard)[0]
            self._disks[name] = SmallDisk(self.folder / "disks" / name)
            self._disks[name].mount()
        if self.owns_cluster:
            self._start_cluster()
        self.await_level()
        self.log_starts = {state.node.name: state.log_path.stat().st_size for state in self.cluster.states()}
        with Admin(self.nameservers) as admin:
            for topic in (self.topic, self.promises):
                make = functools.partial(admin.create_topic, topic, queues=self.shape.queues)
                again(make, TOPIC_TIMEOUT_S, OutcomeUnknown)  # slaves that are still slow: it may be asked again
        self.watcher = RoleWatcher(self.cluster, self.folder)
        self.watcher.start()

    def _start_cluster(self) -> None:
        shape, settings = self.shape, {}
        if self._need is not None and self._need in CATCH_UP_FACTORS:
            limit = max(int(CATCH_UP_FACTORS[self._need] * shape.shard_bytes_per_s), THROTTLE_LEAST)
            settings = {
                "haFlowControlEnable": "true",
                "maxHaTransferByteInSecond": str(limit),
                "haTransferBatchSize": str(THROTTLE_LEAST // 2),
            }
        self.cluster.up(
            shards=shape.shards,
            replicas=shape.replicas,
            nameservers=shape.nameservers,
            mode=shape.mode,
            coordinator=shape.coordinator,
            base_port=0,
            settings=settings,
            places=self._places(),
        )

    def _places(self) -> dict[str, Place]:
        places: dict[str, Place] = {}
        if self.network is not None:
            places = {name: Place(host=self.network.address(name)) for name in self._place_names()}
        for name, disk in self._disks.items():
            places[name] = Place(host=places[name].host if name in places else Place().host, store=str(disk.path))
        return places

    def _wrap(self, node: Node) -> Sequence[str]:
        return self.network.wrap(node.name) if self.network is not None else ()

    def _probe(self, node: Node) -> bool:
        return serves(node, self.nameservers.split(";"))

    def _client_names(self) -> list[str]:
        others = {"promise": 1, "work": EACH, "pop": EACH}
        counts = {"produce": self.shape.producers, "consume": self.shape.consumers, **others}
        return [f"{PLACES[role]}-{number}" for role, count in counts.items() for number in range(count)]

    # Names.

    @property
    def shards(self) -> list[str]:
        return [f"broker-{chr(ord('a') + number)}" for number in range(self.shape.shards)]

    @property
    def victim_shard(self) -> str:
        """The broker group that the fault meets."""
        return self.shards[self.plan.shard]

    @property
    def nameserver_names(self) -> list[str]:
        return [f"nameserver-{number}" for number in range(self.shape.nameservers)]

    @property
    def nameservers(self) -> str:
        return self.cluster.plan.nameserver_addresses

    def _place_names(self) -> list[str]:
        """Names of all nodes, before the cluster has its plan."""
        brokers = [name for shard in self.shards for name in self.names_of(shard)]
        etcd = [COORDINATOR] if self.shape.coordinator == "etcd" else []
        return [*etcd, *self.nameserver_names, *brokers]

    def names_of(self, shard: str) -> list[str]:
        return [f"{shard}-{number}" for number in range(self.shape.replicas)]

    def master(self, shard: str | None = None) -> str:
        """Who is master of a broker group now (of the one that the fault meets), with the highest epoch."""
        shard = shard or self.victim_shard
        deadline = time.monotonic() + 10.0
        while True:
            assert self.watcher is not None
            found = [sample for name in self.names_of(shard) if (sample := self.watcher.latest(name)) is not None]
            masters = [sample for sample in found if sample.role == "MASTER"]
            if masters:
                return max(masters, key=lambda sample: sample.epoch).name
            if time.monotonic() > deadline:
                told = ", ".join(f"{sample.name} {sample.role or 'silent'}" for sample in found)
                raise DrillFailed(f"{shard} has no master: {told}")
            time.sleep(POLL_S)

    def slave(self, shard: str | None = None, number: int | None = None) -> str:
        """One of those that are slaves now: the one that the plan chose, or slave ``number`` of ``shard``."""
        shard, number = shard or self.victim_shard, self.plan.slave if number is None else number
        master = self.master(shard)
        slaves = [name for name in self.names_of(shard) if name != master]
        if not slaves:
            raise DrillFailed(f"{shard} has no slave: this drill needs --replicas 2 or more")
        return slaves[number % len(slaves)]

    def disk_of(self, name: str) -> SmallDisk:
        if name not in self._disks:
            raise DrillFailed(f"{name} became the master; only {', '.join(self._disks)} lies on a small disk")
        return self._disks[name]

    def state(self, name: str) -> NodeState:
        return self.cluster.state(self.cluster.plan.node(name))

    def broker_states(self) -> list[NodeState]:
        return [state for state in self.cluster.states() if state.store_path is not None]

    def peers(self, name: str) -> list[str]:
        """Every other node and every client."""
        nodes = [node.name for node in self.cluster.plan.nodes]
        return [other for other in [*nodes, *self._client_names()] if other != name]

    @property
    def elects(self) -> bool:
        """True if masters are elected; else each shard's first broker is its master for ever."""
        return self.owns_cluster or self.cluster.plan.is_elected

    @property
    def coordinator_names(self) -> list[str]:
        """Who keeps epochs and sync-state sets: etcd, or the nameserver that embeds the store."""
        found = [node.name for node in self.cluster.plan.nodes if node.is_coordinator]
        return found or self.nameserver_names[:1]

    def switch(self, shard: str, target: str) -> None:
        """A planned change of master, by the command that operators use. Raises DrillFailed: the command did."""
        broker_id = target.rpartition("-")[2]
        command = [sys.executable, "-m", "penstock.cli", "cluster", "switch", shard, "--to", broker_id]
        done = subprocess.run(
            [*command, "--dir", str(self.cluster.directory)], check=False, capture_output=True, text=True, timeout=60
        )
        if done.returncode:
            raise DrillFailed(f"`cluster switch {shard} --to {broker_id}` failed: {done.stderr.strip()}")

    # Clients.

    def history_path(self, name: str) -> Path:
        """Where a client keeps its rows."""
        return self.folder / f"{name}{SUFFIX}"

    def start_worker(self, role: str, number: int, *, again: bool = False) -> Worker:
        """Start a producer or consumer process; ``again``: in the place of another one, with a name of its own."""
        place = f"{PLACES[role]}-{number}"
        name = f"{place}-{self._next_client}" if again else place
        shape = self.shape
        job: dict[str, Any] = {
            "role": role,
            "number": number,
            "name": name,
            "client": self._next_client,
            "namesrv": self.nameservers,
            "topic": self.topic,
            "group": self.group,
            "orderly_group": self.orderly_group,
            "pop_group": self.pop_group,
            "promises": self.promises,
            "shards": self.shards,
            "history": str(self.folder),
            "run": self.run,
            "rate": shape.rate / shape.producers,
            "keys": shape.keys,
            "size": shape.size,
        }
        self._next_client += 1
        wrap = self.network.wrap(place) if self.network is not None else ()
        worker = Worker(job, WORKER, self.folder / f"{name}.log", wrap)
        self.workers[place] = worker
        return worker

    def counts(self) -> dict[str, int]:
        """Sums of what the clients tell of themselves."""
        total: dict[str, int] = {}
        for worker in self.workers.values():
            for name, value in worker.progress.items():
                total[name] = total.get(name, 0) + value
        return total

    # Faults and time.

    @contextlib.contextmanager
    def broken(self, what: str, target: str, undo: Callable[[], object]) -> Any:
        """A window in which something is broken; ``undo`` heals it at the end, or when the lab is closed."""
        entry = time.monotonic_ns()
        self._undo.append(undo)
        self._open.append((what, target, entry))
        try:
            yield
        finally:
            undo()
            self._undo.remove(undo)
            self._open.remove((what, target, entry))
            self.windows.append(Window(what, target, entry, time.monotonic_ns()))

    def tell(self, text: str) -> None:
        """Say, and keep among the notes, what is done next."""
        self.notes.append(text)
        self._tell(text)

    def wait(self, seconds: float, phase: str = "") -> None:
        """Let time pass, and tell how things go."""
        self.phase = phase or self.phase
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._show(f"{left:.0f} s left")
            time.sleep(min(left, 0.2))

    def _show(self, text: str) -> None:
        counts = self.counts()
        told = "  ".join(
            f"{name} {counts[name]:,}" for name in ("acknowledged", "refused", "unknown", "received") if name in counts
        )
        self._progress(f"{self.plan.drill} seed {self.plan.seed}  {self.phase}  {told}  {text}")

    def await_status(self, name: str, what: str, condition: Callable[[BrokerStatus], bool]) -> BrokerStatus:
        """The status of a broker as soon as it fulfils ``condition``. Raises DrillFailed: it does not, in time."""
        deadline = time.monotonic() + SERVE_TIMEOUT_S
        while True:
            (status,) = broker_statuses([self.cluster.plan.node(name).address])
            if status is not None and condition(status):
                return status
            if time.monotonic() > deadline:
                raise DrillFailed(f"{name}: {what} did not come within {SERVE_TIMEOUT_S:.0f} s")
            self._show(f"waiting for {name}: {what}")
            time.sleep(POLL_S)

    # Health.

    def stop_node(self, name: str) -> None:
        """SIGTERM, and note how it ended."""
        report = self.cluster.stop(name)
        store = self.state(name).store_path
        marker = store is not None and (store / "abort").exists()
        self.stops.append(Stop(name, round(report.seconds, 3), report.exit_code, report.killed, marker))

    def note_start(self, name: str) -> None:
        """Note if a broker that was stopped cleanly had to scan its log at its start."""
        opened = [line for line in self.cluster.log_lines(name, 500) if " store opened " in line]
        if opened and " clean=True " not in opened[-1]:
            self.stops[-1] = replace(self.stops[-1], scanned=True)

    def await_serving(self, names: Sequence[str]) -> None:
        """Return when these nodes serve. Raises DrillFailed: one does not, in time."""
        deadline = time.monotonic() + SERVE_TIMEOUT_S
        for name in names:
            node = self.cluster.plan.node(name)
            while not self._probe(node):
                if not self.state(name).is_alive:
                    raise DrillFailed(f"{name} ended: {' '.join(self.cluster.log_lines(name, 3))}")
                if time.monotonic() > deadline:
                    raise DrillFailed(f"{name} does not serve {SERVE_TIMEOUT_S:.0f} s after its start")
                self._show(f"waiting for {name}")
                time.sleep(POLL_S)

    def await_level(self, timeout_s: float = LEVEL_TIMEOUT_S, *, quiet: bool = False) -> list[str]:
        """Wait until every replica is in sync (``quiet``: has all of its master's log); who is not, in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            late = behind(self.broker_states(), quiet=quiet)
            if not late and not quiet:
                late = [f"{name} is not in sync" for name in await_replicas(self.cluster, timeout_s=0.0)]
            if not late or time.monotonic() > deadline:
                return late
            self._show(late[0])
            time.sleep(POLL_S)

    def nameservers_agree(self) -> bool:
        """True if every nameserver knows every broker."""
        wanted = {state.node.address for state in self.broker_states()}
        views = cluster_views(self.nameservers.split(";"))
        return all(view is not None and wanted <= {m.address for s in view.shards for m in s.members} for view in views)

    # The end.

    def heal(self) -> None:
        """Undo whatever is still broken."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    def close(self) -> list[str]:
        """End everything and take it away; what is left all the same."""
        self._progress = lambda _: None  # nothing interrupts this
        if self.watcher is not None:
            self.watcher.stop()
        for worker in self.workers.values():
            worker.kill()
        left: list[str] = []
        with contextlib.suppress(DeployError):  # where no cluster was made there is nothing to end
            self.heal()
            if not self.owns_cluster:
                return left
            self.cluster.down()
            left += [f"{state.node.name} still runs, pid {state.pid}" for state in self.cluster.states() if state.pid]
        if self.network is not None:
            self.network.close()
            left += [f"network namespace {name}" for name in self.network.left()]
        for disk in self._disks.values():
            disk.close()
            left += [f"mount {disk.path}"] if disk.is_mounted else []
        return left
