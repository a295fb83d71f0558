"""What a local cluster consists of, and how that is written down.

::

    DIR/cluster.json                     this plan
    DIR/coordinator-0/etcd.conf          coordinator-0.log  coordinator-0.pid  etcd/         (--coordinator etcd)
    DIR/nameserver-0/namesrv.conf        nameserver-0.log  nameserver-0.pid  kvConfig.json
    DIR/broker-a-0/broker.conf           broker-a-0.log    broker-a-0.pid    store/
    DIR/gateway-0/gateway.conf           gateway-0.log     gateway-0.pid                     (--gateway)

Nodes are named ``nameserver-N`` and ``broker-SHARD-ID``: ``broker-b-1`` is the first slave of the second shard.
``coordinator-0`` is etcd, one member, shared by all nameservers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import ports, processes
from .errors import DeployUsage
from .files import FOR_OWNER, write_whole

MODES: dict[str, tuple[str, str]] = {
    "async": ("ASYNC_FLUSH", "ASYNC_MASTER"),
    "flush": ("SYNC_FLUSH", "ASYNC_MASTER"),
    "sync": ("ASYNC_FLUSH", "SYNC_MASTER"),
    "durable": ("SYNC_FLUSH", "SYNC_MASTER"),
}
"""Name on the command line → ``flushDiskType`` and the masters' ``brokerRole``."""

SMALL_FILES = {
    "mappedFileSizeCommitLog": str(64 << 20),
    "mappedFileSizeConsumeQueue": "600000",
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
"""Trying a cluster must not eat gigabytes: RocketMQ preallocates 1 GiB of log and 420 MB of index at once."""

COORDINATORS = ("none", "file", "etcd")
"""Who elects masters: nobody, the broker with id 0 is master; the first nameserver, which keeps a file; every
nameserver, and etcd keeps what they agree on."""

NODE_KEYS = frozenset(
    {
        "brokerClusterName",
        "brokerName",
        "brokerId",
        "listenPort",
        "namesrvAddr",
        "storePathRootDir",
        "storePathCommitLog",
        "brokerIP1",
        "bindAddress",
        "metricsPromExporterPort",
        "haMasterAddress",
        "enableControllerMode",
        "kvConfigPath",
        "enableControllerInNamesrv",
        "controllerType",
        "controllerStorePath",
        "etcdEndpoints",
    }
)
"""Keys that differ from node to node: a value for all of them would break the cluster."""

NAMESERVER_KEYS = frozenset({"enableElectUncleanMaster"})
"""Keys of ``namesrv.conf`` alone."""
SHARED_KEYS = re.compile(r"tls\..*|authenticationEnabled|authConfigPath|innerClientAuthenticationCredentials")
"""Keys that stand in both files: half a cluster that demands TLS or users protects nothing."""

ETCD = "etcd"

SHARDS_MAX, REPLICAS_MAX, NAMESERVERS_MAX = 26, 9, 9
_FILE = "cluster.json"
_VERSION = 1
_KEY = re.compile(r"[A-Za-z][A-Za-z0-9.]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Node:
    """One process of the cluster: a broker where ``broker_name`` says so, etcd where ``is_coordinator``, a gateway
    where ``is_gateway``, else a nameserver. ``store`` is empty for a store in the broker's folder.
    """

    name: str
    port: int
    broker_name: str = ""
    broker_id: int = 0
    host: str = ports.HOST
    store: str = ""
    is_coordinator: bool = False
    is_gateway: bool = False

    @property
    def is_broker(self) -> bool:
        return bool(self.broker_name)

    @property
    def is_nameserver(self) -> bool:
        return not self.broker_name and not self.is_coordinator and not self.is_gateway

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def metrics_port(self) -> int:
        return self.port + ports.METRICS_GAP

    @property
    def ports(self) -> dict[int, str]:
        """Every port that it listens on, and what for."""
        found = {self.port: "its services"}
        if self.is_broker or self.is_coordinator:
            found[self.port + ports.METRICS_GAP] = "its metrics" if self.is_broker else "its peers"
        return found

    def command(self, config_path: Path) -> list[str]:
        if self.is_coordinator:
            return [ETCD, "--config-file", str(config_path)]
        module = "penstock.broker"
        if not self.is_broker:
            module = "penstock.gateway" if self.is_gateway else "penstock.nameserver"
        return processes.python_command(module, "-c", str(config_path))

    def store_path(self, folder: Path) -> Path:
        """A broker's store, where its other files lie in ``folder``."""
        return Path(self.store) if self.store else folder / "store"

    @property
    def config_name(self) -> str:
        if self.is_broker:
            return "broker.conf"
        return "etcd.conf" if self.is_coordinator else "gateway.conf" if self.is_gateway else "namesrv.conf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The shape of a cluster as ``cluster.json`` holds it."""

    shards: int = 2
    replicas: int = 2
    nameservers: int = 1
    mode: str = "async"
    coordinator: str = "file"
    base_port: int = ports.DEFAULT_BASE_PORT
    gateway: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    nodes: tuple[Node, ...] = ()

    def __post_init__(self) -> None:
        for option, value, most in (
            ("shards", self.shards, SHARDS_MAX),
            ("replicas", self.replicas, REPLICAS_MAX),
            ("nameservers", self.nameservers, NAMESERVERS_MAX),
        ):
            if not 1 <= value <= most:
                raise DeployUsage(f"--{option} {value}: must be 1..{most}")
        if self.mode not in MODES:
            raise DeployUsage(f"--mode {self.mode}: must be one of {', '.join(MODES)}")
        if self.coordinator not in COORDINATORS:
            raise DeployUsage(f"--coordinator {self.coordinator}: must be one of {', '.join(COORDINATORS)}")
        if self.coordinator == "etcd" and self.replicas == 1:
            raise DeployUsage("--coordinator etcd with --replicas 1: there is nobody to elect; leave one of them out")
        check_settings(self.settings)
        if self._copies_wanted() > self.replicas:
            raise DeployUsage(
                f"every send would be refused: {self._copies_wanted()} in-sync replicas are demanded and a shard "
                f"has {self.replicas}; raise --replicas, choose --mode async or flush, "
                f"or --set inSyncReplicas={self.replicas}"
            )

    def _copies_wanted(self) -> int:
        role = self.settings.get("brokerRole", MODES[self.mode][1])
        given = self.settings.get("inSyncReplicas", "")
        return int(given) if given.isdigit() else 2 if role == "SYNC_MASTER" else 1

    @property
    def is_elected(self) -> bool:
        """True if masters are elected; there must be somebody to elect."""
        return self.coordinator != "none" and self.replicas > 1

    @property
    def nameserver_addresses(self) -> str:
        """What clients and brokers are told: ``host:port;host:port``."""
        return ";".join(node.address for node in self.nodes if node.is_nameserver)

    def node(self, name: str) -> Node:
        """The node called ``name``. Raises DeployUsage: no node has the name; the message lists them."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise DeployUsage(f"no node {name!r} in this cluster: {', '.join(node.name for node in self.nodes)}")

    def config_text(self, node: Node, folder: Path) -> str:
        """The configuration file of ``node``, whose files lie in ``folder``."""
        head = "# Written by `penstock cluster up`, which writes it again"
        if node.is_coordinator:
            return f"{head}.\n" + "".join(f"{key}: {value}\n" for key, value in _etcd_lines(node, folder).items())
        if node.is_gateway:
            lines = self._gateway_lines(node)
        elif node.is_nameserver:
            lines = self._nameserver_lines(node, folder)
        else:
            lines = self._broker_lines(node, folder)
        head += ": change it with --set key=value.\n"
        return head + "".join(f"{key}={value}\n" for key, value in lines.items())

    def with_gateway(self) -> Plan:
        """The same with a gateway, if it has none."""
        if self.gateway:
            return self
        host = next(node.host for node in self.nodes if node.is_nameserver)
        node = Node("gateway-0", self.base_port + ports.GATEWAY_GAP, host=host, is_gateway=True)
        return replace(self, gateway=True, nodes=(*self.nodes, node))

    def _gateway_lines(self, node: Node) -> dict[str, str]:
        lines = {
            "namesrvAddr": self.nameserver_addresses,
            "listenPort": str(node.port),
            "bindAddress": node.host,
            "gatewayIP1": node.host,
        }
        return {**lines, **{key: value for key, value in self.settings.items() if SHARED_KEYS.match(key)}}

    def _nameserver_lines(self, node: Node, folder: Path) -> dict[str, str]:
        lines = {
            "listenPort": str(node.port),
            "bindAddress": node.host,
            "kvConfigPath": str(folder / "kvConfig.json"),
        }
        nameservers = [other for other in self.nodes if other.is_nameserver]
        if self.is_elected and self.coordinator == "etcd":
            lines["enableControllerInNamesrv"] = "true"
            lines["controllerType"] = "ETCD"
            lines["etcdEndpoints"] = ";".join(other.address for other in self.nodes if other.is_coordinator)
        elif self.is_elected and node == nameservers[0]:
            lines["enableControllerInNamesrv"] = "true"
            lines["controllerStorePath"] = str(folder / "controller.json")
        mine = {key: value for key, value in self.settings.items() if key in NAMESERVER_KEYS or SHARED_KEYS.match(key)}
        return {**lines, **mine}

    def _broker_lines(self, node: Node, folder: Path) -> dict[str, str]:
        flush, role = MODES[self.mode]
        lines = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": node.broker_name,
            "brokerId": str(node.broker_id),
            "brokerIP1": node.host,
            "bindAddress": node.host,
            "listenPort": str(node.port),
            "namesrvAddr": self.nameserver_addresses,
            "storePathRootDir": str(node.store_path(folder)),
            "flushDiskType": flush,
            "brokerRole": role,
            **SMALL_FILES,
            "metricsExporterType": "PROM",
            "metricsPromExporterPort": str(node.metrics_port),
            "metricsPromExporterHost": node.host,
            **{key: value for key, value in self.settings.items() if key not in NAMESERVER_KEYS},
        }
        if not node.broker_id:
            lines.pop("asyncLearner", None)  # somebody has to be master
        if self.is_elected:
            lines["enableControllerMode"] = "true"
        elif node.broker_id:
            lines["brokerRole"] = "SLAVE"
            for key in ("inSyncReplicas", "minInSyncReplicas"):  # a master's; a slave waits for nobody
                lines.pop(key, None)
        return lines

    def save(self, directory: Path) -> None:
        document = {"version": _VERSION, **asdict(self)}
        write_whole(directory / _FILE, json.dumps(document, indent=1) + "\n", FOR_OWNER)


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node is put: an address of this machine, and a directory for a broker's store (empty: its folder)."""

    host: str = ports.HOST
    store: str = ""


def new_plan(
    *,
    settings: Mapping[str, str],
    places: Mapping[str, Place] | None = None,
    base_port: int = ports.DEFAULT_BASE_PORT,
    gateway: bool = False,
    **shape: Any,
) -> Plan:
    """A plan whose nodes have their names and ports; ``places`` by the nodes' names, ``shape`` as of :class:`Plan`."""
    plan = Plan(settings=dict(settings), **shape)
    replicas = plan.replicas
    name_ports, broker_ports = ports.planned(base_port, plan.nameservers, plan.shards * replicas)
    nodes = [Node(f"nameserver-{index}", port) for index, port in enumerate(name_ports)]
    if plan.coordinator == "etcd":
        nodes.insert(0, Node("coordinator-0", name_ports[0] + ports.COORDINATOR_GAP, is_coordinator=True))
    for index, port in enumerate(broker_ports):
        shard, broker_id = divmod(index, replicas)
        broker_name = f"broker-{chr(ord('a') + shard)}"
        nodes.append(Node(f"{broker_name}-{broker_id}", port, broker_name, broker_id))
    for name, place in (places or {}).items():
        at = next(index for index, node in enumerate(nodes) if node.name == name)
        nodes[at] = replace(nodes[at], host=place.host, store=place.store)
    made = replace(plan, base_port=name_ports[0], nodes=tuple(nodes))
    return made.with_gateway() if gateway else made


def load_plan(directory: Path) -> Plan | None:
    """The plan of the cluster in ``directory``, or None.

    Raises:
        DeployUsage: ``cluster.json`` is not what :meth:`Plan.save` wrote.
    """
    path = directory / _FILE
    try:
        document: dict[str, Any] = json.loads(path.read_text())
        version = document.pop("version")
        if version != _VERSION:
            raise DeployUsage(f"{path}: version {version}, this program knows {_VERSION}: use another --dir")
        nodes = tuple(Node(**node) for node in document.pop("nodes"))
        return Plan(**document, nodes=nodes)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DeployUsage(f"{path} cannot be read ({error}): restore it, or use another --dir") from error


def _etcd_lines(node: Node, folder: Path) -> dict[str, str]:
    """One member, which is a whole etcd cluster; what it keeps of older values is small."""
    peers, clients = f"http://{node.host}:{node.port + ports.METRICS_GAP}", f"http://{node.address}"
    return {
        "name": node.name,
        "data-dir": json.dumps(str(folder / "etcd")),
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": f"{node.name}={peers}",
        "initial-cluster-token": node.name,
        "auto-compaction-mode": "revision",
        "auto-compaction-retention": '"1000"',
        "logger": "zap",
        "log-outputs": "[stderr]",
        "log-level": "warn",
    }


def check_settings(settings: Mapping[str, str]) -> None:
    """Refuse what must not stand in every broker's file. Raises DeployUsage: names the key and what to do."""
    for key, value in settings.items():
        if not _KEY.fullmatch(key):
            raise DeployUsage(f"--set {key}={value}: give it as key=value with a key of broker.conf or namesrv.conf")
        if key in NODE_KEYS:
            raise DeployUsage(f"--set {key}={value}: `cluster up` chooses that key for each node")
        if key == "brokerRole" and value not in ("ASYNC_MASTER", "SYNC_MASTER"):
            raise DeployUsage(
                f"--set brokerRole={value}: must be ASYNC_MASTER or SYNC_MASTER; slaves come of --replicas"
            )
        if "\n" in value or "\r" in value:
            raise DeployUsage(f"--set {key}: the value must be one line")
