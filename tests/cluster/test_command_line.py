"""The command line against a real local cluster: what it leaves behind, how it ends, what it says of a lost store.

Commands run in this process, but for the one that a signal ends; the README's run as processes of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.cli.main import main
from tests.support.waiting import wait_until


class Done(NamedTuple):
    """What a command's exit code is, and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Shell:
    """``penstock`` commands for one cluster directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.namesrv = ""

    def words(self, *arguments: str) -> list[str]:
        place = ["--dir", str(self.directory)] if arguments[0] == "cluster" else ["--namesrv", self.namesrv]
        return [*arguments, *place]

    def run(self, *arguments: str) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            returncode = main(self.words(*arguments))
        return Done(returncode, out.getvalue(), err.getvalue())

    def document(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    made = Shell(tmp_path_factory.mktemp("local") / "cluster")
    try:
        shape = ("--shards", "1", "--replicas", "2", "--mode", "sync", "--base-port", "0")
        made.namesrv = made.document("cluster", "up", *shape)["namesrv"]
        yield made
    finally:
        made.run("cluster", "down")


def test_load_leaves_no_group_behind(shell: Shell) -> None:
    report = shell.document("load", "both", "--count", "2000", "--size", "100", "--verify")
    assert (report["acknowledged"], report["lost"], report["interrupted"]) == (2000, 0, False)
    assert shell.document("group", "list") == {"groups": [], "unreachable": []}


def test_a_signal_ends_load_early_with_its_report_and_its_code(shell: Shell) -> None:
    load = shell.words("load", "produce", "--seconds", "60", "--rate", "500", "--size", "100", "--topic", "cut")
    command = [sys.executable, "-m", "penstock.cli", *load]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            wait_until(lambda: "sent" in process.stderr.readline(), what="progress", timeout_s=60)  # type: ignore[union-attr]
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143
    assert out.startswith("interrupted")
    assert "acknowledged" in out
    assert "Traceback" not in err


def test_a_misspelt_group_is_refused_and_not_made(shell: Shell) -> None:
    assert shell.run("group", "create", "billing").returncode == 0
    assert shell.run("topic", "create", "orders").returncode == 0
    done = shell.run("offset", "reset", "biling", "orders", "--to", "first")
    assert done.returncode == 1
    assert "did you mean 'billing'" in done.stderr
    assert [group["group"] for group in shell.document("group", "list")["groups"]] == ["billing"]


def test_a_master_that_comes_back_empty_follows_the_one_that_was_elected(shell: Shell) -> None:
    assert shell.run("send", "orders", "kept by the slave alone").returncode == 0
    assert shell.document("cluster", "status")["brokers"][1]["following"] is True
    assert shell.run("cluster", "kill", "broker-a-0").returncode == 0
    shutil.rmtree(shell.directory / "broker-a-0" / "store")
    assert shell.run("cluster", "up").returncode == 0

    def brokers() -> Any:
        return shell.document("cluster", "status")["brokers"]

    wait_until(
        lambda: [(each["role"], each["following"]) for each in brokers()] == [("SLAVE", True), ("MASTER", None)],
        what="the elected master and its follower",
        timeout_s=60,
    )
    shown = shell.run("tail", "orders", "--from", "first", "--count", "1")
    assert "kept by the slave alone" in shown.stdout


def test_with_fixed_masters_one_that_comes_back_empty_is_no_success(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "cluster")
    try:
        shape = ("--shards", "1", "--replicas", "2", "--mode", "sync", "--base-port", "0", "--coordinator", "none")
        shell.namesrv = shell.document("cluster", "up", *shape)["namesrv"]
        assert shell.run("topic", "create", "orders").returncode == 0
        assert shell.run("send", "orders", "kept by the slave alone").returncode == 0
        assert shell.run("cluster", "kill", "broker-a-0").returncode == 0
        shutil.rmtree(shell.directory / "broker-a-0" / "store")
        up = shell.run("cluster", "up")
        assert up.returncode == 1
        assert "error: the cluster runs, but broker-a-1 does not follow its master: WrongStore: " in up.stderr
        slave = shell.document("cluster", "status")["brokers"][1]
        assert (slave["following"], slave["lag_bytes"]) == (False, None)
        assert slave["not_following_because"].startswith("WrongStore: ")
        shown = shell.run("cluster", "status")
        assert "running, not following" in shown.stdout
        assert "broker-a-1 does not follow its master" in shown.stderr
    finally:
        shell.run("cluster", "down")
