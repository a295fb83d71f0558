"""Pages of a buffer in memory before they are written, so that an append does not wait for each of them.

The first touch of a page costs 1-10 µs (on a virtual machine whose host has not backed the memory yet), more than all
else that an append does with its 4 KiB. A thread that touches them ahead takes that from the event loop.
"""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from ..disk import Bytes

_AHEAD_BYTES = 16 << 20
NICER_BY = 10
_STEP_BYTES = 2 << 20  # the kernel holds a lock on the mappings for so long
_MADV_POPULATE_WRITE = 23  # Linux 5.14; reading gives memory that is no file's no pages
_PAGE = 4096

_libc = ctypes.CDLL(None)


def _prefault(data: Bytes, start: int, stop: int) -> None:
    """Bring ``data[start:stop]`` into memory; best effort, releases the interpreter lock."""
    base = data.ctypes.data
    position, stop = start - start % _PAGE, min(stop, len(data))
    while position < stop:
        size = min(_STEP_BYTES, stop - position)
        if _libc.madvise(ctypes.c_void_p(base + position), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) != 0:
            return  # an older kernel: pages are touched when they are written
        position += size


def _give_way() -> None:
    """Let the event loop go on at once when it is woken, and not after this thread's slice: by that much nicer."""
    own = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, own, min(os.getpriority(os.PRIO_PROCESS, own) + NICER_BY, 19))


class Prefaulter:
    """Keeps the pages behind the append position in memory; owner thread only."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="log-prefault", initializer=_give_way)
        self._data: Bytes | None = None
        self._stop = 0  # touched, or being touched, up to here

    def advance(self, data: Bytes, position: int) -> None:
        """The next append goes to ``data[position:]``."""
        if data is not self._data:
            self._data, self._stop = data, position
        elif position + _AHEAD_BYTES // 2 < self._stop or self._stop >= len(data):
            return
        start, self._stop = max(self._stop, position), min(len(data), position + _AHEAD_BYTES)
        self._worker.submit(_prefault, data, start, self._stop)

    def close(self) -> None:
        """End the thread."""
        self._worker.shutdown(cancel_futures=True)
        self._data = None
