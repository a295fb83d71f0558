"""What ``gateway.conf`` says."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import ClassVar, Self

from penstock.client.cluster import parse_addresses
from penstock.proto.errors import ConfigError
from penstock.runtime.conf import IGNORED_KEY, bind, check_listening, key, load_properties, require
from penstock.runtime.security.settings import SecuritySettings, TlsServerMode, TlsSettings

PORT_DEFAULT = 8081
_IPV6 = r"[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9_.-]{1,32})?"  # with a zone: for clients of the same network interface
_HOST = re.compile(rf"[A-Za-z0-9_.-]{{1,255}}|{_IPV6}|\[{_IPV6}\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayTls(TlsSettings):
    """TLS of a gateway: half of RocketMQ's clients begin with it, and the others with plain HTTP/2."""

    mode: TlsServerMode = key(  # noqa: RUF009
        "tls.server.mode",
        default=TlsServerMode.permissive,
        doc="permissive: the port takes plain connections and TLS, without certPath with a certificate made at the "
        "start; enforcing: TLS and nothing else; disabled: plain connections alone",
    )
    _may_take_both: ClassVar[bool] = True

    @classmethod
    def beside(cls, other: TlsSettings) -> Self:
        """With what ``other`` says of its process: both kinds of connections, unless that demands TLS."""
        told = {field.name: getattr(other, field.name) for field in fields(other)}
        return cls(**{**told, "mode": TlsServerMode.enforcing if other.is_on else TlsServerMode.permissive})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySecurity(SecuritySettings):
    """As of the other servers, but for the port's TLS."""

    transport: GatewayTls = field(default_factory=GatewayTls)


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
    bind_address: str = key("bindAddress", default="0.0.0.0", doc="where to listen")  # noqa: S104  as the others'
    host: str = key(
        "gatewayIP1",
        default="",
        doc="the host that clients are told which name no address themselves; default: bindAddress, or this host's",
        differs="localServerAddr",
    )
    security: GatewaySecurity = field(default_factory=GatewaySecurity)

    def __post_init__(self) -> None:
        try:
            parse_addresses(self.nameservers)
        except ConfigError as error:
            raise ConfigError(f"namesrvAddr: {error.message}") from None
        check_listening(self.bind_address, self.listen_port)
        bare = self.host.strip("[]").split("%")[0]
        is_host = _HOST.fullmatch(self.host) is not None and bare not in ("0.0.0.0", "::")  # noqa: S104  compared
        require(not self.host or is_host, "gatewayIP1 must be a host or an address that clients can reach", self.host)


def load_gateway_config(path: str | Path, ignore_unsupported: Collection[str] = ()) -> GatewayConfig:
    """The configuration in the file at ``path``.

    Raises:
        ConfigError: names file, line, key, value and what is allowed.
    """
    config = bind(GatewayConfig, load_properties(path), accepted=ignore_unsupported, path=path)
    config.security.check_file(path)
    return config
