"""Processes of Penstock forked from one that has loaded everything, for tests to which a start means nothing.

Loading the compiler's run time and the kernels takes a broker a second and a half of processor time, and the tests
start a hundred processes. So each test worker may have one process that loads them and forks the others, which are
what ``python -m MODULE`` would be: their own session, environment, directory, output, exit code, and command line. The
nursery has one thread, no kernel has run in it and nothing of gRPC beyond its import.

:func:`start_from_nursery` gives the modules that start processes a ``Popen`` that uses it. Processes that a command
line or another process starts are started as ever, and so are most of :mod:`tests.unit`.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Self

_ROOM_FOR_COMMAND_LINES = 4096
_REQUEST_BYTES_MAX = 1 << 20
_LOADED_FIRST = (
    "penstock.broker.process",
    "penstock.nameserver.server",
    "penstock.formats.record.kernels.columns",
    "penstock.client",
    "penstock.bench.load.worker",
    "penstock.drill.load.receiving",
    "penstock.drill.load.sending",
)
_FORKED = (
    "penstock.broker",
    "penstock.nameserver",
    "penstock.cli.commands.kernels",
    "penstock.drill.load.worker",
    "penstock.bench.load.worker",
    "tests.support.crash.killed_writer",
    "tests.support.spark.sink_job",
)


class Nursery:
    """The starter's side: one process to fork from, started when the first child is wanted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """Fork a child with these descriptors (input, output, errors, where its status goes); its pid."""
        with self._lock:
            if self._socket is None:
                self._begin()
            assert self._socket is not None
            socket.send_fds(self._socket, [json.dumps(request).encode()], list(descriptors))
            answer = self._socket.recv(8)
        assert len(answer) == 8, "the nursery has died"
        return int.from_bytes(answer, "big")

    def close(self) -> None:
        """End the nursery; its children live on."""
        assert self._socket is not None
        assert self._process is not None
        self._socket.close()
        self._process.wait(30)

    def _begin(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-m",
            "tests.support.cluster.nursery",
            str(theirs.fileno()),
            "x" * _ROOM_FOR_COMMAND_LINES,
        ]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=Path(__file__).parents[3],
                start_new_session=True,
            )
        atexit.register(self.close)


class ForkedProcess:
    """What ``subprocess.Popen`` would be for such a process, as far as Penstock uses it."""

    def __init__(
        self,
        nursery: Nursery,
        command: Sequence[str],
        *,
        stdin: int | IO[Any] | None,
        stdout: int | IO[Any] | None,
        stderr: int | IO[Any] | None,
        env: Mapping[str, str] | None,
        cwd: str | os.PathLike[str] | None,
        start_new_session: bool,
        text: bool,
    ) -> None:
        self.args = list(command)
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        request = {
            "command": self.args,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": start_new_session,
        }
        with contextlib.ExitStack() as theirs:

            def closed_here(descriptor: int) -> int:
                theirs.callback(os.close, descriptor)
                return descriptor

            def descriptor_of(stream: int | IO[Any] | None, inherited: int) -> int:
                if stream == subprocess.DEVNULL:
                    return closed_here(os.open(os.devnull, os.O_RDWR))
                assert not isinstance(stream, int), "not one of the uses that Penstock makes"
                return inherited if stream is None else stream.fileno()

            if stdin == subprocess.PIPE:
                input_end, ours = os.pipe()
                self.stdin = _opened(ours, "w", text)
                descriptors = [closed_here(input_end)]
            else:
                descriptors = [descriptor_of(stdin, 0)]

            def read_here(stream: int | IO[Any] | None, inherited: int) -> IO[Any] | None:
                if stream != subprocess.PIPE:
                    descriptors.append(descriptor_of(stream, inherited))
                    return None
                ours, output_end = os.pipe()
                descriptors.append(closed_here(output_end))
                return _opened(ours, "r", text)

            self.stdout = read_here(stdout, 1)
            if stderr == subprocess.STDOUT:
                descriptors.append(descriptors[1])
            else:
                self.stderr = read_here(stderr, 2)
            self._status, status_end = os.pipe()
            descriptors.append(closed_here(status_end))
            self.pid = nursery.fork(request, descriptors)

    def poll(self) -> int | None:
        """The exit code, or ``None`` while it runs."""
        return self._ended_within(0)

    def _ended_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            with self._lock:
                if self.returncode is None:
                    data = os.read(self._status, 4)
                    assert len(data) == 4, f"the nursery has died, {self.pid} may run on"
                    os.close(self._status)
                    self.returncode = os.waitstatus_to_exitcode(int.from_bytes(data, "big"))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Signal it, if it runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()


def _opened(descriptor: int, mode: str, text: bool) -> IO[Any]:
    return io.open(descriptor, mode if text else mode + "b")  # noqa: UP020  as subprocess does


_nursery = Nursery()


@contextlib.contextmanager
def start_from_nursery(*modules: types.ModuleType) -> Iterator[None]:
    """Have ``modules`` start Penstock's processes from this process's nursery, and all others as ever."""

    def popen(command: Sequence[str], **settings: Any) -> Any:
        is_ours = list(command[:2]) == [sys.executable, "-m"] and command[2] in _FORKED
        if not is_ours:
            return subprocess.Popen(command, **settings)
        defaults = {"stdin": None, "stdout": None, "stderr": None, "env": None, "cwd": None}
        return ForkedProcess(_nursery, command, **{**defaults, "start_new_session": False, "text": False, **settings})

    stand_in = types.SimpleNamespace(**{name: getattr(subprocess, name) for name in subprocess.__all__})
    stand_in.Popen = popen
    for module in modules:
        vars(module)["subprocess"] = stand_in
    try:
        yield
    finally:
        for module in modules:
            vars(module)["subprocess"] = subprocess


class _Child(Exception):
    """Raised in a forked child, out of the nursery's loop."""

    def __init__(self, request: dict[str, Any], descriptors: list[int]) -> None:
        self.request = request
        self.descriptors = descriptors


def main() -> None:
    """Load, then fork as asked until nobody can ask any more; in a child, become what was asked for."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    for name in _LOADED_FIRST:
        importlib.import_module(name)
    importlib.import_module("penstock.broker.process").load_kernels()
    gc.freeze()
    gc.enable()
    try:
        _serve(connection)
    except _Child as child:
        request, descriptors = child.request, child.descriptors
    else:
        return
    _become(request, descriptors)


def _serve(connection: socket.socket) -> None:
    statuses: dict[int, int] = {}  # pid -> where its status goes
    woken, wakes = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([connection, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(statuses)
        if connection not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_BYTES_MAX, 4)
        if not data:
            return
        renamed, renames = os.pipe()
        pid = os.fork()
        if not pid:
            request = json.loads(data)
            _show_as(request["command"])
            os.close(renamed)
            os.close(renames)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, wakes, connection.detach(), *statuses.values()):
                os.close(descriptor)
            raise _Child(request, descriptors)
        os.close(renames)
        os.read(renamed, 1)
        os.close(renamed)
        statuses[pid] = descriptors.pop()
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(pid.to_bytes(8, "big"))


def _reap(statuses: dict[int, int]) -> None:
    while statuses:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        descriptor = statuses.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(descriptor, status.to_bytes(4, "big"))
        os.close(descriptor)


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    if request["new_session"]:
        os.setsid()
    for standard, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, standard)
    for descriptor in descriptors:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    _, _, module, *arguments = request["command"]
    sys.argv = ["-m", *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _show_as(command: list[str]) -> None:
    """Make this the command line that others see: in the place of the nursery's own, which is longer."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, counted from the third field
    shown = array.array("B", b"\0".join(argument.encode() for argument in command) + b"\0")
    if len(shown) <= end - start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, shown.buffer_info()[0], len(shown))


if __name__ == "__main__":
    main()
