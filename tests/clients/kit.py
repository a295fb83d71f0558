"""A cluster of processes with a gateway before it, and which clients are tried.

``make test-clients`` (``CLIENTS="python node java go rust"``) tries these, plain and over TLS, and changes of masters
under them. Without ``CLIENTS`` none is tried: they come from registries, which ``make test`` does not wait for.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from penstock.client import Admin
from penstock.deploy import LocalCluster
from tests.clients.languages import Commands, Missing, commands
from tests.support.cluster.certificates import Authority
from tests.support.cluster.cluster import Node, free_ports
from tests.support.cluster.failover import local_cluster

TRIED = os.environ.get("CLIENTS", "").split()
KINDS: Final = ("NORMAL", "FIFO", "DELAY", "TRANSACTION")
ORDERLY = "ClientsOrderly"


@dataclass
class Gateway:
    """A running gateway: its process, the cluster behind it, and what clients over TLS trust."""

    node: Node
    cluster: LocalCluster
    authority: Path


@contextlib.contextmanager
def gateway(folder: Path, **shape: Any) -> Iterator[Gateway]:
    """A gateway, plain and over TLS at one port, of a cluster that has a topic of each type and an orderly group."""
    (port,) = free_ports(1)
    authority = Authority(folder / "certificates")
    pair = authority.issue("gateway")
    with local_cluster(folder / "cluster", **shape) as cluster:
        nameservers = cluster.plan.nameserver_addresses
        with Admin(nameservers) as admin:
            for kind in KINDS:
                admin.create_topic(f"Clients{kind}", queues=4, type=kind)
            admin.create_group(ORDERLY, orderly=True)
        settings: dict[str, object] = {
            "namesrvAddr": nameservers,
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "tls.server.certPath": pair.cert,
            "tls.server.keyPath": pair.key,
        }
        node = Node("gateway", "gateway", folder / "gateway", port, settings)
        try:
            node.restart()
            yield Gateway(node, cluster, authority.file)
        finally:
            node.end()


def installed(language: str) -> Commands:
    """How its programs are run; skips the test, and says why, where its client cannot be had."""
    found = commands(language)
    if isinstance(found, Missing):
        pytest.skip(f"{language}: {found}")
    return found
