"""Certificates and keys in PEM files, checked when they are read, and read again when they change.

Whoever replaces a certificate replaces two files, one after the other: what does not fit together is not used, and
what was read before stays in use until it does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc

from penstock.proto.errors import ConfigError

from .secret_files import Stamp, require_private, stamp_of

if TYPE_CHECKING:
    import ssl  # most processes have no TLS

log = logging.getLogger(__name__)

AnyPath = str | Path

ENDS_SOON = timedelta(days=14)
WARN_AGAIN_S = 86_400.0


class Pem(NamedTuple):
    """What the files of one end hold."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None


class CertificateFiles:
    """The files of one end. Thread-safe."""

    def __init__(self, ca_file: AnyPath | None, cert_file: AnyPath | None, key_file: AnyPath | None) -> None:
        """
        Raises:
            ConfigError: a file is missing, open to everybody, not PEM, or the key is another certificate's.
        """
        if (cert_file is None) != (key_file is None):
            raise ConfigError(f"certificate {cert_file}, key {key_file}: give both, or none")
        self._files = ca_file, cert_file, key_file
        self._lock = threading.Lock()
        self._warn_at_s = 0.0  # in monotonic seconds
        self._stamps = self._look()
        self._pem = self._read()

    def current(self) -> Pem:
        """The files' content, as it was when they last fitted together. The same object while nothing changes.

        Certificates that end soon, or have ended, are a warning once a day.
        """
        with self._lock:
            try:
                stamps = self._look()
                if stamps == self._stamps:
                    if time.monotonic() >= self._warn_at_s:
                        self._warn(self._pem)
                    return self._pem
                self._stamps = stamps
                self._pem = self._read()
            except ConfigError as error:
                log.warning("certificates not taken over, the former ones stay in use error=%s", error)
            else:
                log.info("certificates read anew files=%s", ", ".join(str(path) for path in self._paths()))
            return self._pem

    def _paths(self) -> list[AnyPath]:
        return [path for path in self._files if path is not None]

    def _look(self) -> list[Stamp | None]:
        """The files' stamps; a missing one is what :meth:`_read` complains about."""
        return [stamp_of(path) for path in self._paths()]

    def _read(self) -> Pem:
        ca_file, cert_file, key_file = self._files
        pem = Pem(*map(_bytes_of, self._files))
        if pem.ca is not None:
            _check_ca(ca_file, pem.ca)
        if pem.certificate is not None and pem.key is not None:
            assert cert_file is not None
            assert key_file is not None
            require_private(key_file)
            _check_pair(cert_file, pem.certificate, key_file, pem.key)
        if pem != Pem(*map(_bytes_of, self._files)):
            raise ConfigError(f"{', '.join(map(str, self._paths()))}: changed while they were read")
        self._warn(pem)
        return pem

    def _warn(self, pem: Pem) -> None:
        self._warn_at_s = time.monotonic() + WARN_AGAIN_S
        for path, content in zip(self._files, (pem.ca, pem.certificate), strict=False):
            if content is not None:
                _warn_of_times(path, content)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """A port that demands TLS, 1.2 or newer. Raises ConfigError: see :class:`CertificateFiles`."""

    cert_file: AnyPath
    key_file: AnyPath
    client_ca_file: AnyPath | None = None
    """Who connects must show a certificate of one of these authorities; None: nobody is asked for one."""

    _files: CertificateFiles = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_files", CertificateFiles(self.client_ca_file, self.cert_file, self.key_file))

    def server_credentials(self) -> grpc.ServerCredentials:
        """The credentials of a port. Every handshake takes over files that have changed."""
        used = self._files.current()

        def changed() -> Any:  # a configuration, or None: nothing has changed, which gRPC's stubs do not know
            nonlocal used
            now = self._files.current()
            if now is used:
                return None
            used = now
            return _configuration(now)

        needs_certificate = self.client_ca_file is not None
        return grpc.dynamic_ssl_server_credentials(_configuration(used), changed, needs_certificate)

    def context(self, protocols: Sequence[str] = ()) -> ssl.SSLContext:
        """The same for TLS without gRPC: the context to listen with; ``protocols``: what is spoken, for ALPN."""
        used, made = self._files.current(), self._context(protocols)
        newest = made

        def changed(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal used, newest
            now = self._files.current()
            if now is not used:
                try:
                    newest = self._context(protocols)
                except (ssl.SSLError, OSError) as error:  # changed again since they were read
                    log.warning("certificates not taken over, the former ones stay in use error=%s", error)
                else:
                    used = now
            connection.context = newest

        made.sni_callback = changed  # called for each handshake, whether a name is asked for or not
        return made

    def _context(self, protocols: Sequence[str]) -> ssl.SSLContext:
        made = context_of_port(protocols)
        made.load_cert_chain(self.cert_file, self.key_file)
        if self.client_ca_file is not None:
            made.load_verify_locations(self.client_ca_file)
            made.verify_mode = made.verify_mode.CERT_REQUIRED
        return made


def context_of_port(protocols: Sequence[str]) -> ssl.SSLContext:
    """A context to listen with, of TLS 1.2 or newer, without a certificate yet."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    if protocols:
        made.set_alpn_protocols(protocols)
    return made


def _configuration(pem: Pem) -> grpc.ServerCertificateConfiguration:
    assert pem.key is not None
    assert pem.certificate is not None
    return grpc.ssl_server_certificate_configuration([(pem.key, pem.certificate)], pem.ca)


def _bytes_of(path: AnyPath | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error


def _check_ca(path: AnyPath | None, content: bytes) -> None:
    import ssl  # most clients have no TLS

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{path}: no certificates of authorities in PEM form") from error


def _warn_of_times(path: AnyPath | None, content: bytes) -> None:
    """Log which certificates end soon or are not valid now: who checks them refuses connections and seldom says why."""
    from cryptography import x509

    now = datetime.now(UTC)
    try:
        found = x509.load_pem_x509_certificates(content)
    except ValueError:
        return  # OpenSSL, which has read it, is less strict
    for each in found:
        begins, ends = each.not_valid_before_utc, each.not_valid_after_utc
        if begins <= now <= ends - ENDS_SOON:
            continue
        is_valid = begins <= now <= ends
        log.warning(
            "certificate %s: replace the file path=%s subject=%s from=%s to=%s",
            "is valid for less than two weeks" if is_valid else "is not valid now, peers refuse it",
            *(path, each.subject.rfc4514_string(), begins.isoformat(), ends.isoformat()),
        )


def _check_pair(cert_file: AnyPath, certificate: bytes, key_file: AnyPath, key: bytes) -> None:
    import ssl

    if b"-----BEGIN CERTIFICATE-----" not in certificate:
        raise ConfigError(f"{cert_file}: no certificate in PEM form")
    if b"PRIVATE KEY-----" not in key:
        raise ConfigError(f"{key_file}: no private key in PEM form")
    if b"ENCRYPTED" in key:
        raise ConfigError(f"{key_file}: the key has a password: store it without one, readable to its owner alone")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert_file, key_file, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key_file}: is not the key of the certificate {cert_file}") from error
        raise ConfigError(f"{cert_file}, {key_file}: not a certificate and its key: {error.reason}") from error
