"""Disks that fill up or slow down, under one broker.

- **Full**: the broker's store lies on a small memory file system (tmpfs), which a filler file fills to the last block.
  Allocation fails there as on any full disk; syncs cost nothing, so this says nothing about speed or power cuts.
- **Slow**: strace is attached to the broker and delays every ``fdatasync`` and ``fsync``. All other system calls of
  the broker are slower too, by what tracing costs.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .schedule import DrillFailed

TMPFS_BYTES = 640 << 20
_CHUNK = bytes(1 << 20)
ATTACH_TIMEOUT_S = 10.0


def why_no_small_disk() -> str:
    """Why no tmpfs can be mounted here; empty when one can."""
    if os.geteuid() != 0:
        return "mounting a small file system needs root"
    missing = [tool for tool in ("mount", "umount") if shutil.which(tool) is None]
    return f"{', '.join(missing)} is not installed" if missing else ""


def why_no_slow_disk() -> str:
    """Why syncs cannot be delayed here; empty when they can."""
    if shutil.which("strace") is None:
        return "strace, which delays the syncs, is not installed"
    try:
        probe = ["strace", "-qq", "-o", os.devnull, "-e", "trace=fdatasync", "true"]
        done = subprocess.run(probe, check=False, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"strace does not work here: {error}"
    return f"strace does not work here: {done.stderr.strip()}" if done.returncode else ""


class SmallDisk:
    """A tmpfs at ``path`` until :meth:`close`."""

    def __init__(self, path: Path, size_bytes: int = TMPFS_BYTES) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._filler = path / "filler"

    def mount(self) -> None:
        """Make it. Raises DrillFailed: the system refuses."""
        self.path.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "penstock-drill", str(self.path)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise DrillFailed(f"`{' '.join(command)}` failed: {done.stderr.strip()}")

    def fill(self) -> int:
        """Write until nothing fits any more; the filler's size in bytes."""
        written = 0
        with open(self._filler, "ab", buffering=0) as filler:
            for chunk in (_CHUNK, _CHUNK[:4096]):
                try:
                    while True:
                        written += filler.write(chunk)
                except OSError:
                    continue
        return written

    def empty(self) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def is_mounted(self) -> bool:
        return os.path.ismount(self.path)

    def close(self) -> None:
        """Unmount it; what it holds is gone."""
        if self.is_mounted:
            subprocess.run(["umount", str(self.path)], check=False, capture_output=True)
        if self.is_mounted:
            subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)


class SlowSyncs:
    """Every sync of process ``pid`` takes ``delay_ms`` longer, from :meth:`start` to :meth:`stop`."""

    def __init__(self, pid: int, delay_ms: int) -> None:
        self._pid = pid
        self._delay_ms = delay_ms
        self._tracer: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Attach; returns when it works. Raises DrillFailed: the process may not be traced."""
        syncs = "fdatasync,fsync,sync_file_range,syncfs"
        delay = f"inject={syncs}:delay_enter={self._delay_ms}ms"
        command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={syncs}", "-e", delay, "-p", str(self._pid)]
        self._tracer = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline = time.monotonic() + ATTACH_TIMEOUT_S
        while not self._is_traced():
            if self._tracer.poll() is not None or time.monotonic() >= deadline:
                told = b"no answer" if self._tracer.poll() is None or self._tracer.stderr is None else b""
                told = told or self._tracer.stderr.read()  # type: ignore[union-attr]
                self.stop()
                raise DrillFailed(f"strace could not attach to {self._pid}: {told.decode().strip()}")
            time.sleep(0.01)

    def _is_traced(self) -> bool:
        try:
            status = Path(f"/proc/{self._pid}/status").read_text()
        except OSError:
            return False
        return "TracerPid:\t0\n" not in status

    def stop(self) -> None:
        """Detach; the process goes on at its own pace. May be called again."""
        if self._tracer is None:
            return
        self._tracer.send_signal(signal.SIGINT)
        try:
            self._tracer.wait(5.0)
        except subprocess.TimeoutExpired:
            self._tracer.kill()
            self._tracer.wait()
        if self._tracer.stderr is not None:
            self._tracer.stderr.close()
        self._tracer = None
