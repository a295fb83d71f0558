"""What ``broker.conf`` and ``namesrv.conf`` say of TLS and users."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config import load_broker_config
from penstock.nameserver import load_nameserver_config
from penstock.proto.errors import ConfigError
from penstock.runtime.security.credentials import Credentials
from tests.support.cluster.certificates import Authority, put

INNER = 'innerClientAuthenticationCredentials = {"accessKey":"cluster","secretKey":"PLANTED"}\n'
LOADERS = [load_broker_config, load_nameserver_config]


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tls.server.mode = permissive", "FILE:1: tls.server.mode must be disabled or enforcing"),
        ("tls.server.mode = on", "FILE:1: tls.server.mode must be one of disabled, permissive, enforcing, not 'on'"),
        ("tls.server.mode = enforcing", "FILE:1: tls.server.certPath must be given with tls.server.mode=enforcing"),
        ("tls.server.need.client.auth = optional", "FILE:1: tls.server.need.client.auth must be none or require"),
        ("tls.client.certPath = /a", "FILE:1: tls.client.certPath and tls.client.keyPath must be given together"),
        ("tls.server.certpath = /a", "unknown key 'tls.server.certpath': did you mean 'tls.server.certPath'"),
        ("authenticationEnabled = true", "authConfigPath must be given with authenticationEnabled"),
        ("authenticationEnabled = true\nauthConfigPath = /users", "innerClientAuthenticationCredentials must be given"),
        (INNER.replace('"accessKey"', '"accesskey"'), "must be of the form"),
        (INNER.replace("}", ""), "must be of the form"),
        (INNER.replace('"PLANTED"', '["PLANTED"]'), "must be of the form"),
        (INNER.replace("cluster", "clus,ter"), "access key 'clus,ter' must be"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    tmp_path: Path, load: Callable[[Path], Any], text: str, problem: str
) -> None:
    path = put(tmp_path / "conf", text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    message = str(caught.value).replace(str(path), "FILE")
    assert problem in message
    assert "PLANTED" not in message


@pytest.mark.parametrize("load", LOADERS)
def test_a_file_with_a_secret_that_everybody_may_read_is_refused(tmp_path: Path, load: Callable[[Path], Any]) -> None:
    path = put(tmp_path / "conf", INNER)
    load(path)
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"conf: holds a secret, and everybody may use it \(mode 0644\)"):
        load(path)
    put(path, "listenPort = 1\n").chmod(0o644)
    load(path)


@pytest.mark.parametrize("load", LOADERS)
def test_without_them_nothing_is_secured(tmp_path: Path, load: Callable[[Path], Any]) -> None:
    security = load(put(tmp_path / "conf", "")).security
    assert security.access() is None
    assert security.transport.server_tls() is None
    assert (security.outgoing().tls, security.outgoing().credentials) == (None, None)


def test_the_servers_certificate_is_also_shown_to_others(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.issue("own"), authority.issue("other")
    text = (
        f"tls.server.mode = enforcing\ntls.server.certPath = {own.cert}\ntls.server.keyPath = {own.key}\n"
        f"tls.server.trustCertPath = {authority.file}\n{INNER}"
    )
    security = load_broker_config(put(tmp_path / "conf", text)).security
    server, client = security.transport.server_tls(), security.outgoing()
    assert server is not None
    assert client.tls is not None
    assert (server.client_ca_file, client.tls.ca_file, client.tls.cert_file) == (None, authority.file, own.cert)
    assert client.credentials == Credentials("cluster", "PLANTED")
    text += (
        f"tls.server.need.client.auth = require\ntls.client.certPath = {other.cert}\ntls.client.keyPath = {other.key}"
    )
    security = load_broker_config(put(tmp_path / "conf", text)).security
    server, client = security.transport.server_tls(), security.outgoing()
    assert server is not None
    assert client.tls is not None
    assert (server.client_ca_file, client.tls.cert_file) == (authority.file, other.cert)


def test_users_without_tls_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    users = put(tmp_path / "users", "loader = s-1\n")
    text = f"authenticationEnabled = true\nauthConfigPath = {users}\n{INNER}"
    with caplog.at_level(logging.WARNING):
        assert load_broker_config(put(tmp_path / "conf", text)).security.access() is not None
    assert "authentication without TLS" in caplog.text
