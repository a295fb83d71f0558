"""What ``namesrv.conf`` says."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from penstock.proto.errors import ConfigError
from penstock.runtime.conf import IGNORED_KEY, Relied, bind, check_listening, key, load_properties, require
from penstock.runtime.security.settings import SecuritySettings

# RocketMQ has them, Penstock has nothing for them: each is a warning by name. Timing needs no setting, since a
# broker's death ends its stream; controllers and order topics have other forms here.
UNSUPPORTED_KEYS: frozenset[str] = frozenset(
    """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds
    clientCloseSocketIfTimeout clientOnewaySemaphoreValue clientPooledByteBufAllocatorEnable clientRequestThreadPoolNums
    clientRequestThreadPoolQueueCapacity clientSocketRcvBufSize clientSocketSndBufSize clientWorkerThreads
    configBlackList configStorePath connectTimeoutMillis controllerDLegerSelfId controllerRequestThreadPoolQueueCapacity
    controllerThreadPoolNums defaultThreadPoolNums defaultThreadPoolQueueCapacity deleteTopicWithBrokerRegistration
    disableCallbackExecutor disableNettyWorkerGroup electMasterMaxRetryCount enableAllTopicList enableReconnectForGoAway
    enableShutdownGracefully isProcessReadEvent isScanAvailableNameSrv jraftConfig mappedFileSize
    maxReconnectIntervalTimeSeconds metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExporterType metricsGrpcExporterHeader metricsGrpcExporterTarget
    metricsInDelta metricsLabel metricsPromExporterHost metricsPromExporterPort needWaitForService
    notifyBrokerRoleChanged notifyMinBrokerIdChanged processReadEvent productEnvName returnOrderTopicConfigToBroker
    rocketmqHome scanAvailableNameSrv scanInactiveMasterInterval scanNotActiveBrokerInterval serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds socksProxyConfig
    unRegisterBrokerQueueCapacity useEpollNativeSelector waitSecondsForService writeBufferHighWaterMark
    writeBufferLowWaterMark
    """.split()  # noqa: SIM905  eighty names read better without quotes
)

_CONTROLLER = "controllerDLegerGroup"
_NEVER = "(?!)"

RELIED_ON: dict[str, Relied] = {
    "controllerDLegerPeers": Relied(
        "[^;]*",
        "nameservers form no Raft group, so each would elect masters of its own: let one keep the registers in a file, "
        "or all in etcd (controllerType = ETCD and etcdEndpoints)",
    ),
    _CONTROLLER: Relied(".*", ""),  # see load_nameserver_config
    "supportActingMaster": Relied(
        "false", "a slave never acts for its master: set enableControllerInNamesrv = true, and masters are elected"
    ),
    "orderMessageEnable": Relied(
        "false", "ORDER_TOPIC_CONFIG among the key-values is not read: a key's order is that of its queue; leave it out"
    ),
    "enableTopicList": Relied("true", "topics are listed to everybody who may connect: set authenticationEnabled"),
    "clusterTest": Relied("false", "routes of other environments are not asked for: leave it out"),
    "useTLS": Relied("false", "this key secures nothing here: set tls.server.mode = enforcing and the certificates"),
    **dict.fromkeys(
        ("brokerClusterName", "brokerName", "brokerId", "brokerRole", "flushDiskType"),
        Relied(_NEVER, "a key of broker.conf: give that file to `penstock broker`"),
    ),
}
"""Keys whose users rely on what they do: they end the start unless the value asks for what Penstock does anyway."""


class CoordinatorType(Enum):
    """Where the registers of the broker groups are kept."""

    FILE = "FILE"
    ETCD = "ETCD"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameserverConfig:
    """Everything a nameserver is told at start."""

    ignored: tuple[str, ...] = key(
        IGNORED_KEY, default=(), doc="keys for which no start is refused: see below", differs="has no such key"
    )
    listen_port: int = key("listenPort", default=9876, doc="0: any free port")
    bind_address: str = key("bindAddress", default="0.0.0.0", doc="where to listen")  # noqa: S104  RocketMQ's default
    kv_config_path: Path = key(  # noqa: RUF009  the field's own descriptor, not a shared default
        "kvConfigPath",
        default_factory=lambda: Path("~/namesrv/kvConfig.json").expanduser(),
        doc="key-value configuration; the file is made at the first change",
    )

    has_coordinator: bool = key(
        "enableControllerInNamesrv", default=False, doc="keep the registers of broker groups and elect their masters"
    )
    coordinator_type: CoordinatorType = key(  # noqa: RUF009
        "controllerType",
        default=CoordinatorType.FILE,
        doc="FILE: one nameserver alone; ETCD: any number",
        differs="DLedger or jRaft",
    )
    coordinator_path: Path = key(  # noqa: RUF009
        "controllerStorePath",
        default_factory=lambda: Path("~/namesrv/controller.json").expanduser(),
        doc="FILE: the registers",
        differs="a directory of its Raft log",
    )
    etcd_endpoints: tuple[str, ...] = key(
        "etcdEndpoints", default=(), doc="ETCD: host:port;host:port", differs="has no such key"
    )
    elects_unclean: bool = key(
        "enableElectUncleanMaster",
        default=False,
        doc="promote a slave that lacks acknowledged messages, rather than none",
    )
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def __post_init__(self) -> None:
        for endpoint in self.etcd_endpoints:
            host, _, port = endpoint.rpartition(":")
            good = bool(host) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
            require(good, "etcdEndpoints must be host:port;host:port", endpoint)
        if self.has_coordinator and self.coordinator_type is CoordinatorType.ETCD:
            require(bool(self.etcd_endpoints), "etcdEndpoints must be given with controllerType=ETCD", "none")
        check_listening(self.bind_address, self.listen_port)


def load_nameserver_config(path: str | Path, ignore_unsupported: Collection[str] = ()) -> NameserverConfig:
    """The configuration in the file at ``path``.

    ``ignore_unsupported``: keys that may stand there although they are relied on and do nothing.

    Raises:
        ConfigError: names file, line, key, value and what is allowed.
    """
    settings = load_properties(path)
    config = bind(
        NameserverConfig,
        settings,
        known_unsupported=UNSUPPORTED_KEYS,
        relied_on=RELIED_ON,
        accepted=ignore_unsupported,
        path=path,
    )
    alone = _CONTROLLER in settings and not config.has_coordinator
    if alone and _CONTROLLER not in {*ignore_unsupported, *config.ignored}:
        raise ConfigError(
            f"{path}:{settings[_CONTROLLER].line}: {_CONTROLLER}: a controller's file, and nothing here would elect: "
            "controllers are nameservers that have enableControllerInNamesrv = true; to start without that: "
            f"--ignore-unsupported {_CONTROLLER}"
        )
    config.security.check_file(path)
    return config
