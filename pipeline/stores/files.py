"""Files of any file system that ``pyarrow.fs`` knows, read by position.

Never mapped: a file that its broker deletes or cuts meanwhile gives an error or fewer bytes, not the end of the
process.
"""

from __future__ import annotations

import glob
import os
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from penstock.proto.errors import ConfigError, StorageError

Bytes = npt.NDArray[np.uint8]


def open_file_system(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it.

    Raises:
        ConfigError: a URI of a kind that pyarrow does not know.
    """
    if "://" not in root:
        return fs.LocalFileSystem(), os.path.abspath(root)
    try:
        file_system, path = fs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise ConfigError(f"{root}: {error}") from error
    return file_system, path


def expand_roots(roots: tuple[str, ...]) -> list[str]:
    """The roots with patterns replaced by what they match.

    Raises:
        ConfigError: a pattern that nothing matches.
    """
    found: list[str] = []
    for root in roots:
        if "://" in root or not glob.has_magic(root):
            found.append(root)
            continue
        matches = sorted(path for path in glob.glob(root) if os.path.isdir(path))
        if not matches:
            raise ConfigError(f"{root}: matches no directory")
        found += matches
    return found


class FileReader:
    """One file, open for reading.

    Raises:
        StorageError: there is no such file (any more), or it cannot be read.
    """

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self.path = path
        try:
            self._file = file_system.open_input_file(path)
        except FileNotFoundError:
            raise StorageError(f"{path}: deleted since the store was listed: load it again") from None
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, position: int, size: int) -> Bytes:
        """Up to ``size`` bytes; fewer only at the file's end."""
        try:
            return np.frombuffer(self._file.read_at(size, position), np.uint8)
        except OSError as error:
            raise StorageError(f"{self.path} at {position}: {error}") from error
