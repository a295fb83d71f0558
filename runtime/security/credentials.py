"""How the ends of a connection know each other: certificates (:class:`Tls`) and keys (:class:`Credentials`)."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import grpc

from penstock.proto.errors import ConfigError

from .certificates import AnyPath, CertificateFiles, Pem
from .secret_files import read_pairs

if TYPE_CHECKING:
    import ssl  # most clients have no TLS

_ACCESS_KEY = re.compile(r"[A-Za-z0-9_.@-]{1,128}", re.ASCII)
_SECRET_CHARACTERS_MAX = 256
_FILE_KEYS: Final = {"accessKey", "secretKey"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of the connections that a process opens.

    The files are read when a connection is opened for the first time to a server, and again when they have changed:
    what begins then, as a call or a connection, goes with what they hold.

    Raises:
        ConfigError: a file is missing or not PEM, or the key is another certificate's; a key that everybody may read.
    """

    ca_file: AnyPath
    """Certificates of the authorities that servers' certificates must be from, in PEM form."""

    cert_file: AnyPath | None = None
    key_file: AnyPath | None = None
    """The own certificate and its key, for servers that ask for one (``tls.server.need.client.auth``)."""

    server_name: str | None = None
    """The name that servers' certificates must have; by default the host that is connected to."""

    _files: CertificateFiles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_files", CertificateFiles(self.ca_file, self.cert_file, self.key_file))

    def certificates(self) -> Pem:
        """What the files hold now. The same object while nothing changes."""
        return self._files.current()

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """The credentials of a channel, from the files as they are now."""
        pem = self.certificates()
        return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.certificate)

    def context(self) -> ssl.SSLContext:
        """The same for TLS without gRPC."""
        import ssl

        self.certificates()  # tells what is wrong with them
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_2
        made.load_verify_locations(self.ca_file)
        if self.cert_file is not None:
            made.load_cert_chain(self.cert_file, self.key_file)
        return made

    def channel_options(self) -> tuple[tuple[str, str], ...]:
        """The options that a channel needs besides its own."""
        return () if self.server_name is None else (("grpc.ssl_target_name_override", self.server_name),)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who calls, and the secret by which servers know it: calls are signed with it, it is never sent.

    Raises:
        ConfigError: an access key with other characters than letters, digits and ``_ . @ -``, or no secret.
    """

    access_key: str
    secret_key: str = field(repr=False)

    def __post_init__(self) -> None:
        check_pair(self.access_key, self.secret_key, "credentials")

    @classmethod
    def from_file(cls, path: AnyPath) -> Self:
        """The lines ``accessKey = …`` and ``secretKey = …`` of a file that not everybody may read.

        Raises:
            ConfigError: names the file and what is wrong with it, never a secret.
        """
        pairs = read_pairs(path)
        if pairs.keys() != _FILE_KEYS:
            raise ConfigError(f"{path}: must have one line accessKey = … and one line secretKey = …, and no other")
        check_pair(pairs["accessKey"], pairs["secretKey"], path)
        return cls(pairs["accessKey"], pairs["secretKey"])


def check_pair(access_key: str, secret_key: str, where: object) -> None:
    """Raise :class:`ConfigError` unless both can stand in a signature."""
    if not _ACCESS_KEY.fullmatch(access_key):
        raise ConfigError(
            f"{where}: access key {access_key[:40]!r} must be 1 to 128 letters, digits and characters of _ . @ -"
        )
    if not 1 <= len(secret_key) <= _SECRET_CHARACTERS_MAX or not secret_key.isprintable():
        raise ConfigError(
            f"{where}: the secret of access key {access_key!r} must be 1 to {_SECRET_CHARACTERS_MAX} printable "
            "characters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What a process uses for the connections that it opens. Without TLS and credentials they are plain."""

    tls: Tls | None = None
    credentials: Credentials | None = None

    def __post_init__(self) -> None:
        for name, kind in (("tls", Tls), ("credentials", Credentials)):
            given = getattr(self, name)
            if given is not None and not isinstance(given, kind):
                raise ConfigError(f"{name} must be {kind.__name__}, not {type(given).__name__}")  # perhaps a secret


PLAIN: Final = Security()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityFiles:
    """Where to find a :class:`Security`: names of files, which may travel where secrets may not. Empty: none."""

    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""
    credentials_file: str = ""

    def __post_init__(self) -> None:
        if not self.tls_ca_file and (self.tls_cert_file or self.tls_key_file or self.tls_server_name):
            raise ConfigError(
                "TLS: the file with the authorities' certificates is missing: tlsCaFile, or PENSTOCK_TLS_CA_FILE"
            )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """``PENSTOCK_TLS_CA_FILE``, ``_TLS_CERT_FILE``, ``_TLS_KEY_FILE``, ``_TLS_SERVER_NAME``, ``_CREDENTIALS_FILE``.

        Raises:
            ConfigError: one of TLS is set without ``PENSTOCK_TLS_CA_FILE``.
        """
        return cls(**{name: environment.get(f"PENSTOCK_{name.upper()}", "") for name in cls.__dataclass_fields__})

    def read(self) -> Security:
        """What the files hold. Raises ConfigError: see :class:`Tls` and :meth:`Credentials.from_file`."""
        tls = None
        if self.tls_ca_file:
            tls = Tls(
                ca_file=Path(self.tls_ca_file).expanduser(),
                cert_file=Path(self.tls_cert_file).expanduser() if self.tls_cert_file else None,
                key_file=Path(self.tls_key_file).expanduser() if self.tls_key_file else None,
                server_name=self.tls_server_name or None,
            )
        credentials = Credentials.from_file(Path(self.credentials_file).expanduser()) if self.credentials_file else None
        return Security(tls=tls, credentials=credentials)
