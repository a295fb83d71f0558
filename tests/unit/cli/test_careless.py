"""What commands say to somebody who mistypes, and what they do not let through to his terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.cli import output
from penstock.cli.commands import load, messages
from penstock.cli.main import main
from penstock.cli.output import harmless, print_error, print_fields, print_json, print_json_line, print_table, shown
from penstock.deploy.local_cluster import _said
from penstock.nameserver.config import load_nameserver_config
from penstock.proto.errors import ConfigError, MessageTooLarge

FORGED = "\x1b]0;owned\x07\x1b[2J\r\n22:00:00 broker-a:0:0 fake\x9b1m\u202e"


class Message:
    """What a hostile producer sent."""

    broker_name, queue_id, queue_offset, store_timestamp_ms = "broker-a", 0, 7, 1_700_000_000_000

    def __init__(self, body: bytes, tag: str | None = None, keys: list[str] | None = None) -> None:
        self.stored, self.tag, self.keys = body, tag, keys or []

    @property
    def body(self) -> bytes:
        if self.stored == b"bomb":
            raise MessageTooLarge("body of 4 bytes expands to more than 16777216, the limit for bodies")
        return self.stored


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "on_terminal", lambda: True)
    monkeypatch.setattr(messages, "on_terminal", lambda: True)


def line(message: Any) -> str:
    return messages._line(message)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_no_control_characters_of_messages(capsys: pytest.CaptureFixture[str]) -> None:
    told = line(Message(FORGED.encode(), FORGED, [FORGED]))
    print_json({"body": FORGED})
    print_json_line({"body": FORGED})
    print_fields({"body": FORGED})
    lines = capsys.readouterr().out
    assert told.isprintable()
    assert all(each.isprintable() for each in lines.split("\n"))
    assert "\\x1b]0;owned\\x07" in told


def test_what_goes_into_a_file_is_what_was_sent(capsys: pytest.CaptureFixture[str]) -> None:
    assert line(Message(FORGED.encode())).endswith(FORGED)
    print_fields({"body": FORGED})
    assert FORGED in capsys.readouterr().out.replace("\n22", "\n22")


@pytest.mark.usefixtures("terminal")
def test_a_long_body_is_cut_on_a_terminal() -> None:
    told = line(Message(b"\x00" * 100_000))
    assert len(told) < 10_000
    assert told.endswith("… (100,000 characters)")


def test_a_body_that_cannot_be_read_is_passed_over() -> None:
    assert line(Message(b"bomb")).endswith("<body of 4 bytes expands to more than 16777216, the limit for bodies>")


def test_errors_and_names_are_harmless_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(f"topic {FORGED}")
    assert capsys.readouterr().err.rstrip("\n").isprintable()
    assert harmless("café 标签") == "café 标签"


def test_numbers_have_separators_from_a_thousand_on() -> None:
    assert [shown(number) for number in (999, 5297, 11_493)] == ["999", "5,297", "11,493"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clutser"], "No such command 'clutser' (did you mean 'cluster'?) (see penstock --help)"),
        (["message", "shw"], "No such command 'shw' (did you mean 'show'?) (see penstock message --help)"),
        (["cluster", "xyzzy"], "No such command 'xyzzy' (see penstock cluster --help)"),
    ],
)
def test_a_misspelt_command_is_told_the_nearest(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"error: {words}\n"


def test_without_a_nameserver_it_is_said_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "list", "--namesrv", "127.0.0.1:1"]) == 1
    assert "`penstock cluster restart nameserver-0 --dir DIR` starts one again" in capsys.readouterr().err


def test_figures_of_few_samples_are_left_out() -> None:
    latency = {"p50": 1.0, "p99": 2.0, "p999": 3.0, "max": 3.0}
    assert load._latency(latency, 32) == "p50 1.00 ms, max 3.00 ms"
    assert load._latency(latency, 5000) == "p50 1.00 ms, p99 2.00 ms, p99.9 3.00 ms, max 3.00 ms"


def test_a_progress_line_has_no_cut_off_details() -> None:
    line = "2026-11-25 04:24:17,315 INFO penstock.runtime.conf configuration read file=/x brokerClusterName=D"
    assert _said(line) == "configuration read"
    assert _said("Traceback (most recent call last):") == "Traceback (most recent call last):"


def test_a_directory_to_be_dumped_is_told_one_of_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / f"{0:020d}").touch()
    assert main(["store", "dump", str(tmp_path)]) == 2
    assert f"is a directory: give one of its files, as {tmp_path}/commitlog/{0:020d}" in capsys.readouterr().err


def test_a_broker_s_file_is_known_by_a_nameserver(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("brokerClusterName = DefaultCluster\n")
    with pytest.raises(
        ConfigError, match=r"brokerClusterName .* a key of broker\.conf: give that file to `penstock broker`"
    ):
        load_nameserver_config(tmp_path / "broker.conf")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("width", [200, 60, 40, 20])
def test_no_width_of_a_terminal_cuts_a_table(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(["broker_name", "role", "confirm_offset"], [["broker-a-0", "MASTER", 17], ["b", None, 4]], title="all")
    told = capsys.readouterr().out
    for cell in ("all", "broker_name", "role", "confirm_offset", "broker-a-0", "MASTER", "17", "-", "4"):
        assert cell in told.replace("│", " ").split() or cell in told.replace("┃", " ").split()
    assert "…" not in told
    assert max(map(len, told.splitlines())) <= max(width, len("broker_name     broker-a-0"))


@pytest.mark.usefixtures("terminal")
def test_a_table_without_rows_is_seen_on_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table(["broker_name", "queue_offset", "origin_topic"], [])
    assert "┃ br… ┃" in capsys.readouterr().out


def test_no_table_in_a_pipe_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    offsets = ", ".join(f"{queue}: 0-{queue * 1000}" for queue in range(1000))
    print_table(["topic", "offsets of its queues"], [["orders", offsets]])
    assert offsets in capsys.readouterr().out
