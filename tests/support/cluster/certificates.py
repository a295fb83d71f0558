"""Certificates of authorities that live as long as a test, in files as servers and clients read them."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from typing import NamedTuple

import trustme

from penstock.runtime.security.credentials import Tls

LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


class Pair(NamedTuple):
    """A certificate's file and its key's."""

    cert: Path
    key: Path


class Authority:
    """Issues certificates into ``directory``."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.file = directory / f"{name}.pem"
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *hosts: str, ends: datetime.datetime | None = None) -> Pair:
        """A certificate for ``hosts``, by default this machine's names; files that are there are replaced."""
        made = self._authority.issue_cert(*(hosts or ("127.0.0.1", "localhost")), not_after=ends)
        pair = Pair(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        put(pair.key, made.private_key_pem.bytes())
        put(pair.cert, b"".join(each.bytes() for each in made.cert_chain_pems))
        return pair

    def tls(self, pair: Pair | None = None, server_name: str | None = None) -> Tls:
        """What a client of this authority's servers is given."""
        cert, key = pair or (None, None)
        return Tls(ca_file=self.file, cert_file=cert, key_file=key, server_name=server_name)


def put(path: Path, content: bytes | str) -> Path:
    """A private file, replaced in one step."""
    made = path.with_suffix(path.suffix + ".new")
    made.touch(mode=0o600)
    made.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(made, path)
    return path
