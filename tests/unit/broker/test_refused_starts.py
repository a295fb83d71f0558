"""Starts that are refused: each in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker import process
from penstock.runtime import process as server_process
from tests.support.broker.running_broker import broker_process, write_config


@pytest.fixture(autouse=True)
def _leaves_this_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a broker changes of its process stays: this one is not the broker's alone."""
    for name in ("log_to_stderr", "raise_open_files", "keep_large_buffers"):
        monkeypatch.setattr(server_process, name, lambda: None)
    monkeypatch.setattr(process, "give_back_unused", lambda: None)


def test_a_wrong_configuration_ends_the_process_with_code_2_and_one_clear_line(tmp_path: Path) -> None:
    with broker_process(tmp_path, storePathRootDir="/proc/nothing/here") as broker:
        assert broker.process.wait(60) == 2
        assert "Traceback" not in broker.log()
        (line,) = [line for line in broker.log().splitlines() if "broker not started" in line]
        assert "storePathRootDir" in line


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aclEnable": "true"}, "aclEnable = 'true': ACL files are not read"),
        ({"storePathRootDir": "/proc/store"}, "storePathRootDir /proc/store: cannot be made in /proc: choose another"),
        ({"listenPort": "10911", "dataPort": "10911"}, "dataPort must be a port that no other key has, not '10911'"),
        (
            {"dataPort": "10912", "gatewayPort": "10912", "namesrvAddr": "127.0.0.1:1"},
            "gatewayPort must be a port that no other key has, not '10912'",
        ),
        ({"storePathRootDir": "missing/parent/store"}, "there is no directory missing/parent to make it in"),
        (
            {"storePathCommitLog": "/nowhere/at/all/log"},
            "storePathCommitLog /nowhere/at/all/log: there is no",
        ),
        (
            {"storePathCommitLog": "/tmp,/nowhere/log"},
            "storePathCommitLog /nowhere/log: there is no directory /nowhere",
        ),
        ({"brokerName": "no/slash"}, "brokerName"),
    ],
)
def test_each_wrong_configuration_has_code_2_and_one_clear_line(
    tmp_path: Path, settings: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert process.run(write_config(tmp_path, **settings)) == 2
    assert not [record for record in caplog.records if record.exc_info]
    (line,) = [each for each in caplog.messages if "broker not started" in each]
    assert said in line


@pytest.mark.parametrize(
    ("place", "code", "said"),
    [
        ("config/topics.json", 1, "{}: loading the tables failed: Is a directory"),
        ("penstockIdentity.json", 2, "{}: Is a directory: let the broker's user read and write it"),
    ],
)
def test_a_file_of_the_store_that_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, place: str, code: int, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "store" / place).mkdir(parents=True)
    assert process.run(write_config(tmp_path)) == code
    assert not [record for record in caplog.records if record.exc_info]
    assert said.format(tmp_path / "store" / place) in caplog.messages[-1]
