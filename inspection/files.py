"""Reading files that others own: opened read-only, read by position, never mapped.

A mapping would be as fast, but a file that its broker deletes or cuts while it is read, or a disk that fails, would
end the process with a SIGBUS; ``pread`` answers with fewer bytes or an error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from penstock.proto.errors import StorageError

Bytes = npt.NDArray[np.uint8]


class Unreadable(StorageError):
    """A file or directory that cannot be opened or read; the message names it, and the offset if one was reached."""

    code = 77


def unreadable(path: object, error: OSError, offset: int | None = None) -> Unreadable:
    """The error about ``path`` for what the system said."""
    place = f"{path}" if offset is None else f"{path} at {offset}"
    return Unreadable(f"{place}: {error.strerror or error}")


class InputFile:
    """One regular file, open for reading. Bytes behind its end, up to what is asked for, read as zeros.

    Raises Unreadable: no such file, no permission, or a directory, pipe or device.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # O_NONBLOCK: opening a pipe that somebody put there must not wait for a writer.
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise unreadable(path, error) from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise Unreadable(f"{path}: not a regular file")
        self.size = status.st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the descriptor back; safe to call again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def expect_sequential(self) -> None:
        """Tell the kernel that the file is read from front to back."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read_into(self, out: Bytes, position: int) -> int:
        """Fill ``out`` from ``position`` on, with zeros behind the file's end; answers the bytes that the file had."""
        view = out.data
        done = 0
        try:
            while done < len(view):
                count = os.preadv(self._descriptor, [view[done:]], position + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise unreadable(self.path, error, position + done) from error
        out[done:] = 0
        return done

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the file's end."""
        out = np.empty(max(0, size), np.uint8)
        return out[: self.read_into(out, position)].tobytes()

    def next_data(self, position: int) -> int | None:
        """Where the first byte at or behind ``position`` lies that is no hole; None if only a hole follows."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError:
            return position if position < self.size and not self._knows_holes() else None

    def _knows_holes(self) -> bool:
        try:
            return os.lseek(self._descriptor, 0, os.SEEK_HOLE) >= 0
        except OSError:
            return False


def read_whole(path: Path, size_max: int = 64 << 20) -> bytes:
    """All bytes of a small file. Raises Unreadable: it cannot be read, or is larger than ``size_max``."""
    with InputFile(path) as file:
        if file.size > size_max:
            raise Unreadable(f"{path}: {file.size} bytes are too many for a file of this kind")
        return file.read(0, file.size)


def is_directory(entry: os.DirEntry[str]) -> bool:
    """True if it is a directory, or a link to one; not for a link that leads nowhere or in a circle."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: os.DirEntry[str]) -> bool:
    """True if it is a regular file, or a link to one; not for a link that leads nowhere or in a circle."""
    try:
        return entry.is_file()
    except OSError:
        return False


def entries_of(directory: Path) -> list[os.DirEntry[str]]:
    """What is in ``directory``, sorted by name; nothing if it does not exist.

    Raises Unreadable: it is no directory, or may not be read.
    """
    try:
        with os.scandir(directory) as found:
            return sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(directory, error) from error
