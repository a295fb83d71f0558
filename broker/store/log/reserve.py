"""Space set aside for what must be written even when the disk is full.

Topics, groups and committed offsets are records of the log, whose current file has room kept for them (see
:mod:`.commit_log`). But their queue entries, index entries and snapshots need space of their own: a preallocated
file gives it when it is deleted. Log files are not made from that space, and leave as much again for the others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from ..disk import Disk

log = logging.getLogger(__name__)

NAME = "penstockReserve"
BYTES_MAX = 64 << 20


class Reserve:
    """The file ``<root>/penstockReserve``. One thread at a time."""

    def __init__(self, disk: Disk, root: str, size: int, keep_free: Callable[[int], None]) -> None:
        """``keep_free``: is told, at the first :meth:`adjust`, how many bytes log files must leave free."""
        self._disk = disk
        self._root = root
        self._path = f"{root}/{NAME}"
        self._keep_free = keep_free
        self.size = size
        self.is_held = False
        self._is_known = False

    def give_if_short(self) -> None:
        """Give away what a former process has set aside where there is less than that left: a start writes, too."""
        if self._disk.free_bytes(self._root) < self.size:
            self.release()

    def adjust(self) -> None:
        """Give the space away with less than that left, take it back with twice as much. Raises OSError: not done."""
        if not self._is_known:  # one may be there from before the start
            self.is_held = self._disk.exists(self._path) and self._disk.size(self._path) == self.size
            self._keep_free(self.size)
            self._is_known = True
        free = self._disk.free_bytes(self._root)
        if not self.is_held and free >= 2 * self.size:
            self._take()
        elif self.is_held and free < self.size:
            self.release()

    def release(self) -> None:
        """Delete the file, if there is one."""
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)
            log.warning("disk reserve released path=%s bytes=%d", self._path, self.size)
        self.is_held = False

    def _take(self) -> None:
        descriptor = self._disk.open(self._path, create=True)
        try:
            self._disk.truncate(descriptor, 0)
            self._disk.allocate(descriptor, self.size)
        except OSError:
            self._disk.unlink(self._path)
            raise
        finally:
            self._disk.close(descriptor)
        self._disk.sync_directory(os.path.dirname(self._path))
        self.is_held = True
        log.info("disk reserve taken path=%s bytes=%d", self._path, self.size)
