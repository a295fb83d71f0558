"""A cluster of real processes on this machine, under one directory.

:class:`LocalCluster` lays the directory out, starts what does not run, and ends what does. It knows nothing of
the services inside: whether a node serves is asked of a ``probe`` that the caller brings.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import ports, processes
from .directory import ClusterDirectory, NodeState
from .errors import DeployError, DeployUsage
from .plan import ETCD, Node, Place, Plan, load_plan
from .processes import Managed

READY_TIMEOUT_S = 120.0
"""Long enough for the first start, which compiles kernels."""
STOP_TIMEOUT_S = 9.0
_PROBE_PAUSE_S = 0.05

Probe = Callable[[Node], bool]
Progress = Callable[[str], None]
PlanCheck = Callable[[Plan], None]
Wrap = Callable[[Node], Sequence[str]]
"""Words to put before a node's command, such as ``ip netns exec NAME``; the process must stay the same."""


def accepts_connections(node: Node) -> bool:
    """The weakest probe: somebody listens on the node's port."""
    with contextlib.suppress(OSError), socket.create_connection((node.host, node.port), timeout=0.5):
        return True
    return False


@dataclass(frozen=True, slots=True)
class UpReport:
    """What ``up`` found and did, node by node."""

    started: tuple[str, ...]
    already_running: tuple[str, ...]
    thawed: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a node ended. ``exit_code`` is known where this program had started it."""

    name: str
    seconds: float
    exit_code: int | None
    killed: bool


class LocalCluster(ClusterDirectory):
    """The cluster of real processes in ``directory``; nothing needs to be there yet.

    ::

        cluster = LocalCluster("/tmp/try")
        cluster.up(shards=2, replicas=2, mode="sync", base_port=0)
        cluster.plan.nameserver_addresses    # what clients are given
        cluster.kill("broker-a-0")           # also freeze, thaw, restart
        cluster.down()

    Every action may be repeated: ``up`` starts what is missing, ``down`` ends what runs. The processes outlive this
    object and its program; another object on the same directory finds them again by their pid files. Starting and
    stopping takes a lock on the directory, and a second one at the same time is refused (:class:`DeployError`);
    looking (``plan``, ``states``, ``log_lines``) and the faults take none. For one thread at a time.

    Nodes are called ``nameserver-N``, ``broker-SHARD-ID``, e.g. ``broker-b-1``, and ``coordinator-0``, which is etcd.
    Files: see :mod:`.plan`.
    """

    def __init__(
        self,
        directory: str | Path,
        probe: Probe = accepts_connections,
        progress: Progress = lambda _: None,
        *,
        wrap: Wrap = lambda _: (),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``probe(node)`` says whether a node serves, here whether it accepts connections; it is asked again and
        again while ``up`` and ``restart`` wait. ``progress(text)`` is told each second what is waited for.
        ``wrap(node)`` gives words to put before the node's command. ``pause(seconds)`` is how to wait; what it raises
        ends the waiting.
        """
        super().__init__(Path(directory).expanduser().absolute())
        self._probe = probe
        self._progress = progress
        self._wrap = wrap
        self._pause = pause

    @property
    def is_complete(self) -> bool:
        """True if there is a cluster and every node of it has a process."""
        return load_plan(self.directory) is not None and all(state.is_alive for state in self.states())

    def up(
        self,
        *,
        shards: int | None = None,
        replicas: int | None = None,
        nameservers: int | None = None,
        mode: str | None = None,
        coordinator: str | None = None,
        base_port: int | None = None,
        gateway: bool | None = None,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = READY_TIMEOUT_S,
        check: PlanCheck = lambda _: None,
        places: Mapping[str, Place] | None = None,
    ) -> UpReport:
        """Make the cluster run: all of it when new, what is missing otherwise; returns when every node serves.

        ``None`` stands for what the directory says, and for a new one for 2 shards, 2 replicas, async, and
        1 nameserver, which elects the masters. ``coordinator``: ``none``, ``file`` or ``etcd``. ``gateway``: with one
        for other clients, also where the cluster had none. ``check`` sees the plan
        before it is written: what it raises leaves the directory's plan as it was. ``places`` puts nodes
        of a new cluster elsewhere than in its folder and on this host's own address.

        Raises:
            DeployUsage: the directory holds something else, or a port is taken; nothing was started.
            DeployError: a node ended or did not serve in time; the others stay as they are.
            KeyboardInterrupt: what this call started was ended again.
        """
        given = {
            "shards": shards,
            "replicas": replicas,
            "nameservers": nameservers,
            "mode": mode,
            "coordinator": coordinator,
            "base_port": base_port,
            "gateway": gateway or None,
        }
        given = {name: value for name, value in given.items() if value is not None}
        with self.locked(create=True):
            plan, notes = self.planned(given, settings or {}, places)
            check(plan)
            self.adopt(plan)
            running, thawed = self._running(plan)
            missing = [node for node in plan.nodes if node.name not in running]
            _require_possible(missing)
            plan.save(self.directory)
            for node in plan.nodes:
                self.write_config(plan, node)
            for node in missing:
                before = self.process(node)
                if before is not None:
                    notes.append(f"{node.name} was not running any more (pid {before.pid}) and was started again")
            try:
                self._start(missing, timeout_s)
                if missing or thawed:
                    self._await(plan.nodes, timeout_s)
            except KeyboardInterrupt:
                self._progress("interrupted: ending what was started")
                self._stop(missing[::-1], STOP_TIMEOUT_S)
                raise
        names = tuple(node.name for node in missing)
        return UpReport(names, tuple(name for name in running if name not in thawed), tuple(thawed), tuple(notes))

    def down(self, timeout_s: float = STOP_TIMEOUT_S) -> list[str]:
        """End every node, slaves first and nameservers last, within about ``timeout_s``; returns who ended.

        Slaves first, so that no master waits for an acknowledgement of a slave that is ending; nameservers last, so
        that clients learn where else to go until the end; then the coordinator, which they use. Brokers get SIGUSR1,
        on which no master hands over to another that ends next.
        """
        with self.locked():
            plan = self.plan
            self.adopt(plan)
            deadline = time.monotonic() + timeout_s
            ended: list[str] = []
            groups = (
                [node for node in plan.nodes if node.is_gateway],
                [node for node in plan.nodes if node.broker_id],
                [node for node in plan.nodes if node.is_broker and not node.broker_id],
                [node for node in plan.nodes if node.is_nameserver],
                [node for node in plan.nodes if node.is_coordinator],
            )
            for position, group in enumerate(groups):
                share = (deadline - time.monotonic()) / (len(groups) - position)
                are_brokers = any(node.is_broker for node in group)
                number = signal.SIGUSR1 if are_brokers else signal.SIGTERM
                ended += self._stop(group, max(share, 0.5), number)
            return ended

    def kill(self, name: str) -> None:
        """SIGKILL, as a crash would end it. Raises DeployError: it does not run."""
        managed = self._signal(name, signal.SIGKILL)
        managed.wait(5.0)

    def freeze(self, name: str) -> None:
        """SIGSTOP: the process stays, its sockets stay open, and nothing answers. Raises DeployError: it is dead."""
        self._signal(name, signal.SIGSTOP).wait_frozen(5.0)

    def thaw(self, name: str) -> None:
        """SIGCONT after :meth:`freeze`. Raises DeployError: it does not run."""
        self._signal(name, signal.SIGCONT)

    def stop(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> StopReport:
        """SIGTERM to one node, and how it ended; one that does not end within ``timeout_s`` is killed.

        Raises:
            DeployError: it does not run.
        """
        with self.locked():
            node = self.plan.node(name)
            self.adopt(self.plan)
            managed = self.process(node)
            began = time.monotonic()
            if managed is None or not self._stop([node], timeout_s):
                raise DeployError(f"{name} does not run: nothing to stop")
            seconds = time.monotonic() - began
            return StopReport(name, seconds, processes.exit_code(managed), seconds >= timeout_s)

    def start(self, name: str, timeout_s: float = READY_TIMEOUT_S, *, wait: bool = True) -> None:
        """Start a node that does not run; with ``wait``, return when it serves."""
        with self.locked():
            self._start_one(self.plan.node(name), timeout_s, wait=wait)

    def restart(self, name: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """End the node if it runs, start it again, and return when it serves.

        Raises:
            DeployUsage: no such node, or its port is taken.
            DeployError: it ended, or did not serve in time.
        """
        with self.locked():
            node = self.plan.node(name)
            _require_etcd([node])
            self.adopt(self.plan)
            self._stop([node], STOP_TIMEOUT_S)
            self._start_one(node, timeout_s)

    def _start_one(self, node: Node, timeout_s: float, *, wait: bool = True) -> None:
        _require_possible([node])
        self.write_config(self.plan, node)
        self._start([node], timeout_s)
        if wait:
            self._await([node], timeout_s)

    def states(self) -> list[NodeState]:
        return [self.state(node) for node in self.plan.nodes]

    def _running(self, plan: Plan) -> tuple[list[str], list[str]]:
        running, thawed = [], []
        for node in plan.nodes:
            managed = self.process(node)
            if managed is None or not managed.is_alive:
                continue
            running.append(node.name)
            if managed.is_frozen:
                managed.send(signal.SIGCONT)
                thawed.append(node.name)
        return running, thawed

    def _start(self, nodes: Sequence[Node], timeout_s: float) -> None:
        """Start ``nodes``: etcd, nameservers, brokers. Who finds none that it needs waits before it asks again."""
        brokers = [node for node in nodes if node.is_broker]
        names = [node for node in nodes if node.is_nameserver]
        gateways = [node for node in nodes if node.is_gateway]
        for group in ([node for node in nodes if node.is_coordinator], names, gateways, brokers):
            for node in group:
                config = self.config_path(node)
                processes.start(
                    [*self._wrap(node), *node.command(config)],
                    log_path=self.log_path(node),
                    pid_path=self.pid_path(node),
                    needle=str(config),
                    cwd=config.parent,
                )
            if group is not brokers and group is not gateways:
                self._await(group, timeout_s, accepts_connections)

    def _await(self, nodes: Sequence[Node], timeout_s: float, probe: Probe | None = None) -> None:
        probe = probe or self._probe
        began = time.monotonic()
        waiting = list(nodes)
        told = 0.0
        while waiting:
            for node in list(waiting):
                self._require_running(node)
                if probe(node):
                    waiting.remove(node)
            elapsed = time.monotonic() - began
            if waiting and elapsed > timeout_s:
                name = waiting[0].name
                raise DeployError(
                    f"{name} runs and does not serve after {timeout_s:.0f} s: see `penstock cluster logs {name} "
                    f"--dir {self.directory}`"
                )
            if waiting and elapsed - told >= 1.0:
                told = elapsed
                last = self._lines_of_start(waiting[0], 1)
                names = ", ".join(node.name for node in waiting)
                self._progress(f"waiting for {names} ({elapsed:.0f} s) {_said(''.join(last))}".rstrip())
            if waiting:
                self._pause(_PROBE_PAUSE_S)

    def _require_running(self, node: Node) -> None:
        managed = self.process(node)
        if managed is not None and managed.is_alive:
            return
        reason = _reason(self._lines_of_start(node, 40))
        code = processes.exit_code(managed) if managed is not None else None
        kind = DeployUsage if code == 2 else DeployError
        raise kind(f"{node.name} ended at its start: {reason} (all of it: {self.log_path(node)})")

    def _lines_of_start(self, node: Node, count: int) -> list[str]:
        """The last lines that the node wrote since it was last started."""
        managed = self.process(node)
        return processes.last_lines(self.log_path(node), count, managed.log_start if managed is not None else 0)

    def _stop(self, nodes: Sequence[Node], timeout_s: float, number: signal.Signals = signal.SIGTERM) -> list[str]:
        managed = [(node.name, found) for node in nodes if (found := self.process(node)) is not None and found.is_alive]
        killed = processes.stop([process for _, process in managed], timeout_s, number)
        for name, process in managed:
            if process in killed:
                self._progress(f"{name} did not end within {timeout_s:.1f} s and was killed")
        for name, _ in managed:
            self.pid_path(self.plan.node(name)).unlink(missing_ok=True)  # ended on purpose, not lost
        return [name for name, _ in managed]

    def _signal(self, name: str, number: signal.Signals) -> Managed:
        managed = self.process(self.plan.node(name))
        if managed is None or not managed.send(number):
            raise DeployError(
                f"{name} does not run: start it with `penstock cluster restart {name} --dir {self.directory}`"
            )
        return managed


def _require_etcd(nodes: Sequence[Node]) -> None:
    if any(node.is_coordinator for node in nodes) and shutil.which(ETCD) is None:
        raise DeployUsage(
            f"--coordinator etcd: there is no program {ETCD!r} on this machine: `apt-get install etcd-server`, or use "
            "--coordinator file (with another --dir where a cluster was made already)"
        )


def _require_possible(nodes: Sequence[Node]) -> None:
    """Raise :class:`DeployUsage` where a program that ``nodes`` need is missing, or a port is taken."""
    _require_etcd(nodes)
    ports.require_free(
        {port: f"{node.name} needs for {purpose}" for node in nodes for port, purpose in node.ports.items()}
    )


def _reason(lines: Sequence[str]) -> str:
    """What the log of a process that ended says of it: its last error, else its last line."""
    told = [line.strip() for line in lines if line.strip()]
    errors = [line for line in told if " ERROR " in line or " CRITICAL " in line or line.lower().startswith("error")]
    last = (errors or told or ["it wrote nothing"])[-1]
    return last.rpartition(" error=")[2].removeprefix("error: ")


def _said(line: str) -> str:
    """What a log line says has happened: without time, level and logger, and without details."""
    found = re.fullmatch(r"\S+ \S+ [A-Z]+ \S+ (.*?)( \w+=.*)?", line)
    return (found[1] if found else line)[:80]
