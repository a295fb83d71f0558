"""The one seam between the store and the disk: every file effect goes through a :class:`Disk`.

Tests put something else in its place: one that fails the n-th call, or forgets what was not synced.
Files are named by text paths and used through descriptors, numbers that mean something only to the disk that
gave them. Errors are plain ``OSError``; :func:`storage_error` gives them Penstock's names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import struct
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import DiskFull, StorageError

Bytes = npt.NDArray[np.uint8]
Data = bytes | memoryview | Bytes

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of Linux on 64 bits: type, whence, start, length, pid
_ZEROS = bytes(1 << 20)
_BROUGHT_AT_ONCE = 128 << 10
_CANNOT_TELL = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_LOCKS_NO_DIRECTORY = (errno.EBADF, errno.ENOLCK, *_CANNOT_TELL)
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_MADV_SEQUENTIAL, _MADV_POPULATE_READ = 2, 22  # the latter since Linux 5.14
_SYS_CACHESTAT = 451  # on x86-64, ARM and most others; since Linux 6.5
_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class Disk:
    """The operating system's files. Used by several threads at once."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
        self._libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        """A descriptor, for reading and writing unless ``read_only``; ``create`` makes the file when it is missing."""
        mode = os.O_RDONLY if read_only else os.O_RDWR
        return os.open(path, mode | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def allocate(self, descriptor: int, size: int) -> None:
        """Give the file ``size`` bytes that are on the disk, not holes: a write to them cannot fail for space."""
        os.posix_fallocate(descriptor, 0, size)

    def map(self, descriptor: int, size: int, *, read_only: bool = False) -> Bytes:
        """The file's first ``size`` bytes as memory; unmapped when the last view of it is gone."""
        access = mmap.ACCESS_READ if read_only else mmap.ACCESS_DEFAULT
        return np.frombuffer(mmap.mmap(descriptor, size, access=access), np.uint8)

    def sync(self, descriptor: int) -> None:
        """On return the file's bytes, mapped ones too, survive a power cut."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: str) -> None:
        """On return names made and removed in the directory survive a power cut."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, path: str) -> None:
        """Everything of the file system that ``path`` lies on: cheaper than very many single syncs."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if self._libc.syncfs(descriptor) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
        finally:
            os.close(descriptor)

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        """Write all of ``data``."""
        view = data.data if isinstance(data, np.ndarray) else data
        written = os.pwrite(descriptor, view, position)
        while written < len(view):  # a nearly full disk takes a part and fails at the next call
            written += os.pwrite(descriptor, view[written:], position + written)

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        """``size`` bytes, fewer at the end of the file."""
        return os.pread(descriptor, size, position)

    def is_cached(self, descriptor: int, size: int, position: int) -> bool:
        """True if the first and last of these bytes are in memory, and where the system cannot tell."""
        for at in (position, position + size - 1):
            try:
                os.preadv(descriptor, (bytearray(1),), at, _NOWAIT)
            except BlockingIOError:
                return False
            except OSError:
                return True  # another file system may not know the flag; an error is told by the read itself
        return True

    def all_cached(self, descriptor: int, size: int, position: int) -> bool:
        """True if all of these bytes are in memory, after some ten microseconds for 8 MiB; False if nobody can tell.

        ``cachestat`` counts what is on its way from the disk too. The last byte tells of that, mostly: where the end
        was there, and another thread brings what lies before it, whoever touches that waits until it has come.
        Source: ``cachestat(2)``.
        """
        counts = (ctypes.c_uint64 * 5)()  # cached, dirty, written back, evicted, recently evicted
        asked = (ctypes.c_uint64 * 2)(position, size)
        if self._libc.syscall(_SYS_CACHESTAT, descriptor, ctypes.byref(asked), ctypes.byref(counts), 0) != 0:
            return False
        pages = -(-(position + size) // mmap.PAGESIZE) - position // mmap.PAGESIZE
        return int(counts[0]) >= pages and self.is_cached(descriptor, size, position)

    def bring(self, path: str, start: int, end: int) -> None:
        """Have these bytes of a file in the system's memory; for any thread, releases the interpreter lock.

        A mapping is populated, not read by calls: on XFS a call keeps writers of the file out until the disk answers.
        """
        descriptor = self.open(path, read_only=True)
        try:
            start -= start % mmap.ALLOCATIONGRANULARITY
            end = min(end, os.fstat(descriptor).st_size)
            if start >= end or self._populate(descriptor, start, end - start):
                return
            room = bytearray(min(end - start, _BROUGHT_AT_ONCE))
            while start < end and (count := os.preadv(descriptor, (room,), start)) > 0:
                start += count
        finally:
            self.close(descriptor)

    def _populate(self, descriptor: int, start: int, size: int) -> bool:
        """False: the system knows no such call, or an error stands in the way."""
        mapped = np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, offset=start), np.uint8)
        advices = _MADV_SEQUENTIAL, _MADV_POPULATE_READ
        return all(self._libc.madvise(mapped.ctypes.data, size, advice) == 0 for advice in advices)

    def truncate(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def zero(self, descriptor: int, start: int, size: int) -> None:
        """Let the file's bytes ``[start, size)`` be zeros, without ever being shorter; ``size`` is its size."""
        if start >= size or self._libc.fallocate(descriptor, _PUNCH_HOLE, start, size - start) == 0:
            return
        self.write_zeros(descriptor, start, size)  # a file system without holes

    def write_zeros(self, descriptor: int, start: int, end: int) -> None:
        """Let the file's bytes ``[start, end)`` be zeros that are written."""
        for at in range(start, end, len(_ZEROS)):
            self.pwrite(descriptor, _ZEROS[: end - at], at)

    def data_range(self, descriptor: int, start: int, size: int) -> tuple[int, int] | None:
        """The first stretch of the file's bytes ``[start, size)`` that may be anything but zeros; None without one.

        Bytes that somebody has written, to a mapping too, are in such a stretch; a file system that cannot tell
        counts everything.
        """
        if start >= size:
            return None
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
            return (first, min(size, os.lseek(descriptor, first, os.SEEK_HOLE))) if first < size else None
        except OSError as error:
            if error.errno == errno.ENXIO:
                return None
            if error.errno in _CANNOT_TELL:
                return start, size
            raise

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, path: str) -> list[str]:
        """Names in the directory, sorted; none when there is no such directory."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directories(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        if os.path.islink(path):
            os.unlink(path)  # what it leads to is somebody's decision
        elif os.path.lexists(path):
            shutil.rmtree(path)

    def free_bytes(self, path: str) -> int:
        """Free on the path's file system, for this process."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    def used_bytes(self, path: str) -> int:
        """In use on the path's file system."""
        found = os.statvfs(path)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def device(self, path: str) -> int:
        """The number of the file system that the path is on."""
        return os.stat(path).st_dev

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def lock(self, descriptor: int) -> int | None:
        """Lock the file's first byte against other processes: None, or the pid that holds it (0 if unknown)."""
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        except (BlockingIOError, PermissionError):
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
            return int(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[4])
        return None

    def lock_directory(self, path: str) -> int | None:
        """A descriptor that keeps the directory locked while it is open; None where another one does.

        No file is made there, and the lock is of this opening, not of the process: another of the same process is kept
        out too. A file system that locks no directories, as NFS, keeps nobody out.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            if error.errno not in _LOCKS_NO_DIRECTORY:
                os.close(descriptor)
                raise
        return descriptor

    def unlock_directory(self, descriptor: int) -> None:
        """Give that lock back, also where a child of the process, just forked, has the descriptor still."""
        with contextlib.suppress(OSError):  # closing gives it back as well
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def storage_error(error: OSError, path: str, doing: str) -> StorageError:
    """Penstock's error for ``error``, which ended ``doing`` something to ``path``."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: {doing} failed, no space: free some, or add some", path=path)
    return StorageError(f"{path}: {doing} failed: {reason}", path=path)


@contextlib.contextmanager
def named_errors(path: str, doing: str) -> Iterator[None]:
    """Errors of the disk get Penstock's names in the block; ``path`` stands where one names no file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, error.filename or path, doing) from error


@contextlib.contextmanager
def opened(disk: Disk, path: str, *, create: bool = False) -> Iterator[int]:
    """A descriptor of the file, for reading and writing, in the block."""
    descriptor = disk.open(path, create=create)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def read_small(disk: Disk, path: str, bytes_max: int) -> bytes | None:
    """The first bytes of the file, None if there is none."""
    if not disk.exists(path):
        return None
    with opened(disk, path) as descriptor:
        return disk.pread(descriptor, bytes_max, 0)


def write_durably(disk: Disk, path: str, content: bytes) -> None:
    """Replace the small file ``path``: after a crash it is the old one or the new one, whole."""
    temporary = f"{path}.tmp"
    try:
        with opened(disk, temporary, create=True) as descriptor:
            disk.truncate(descriptor, 0)
            disk.pwrite(descriptor, content, 0)
            disk.sync(descriptor)
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync_directory(os.path.dirname(path))


def make_directories_durably(disk: Disk, path: str) -> None:
    """Make the directory and those above it; a power cut after that takes none of the new ones away."""
    missing = []
    while path and not disk.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    if missing:
        disk.make_directories(missing[0])
    for made in reversed(missing):
        disk.sync_directory(os.path.dirname(made) or ".")
