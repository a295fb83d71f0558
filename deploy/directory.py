"""The directory of a local cluster: its plan, the files of its nodes, and the processes that these files name."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import processes
from .errors import DeployError, DeployUsage
from .files import FOR_OWNER, write_whole
from .plan import Node, Place, Plan, check_settings, load_plan, new_plan
from .processes import Managed


@dataclass(frozen=True, slots=True)
class NodeState:
    """One node and its process at this moment. ``state`` is ``running``, ``frozen`` or ``dead``."""

    node: Node
    state: str
    pid: int | None
    folder: Path
    config_path: Path
    log_path: Path
    store_path: Path | None

    @property
    def is_alive(self) -> bool:
        """True if there is a process, frozen or not."""
        return self.state != "dead"


class ClusterDirectory:
    """What lies in ``directory``, which need not be there yet; :mod:`.plan` lists the files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def plan(self) -> Plan:
        """What the directory holds. Raises DeployUsage: no cluster there."""
        plan = load_plan(self.directory)
        if plan is None:
            raise DeployUsage(
                f"{self.directory} holds no cluster: make one with `penstock cluster up --dir {self.directory}`"
            )
        return plan

    def planned(
        self, given: Mapping[str, Any], settings: Mapping[str, str], places: Mapping[str, Place] | None
    ) -> tuple[Plan, list[str]]:
        """The plan with the given changes, and notes about them; a new plan in an empty directory.

        Raises:
            DeployUsage: the directory holds something else, or a cluster of another shape.
        """
        check_settings(settings)
        plan = load_plan(self.directory)
        if plan is None:
            others = [path.name for path in self.directory.iterdir() if path.name != ".lock"]
            if others:
                shown = ", ".join(sorted(others)[:3])
                raise DeployUsage(
                    f"{self.directory} is not empty ({shown}) and holds no cluster.json: use another --dir"
                )
            return new_plan(settings=settings, places=places, **given), []
        notes: list[str] = []
        for name in ("shards", "replicas", "nameservers", "coordinator", "base_port"):
            wanted, present = given.get(name), getattr(plan, name)
            is_any = wanted is None or (name == "base_port" and wanted == 0)
            if not is_any and wanted != present:
                option = "--" + name.replace("_", "-")
                raise DeployUsage(
                    f"{self.directory} holds a cluster with {option} {present}, not {wanted}: leave the option out, "
                    "or use another --dir"
                )
        changed = replace(plan, mode=str(given.get("mode", plan.mode)), settings={**plan.settings, **settings})
        if given.get("gateway"):
            changed = changed.with_gateway()
        if replace(changed, nodes=plan.nodes, gateway=plan.gateway) != plan:
            notes.append("settings changed: nodes that run keep the old ones until `penstock cluster restart`")
        return changed, notes

    def state(self, node: Node) -> NodeState:
        managed = self.process(node)
        alive = managed is not None and managed.is_alive
        frozen = alive and managed is not None and managed.is_frozen
        folder = self.folder(node)
        return NodeState(
            node=node,
            state="frozen" if frozen else "running" if alive else "dead",
            pid=managed.pid if managed is not None and alive else None,
            folder=folder,
            config_path=self.config_path(node),
            log_path=self.log_path(node),
            store_path=node.store_path(folder) if node.is_broker else None,
        )

    def write_config(self, plan: Plan, node: Node) -> None:
        """Write the configuration of a node, unless it is there already."""
        folder = self.folder(node)
        folder.mkdir(exist_ok=True)
        path = self.config_path(node)
        text = plan.config_text(node, folder)
        if not path.exists() or path.read_text() != text:
            write_whole(path, text, FOR_OWNER)  # a setting may be a secret

    def process(self, node: Node) -> Managed | None:
        """The process that the node's pid file names, running or not; None without one."""
        return processes.find(self.pid_path(node), str(self.config_path(node)))

    def adopt(self, plan: Plan) -> None:
        """Know again the nodes that run though their pid files are missing: whoever started them was killed."""
        lost = [node for node in plan.nodes if (managed := self.process(node)) is None or not managed.is_alive]
        processes.adopt({self.pid_path(node): node.command(self.config_path(node))[1:] for node in lost})

    def folder(self, node: Node) -> Path:
        return self.directory / node.name

    def config_path(self, node: Node) -> Path:
        """The node's configuration, which also tells its command line from others."""
        return self.folder(node) / node.config_name

    def pid_path(self, node: Node) -> Path:
        """Where the node's process is written down."""
        return self.folder(node) / f"{node.name}.pid"

    def log_path(self, node: Node) -> Path:
        return self.folder(node) / f"{node.name}.log"

    def log_lines(self, name: str, count: int) -> list[str]:
        """The last ``count`` lines that the node ``name`` wrote."""
        return processes.last_lines(self.log_path(self.plan.node(name)), count)

    @contextlib.contextmanager
    def locked(self, create: bool = False) -> Iterator[None]:
        """One starting or stopping process at a time; the lock goes with its process."""
        if create:
            try:
                self.directory.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise DeployUsage(f"{self.directory} is a file: --dir must name a directory") from None
        elif not self.directory.is_dir():
            raise DeployUsage(f"{self.directory} does not exist: `penstock cluster up --dir {self.directory}` makes it")
        with open(self.directory / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DeployError(f"another command is starting or stopping {self.directory}: wait for it") from None
            yield
