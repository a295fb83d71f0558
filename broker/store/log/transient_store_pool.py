"""Appends to memory that is no file's (``transientStorePoolEnable``), and their way from there into the log files.

An append goes to a buffer as large as a log file, to the place that it has in the file; a commit writes it there.
Only appends and commits know the buffers. Readers, dispatch, replication and recovery use the mapped files, and the
log's end is the end of what is committed: nobody sees, and nobody is told of, bytes that a killed process takes with
it. A buffer holds nothing but what was appended to it, so a start with a file half full has nothing to load.

The file is mapped and written to by ``pwrite``, which Linux keeps the same. ``pwrite`` copies upwards, so a process
killed in the middle leaves a beginning.
Source: RocketMQ TransientStorePool, DefaultMappedFile#commit; differs: without a free buffer an append is refused, or
waits for a commit, where RocketMQ writes the next file through its mapping. The memory is not locked.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass

import numpy as np

from penstock.proto.errors import StorageError

from ..disk import Bytes, Disk
from .log_file import LogFile
from .prefault import Prefaulter


@dataclass(slots=True)
class _Filling:
    """The buffer of one log file. ``placed``: log offset behind the last byte that was put into it."""

    file: LogFile
    buffer: Bytes
    placed: int


class WriteBuffers:
    """The buffers in use, the newest last. The owner thread fills them, any thread writes them out under ``lock``.

    ``appended``: log offset behind the last byte in a buffer, 0 while none is in use. It is set behind everything
    that it tells of, so that a commit which has read it finds the bytes, and the buffer they are in.
    """

    def __init__(self, disk: Disk, count: int, size: int) -> None:
        """``count`` buffers of ``size`` bytes; memory comes as it is used. Raises StorageError: there is too little."""
        try:
            self.free = [_buffer(size) for _ in range(count)]  # the one returned last, whose memory is there, is last
        except (OSError, MemoryError) as error:
            raise StorageError(
                f"no memory for transientStorePoolSize={count} buffers of {size} bytes each ({error}): lower it, or "
                "switch transientStorePoolEnable off"
            ) from error
        self.appended = 0
        self.lock = threading.Lock()
        self._prefaulter = Prefaulter()
        self._disk = disk
        self._filling: list[_Filling] = []

    @property
    def is_in_use(self) -> bool:
        """True if a buffer stands for a file, be anything in it or not."""
        return bool(self._filling)

    def of(self, file: LogFile) -> Bytes | None:
        """The buffer of the file being written, if it has one."""
        last = self._filling[-1] if self._filling else None
        return last.buffer if last is not None and last.file is file else None

    def borrow(self, file: LogFile, start: int) -> Bytes:
        """The buffer of the file being written, a free one if it has none; appends begin at ``start``."""
        found = self.of(file)
        if found is None:
            found = self.free.pop()
            self._filling.append(_Filling(file, found, start))
        return found

    def held(self, offset: int) -> Bytes:
        """The buffer that has the byte at ``offset``, which is not committed."""
        return next(each.buffer for each in self._filling if each.file.base <= offset < each.file.end)

    def on_placed(self, end: int, appended: int) -> None:
        """Bytes up to ``end`` are in the newest buffer; the next append goes to ``appended``."""
        newest = self._filling[-1]
        newest.placed = end
        self.appended = appended
        self._prefaulter.advance(newest.buffer, end - newest.file.base)

    def write(self, committed: int) -> int:
        """Write what lies behind ``committed``, in the log's order; up to where. Raises OSError: may be tried again."""
        appended = self.appended
        for each in list(self._filling):
            base = each.file.base
            start, stop = max(committed, base), min(appended, each.placed)
            if start < stop:
                each.file.demand_whole()
                self._disk.pwrite(each.file.descriptor, each.buffer[start - base : stop - base], start - base)
        return max(committed, appended)

    def reclaim(self, committed: int) -> None:
        """Return the buffers of files that are full, and written up to their ends."""
        while self._filling and self._filling[0].file.end <= committed:
            self.free.append(self._filling.pop(0).buffer)

    def give_back(self) -> None:
        """Return all buffers: everything in them is written."""
        self.free += (each.buffer for each in self._filling)
        self._filling.clear()
        self.appended = 0

    def close(self) -> None:
        """End the thread that brings the buffers' pages."""
        self._prefaulter.close()


def _buffer(size: int) -> Bytes:
    # Small pages, brought by the prefaulter: for a huge one the kernel may compact memory, 6-10 ms within an append.
    return np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
