"""Records that are not in memory, so that another thread can bring them there and the owner waits for no disk.

A page of a mapped log file that the system has dropped is read from the disk when it is touched, 0.1 to 10 ms each time
in which the toucher does nothing else.
"""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import numpy as np

from .disk import Bytes
from .kernels import Ints, Longs, touch_records

_PAGE = 4096
_ASKED_MAX = 64 << 20
"""A longer range is not asked for page by page: its records are touched in any case."""

_libc = ctypes.CDLL(None)


class Absent(NamedTuple):
    """Records of one log file, some of them perhaps not in memory; the mapping stays while this is there."""

    data: Bytes
    positions: Longs  # in the file, ascending
    sizes: Ints

    def bring(self) -> None:
        """Bring them into memory; best effort, for any thread, releases the interpreter lock."""
        touch_records(self.data, self.positions, self.sizes)


def is_resident(data: Bytes, start: int, stop: int) -> bool:
    """Whether all of ``data[start:stop]`` of a mapped file is in memory, as far as the system tells."""
    start -= start % _PAGE
    if stop - start > _ASKED_MAX:
        return False
    pages: Bytes = np.zeros(-(-(stop - start) // _PAGE), np.uint8)
    address = ctypes.c_void_p(data.ctypes.data + start)
    if _libc.mincore(address, ctypes.c_size_t(stop - start), ctypes.c_void_p(pages.ctypes.data)) != 0:
        return True  # it cannot say: records are read as if they were there
    return bool(np.all(pages & 1))
