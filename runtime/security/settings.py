"""What ``broker.conf`` and ``namesrv.conf`` say about TLS and authentication.

RocketMQ has the keys with dots as system properties or in a file of their own; here they stand with the others.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from penstock.proto.errors import ConfigError

from ..conf import key, require
from .access import Access
from .certificates import ServerTls
from .credentials import Credentials, Security, Tls
from .secret_files import require_private

log = logging.getLogger(__name__)

_INNER = "innerClientAuthenticationCredentials"


class TlsServerMode(Enum):
    """What a port takes; spelt as RocketMQ does."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


class ClientAuth(Enum):
    """How clients show a certificate; spelt as RocketMQ does."""

    none = "none"
    optional = "optional"
    require = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS of a server process: of its port, and of all connections that it opens to others of the cluster."""

    mode: TlsServerMode = key(  # noqa: RUF009
        "tls.server.mode",
        default=TlsServerMode.disabled,
        doc="enforcing: TLS and nothing else",
        differs="permissive: a port takes both; refused here",
    )
    cert_path: str = key("tls.server.certPath", default="", doc="the certificate and those it is from, PEM")
    key_path: str = key("tls.server.keyPath", default="", doc="its key, PEM, without a password")
    trust_path: str = key("tls.server.trustCertPath", default="", doc="authorities of the cluster's certificates, PEM")
    client_auth: ClientAuth = key(  # noqa: RUF009
        "tls.server.need.client.auth",
        default=ClientAuth.none,
        doc="require: clients must show a certificate",
        differs="also optional; refused here",
    )
    client_cert_path: str = key("tls.client.certPath", default="", doc="shown to other servers; default: the server's")
    client_key_path: str = key("tls.client.keyPath", default="", doc="its key")
    client_trust_path: str = key("tls.client.trustCertPath", default="", doc="default: as tls.server.trustCertPath")
    server_name: str = key(
        "tls.client.serverName",
        default="",
        doc="the name that other servers' certificates have; default: their host",
        differs="has no such key",
    )
    _may_take_both: ClassVar[bool] = False
    """True if the port tells TLS from plain connections."""

    def __post_init__(self) -> None:
        require(
            self._may_take_both or self.mode is not TlsServerMode.permissive,
            "tls.server.mode must be disabled or enforcing: a gRPC port takes either plain connections or TLS",
            self.mode.name,
        )
        require(
            self.client_auth is not ClientAuth.optional,
            "tls.server.need.client.auth must be none or require: a certificate that may be missing proves nothing",
            self.client_auth.name,
        )
        for end, paths in (
            ("server", (self.cert_path, self.key_path)),
            ("client", (self.client_cert_path, self.client_key_path)),
        ):
            both = all(paths) or not any(paths)
            require(both, f"tls.{end}.certPath and tls.{end}.keyPath must be given together", "one of them")
        proves = self.client_auth is ClientAuth.none or self.mode is TlsServerMode.disabled or bool(self.trust_path)
        require(proves, "tls.server.trustCertPath must be given with tls.server.need.client.auth=require", "none")
        if not self.is_on:
            return
        for name, path in (
            ("tls.server.certPath", self.cert_path),
            ("tls.server.keyPath", self.key_path),
            ("tls.server.trustCertPath", self.trust_path),
        ):
            require(bool(path), f"{name} must be given with tls.server.mode=enforcing", "none")

    @property
    def is_on(self) -> bool:
        return self.mode is TlsServerMode.enforcing

    def server_tls(self) -> ServerTls | None:
        """The TLS of the process's port, from the files, or None: it has none, or no files are named.

        Raises:
            ConfigError: which file, and what is wrong with it.
        """
        if self.mode is TlsServerMode.disabled or not self.cert_path:
            return None
        return ServerTls(
            cert_file=_path(self.cert_path),
            key_file=_path(self.key_path),
            client_ca_file=_path(self.trust_path) if self.client_auth is ClientAuth.require else None,
        )

    def tls(self) -> Tls | None:
        """The TLS of the connections that the process opens, from the files; with the same errors."""
        if not self.is_on:
            return None
        return Tls(
            ca_file=_path(self.client_trust_path or self.trust_path),
            cert_file=_path(self.client_cert_path or self.cert_path),
            key_file=_path(self.client_key_path or self.key_path),
            server_name=self.server_name or None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthenticationSettings:
    """Who may call, and as whom this process calls others."""

    is_enabled: bool = key("authenticationEnabled", default=False, doc="take signed calls of known users alone")
    users_path: str = key(
        "authConfigPath", default="", doc="users: lines of accessKey = secretKey", differs="a directory of RocksDB"
    )
    inner: str = key(_INNER, default="", doc='of brokers and nameservers: {"accessKey":…,"secretKey":…}', secret=True)

    def __post_init__(self) -> None:
        self.credentials()
        if self.is_enabled:
            require(bool(self.users_path), "authConfigPath must be given with authenticationEnabled", "none")
            require(bool(self.inner), f"{_INNER} must be given with authenticationEnabled", "none")

    def credentials(self) -> Credentials | None:
        """The credentials that the process signs its calls with, or None.

        Raises:
            ConfigError: not of the form; says nothing of what is there.
        """
        if not self.inner:
            return None
        try:
            document = json.loads(self.inner)
            access_key, secret_key = document.pop("accessKey"), document.pop("secretKey")
            if document or not isinstance(access_key, str) or not isinstance(secret_key, str):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ConfigError(f'{_INNER} must be of the form {{"accessKey":"…","secretKey":"…"}}') from None
        try:
            return Credentials(access_key, secret_key)
        except ConfigError as error:
            raise ConfigError(f"{_INNER}: {error.message}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Both, for a server process."""

    transport: TlsSettings = field(default_factory=TlsSettings)
    authentication: AuthenticationSettings = field(default_factory=AuthenticationSettings)

    def access(self) -> Access | None:
        """The users who may call; None: everybody. Warns where signatures can be read on their way.

        Raises:
            ConfigError: the file of users is wrong.
        """
        settings = self.authentication
        inner = settings.credentials()
        if not settings.is_enabled or inner is None:
            return None
        if not self.transport.is_on:
            log.warning(
                "authentication without TLS: whoever can read the network can use what it sees, for minutes; "
                "set tls.server.mode=enforcing"
            )
        return Access(_path(settings.users_path), inner)

    def outgoing(self) -> Security:
        """For the connections that the process opens. Raises ConfigError: a file is wrong."""
        return Security(tls=self.transport.tls(), credentials=self.authentication.credentials())

    def check_file(self, path: str | Path) -> None:
        """Raise ConfigError if the configuration file at ``path`` holds a secret that everybody may read."""
        if self.authentication.inner:
            require_private(path)


def _path(text: str) -> Path:
    return Path(text).expanduser()
