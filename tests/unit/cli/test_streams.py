"""What a command says, and ends with, when nobody gets what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PRINTING = [["--help"], ["version"], ["version", "--json"], ["drill", "list"], ["bench", "--list"]]
"""By click, by ``print``, as JSON, and as tables."""


def shell(line: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "penstock.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('"$@" > /dev/full', "error: standard output: No space left on device\n"),
        ('"$@" >&-', "error: standard output: Bad file descriptor\n"),
        ('exec 3> >(exec true); wait $!; "$@" >&3', ""),
    ],
    ids=["full", "closed", "gone"],
)
def test_output_that_nobody_gets_is_a_failure_in_one_line(line: str, told: str, arguments: list[str]) -> None:
    done = shell(line, arguments)
    assert (done.returncode, done.stderr) == (1, told)


def test_no_file_takes_the_place_of_a_stream_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    program = f"from penstock.cli import streams; streams.prepare(); file = open({str(path)!r}, 'x'); print(1)"
    command = ["bash", "-c", '"$@" <&- >&-', "bash", sys.executable, "-c", program]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert "Bad file descriptor: 'standard output'" in done.stderr
    assert path.read_text() == ""


def test_what_a_program_has_printed_comes_before_what_its_command_prints() -> None:
    program = "from penstock.cli.main import main; print(1); main(['version', '--json']); print(2)"
    done = shell('"$1" -c "$4"', [program])
    assert re.fullmatch(r"1\n{.*}\n2\n", done.stdout), done


def test_output_without_a_buffer_has_none() -> None:
    program = "import os; from penstock.cli import streams; streams.prepare(); print(1); os.write(1, b'2')"
    done = subprocess.run([sys.executable, "-u", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n2", "")


def test_without_standard_input_there_are_no_lines() -> None:
    lines = "from penstock.cli import commands, streams; streams.prepare(); print(list(commands.messages._lines()))"
    program = "import penstock.cli.commands.messages; " + lines
    command = ["bash", "-c", '"$@" <&-', "bash", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")
