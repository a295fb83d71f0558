"""A disk that fails the n-th call of a kind."""

from __future__ import annotations

import errno
import os
import threading

from penstock.broker.store import Disk
from penstock.broker.store.disk import Bytes, Data

KINDS = ("open", "allocate", "map", "sync", "sync_directory", "sync_all", "pwrite", "pread", "truncate", "unlink")


class FailingDisk(Disk):
    """Real files; the call number ``nth`` (from 1) of ``kind`` fails with ``code``, and with ``forever`` all after it.

    ``count`` is how many calls of that kind there were, ``failed`` whether one was made to fail.
    """

    def __init__(self, kind: str = "", nth: int = 0, code: int = errno.EIO, *, forever: bool = False) -> None:
        super().__init__()
        assert not kind or kind in KINDS
        self.kind, self.nth, self.code, self.forever = kind, nth, code, forever
        self.count = 0
        self.failed = False
        self._guard = threading.Lock()

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._maybe_fail("open", path)
        return super().open(path, create=create, read_only=read_only)

    def allocate(self, descriptor: int, size: int) -> None:
        self._maybe_fail("allocate")
        super().allocate(descriptor, size)

    def map(self, descriptor: int, size: int, *, read_only: bool = False) -> Bytes:
        self._maybe_fail("map")
        return super().map(descriptor, size, read_only=read_only)

    def sync(self, descriptor: int) -> None:
        self._maybe_fail("sync")
        super().sync(descriptor)

    def sync_directory(self, path: str) -> None:
        self._maybe_fail("sync_directory", path)
        super().sync_directory(path)

    def sync_all(self, path: str) -> None:
        self._maybe_fail("sync_all", path)
        super().sync_all(path)

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        self._maybe_fail("pwrite")
        super().pwrite(descriptor, data, position)

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        self._maybe_fail("pread")
        return super().pread(descriptor, size, position)

    def truncate(self, descriptor: int, size: int) -> None:
        self._maybe_fail("truncate")
        super().truncate(descriptor, size)

    def unlink(self, path: str) -> None:
        self._maybe_fail("unlink", path)
        super().unlink(path)

    def _maybe_fail(self, kind: str, path: str | None = None) -> None:
        if kind != self.kind:
            return
        with self._guard:
            self.count += 1
            fails = self.count == self.nth or (self.forever and self.count > self.nth > 0)
            self.failed = self.failed or fails
        if fails:
            raise OSError(self.code, os.strerror(self.code), path)
