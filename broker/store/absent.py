"""Old records, which another thread brings into memory so that the owner of the log waits for no disk.

A page of a mapped log file that the system has dropped is read from the disk when it is touched, 0.1 to 10 ms each time
in which the toucher does nothing else. Whether a page is there is not asked: to ask (``mincore``) takes longer than to
touch.
"""

from __future__ import annotations

from typing import NamedTuple

from .disk import Bytes
from .kernels import Ints, Longs, touch_records


class Absent(NamedTuple):
    """Records of one log file that may not be in memory; the mapping stays while this is there."""

    data: Bytes
    positions: Longs  # in the file
    sizes: Ints

    def bring(self) -> None:
        """Bring them into memory; best effort, for any thread, releases the interpreter lock."""
        touch_records(self.data, self.positions, self.sizes)
