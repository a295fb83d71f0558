"""The entry: exit codes, one-line errors, quick help."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
import pytest

from penstock.cli.main import COMMANDS, cli, main
from penstock.cli.output import ProgressLine
from penstock.cli.signals import Terminated
from penstock.deploy import DeployError, DeployUsage
from penstock.proto import distribution
from penstock.proto.errors import (
    BrokerUnavailable,
    ConfigError,
    InvalidArgument,
    InvalidName,
    PenstockError,
    TopicNotFound,
)
from tests.support.client.running_cluster import RunningCluster


def failing(error: BaseException) -> Callable[..., Any]:
    @click.command()
    def command() -> None:
        raise error

    return lambda ctx, name: command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PenstockError("broke"), 1),
        (BrokerUnavailable("broke"), 1),
        (ConfigError("broke"), 2),
        (InvalidName("broke"), 2),
        (InvalidArgument("broke"), 2),
        (TopicNotFound("broke"), 1),
        (DeployError("broke"), 1),
        (DeployUsage("broke"), 2),
        (PermissionError(13, "broke", "/x"), 1),
        (ZeroDivisionError("broke"), 1),
    ],
)
def test_every_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "get_command", failing(error))
    assert main(["topic"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    assert "broke" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (Terminated(), 143)])
def test_an_interrupt_is_exit_code_130_or_143_without_a_word(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "get_command", failing(error))
    assert main(["topic"]) == code
    assert "error" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["version", "--nonsense"], ["cluster", "up"], ["load", "both", "--size"]]
)
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "error: " in capsys.readouterr().err


def test_help_imports_no_command() -> None:
    program = (
        "import sys; from penstock.cli.main import main; main(['--help'])\n"
        "heavy = {'rich', 'grpc', 'numpy', 'numba', 'psutil', 'penstock.client'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_can_be_imported_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert "Usage: penstock" in capsys.readouterr().out


def test_json_is_the_only_thing_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": distribution.version()}


def test_a_bad_nameserver_address_is_bad_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--namesrv", "nowhere"]) == 2
    assert "must be host:port" in capsys.readouterr().err


def test_two_ways_to_send_at_once_are_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["load", "produce", "--sync", "--columnar", "--count", "1"]) == 2
    assert "--sync and --columnar are two ways to send" in capsys.readouterr().err


def test_the_environment_names_the_nameservers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_NAMESRV", "also-nowhere")
    assert main(["topic", "list"]) == 2
    assert "also-nowhere" in capsys.readouterr().err


def test_a_directory_without_a_cluster_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    assert main(["cluster", "status", "--dir", str(tmp_path)]) == 2
    assert "holds no cluster" in capsys.readouterr().err


def test_progress_that_is_piped_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine(every_s=0.0, counts=True)
    line.show("verifying", 1, 4)
    line.show("waiting for [broker-a-0]")
    line.clear()
    rare = ProgressLine(every_s=3600.0)
    rare.show("waiting")
    assert capsys.readouterr().err == "verifying 25 %\nwaiting for [broker-a-0]\n"


def test_cluster_status_and_switch_take_nameservers_in_place_of_a_directory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningCluster(topics={"t": 1}) as cluster:
        monkeypatch.setenv("PENSTOCK_NAMESRV", cluster.namesrv)
        assert main(["cluster", "status", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["nameservers"][0]["state"] == "running"
        (broker,) = document["brokers"]
        assert (broker["name"], broker["role"], broker["state"]) == ("broker-a-0", "MASTER", "running")
        assert main(["cluster", "status"]) == 0
        assert "broker-a-0" in capsys.readouterr().out
        assert main(["cluster", "switch", "broker-x", "--to", "1"]) == 2
        assert "no shard 'broker-x' in this cluster: broker-a" in capsys.readouterr().err
        assert main(["cluster", "switch", "broker-a", "--to", "1"]) == 2
        assert "broker-a has no broker 1: 0" in capsys.readouterr().err
    assert main(["cluster", "status"]) == 1
    told = capsys.readouterr().err
    assert f"no nameserver answered: nameserver {cluster.namesrv}: unavailable: " in told
    assert "(of a local cluster, `penstock cluster status --dir DIR`" in told
