"""What ``broker.conf`` says: RocketMQ's keys, one dataclass per concern, every range checked at start."""

from __future__ import annotations

import enum
import logging
import re
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.formats.trace import TRACE_TOPIC
from penstock.proto import names
from penstock.proto.errors import InvalidName
from penstock.proto.wire import common_pb2
from penstock.runtime.conf import IGNORED_KEY, Section, bind, check_ranges, key, load_properties, require, require_ip
from penstock.runtime.listening import join_address
from penstock.runtime.security.settings import SecuritySettings

from .features.later.settings import TimerSettings
from .features.pop.settings import PopSettings
from .features.transactions.settings import TransactionSettings
from .limits import Limits
from .retention.settings import RetentionSettings
from .store.config import FlushMode, StoreConfig
from .unsupported_keys import RELIED_ON, UNSUPPORTED_KEYS

log = logging.getLogger(__name__)

KIB, MIB = 1 << 10, 1 << 20
PORTS, ANY = (0, 65_535), "(0: any free port)"
RECORD_OVERHEAD_BYTES = 64 * KIB  # what a record may be longer than its body: properties, topic, fixed fields

_BY_ROLE = -(1 << 62)  # inSyncReplicas before __post_init__: RocketMQ's default 1 makes SYNC_MASTER wait for nobody
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  compared, not bound

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})", re.ASCII)


class BrokerRole(enum.Enum):
    """What a broker does when it starts, and what a master waits for."""

    ASYNC_MASTER = "ASYNC_MASTER"  # acknowledges without waiting for slaves
    SYNC_MASTER = "SYNC_MASTER"  # acknowledges when inSyncReplicas brokers have it, itself included
    SLAVE = "SLAVE"


class MetricsExporterType(enum.Enum):
    """How metrics leave the process."""

    DISABLE = "DISABLE"
    PROM = "PROM"


def _host_as_name() -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname()) or "broker"


def _own_ip() -> str:
    """The address from which this machine reaches others; nothing is sent to find out."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _require_name(name: str, key_name: str, check: Callable[[str], str] = names.check_broker_name) -> None:
    try:
        check(name)
    except InvalidName as error:
        require(False, f"{key_name} must be a legal name ({error.message})", name)


def _require_address(address: str, key_name: str) -> None:
    found = _ADDRESS.fullmatch(address)
    valid = found is not None and 1 <= int(found[2]) <= 65535
    require(valid, f"{key_name} must be host:port with a port of 1..65535", address)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityConfig:
    """Who this broker is and where it is found. Where it listens and what it advertises are two settings."""

    cluster: str = key("brokerClusterName", default="DefaultCluster", doc="peers of other clusters are refused")
    broker_name: str = key("brokerName", default_factory=_host_as_name, doc="the broker group (shard)")
    broker_id: int = key(
        "brokerId",
        default=0,
        within=(0, (1 << 31) - 1),
        unit="(each broker has its own in its group)",
        doc="0: the configured master; others: slaves",
        differs="-1: the controller numbers the broker",
    )
    advertised_ip: str = key("brokerIP1", default="", doc="empty: the address from which others are reached")
    listen_port: int = key(
        "listenPort", default=10911, within=PORTS, unit=ANY, doc="of everything but metrics and data"
    )
    data_port: int = key(
        "dataPort",
        default=0,
        within=PORTS,
        unit=ANY,
        doc="of record bytes and replication; clients and slaves are told which it is",
    )
    bind_address: str = key("bindAddress", default="0.0.0.0", doc="where to listen")  # noqa: S104  RocketMQ's default
    gateway_port: int = key(
        "gatewayPort",
        default=-1,
        within=(-1, 65535),
        unit="(-1: none; 0: any free port)",
        doc="of a gateway for RocketMQ 5's clients in this process",
        differs="has no such key",
    )

    def __post_init__(self) -> None:
        if not self.advertised_ip:
            everywhere = self.bind_address in _WILDCARDS
            object.__setattr__(self, "advertised_ip", _own_ip() if everywhere else self.bind_address)
        _require_name(self.cluster, "brokerClusterName")
        _require_name(self.broker_name, "brokerName")
        check_ranges(self)
        require_ip(self.bind_address, "bindAddress")
        require_ip(self.advertised_ip, "brokerIP1")
        reachable = self.advertised_ip not in _WILDCARDS
        require(reachable, "brokerIP1 must be an address that others can connect to", self.advertised_ip)


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserversConfig:
    """The nameservers that this broker registers with: each of them."""

    addresses: tuple[str, ...] = key("namesrvAddr", default=(), doc="host:port;host:port")

    def __post_init__(self) -> None:
        for address in self.addresses:
            _require_address(address, "namesrvAddr")
        repeated = len(set(self.addresses)) < len(self.addresses)
        require(not repeated, "namesrvAddr must name each nameserver once", ";".join(self.addresses))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """The broker's role and how many copies an acknowledgement stands for."""

    role: BrokerRole = key(  # noqa: RUF009
        "brokerRole", default=BrokerRole.ASYNC_MASTER, doc="acknowledge alone, or with replicas; or follow a master"
    )
    in_sync_replicas: int = key(
        "inSyncReplicas",
        default=_BY_ROLE,
        within=(1, 16),
        doc="brokers that hold an acknowledged message, the master included; by role: 1 or, SYNC_MASTER, 2",
        differs="1, with which SYNC_MASTER waits for nobody",
    )
    min_in_sync_replicas: int = key(
        "minInSyncReplicas",
        default=1,
        within=(1, 16),
        doc="with enableAutoInSyncReplicas: never acknowledge with fewer than this",
    )
    auto_in_sync_replicas: bool = key(
        "enableAutoInSyncReplicas", default=False, doc="elected: a smaller sync-state set is enough for a while"
    )
    all_ack_in_set: bool = key(
        "allAckInSyncStateSet",
        default=True,
        doc="elected: always true, since any member of the set may be elected",
        differs="false, which can lose acknowledged messages; refused here",
    )
    not_catchup_ms_max: int = key(
        "haMaxTimeSlaveNotCatchup",
        default=15_000,
        within=(1000, 3_600_000),
        unit="ms",
        doc="elected: behind for longer, a slave leaves the set",
    )
    is_elected: bool = key(
        "enableControllerMode",
        default=False,
        doc="the nameservers elect the master; brokerRole then says how whoever is master acknowledges",
    )
    election_priority: int = key(
        "brokerElectionPriority",
        default=(1 << 31) - 1,
        within=(0, (1 << 31) - 1),
        doc="elected: the smaller, the rather; equal: the longest log",
    )
    slave_timeout_ms: int = key(
        "slaveTimeout",
        default=3000,
        within=(1, 600_000),
        unit="ms",
        doc="longest wait for replicas: then the outcome is unknown",
    )
    in_sync_gap_bytes: int = key(
        "haMaxGapNotInSync", default=256 * MIB, within=(MIB, None), doc="a slave further behind is not in sync"
    )
    master_address: str = key(
        "haMasterAddress", default="", doc="slave: host:port of its master; empty: ask the nameserver"
    )
    async_learner: bool = key(
        "asyncLearner", default=False, doc="slave: gets everything, its copy never counts, it is never elected"
    )
    transfer_batch_bytes: int = key(
        "haTransferBatchSize",
        default=512 * KIB,
        within=(KIB, 16 * MIB),
        doc="log bytes per message of the stream",
        differs="32 KiB",
    )
    flow_control: bool = key("haFlowControlEnable", default=False, doc="limit what one slave is sent per second")
    transfer_bytes_per_s_max: int = key(
        "maxHaTransferByteInSecond", default=100 * MIB, within=(KIB, None), doc="that limit, with haFlowControlEnable"
    )
    slave_read: bool = key("slaveReadEnable", default=False, doc="send consumers that are far behind to a slave")

    def __post_init__(self) -> None:
        if self.in_sync_replicas == _BY_ROLE:
            object.__setattr__(self, "in_sync_replicas", 2 if self.role is BrokerRole.SYNC_MASTER else 1)
        check_ranges(self)
        require(
            self.all_ack_in_set,
            "allAckInSyncStateSet must be true: with fewer answers any member that is elected may lack a message",
            "false",
        )
        if self.auto_in_sync_replicas:
            require(
                self.min_in_sync_replicas <= self.in_sync_replicas,
                f"minInSyncReplicas must be at most inSyncReplicas={self.in_sync_replicas}",
                self.min_in_sync_replicas,
            )
        if self.is_elected:
            require(
                self.role is not BrokerRole.SLAVE,
                "brokerRole must be ASYNC_MASTER or SYNC_MASTER with enableControllerMode, whoever is master; "
                "asyncLearner=true for one that is never master",
                self.role.name,
            )
            require(
                not self.master_address, "haMasterAddress has no place with enableControllerMode", self.master_address
            )
        if self.master_address:
            _require_address(self.master_address, "haMasterAddress")

    @property
    def is_sync(self) -> bool:
        """True if acknowledgements wait for replicas."""
        return self.role is BrokerRole.SYNC_MASTER


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendSettings(Section):
    """How long an append may take, and how the next request is waited for."""

    flush_timeout_ms: int = key(
        "syncFlushTimeout",
        default=5000,
        within=(1, 600_000),
        unit="ms",
        doc="SYNC_FLUSH, or a store pool: then the outcome is unknown",
    )
    stall_limit_ms: int = key(
        "osPageCacheBusyTimeOutMills",
        default=1000,
        within=(1, 600_000),
        unit="ms",
        doc="after an append that took longer, messages are refused",
    )
    busy_poll_us: int = key(
        "busyPollMicros",
        default=200,
        within=(0, 1000),
        unit="us",
        doc="how long the broker looks for the next request before it sleeps, if requests follow so closely; 0: never",
        differs="has no such key",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """What clients may make by merely using a name, and ask for."""

    auto_create: bool = key("autoCreateTopicEnable", default=True, doc="producers may make topics")
    auto_create_max: int = key(
        "autoCreateTopicMax",
        default=10_000,
        within=(0, 1_000_000),
        doc="with so many topics producers make no more; topics can still be created by hand",
        differs="has no such key",
    )
    default_queues: int = key("defaultTopicQueueNums", default=8, within=(1, 65_536), doc="queues of such a topic")
    auto_create_groups: bool = key("autoCreateSubscriptionGroup", default=True, doc="consumers may make groups")
    property_filter: bool = key(
        "enablePropertyFilter", default=True, doc="SQL92 filters", differs="false, with which such consumers fail"
    )

    trace: bool = key("traceTopicEnable", default=False, doc="have the topic of message traces, with one queue")
    trace_topic: str = key("msgTraceTopicName", default=TRACE_TOPIC, doc="its name")

    def __post_init__(self) -> None:
        check_ranges(self)
        _require_name(self.trace_topic, "msgTraceTopicName", names.check_topic)
        is_free = not names.is_system_topic(self.trace_topic)
        require(is_free, "msgTraceTopicName must be a topic that clients may write", self.trace_topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The Prometheus endpoint, on a port of its own, which knows neither TLS nor users."""

    exporter: MetricsExporterType = key(  # noqa: RUF009
        "metricsExporterType",
        default=MetricsExporterType.DISABLE,
        doc="PROM: an endpoint for Prometheus",
        differs="also OTLP_GRPC and LOG",
    )
    port: int = key("metricsPromExporterPort", default=5557, within=PORTS, unit=ANY, doc="of the endpoint")
    host: str = key("metricsPromExporterHost", default="", doc="empty: all addresses")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.host:
            require_ip(self.host, "metricsPromExporterHost")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything a broker is told at start."""

    ignored: tuple[str, ...] = key(
        IGNORED_KEY, default=(), doc="keys for which no start is refused: see below", differs="has no such key"
    )
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    nameservers: NameserversConfig = field(default_factory=NameserversConfig)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    store: StoreConfig = field(default_factory=StoreConfig)
    appends: AppendSettings = field(default_factory=AppendSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    limits: Limits = field(default_factory=Limits)
    timers: TimerSettings = field(default_factory=TimerSettings)
    pop: PopSettings = field(default_factory=PopSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def __post_init__(self) -> None:
        broker_id, role = self.identity.broker_id, self.replication.role
        require(
            self.store.segment_bytes >= self.store.body_bytes_max + RECORD_OVERHEAD_BYTES,
            f"mappedFileSizeCommitLog must be at least maxMessageSize + {RECORD_OVERHEAD_BYTES}: "
            "one record never spans two files; raise it or lower maxMessageSize",
            self.store.segment_bytes,
        )
        taken = {self.identity.listen_port}
        for name, port in (("dataPort", self.identity.data_port), ("gatewayPort", self.identity.gateway_port)):
            require(port <= 0 or port not in taken, f"{name} must be a port that no other key has", port)
            taken.add(port)
        if self.identity.gateway_port >= 0:
            message = "namesrvAddr must be given with gatewayPort: a gateway finds brokers by nameservers"
            require(bool(self.nameservers.addresses), message, "none")
        if self.replication.is_elected:
            message = "namesrvAddr must be given with enableControllerMode: nameservers elect the master"
            require(bool(self.nameservers.addresses), message, "none")
        elif role is BrokerRole.SLAVE:
            require(
                broker_id != 0, "brokerId must be greater than 0 with brokerRole=SLAVE: 0 is the master's", broker_id
            )
            given = bool(self.nameservers.addresses or self.replication.master_address)
            require(
                given,
                "namesrvAddr or haMasterAddress must be given with brokerRole=SLAVE: how else does it find its master",
                "none",
            )
        else:
            message = "brokerRole must be SLAVE for every brokerId but 0, or enableControllerMode=true"
            require(broker_id == 0, message, f"{role.name} with brokerId={broker_id}")

    @property
    def uses_transient_store_pool(self) -> bool:
        """True if appends go to memory first."""
        return self.store.is_pooled and not self.pool_unused_because

    @property
    def pool_unused_because(self) -> str:
        """The setting with which there is no use for a transient store pool; empty when there may be."""
        if self.store.flush_mode is FlushMode.SYNC_FLUSH:
            return "flushDiskType=SYNC_FLUSH"
        return "brokerRole=SLAVE" if self.replication.role is BrokerRole.SLAVE else ""

    @property
    def advertised_address(self) -> str:
        """``host:port`` as peers and clients reach this broker; an IPv6 host stands in brackets."""
        return join_address(self.identity.advertised_ip, self.identity.listen_port)

    @property
    def wire_identity(self) -> common_pb2.BrokerIdentity:
        """Who this broker is, for its peers."""
        identity = self.identity
        return common_pb2.BrokerIdentity(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            address=self.advertised_address,
            data_port=identity.data_port,
        )

    def with_ports(self, port: int, data_port: int) -> BrokerConfig:
        """The same with the ports that the system chose for ``listenPort=0`` and ``dataPort=0``."""
        return replace(self, identity=replace(self.identity, listen_port=port, data_port=data_port))


def load_broker_config(
    path: str | Path, ignore_unsupported: Collection[str] = (), *, strict: bool = False
) -> BrokerConfig:
    """The configuration in the file at ``path``.

    ``ignore_unsupported``: keys that may stand there although they are relied on and do nothing. ``strict``: no unknown
    key may.

    Raises ConfigError: names file, line, key, value and what is allowed.
    """
    config = bind(
        BrokerConfig,
        load_properties(path),
        known_unsupported=UNSUPPORTED_KEYS,
        relied_on=RELIED_ON,
        accepted=ignore_unsupported,
        strict=strict,
        path=path,
    )
    config.security.check_file(path)
    if config.store.is_pooled and config.pool_unused_because:
        log.warning("transientStorePoolEnable has no effect with %s file=%s", config.pool_unused_because, path)
    if config.store.lmq_enable != config.store.multi_dispatch:
        log.warning("light queues are off: enableLmq and enableMultiDispatch must both be true file=%s", path)
    return config
