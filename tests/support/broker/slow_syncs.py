"""Slow disks for a running process: every ``fdatasync`` of it waits a while before it begins."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until


@contextlib.contextmanager
def slow_syncs(pid: int, delay_ms: int) -> Iterator[None]:
    """Let each sync of that process take ``delay_ms`` longer, meanwhile; skips where ``strace`` cannot do that."""
    if shutil.which("strace") is None:
        pytest.skip("slow syncs need strace")
    delay = f"inject=fdatasync:delay_enter={delay_ms * 1000}"
    tracer = subprocess.Popen(
        ["strace", "-f", "-qqq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", delay, "-p", str(pid)],
        stderr=subprocess.PIPE,
    )
    try:
        wait_until(lambda: tracer.poll() is not None or _is_traced(pid), what="strace")
        if tracer.poll() is not None:
            assert tracer.stderr is not None
            pytest.skip(f"strace cannot attach here: {tracer.stderr.read().decode().strip()}")
        yield
    finally:
        tracer.terminate()
        tracer.wait(10)
        assert tracer.stderr is not None
        tracer.stderr.close()


def _is_traced(pid: int) -> bool:
    """Whether every thread of the process is."""
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError):
            if "\nTracerPid:\t0\n" in status.read_text():
                return False
    return True
