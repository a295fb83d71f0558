"""Detached processes that are found again through a file, and never taken for another one.

A pid alone is not enough: the system gives it to somebody else after a while. The file therefore holds the
process's start too, and a process counts as ours when both agree and its command line names our file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from .errors import DeployError
from .files import write_whole

POLL_S = 0.02
LOG_BYTES_MAX = 16 * 1024 * 1024
"""A log above it becomes ``NODE.log.1`` when its node starts again, whatever the node did about it."""
LOG_FILE_VARIABLE = "PENSTOCK_LOG_FILE"

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes started by this one: only their parent can clear them away when they have ended."""


@dataclass(frozen=True, slots=True)
class Managed:
    """A process as its pid file describes it. ``needle`` is a part of its command line.

    ``started``: of :func:`start_of`. ``log_start``: how long its log was when it was started.
    """

    pid: int
    started: int
    needle: str
    log_start: int = 0

    def process(self) -> psutil.Process | None:
        """The process if it still runs, else ``None``."""
        child = _children.get(self.pid)
        if child is not None and child.poll() is not None:
            return None
        try:
            process = psutil.Process(self.pid)
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return None
                if start_of(self.pid) != self.started:
                    return None
                command_line = process.cmdline()
                # Our own child's is empty for a moment while the system starts the program, even after Popen returned.
                is_starting = not command_line and child is not None
                return process if is_starting or self.needle in command_line else None
        except (psutil.Error, OSError):
            return None

    @property
    def is_alive(self) -> bool:
        """True while the process runs, frozen or not."""
        return self.process() is not None

    @property
    def is_frozen(self) -> bool:
        """True if the process was stopped by SIGSTOP."""
        process = self.process()
        try:
            return process is not None and process.status() == psutil.STATUS_STOPPED
        except psutil.Error:
            return False

    def send(self, number: signal.Signals) -> bool:
        """Signal it; ``False`` when it is gone."""
        process = self.process()
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        return True

    def wait_frozen(self, timeout_s: float) -> None:
        """Return when it stands still, or is gone: a stop is a process's own work, done when it next has a turn."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive and not self.is_frozen and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def _is_ending(self) -> bool:
        """True if the process is dead and threads of it still hold its ports and files for a moment."""
        child = _children.get(self.pid)
        if child is not None:
            return child.poll() is None
        try:
            process = psutil.Process(self.pid)
            is_ended = start_of(self.pid) == self.started and process.status() == psutil.STATUS_ZOMBIE
            return is_ended and len(os.listdir(f"/proc/{self.pid}/task")) > 1
        except (psutil.Error, OSError):
            return False

    def wait(self, timeout_s: float) -> bool:
        """True if the process ended within ``timeout_s``, its ports free and its files closed."""
        deadline = time.monotonic() + timeout_s
        while self.is_alive or self._is_ending():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        return True


def start_of(pid: int) -> int:
    """When a process was started, in ticks since the boot (``starttime`` of proc(5)).

    Not a time of day: the system derives that from its clock, which may be set meanwhile.

    Raises:
        OSError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])  # the name, in parentheses, may hold anything


def start(command: Sequence[str], *, log_path: Path, pid_path: Path, needle: str, cwd: Path) -> Managed:
    """Start ``command`` in a session of its own, its output appended to ``log_path``; it outlives this process.

    The environment variable ``PENSTOCK_LOG_FILE`` names that file to it, for it to rotate.

    Raises:
        DeployError: it could not be written down, and was ended again.
    """
    if log_path.exists() and log_path.stat().st_size > LOG_BYTES_MAX:
        os.replace(log_path, log_path.with_suffix(".log.1"))
    with open(log_path, "ab") as output:
        log_start = output.tell()
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            # The node rotates its log while it runs, and gRPC's own lines stay out of it: what matters is logged by us.
            env={"GRPC_VERBOSITY": "NONE", **os.environ, LOG_FILE_VARIABLE: str(log_path)},
        )
    _children[child.pid] = child
    started = 0
    with contextlib.suppress(OSError):  # ended at once: whoever waits for it reads why in its log
        started = start_of(child.pid)
    try:
        _write_down(pid_path, child.pid, started, log_start)
    except DeployError:
        child.kill()  # or nobody would find it again
        child.wait()
        raise
    return Managed(child.pid, started, needle, log_start)


def _write_down(pid_path: Path, pid: int, started: int, log_start: int = 0) -> None:
    write_whole(pid_path, json.dumps({"pid": pid, "started": started, "log_start": log_start}) + "\n")


def adopt(lost: Mapping[Path, Sequence[str]]) -> None:
    """Write down the processes that no file names any more, by how their command lines end: pid path → last words."""
    for process in psutil.process_iter(["cmdline"]) if lost else ():
        words = process.info["cmdline"] or []
        for pid_path, last in lost.items():
            if words[-len(last) :] == list(last) and pid_path.parent.is_dir():
                with contextlib.suppress(OSError, DeployError):  # it has ended, or the disk is full: the others can end
                    _write_down(pid_path, process.pid, start_of(process.pid))


def find(pid_path: Path, needle: str) -> Managed | None:
    """What ``pid_path`` describes, running or not; ``None`` without a readable file."""
    try:
        document = json.loads(pid_path.read_text())
        log_start = int(document.get("log_start", 0))
        return Managed(int(document["pid"]), int(document["started"]), needle, log_start)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def exit_code(managed: Managed) -> int | None:
    """The exit code of a process that this one started and that has ended, where it is known."""
    child = _children.get(managed.pid)
    return child.poll() if child is not None else None


def stop(processes: Sequence[Managed], timeout_s: float, number: signal.Signals = signal.SIGTERM) -> list[Managed]:
    """End all of them: ``number``, and SIGKILL for those that are left after ``timeout_s``; returns the latter."""
    running = [process for process in processes if process.is_alive]
    for process in running:
        process.send(number)
        process.send(signal.SIGCONT)  # a frozen process handles its signals when it goes on
    deadline = time.monotonic() + timeout_s
    killed = [process for process in running if not process.wait(max(deadline - time.monotonic(), 0.0))]
    for process in killed:
        process.send(signal.SIGKILL)
    for process in killed:
        process.wait(5.0)
    return killed


def last_lines(path: Path, count: int, start: int = 0) -> list[str]:
    """The last ``count`` lines that were written to ``path``, from its byte ``start`` on."""
    with contextlib.suppress(OSError), open(path, "rb") as source:
        source.seek(0, os.SEEK_END)
        size = source.tell()
        source.seek(max(start, size - 200 * 1024))
        return source.read().decode(errors="replace").splitlines()[-count:]
    return []


def python_command(module: str, *arguments: str) -> list[str]:
    """``python -m module`` with the interpreter that runs this."""
    return [sys.executable, "-m", module, *arguments]
