"""What ``gateway.conf`` says."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from penstock.client.cluster import parse_addresses
from penstock.runtime.conf import IGNORED_KEY, bind, key, load_properties, require
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.settings import SecuritySettings

PORT_DEFAULT = 8081


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Everything a gateway is told at start."""

    ignored: tuple[str, ...] = key(
        IGNORED_KEY, default=(), doc="keys for which no start is refused: see below", differs="has no such key"
    )
    nameservers: str = key("namesrvAddr", default="127.0.0.1:9876", doc="host:port;host:port")
    listen_port: int = key(
        "listenPort", default=PORT_DEFAULT, doc="0: any free port", differs="grpcServerPort in a JSON file"
    )
    tls_port: int = key(
        "tlsListenPort",
        default=-1,
        doc="a second port, for TLS, while listenPort takes plain connections; as listenPort: one takes both; "
        "-1: none, 0: any free one",
        differs="one port takes both",
    )
    bind_address: str = key("bindAddress", default="0.0.0.0", doc="where to listen")  # noqa: S104  as the others'
    host: str = key(
        "gatewayIP1",
        default="",
        doc="the host that clients are told which name no address themselves; default: bindAddress, or this host's",
        differs="localServerAddr",
    )
    security: SecuritySettings = field(default_factory=SecuritySettings)

    def __post_init__(self) -> None:
        parse_addresses(self.nameservers)
        require(0 <= self.listen_port <= 65535, "listenPort must be 0..65535 (0: any free port)", self.listen_port)
        require(-1 <= self.tls_port <= 65535, "tlsListenPort must be -1..65535 (-1: none)", self.tls_port)
        try:
            ipaddress.ip_address(self.bind_address)
        except ValueError:
            require(False, "bindAddress must be an IPv4 or IPv6 address", self.bind_address)
        if self.tls_port >= 0:
            transport = self.security.transport
            require(not transport.is_on, "tlsListenPort beside tls.server.mode=enforcing", "listenPort takes TLS then")
            both = bool(transport.cert_path and transport.key_path)
            require(both, "tls.server.certPath and tls.server.keyPath must be given with tlsListenPort", "not both")

    @property
    def is_one_port(self) -> bool:
        """True if one port takes plain connections and TLS."""
        return self.tls_port == self.listen_port > 0

    def second_tls(self) -> ServerTls | None:
        """The TLS beside plain connections, or None. Raises ConfigError: a file is wrong."""
        if self.tls_port < 0:
            return None
        transport = self.security.transport
        return ServerTls(
            cert_file=Path(transport.cert_path).expanduser(), key_file=Path(transport.key_path).expanduser()
        )


def load_gateway_config(path: str | Path, ignore_unsupported: Collection[str] = ()) -> GatewayConfig:
    """The configuration in the file at ``path``.

    Raises:
        ConfigError: names file, line, key, value and what is allowed.
    """
    config = bind(GatewayConfig, load_properties(path), accepted=ignore_unsupported, path=path)
    config.security.check_file(path)
    return config
