"""What ``--set`` writes, and into which files."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.config import BrokerConfig
from penstock.cli.main import main
from penstock.deploy import DeployUsage, LocalCluster
from penstock.deploy.plan import NAMESERVER_KEYS, NODE_KEYS, SHARED_KEYS, Plan, new_plan
from penstock.nameserver.config import NameserverConfig
from penstock.runtime.conf import keyed_fields

INNER = '{"accessKey":"cluster","secretKey":"PLANTED"}'


def texts(settings: dict[str, str]) -> dict[str, str]:
    plan = new_plan(shards=1, replicas=1, settings=settings)
    return {node.config_name: plan.config_text(node, Path("/x")) for node in plan.nodes}


def test_settings_of_security_reach_brokers_and_nameservers() -> None:
    settings = {"authenticationEnabled": "true", "tls.server.mode": "enforcing", "fileReservedTime": "5"}
    found = texts({**settings, "enableElectUncleanMaster": "true"})
    for line in ("authenticationEnabled=true\n", "tls.server.mode=enforcing\n"):
        assert all(line in text for text in found.values())
    assert "fileReservedTime" in found["broker.conf"]
    assert "fileReservedTime" not in found["namesrv.conf"]
    assert "enableElectUncleanMaster" not in found["broker.conf"]
    assert "enableElectUncleanMaster=true\n" in found["namesrv.conf"]


def test_every_key_has_its_files() -> None:
    """A key that both know reaches both, one that only a nameserver knows reaches it, or it is chosen for each node."""
    brokers, nameservers = ({name for name, _ in keyed_fields(each)} for each in (BrokerConfig, NameserverConfig))
    brokers.discard("ignoreUnsupported")  # it names keys, and a broker's are none of a nameserver
    assert brokers & nameservers - NODE_KEYS == {name for name in brokers if SHARED_KEYS.fullmatch(name)}
    assert nameservers - brokers - NODE_KEYS - {"ignoreUnsupported"} == NAMESERVER_KEYS


@pytest.fixture
def nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: LocalCluster, *_: Any, **__: Any) -> None:
        raise DeployUsage("would start")

    monkeypatch.setattr(LocalCluster, "_start", refuse)
    monkeypatch.setattr("penstock.cli.commands.kernels.warm_up", lambda _: None)


@pytest.mark.usefixtures("nothing_is_started")
def test_files_with_a_secret_are_their_owner_s_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up = ["cluster", "up", "--dir", str(tmp_path), "--base-port", "0", "--shards", "1", "--replicas", "1"]
    assert main([*up, "--set", f"innerClientAuthenticationCredentials={INNER}"]) == 2
    assert "would start" in capsys.readouterr().err
    written = [path for path in tmp_path.rglob("*") if path.suffix in (".conf", ".json")]
    assert {path.name for path in written} == {"cluster.json", "broker.conf", "namesrv.conf"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}


@pytest.mark.usefixtures("nothing_is_started")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"authenticationEnabled": "true"}, "authConfigPath must be given"),
        ({"tls.server.mode": "enforcing"}, "tls.server.certPath must be given"),
        ({"enableElectUncleanMaster": "maybe"}, "enableElectUncleanMaster must be true or false"),
    ],
)
def test_what_any_node_would_refuse_is_refused_by_name(
    settings: dict[str, str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    assert main(["cluster", "up", "--dir", str(tmp_path), "--base-port", "0", *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "cluster.json").exists()


@pytest.mark.usefixtures("nothing_is_started")
def test_a_cluster_with_users_wants_to_be_looked_at_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PENSTOCK_CREDENTIALS_FILE", raising=False)
    settings = [f"authConfigPath={tmp_path}/users", f"innerClientAuthenticationCredentials={INNER}"]
    options = [word for each in ("authenticationEnabled=true", *settings) for word in ("--set", each)]
    assert main(["cluster", "up", "--dir", str(tmp_path / "c"), "--base-port", "0", *options]) == 2
    assert "set PENSTOCK_CREDENTIALS_FILE" in capsys.readouterr().err


def test_a_plan_keeps_its_settings(tmp_path: Path) -> None:
    plan = new_plan(shards=1, replicas=1, settings={"tls.server.mode": "enforcing"})
    plan.save(tmp_path)
    assert isinstance(plan, Plan)
    assert LocalCluster(tmp_path).plan == plan
