"""Memory between two pages that nobody may touch: reading or writing past its ends kills the process."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def forbid(pages: npt.NDArray[np.uint8]) -> None:
    """Let whoever touches these whole pages die."""
    if _libc.mprotect(pages.ctypes.data, len(pages), _PROT_NONE) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


class GuardedMemory:
    """Room for ``size`` bytes whose last one lies directly before a forbidden page, and whose first directly behind
    another, as the caller chooses. Arrays are views: one at a time."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self._room = -(-max(size, 1) // page) * page
        self._map = mmap.mmap(-1, self._room + 2 * page)
        self._all = np.frombuffer(self._map, np.uint8)
        forbid(self._all[:page])
        forbid(self._all[page + self._room :])
        self._data = self._all[page : page + self._room]

    def before_the_wall(self, data: bytes) -> npt.NDArray[np.uint8]:
        """``data``, its end at the forbidden page."""
        found = self._data[self._room - len(data) :]
        found[:] = np.frombuffer(data, np.uint8)
        return found

    def behind_the_wall(self, data: bytes) -> npt.NDArray[np.uint8]:
        """``data``, its start at the forbidden page."""
        found = self._data[: len(data)]
        found[:] = np.frombuffer(data, np.uint8)
        return found
