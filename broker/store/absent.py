"""Old records and entries, which another thread brings into memory so that the owner of the log waits for no disk.

A page of a mapped log file that the system has dropped is read from the disk when it is touched, 0.1 to 10 ms each time
in which the toucher does nothing else. Whether a page is there is not asked: to ask (``mincore``) takes longer than to
touch. Queue files are read by calls, and there the same call can be asked not to wait.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from .disk import Bytes, Disk
from .kernels import Ints, Longs, touch_records


class Absent(NamedTuple):
    """Records of one log file that may not be in memory; the mapping stays while this is there."""

    data: Bytes
    positions: Longs  # in the file
    sizes: Ints

    def bring(self) -> None:
        """Bring them into memory; best effort, for any thread, releases the interpreter lock."""
        touch_records(self.data, self.positions, self.sizes)


class AbsentEntries(NamedTuple):
    """Entries of a queue file that are not in memory; the file may go meanwhile."""

    disk: Disk
    path: str
    position: int  # in the file
    size: int

    def bring(self) -> None:
        """Bring them into memory; best effort, for any thread."""
        with contextlib.suppress(OSError):  # gone, or the read behind this one says what is wrong
            descriptor = self.disk.open(self.path, read_only=True)
            try:
                self.disk.pread(descriptor, self.size, self.position)
            finally:
                self.disk.close(descriptor)
