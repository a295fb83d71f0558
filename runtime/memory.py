"""What a server process keeps of the memory that it once needed.

Buffers of batches are kept: each would otherwise be a fresh mapping. What a flood of requests left goes back to the
system, which nobody does by himself: Python's collector hardly ever looks at what has become old, errors that hold the
request that they refused among it, and the C allocator gives back nothing below a block that is in use.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import time
from pathlib import Path
from typing import Final

LOOK_S: Final = 10.0
WORTH_BYTES: Final = 4 << 20
"""So much more than was left the last time is worth a collection at once."""
SELDOM_S: Final = 160.0
"""Where there is no more: what was in use the last time may not be any longer."""
KEPT_BYTES: Final = 256 << 20
OLD_KEPT_BYTES: Final = 32 << 20
"""The largest block that glibc before 2.35 lets anybody keep."""
KEEPING_VARIABLES: Final = {
    "MALLOC_MMAP_THRESHOLD_": str(OLD_KEPT_BYTES),
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_ARENA_MAX": "1",
}
"""Of the environment: a program that is started with them, and those that it starts, keep large buffers likewise."""
_PAGE_BYTES: Final = 4096
_STATM = Path("/proc/self/statm")


def keep_large_buffers() -> None:
    """Tell the C allocator to keep large freed blocks instead of unmapping them, and to have one heap for all threads.

    Each message above 128 KiB would otherwise be a fresh mapping, faulted in page by page and unmapped
    again: the largest hidden cost of moving batches (produce of 1 KiB: 237 against 376 k/s).
    Of a thread's own heap, ``malloc_trim`` gives back nothing that lies behind its last block in use.
    Without effect where the C library has no ``mallopt``. Call it before there are threads.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        m_mmap_threshold, m_trim_threshold, m_arena_max = -3, -1, -8
        if not libc.mallopt(m_mmap_threshold, KEPT_BYTES):
            libc.mallopt(m_mmap_threshold, OLD_KEPT_BYTES)
        libc.mallopt(m_trim_threshold, KEPT_BYTES)
        libc.mallopt(m_arena_max, 1)


def give_back_unused() -> None:
    """Return to the system, from now on, what nobody uses: in a thread of its own, every 10 s where more is in use
    than before, else every 160 s. What is loaded by now stays, and is looked at no more.

    Without effect where the C library has no ``malloc_trim``, or the system no ``/proc``.
    """
    gc.freeze()
    threading.Thread(target=_give_back_forever, name="penstock-memory", daemon=True).start()


def _give_back_forever() -> None:
    with contextlib.suppress(OSError, AttributeError):
        trim = ctypes.CDLL(None).malloc_trim
        left, looked_at_s = _own_bytes(), time.monotonic()
        while True:
            time.sleep(LOOK_S)
            if _own_bytes() - left < WORTH_BYTES and time.monotonic() - looked_at_s < SELDOM_S:
                continue
            gc.collect()
            trim(0)  # 10 ms for 100 MiB in small pieces; without the GIL, but who allocates more than 512 bytes waits
            left, looked_at_s = _own_bytes(), time.monotonic()


def _own_bytes() -> int:
    """Resident, and of no mapped file."""
    resident, shared = _STATM.read_text().split()[1:3]
    return (int(resident) - int(shared)) * _PAGE_BYTES
