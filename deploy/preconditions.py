"""What must be so before a node is started: programs that are there, ports that are free."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from . import ports
from .errors import DeployUsage
from .plan import ETCD, Node


def require_etcd(nodes: Sequence[Node]) -> None:
    """Raise :class:`DeployUsage` when etcd is needed and not installed."""
    if any(node.is_coordinator for node in nodes) and shutil.which(ETCD) is None:
        raise DeployUsage(
            f"--coordinator etcd: there is no program {ETCD!r} on this machine: `apt-get install etcd-server`, or use "
            "--coordinator file (with another --dir where a cluster was made already)"
        )


def require_free_ports(nodes: Sequence[Node]) -> None:
    """Raise :class:`DeployUsage` when a port of ``nodes`` is taken; the message says by whom."""
    needed = [port for node in nodes for port in node.ports]
    for node in nodes:
        for port, purpose in node.ports.items():
            if not ports.is_free(port):
                raise DeployUsage(
                    f"port {port}, which {node.name} needs for {purpose}, is taken{ports.holder_of(port)}: end that "
                    f"process, or use another --base-port (with another --dir where a cluster was made already). This "
                    f"cluster needs {_as_ranges(needed)}"
                )


def _as_ranges(numbers: Sequence[int]) -> str:
    """``9876, 10911-10914``."""
    ordered = sorted(set(numbers))
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
