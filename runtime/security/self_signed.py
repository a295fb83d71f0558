"""A certificate that a process makes for itself, for clients that demand TLS and check no certificate."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable, Sequence
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from .certificates import context_of_port

_DAY: Final = datetime.timedelta(days=1)
_VALID: Final = 3650 * _DAY


def self_signed_context(hosts: Iterable[str], protocols: Sequence[str]) -> ssl.SSLContext:
    """A context to listen with, as of :meth:`.ServerTls.context`, of a certificate for ``hosts``, names or addresses.

    Its key is new (ECDSA, P-256). Nothing of it stays on disk: the next process has another one.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "penstock")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _VALID)
        .add_extension(x509.SubjectAlternativeName([_shown(host) for host in hosts]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = context_of_port(protocols)
    with open(os.memfd_create("certificate"), "wb", buffering=0) as file:  # ssl reads a key from nothing but a file
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        file.write(certificate.public_bytes(Encoding.PEM))
        made.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return made


def _shown(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())
