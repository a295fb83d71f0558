"""What a server process sets up for itself before anything else: its log and its limits."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock.proto.errors import ConfigError, PenstockError

from .busy_poll import PollingLoop
from .memory import keep_large_buffers

log = logging.getLogger(__name__)

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
LOG_FILE_VARIABLE = "PENSTOCK_LOG_FILE"
"""Names the file that standard error goes to, when whoever started the process wants it rotated."""
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_FILES_KEPT = 3
"""``NODE.log.1`` is the newest of the old ones."""
OPEN_FILES_WISHED = 4096
UNACCEPTED_TOLD_S = 10.0


def server_arguments(
    argv: Sequence[str] | None, server: str, description: str, file: str
) -> tuple[str | None, list[str]]:
    """The configuration file and the keys that a server's own command line asks to ignore."""
    parser = argparse.ArgumentParser(prog=f"penstock {server}", description=description)
    parser.add_argument("-c", "--config", metavar="FILE", help=f"{file}; without it everything has its default")
    parser.add_argument("--ignore-unsupported", metavar="KEYS", default="", help="start in spite of these, with commas")
    given = parser.parse_args(argv)
    return given.config, [name.strip() for name in given.ignore_unsupported.split(",") if name.strip()]


def run_server(
    server: str,
    prepare: Callable[[], Coroutine[Any, Any, None]],
    refusals: tuple[type[PenstockError], ...] = (ConfigError,),
) -> int:
    """Run a server in the foreground; the exit code: 0 stopped, 1 failed, 2 not started because of ``refusals``.

    ``prepare`` reads the configuration; what it gives serves until a signal.
    """
    log_to_stderr()
    raise_open_files()
    keep_large_buffers()
    try:
        with asyncio.Runner(loop_factory=PollingLoop) as runner:
            runner.run(prepare())
    except refusals as error:
        log.error("%s not started error=%s: %s", server, type(error).__name__, error)
        return 2
    except PenstockError as error:
        log.error("%s failed error=%s: %s", server, type(error).__name__, error)
        return 1
    return 0


async def serve_until_signalled(server: str, serving: AbstractAsyncContextManager[str]) -> None:
    """Serve, at the address that ``serving`` gives, until SIGTERM or SIGINT."""
    stop = ending_signals()
    async with serving as address:
        log.info("%s ready address=%s", server, address)
        await stop.wait()
        log.info("%s stopping address=%s", server, address)
    log.info("%s stopped address=%s", server, address)


def ending_signals() -> asyncio.Event:
    """Set by SIGTERM and SIGINT, in the running loop."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def log_to_stderr(path: str | None = None, bytes_max: int = LOG_BYTES_MAX) -> None:
    """Log lines of INFO and above to standard error; without effect when the caller has set up logging.

    ``path``: the file that standard error goes to, rotated when it is above ``bytes_max``; by default what
    ``PENSTOCK_LOG_FILE`` names.
    """
    path = path or os.environ.get(LOG_FILE_VARIABLE)
    handler = RotatedStderr(path, bytes_max) if path else logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(LOG_FORMAT))
    handler.addFilter(_Unaccepted())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class _Unaccepted(logging.Filter):
    """Lets asyncio say in one line, and seldom, that a port has no file for a connection: it says so without end."""

    _next_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """False for what was said a moment ago."""
        if not record.getMessage().startswith("socket.accept() out of system resource") or not record.exc_info:
            return True
        if time.monotonic() < self._next_at:
            return False
        self._next_at = time.monotonic() + UNACCEPTED_TOLD_S
        record.msg, record.args = (
            "no connection accepted error=%s: raise the limit of open files",
            (record.exc_info[1],),
        )
        record.exc_info = None
        return True


class RotatedStderr(logging.StreamHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Writes to standard error and rotates the file behind it.

    The descriptors 1 and 2 are moved to the new file, so that what others write there, a stack trace or a C library's
    complaint, follows; a handler with a file of its own would leave those in the old one for ever. A file that cannot
    be renamed or opened is written on, and tried again after as many bytes as make it full.
    """

    def __init__(self, path: str, bytes_max: int = LOG_BYTES_MAX) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._bytes_max = bytes_max
        self._left = 0  # bytes until the file's size is asked again

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, into a fresh file if the old one is full."""
        if self._left <= 0:
            self._look()
        super().emit(record)
        self._left -= len(record.getMessage()) + len(LOG_FORMAT)

    def _look(self) -> None:
        with contextlib.suppress(OSError):
            found = os.fstat(2)
            if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, os.stat(self._path)):
                self._left = self._bytes_max  # somebody else rotates, or it is no file
                return
            if found.st_size >= self._bytes_max:
                self._rotate()
                found = os.fstat(2)
            self._left = max(self._bytes_max - found.st_size, 0)
        self._left = max(self._left, self._bytes_max // 64)

    def _rotate(self) -> None:
        self.flush()
        for number in range(LOG_FILES_KEPT, 0, -1):
            former = f"{self._path}.{number - 1}" if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                os.replace(former, f"{self._path}.{number}")
        fresh = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            former_out = os.fstat(1)
            if os.path.samestat(former_out, os.fstat(2)):
                os.dup2(fresh, 1)
            os.dup2(fresh, 2)
        finally:
            os.close(fresh)


def raise_open_files() -> None:
    """Let this process open as many files as it may.

    The soft limit is 1024 on many systems, for programs that use ``select``; a broker holds descriptors for its
    connections and for every mapped file while it opens it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < OPEN_FILES_WISHED:
        log.warning(
            "limit of open files low hard=%d: raise it to %d (ulimit -Hn, LimitNOFILE)", hard, OPEN_FILES_WISHED
        )
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("limit of open files not raised soft=%d hard=%d error=%s", soft, hard, error)
    else:
        log.info("limit of open files raised from=%d to=%d", soft, hard)
