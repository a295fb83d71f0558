"""One process per store, and what the last one left to be known."""

from __future__ import annotations

import os
import threading

from penstock.formats.directory import LOCK
from penstock.proto.errors import StoreLocked

from ..disk import Disk, opened, read_small

_held: set[str] = set()  # locks of fcntl do not keep a process from itself
_held_guard = threading.Lock()
_TEXT_BYTES_MAX = 4096


class StoreLock:
    """The lock on the first byte of ``<root>/lock``, as RocketMQ takes it; held until :meth:`release`.

    The directories of the log are locked, too: they may lie outside of the root, and a second broker whose file names
    them, with a root of its own, would write over what the first one has.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        """Take it. Raises StoreLocked: another process, or another store of this one, has it."""
        self._disk = disk
        self._name = os.path.realpath(root)
        self._directories: list[int] = []
        path = f"{root}/{LOCK}"
        with _held_guard:
            if self._name in _held:
                raise StoreLocked(f"{root}: this process ({os.getpid()}) has the store open already", pid=os.getpid())
            # Closing any descriptor of the file gives the process's lock away: so open it only now.
            self._descriptor = disk.open(path, create=True)
            holder = disk.lock(self._descriptor)
            if holder is not None:
                disk.close(self._descriptor)
                who = f"process {holder}" if holder else "another process"
                raise StoreLocked(
                    f"{root}: {who} has the store open: stop it first, or use another directory", pid=holder
                )
            disk.pwrite(self._descriptor, b"lock", 0)
            _held.add(self._name)

    def add_log_directory(self, path: str) -> None:
        """Lock a directory that gets log files. Raises StoreLocked: another store has it."""
        descriptor = self._disk.lock_directory(path)
        if descriptor is None:
            raise StoreLocked(
                f"{path}: another broker writes its log there, or storePathCommitLog names it twice: give each broker "
                "directories of its own, and each directory one name",
                pid=0,
            )
        self._directories.append(descriptor)

    def release(self) -> None:
        while self._directories:
            self._disk.unlock_directory(self._directories.pop())
        with _held_guard:
            _held.discard(self._name)
            self._disk.close(self._descriptor)


class Marker:
    """A file in the store root whose being there says something, with a text that says more."""

    def __init__(self, disk: Disk, root: str, name: str) -> None:
        self._disk = disk
        self._root = root
        self.path = f"{root}/{name}"

    def exists(self) -> bool:
        """True if the file is there."""
        return self._disk.exists(self.path)

    def read(self) -> str:
        """The text; empty without the file."""
        return (read_small(self._disk, self.path, _TEXT_BYTES_MAX) or b"").decode("utf-8", "replace")

    def create(self, text: str) -> None:
        """Have the file there, with this text; durable on return."""
        with opened(self._disk, self.path, create=True) as descriptor:
            self._disk.truncate(descriptor, 0)
            self._disk.pwrite(descriptor, text.encode()[:_TEXT_BYTES_MAX], 0)
            self._disk.sync(descriptor)
        self._disk.sync_directory(self._root)

    def remove(self) -> None:
        """Have it gone; durable on return."""
        self._disk.unlink(self.path)
        self._disk.sync_directory(self._root)
