"""A file system of its own, in a file, whose power can be cut: everything that was not synced is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

_SHUT_DOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
OPTIONS = {
    "ext4": "noauto_da_alloc,commit=1000",  # its defaults sync more than anybody asked for
    "xfs": "defaults",
}
_MAKE = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}


class LoopMount:
    """``directory`` with a file system of ``kind`` mounted on it, until :meth:`close`."""

    def __init__(self, kind: str, directory: Path, size_bytes: int = 512 << 20) -> None:
        self.kind = kind
        self.directory = directory.resolve()
        self._image = directory.with_name(f"{directory.name}.{kind}")
        self._size_bytes = size_bytes

    def make(self) -> None:
        """Make the file system, an empty one, and mount it."""
        self.unmount()
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._image.open("wb") as image:
            image.truncate(self._size_bytes)
        _run(*_MAKE[self.kind], str(self._image))
        self.mount()

    def mount(self) -> None:
        """Mount it; what the journal holds is replayed."""
        _run("mount", "-o", f"loop,{OPTIONS[self.kind]}", "-t", self.kind, str(self._image), str(self.directory))

    def cut(self) -> None:
        """Let nothing more reach the disk; every call fails from now on."""
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUT_DOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        """Nothing may have files open there."""
        if self.is_mounted():
            _run("umount", str(self.directory))

    def is_mounted(self) -> bool:
        """Whether it is; after a cut the directory itself does not answer any more."""
        with open("/proc/self/mounts", encoding="utf-8") as mounts:
            return any(line.split()[1] == str(self.directory) for line in mounts)

    def close(self) -> None:
        """Take everything away, whatever state it is in; the loop device goes with the mount."""
        if self.is_mounted():
            subprocess.run(["umount", "--lazy", str(self.directory)], check=False)
        self._image.unlink(missing_ok=True)


def why_not(kind: str, directory: Path) -> str:
    """Why no such file system can be mounted here; empty when one can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    missing = [tool for tool in (_MAKE[kind][0], "mount", "umount", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    mount = LoopMount(kind, directory / "probe")
    try:
        mount.make()
        mount.cut()
        mount.unmount()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no {kind} can be mounted here: {error}"
    finally:
        mount.close()
    return ""


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)
