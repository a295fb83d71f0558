"""The process: ready line, clean stop, and starts that are refused with one clear line."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.nameserver.__main__ import main
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.nameserver_pb2_grpc import NameserverStub
from penstock.runtime.channel import open_channel
from tests.support.waiting import wait_until


def write_config(directory: Path, **settings: object) -> Path:
    path = directory / "namesrv.conf"
    values = {"listenPort": 0, "bindAddress": "127.0.0.1", "kvConfigPath": directory / "kv.json", **settings}
    path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


@contextlib.contextmanager
def process(config: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A nameserver process and the file that holds what it logs."""
    logged = config.with_suffix(".log")
    command = [sys.executable, "-m", "penstock.nameserver", "-c", str(config)]
    with open(logged, "wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as started:
        try:
            yield started, logged
        finally:
            started.kill()


def ready_address(started: subprocess.Popen[bytes], logged: Path) -> str:
    def found() -> str:
        assert started.poll() is None, logged.read_text()
        lines = [line for line in logged.read_text().splitlines() if "nameserver ready address=" in line]
        return lines[0].rpartition("=")[2] if lines else ""

    return wait_until(found, timeout_s=30, what="the ready line")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with process(write_config(tmp_path)) as (started, logged):
        address = ready_address(started, logged)
        with open_channel(address) as channel:
            stub = NameserverStub(channel)  # type: ignore[no-untyped-call]
            assert list(stub.ListTopics(Empty(), timeout=10).topics) == []
            watch = stub.WatchRoutes(iter([]))  # a stream that is open when the signal comes
            os.kill(started.pid, number)
            assert started.wait(60) == 0
            watch.cancel()
        assert "Traceback" not in logged.read_text()
        assert "nameserver stopped" in logged.read_text()


def test_a_port_in_use_is_exit_code_2_with_one_line_and_no_stack_trace(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = write_config(tmp_path, listenPort=taken.getsockname()[1])
        with process(config) as (started, logged):
            assert started.wait(30) == 2
    text = logged.read_text()
    assert "listenPort: cannot listen on 127.0.0.1:" in text
    assert "Address already in use" in text
    assert "Traceback" not in text


def logged_by_main(caplog: pytest.LogCaptureFixture, config: Path, code: int) -> str:
    assert main(["-c", str(config)]) == code
    assert not [record for record in caplog.records if record.exc_info]
    return caplog.records[-1].getMessage()


def test_a_key_that_is_relied_on_and_does_nothing_is_exit_code_2(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said = logged_by_main(caplog, write_config(tmp_path, supportActingMaster="true"), 2)
    assert "namesrv.conf:4: supportActingMaster = 'true': a slave never acts for its master" in said


def test_a_missing_file_is_exit_code_2(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert "No such file" in logged_by_main(caplog, tmp_path / "absent.conf", 2)


def test_an_address_of_another_machine_is_exit_code_2(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = write_config(tmp_path, bindAddress="192.0.2.200")
    assert "cannot listen on 192.0.2.200:0" in logged_by_main(caplog, config, 2)


def test_a_damaged_key_value_file_is_exit_code_1_and_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "kv.json").write_text("{")
    assert "kv.json: key-value configuration is damaged" in logged_by_main(caplog, write_config(tmp_path), 1)
