"""Files of the log: named by the offset of their first byte, all of one size, mapped."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from penstock.formats.directory import file_name, file_start
from penstock.proto.errors import Corrupt, DiskFull, StorageError, WrongStore

from ..disk import Bytes, Disk, named_errors, opened, storage_error
from .log_directories import LogDirectories
from .warming import Warming

log = logging.getLogger(__name__)

_PIECE = 1 << 20
_SLOW_S = 0.05
_TELL_PAUSE_S = 30.0
_SLOW_PAUSE = 10  # an attempt that failed slowly is repeated only after so many times as long


@dataclass(slots=True, eq=False)
class LogFile:
    """One file. ``bytes`` is its memory; readers may keep views of it for as long as they like."""

    base: int
    path: str
    descriptor: int
    bytes: Bytes

    @property
    def end(self) -> int:
        """Offset behind the file."""
        return self.base + len(self.bytes)

    def demand_whole(self) -> None:
        """End the process (SIGBUS) if somebody has cut the file short: ``pwrite`` would fill it up with zeros."""
        _ = self.bytes[-1]


def load_log_files(disk: Disk, directories: LogDirectories, size: int) -> list[LogFile]:
    """Map every log file of the directories, in order. Changes nothing but that a last, unfinished file is deleted.

    Raises:
        WrongStore: a file is of another size, or is no log file, or is there twice; the last one cannot be written.
        Corrupt: a file is missing between two others.
    """
    paths = _list_log_files(disk, directories)
    bases: list[int] = []
    empty = ""
    for number, (base, path) in enumerate(paths.items()):
        found = disk.size(path)
        if found < size and number == len(paths) - 1 and _is_blank(disk, path, found):
            empty = path  # a crash while the file was made; its size can grow in several steps
        elif found != size:
            raise WrongStore(
                f"{path}: has {found} bytes, log files of this store have {size}: configure "
                f"mappedFileSizeCommitLog={found}, if all of them have that; if this one alone is torn, take a "
                "replica's copy of the store, or let `penstock store rebuild` keep what is whole",
                path=path,
                size=found,
                configured=size,
            )
        else:
            bases.append(base)
    bases = _without_gap(bases, paths, directories, size)
    if empty:
        disk.unlink(empty)
    files = []
    try:
        for base in bases:
            may_write = not directories.is_read_only(paths[base])
            files.append(_map_file(disk, paths[base], base, size, must_write=may_write or base == bases[-1]))
    except BaseException:
        for file in files:
            disk.close(file.descriptor)
        raise
    return files


def _list_log_files(disk: Disk, directories: LogDirectories) -> dict[int, str]:
    """Paths of all log files by their first offset, ascending."""
    found: dict[int, str] = {}
    for directory in directories.all:
        for name in disk.list(directory):
            path = f"{directory}/{name}"
            if name.startswith("."):
                continue
            base = file_start(name)
            if base is None:
                raise WrongStore(f"{path}: not a log file: move it out of this directory", path=path)
            twice = found.setdefault(base, path)
            if twice != path:
                raise WrongStore(f"{path}: the same log file is there as {twice}: move one of them away", path=path)
    return dict(sorted(found.items()))


def _without_gap(bases: list[int], paths: dict[int, str], directories: LogDirectories, size: int) -> list[int]:
    """The files that follow each other; old ones that could not be deleted, when they had to go, do not count."""
    start = 0
    for number, (before, base) in enumerate(itertools.pairwise(bases), 1):
        if base == before + size:
            continue
        if not all(directories.is_read_only(paths[each]) for each in bases[start:number]):
            missing = f"{os.path.dirname(paths[before])}/{file_name(before + size)}"
            raise Corrupt(f"{missing}: this log file is missing: restore it from a replica", path=missing)
        log.warning(
            "old log files left aside, they could not be deleted first=%s count=%d", paths[bases[start]], number
        )
        start = number
    return bases[start:]


def _is_blank(disk: Disk, path: str, size: int) -> bool:
    """True if the file holds nothing but zeros."""
    with opened(disk, path) as descriptor:
        pieces = (disk.pread(descriptor, _PIECE, start) for start in range(0, size, _PIECE))
        return all(piece.count(0) == len(piece) for piece in pieces)


def _map_file(disk: Disk, path: str, base: int, size: int, *, must_write: bool) -> LogFile:
    is_writable = True
    try:
        try:
            descriptor = disk.open(path)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                raise
            if must_write:
                raise WrongStore(
                    f"{path}: may not be written ({error.strerror}): give the broker's user the right to, or let "
                    "readOnlyCommitLogStorePaths name the directory, which serves for all but the last log file",
                    path=path,
                ) from error
            descriptor = disk.open(path, read_only=True)
            is_writable = False
    except OSError as error:
        raise storage_error(error, path, "opening") from error
    try:
        return LogFile(base, path, descriptor, disk.map(descriptor, size, read_only=not is_writable))
    except (OSError, ValueError) as error:
        disk.close(descriptor)
        raise storage_error(error if isinstance(error, OSError) else OSError(str(error)), path, "mapping") from error


def write_to_end(disk: Disk, file: LogFile, start: int, data: Bytes) -> None:
    """Write behind everything that the log has. Not through the mapping: a page written whole needs no zeroing before.

    ``pwrite`` copies upwards, so a process killed in the middle leaves a beginning of ``data``, and no gap.

    Raises OSError: it could not. Nothing of it is found by a recovery; EIO: that is not sure.
    """
    file.demand_whole()
    at = start - file.base
    try:
        disk.pwrite(file.descriptor, data, at)
    except BaseException as error:
        written = file.bytes[at : at + len(data)] != 0
        if written.any():  # a full disk may have no space for zeros behind it
            try:
                disk.write_zeros(file.descriptor, at, at + len(data) - int(written[::-1].argmax()))
                disk.sync(file.descriptor)
            except OSError as rest:
                raise OSError(errno.EIO, f"{error}, and what was written could not be taken back: {rest}") from error
        raise


class FileAllocator:
    """Makes log files ahead of need in a thread of its own, so that an append hardly ever waits for one."""

    def __init__(self, disk: Disk, directories: LogDirectories, size: int, warming: Warming) -> None:
        self.keep_free = 0  # bytes of the disk that no log file may take
        self._failed: StorageError | None = None
        self._not_before = 0.0
        self._untold, self._tells_at = 0, 0.0  # failures since the last line of the log; the worker's
        self._warming = warming
        self._disk = disk
        self._directories = directories
        self._size = size
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="log-files")
        self._coming: dict[int, Future[LogFile]] = {}

    def prepare(self, base: int) -> None:
        """Begin to make the file that begins at ``base``."""
        if base not in self._coming:
            self._coming[base] = self._worker.submit(self._make, base)

    def take(self, base: int) -> LogFile:
        """That file, waiting for it if need be, and trying a failure once more. Raises DiskFull, StorageError."""
        ahead = self._coming.pop(base, None)
        if ahead is not None:
            with contextlib.suppress(StorageError):
                return ahead.result()
        return self._try_again(base)

    def check(self, base: int) -> None:
        """That file is made, or being made; a failure is tried once more. Raises DiskFull, StorageError: it is not."""
        ahead = self._coming.get(base)
        if ahead is not None and ahead.done() and ahead.exception() is not None:
            file = self._try_again(base)
            made: Future[LogFile] = Future()
            made.set_result(file)
            self._coming[base] = made

    @property
    def is_out_of_space(self) -> bool:
        """True if the last file that an append needed found no space, and finds none now."""
        if not isinstance(self._failed, DiskFull):
            return False
        try:
            self._directories.for_new(0, self.keep_free)
        except OSError:
            return True
        return False

    def discard(self) -> None:
        """Delete the files that nobody took."""
        for future in self._coming.values():
            with contextlib.suppress(StorageError):  # not made, and told
                file = future.result()
                self._disk.close(file.descriptor)
                try:
                    self._disk.unlink(file.path)
                    self._directories.sync([file.path])
                except OSError as error:
                    log.warning("unused log file not deleted path=%s error=%s", file.path, error)
        self._coming.clear()

    def close(self) -> None:
        """End the thread; files that nobody took stay, as after a crash."""
        for future in self._coming.values():
            with contextlib.suppress(Exception):
                self._disk.close(future.result().descriptor)
        self._coming.clear()
        self._worker.shutdown()

    def _try_again(self, base: int) -> LogFile:
        started = time.monotonic()
        if self._failed is not None and started < self._not_before:
            raise type(self._failed)(self._failed.message, **self._failed.details)
        try:
            file = self._worker.submit(self._make, base).result()
        except StorageError as error:
            took_s = time.monotonic() - started
            self._failed = error
            self._not_before = started + _SLOW_PAUSE * took_s if took_s > _SLOW_S else 0.0
            raise
        self._failed = None
        return file

    def _told(self, failure: StorageError) -> StorageError:
        """The failure, logged: each append tries again, so those of a while are one line."""
        self._untold += 1
        if time.monotonic() >= self._tells_at:
            log.warning("log file not made attempts=%d error=%s", self._untold, failure)
            self._untold, self._tells_at = 0, time.monotonic() + _TELL_PAUSE_S
        return failure

    def _make(self, base: int) -> LogFile:
        path = file_name(base)
        try:
            # Not by making a file: that would take the space of whatever else needs some.
            path = f"{self._directories.for_new(base, self.keep_free)}/{path}"
            if self._disk.exists(path):
                self._disk.unlink(path)
            descriptor = self._disk.open(path, create=True)
        except OSError as error:
            path = path if "/" in path else f"{self._directories}: {path}"
            raise self._told(storage_error(error, path, "making the log file")) from error
        try:
            with named_errors(path, "allocating the log file"):
                self._disk.allocate(descriptor, self._size)
                self._disk.sync(descriptor)
                self._directories.sync([path])
                mapped = self._disk.map(descriptor, self._size)
            self._warming.warm(path, mapped, descriptor)
        except StorageError as error:
            self._disk.close(descriptor)
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            self._told(error)
            raise
        log.info("log file made path=%s bytes=%d", path, self._size)
        return LogFile(base, path, descriptor, mapped)
