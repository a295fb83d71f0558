"""The memory under the page cache: on some virtual machines it is not there yet, and then that is what one measures.

A host that lends memory page by page and takes freed pages back makes the first touch of each page cost 5-11 µs,
twenty times the copy of the record bytes that fill it; a log of 300 MB/s touches 75,000 new pages a second. A machine
that has run for a while has its page cache full of memory that is there. So the cost of a fresh page is measured with
every case, and ``--warm-memory`` fills the page cache first.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path

import psutil

_PAGE = 4096
_SAMPLE_BYTES = 64 << 20
_LEFT_BYTES = 1 << 30
_CHUNK_BYTES = 16 << 20


def fresh_page_us() -> float:
    """What the first touch of a page costs now, in µs."""
    with mmap.mmap(-1, _SAMPLE_BYTES) as fresh:
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            fresh.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        for position in range(0, _SAMPLE_BYTES, _PAGE):
            fresh[position] = 1
        return round((time.perf_counter() - began) / (_SAMPLE_BYTES // _PAGE) * 1e6, 2)


def fill_page_cache(folder: Path) -> None:
    """Fill free memory with the pages of a sparse file in ``folder``; they stay until the kernel needs them."""
    size = psutil.virtual_memory().free - _LEFT_BYTES
    if size <= 0:
        return
    path = folder / "page-cache"
    with contextlib.ExitStack() as stack:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        stack.callback(os.close, descriptor)
        os.ftruncate(descriptor, size)
        buffer = bytearray(_CHUNK_BYTES)
        for position in range(0, size, _CHUNK_BYTES):
            os.preadv(descriptor, [buffer], position)
