"""What server processes set up for themselves, each in a process of its own."""

from __future__ import annotations

import contextlib
import resource
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

CHATTY = """
import logging, os, sys
from penstock.runtime.process import log_to_stderr
log_to_stderr(sys.argv[1], bytes_max=4000)
for number in range(int(sys.argv[2])):
    logging.getLogger("penstock.test").info("line %05d", number)
os.write(1, b"said by others\\n")
os.write(2, b"and by a C library\\n")
"""


def chat(path: Path, lines: int) -> None:
    with open(path, "ab") as output:
        done = subprocess.run(
            [sys.executable, "-c", CHATTY, str(path), str(lines)], stdout=output, stderr=output, check=False
        )
    assert done.returncode == 0, path.read_text()


def test_a_log_is_rotated_while_its_process_runs_and_takes_everything_along(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    chat(path, 500)
    files = [path, *(path.with_name(f"node.log.{number}") for number in (1, 2, 3))]
    assert all(file.exists() for file in files)
    assert not path.with_name("node.log.4").exists()
    assert all(file.stat().st_size < 5000 for file in files)
    assert "said by others" in path.read_text()
    assert "and by a C library" in path.read_text()
    kept = [
        line.rsplit(" ", 1)[-1] for file in reversed(files) for line in file.read_text().splitlines() if "line" in line
    ]
    assert kept == [f"{number:05d}" for number in range(500 - len(kept), 500)]


def test_a_log_that_somebody_else_moved_is_left_to_him(tmp_path: Path) -> None:
    path = tmp_path / "node.log"
    chat(path, 10)
    elsewhere = tmp_path / "elsewhere.log"
    path.rename(elsewhere)
    path.write_text("another file")
    with open(elsewhere, "ab") as output:
        subprocess.run([sys.executable, "-c", CHATTY, str(path), "500"], stdout=output, stderr=output, check=True)
    assert path.read_text() == "another file"
    assert "line 00499" in elsewhere.read_text()


def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(256, hard)
    program = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({lower}, {hard}))\n"
        "from penstock.runtime.process import raise_open_files\n"
        "raise_open_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(hard), str(hard)]


CROWDED = """
import asyncio, resource
from penstock.runtime.data.port import DataPort
from penstock.runtime.process import log_to_stderr, raise_open_files

async def serve():
    log_to_stderr()
    raise_open_files()
    port = DataPort()
    await port.open("127.0.0.1", 0, "dataPort")
    await port.start()
    print(port.number, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, input)

resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
asyncio.run(serve())
"""


def test_a_port_without_files_for_connections_says_so_in_a_line_not_in_thousands(tmp_path: Path) -> None:
    told = tmp_path / "log"
    with (
        told.open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", CROWDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as node,
        contextlib.ExitStack() as connections,
    ):
        assert node.stdin is not None
        assert node.stdout is not None
        address = "127.0.0.1", int(node.stdout.readline())
        for _ in range(40):
            connections.enter_context(socket.create_connection(address))
        wait_until(lambda: "no connection accepted" in told.read_text(), 30.0, "a line that says so")
        node.communicate(b"\n", timeout=30)
    assert "limit of open files low hard=24: raise it to 4096" in told.read_text()
    assert "Too many open files: raise the limit of open files" in told.read_text()
    assert "Traceback" not in told.read_text()
