"""The ports of a local cluster, chosen among free ones."""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from .errors import DeployUsage

HOST = "127.0.0.1"
DEFAULT_BASE_PORT = 9876
BROKER_GAP = 10911 - DEFAULT_BASE_PORT
"""Brokers start this far above the base port, so the default gives RocketMQ's 9876 and 10911."""
GATEWAY_GAP = 8081 - DEFAULT_BASE_PORT
"""A gateway's port, below the base port, so the default gives RocketMQ's 8081."""
METRICS_GAP = 200
"""Metrics ports lie this far above their broker's port."""
COORDINATOR_GAP = 9
"""The coordinator's port, behind the ports of nine nameservers; its peers' port lies where metrics ports do."""
BROKERS_MAX = METRICS_GAP
"""More brokers would need the ports of the first ones' metrics."""

# Below the range from which systems take ports for outgoing connections: a port that a killed broker
# needs again must not have become somebody's outgoing port meanwhile.
_FREE_FIRST, _FREE_LAST = 12_000, 24_000
_ATTEMPTS = 200


def is_free(port: int) -> bool:
    """True if a server could listen on ``port`` of this host now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def holder_of(port: int) -> str:
    """`` by NAME, pid N`` of who listens on ``port``, or nothing where the system does not tell.

    A node of another local cluster is named with its directory.
    """
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                if connection.pid is None:
                    return ""
                process = psutil.Process(connection.pid)
                node = _node_of(process.cmdline())
                return f" by {node or process.name()}, pid {connection.pid}"
    except psutil.Error:
        return ""
    return ""


def _node_of(command_line: list[str]) -> str:
    """The node of a local cluster that this is the command line of, as people know it; else nothing."""
    if "-c" not in command_line[:-1]:
        return ""
    folder = Path(command_line[command_line.index("-c") + 1]).parent
    return f"{folder.name} of the cluster in {folder.parent}" if (folder.parent / "cluster.json").exists() else ""


def planned(base_port: int, nameservers: int, brokers: int) -> tuple[list[int], list[int]]:
    """The ports of the nameservers and of the brokers; ``base_port`` 0 looks for free ones.

    Free ones that were found stay this program's until it ends: no other that looks is given them, also while no node
    listens there yet, or does no more.
    """
    if base_port:
        return _from_base(base_port, nameservers, brokers)
    chosen = random.SystemRandom()
    for _ in range(_ATTEMPTS):
        first = chosen.randint(_FREE_FIRST, _FREE_LAST - BROKER_GAP - METRICS_GAP)
        names, others = _from_base(first, nameservers, brokers)
        own = [*others, first + COORDINATOR_GAP]
        needed = {*names, *own, *(port + METRICS_GAP for port in own), first + GATEWAY_GAP}
        if all(is_free(port) for port in needed) and claim(needed):
            return names, others
    raise DeployUsage(f"no block of free ports found between {_FREE_FIRST} and {_FREE_LAST}: give --base-port")


_claimed: set[int] = set()
"""The ports that this program has."""


@functools.cache
def _claims() -> int:
    """The file, open until this program ends, whose byte N is locked by the one that has port N."""
    return os.open(Path(tempfile.gettempdir()) / f"penstock-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def claim(needed: Iterable[int]) -> bool:
    """True if all of ``needed`` are this program's until it ends; else one is another's, or was claimed before."""
    if not _claimed.isdisjoint(needed):
        return False
    for port in needed:
        try:
            fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        _claimed.add(port)
    return True


def _from_base(base_port: int, nameservers: int, brokers: int) -> tuple[list[int], list[int]]:
    if brokers > BROKERS_MAX:
        raise DeployUsage(f"{brokers} brokers (--shards × --replicas): at most {BROKERS_MAX} in one local cluster")
    last = base_port + BROKER_GAP + METRICS_GAP + brokers
    if base_port < 1024 or last > 65_535:
        limit = 65_535 - BROKER_GAP - METRICS_GAP - brokers
        raise DeployUsage(f"--base-port {base_port}: must be 1024..{limit}, or 0 for free ports")
    first = base_port + BROKER_GAP
    return list(range(base_port, base_port + nameservers)), list(range(first, first + brokers))


def require_free(needed: Mapping[int, str]) -> None:
    """Raise :class:`DeployUsage` when one of these ports is taken; by whom, and what it is ``needed`` for."""
    for port, purpose in needed.items():
        if not is_free(port):
            raise DeployUsage(
                f"port {port}, which {purpose}, is taken{holder_of(port)}: end that process, or use another "
                "--base-port (with another --dir where a cluster was made already). This cluster needs "
                f"{_as_ranges(list(needed))}"
            )


def _as_ranges(numbers: Sequence[int]) -> str:
    """``9876, 10911-10914``."""
    ordered = sorted(set(numbers))
    starts = [number for number in ordered if number - 1 not in ordered]
    ends = [number for number in ordered if number + 1 not in ordered]
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
