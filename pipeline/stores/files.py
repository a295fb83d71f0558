"""Files of any file system that ``pyarrow.fs`` knows, read by position.

Never mapped: a file that its broker deletes or cuts meanwhile gives an error or fewer bytes, not the end of the
process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import glob
import os
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple, Self
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from penstock.proto.errors import ConfigError, StorageError

Bytes = npt.NDArray[np.uint8]
_EXTENTS_MAX = 1000


def open_file_system(root: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path or URI, and the path in it.

    Raises ConfigError: a URI of a kind that pyarrow does not know.
    """
    if "://" not in root:
        return fs.LocalFileSystem(), os.path.abspath(root)
    try:
        file_system, path = fs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, OSError, ValueError) as error:
        raise ConfigError(f"{root}: {error}") from error
    return file_system, path


def expand_roots(roots: tuple[str, ...]) -> list[str]:
    """The roots with patterns replaced by what they match: ``*``, ``?``, ``[…]``; in URIs, ``?`` begins the query.

    Raises ConfigError: a pattern that nothing matches, or one in the name of a URI's host or bucket.
    """
    found: list[str] = []
    for root in roots:
        is_uri = "://" in root
        if not glob.has_magic(root.partition("?")[0] if is_uri else root):
            found.append(root)
            continue
        matches = _match_uri(root) if is_uri else sorted(path for path in glob.glob(root) if os.path.isdir(path))
        if not matches:
            raise ConfigError(f"{root}: matches no directory")
        found += matches
    return found


@functools.lru_cache(maxsize=2)  # whole windows, and the file's last one
def _zeros(size: int) -> Bytes:
    found = np.zeros(size, np.uint8)
    found.flags.writeable = False
    return found


def _match_uri(pattern: str) -> list[str]:
    """The URIs of the directories that a pattern matches, in order."""
    base, mark, query = pattern.partition("?")
    scheme, _, rest = base.partition("://")
    host, *parts = rest.split("/")
    if glob.has_magic(host):
        raise ConfigError(
            f"{pattern}: a pattern in the place of a host or bucket: list the stores, with commas between"
        )
    found = [f"{scheme}://{host}"]
    for part in parts:
        if glob.has_magic(part):
            found = [f"{uri}/{quote(name)}" for uri in found for name in _folders(f"{uri}/{mark}{query}", part)]
        else:
            found = [f"{uri}/{part}" for uri in found]
    uris = (f"{uri}{mark}{query}" for uri in found)
    return [uri for uri in uris if _kind(uri) == fs.FileType.Directory]


def _kind(uri: str) -> fs.FileType:
    file_system, path = open_file_system(uri)
    return file_system.get_file_info(path).type


def _folders(uri: str, pattern: str) -> list[str]:
    """The names of the directories in one that a pattern matches; as for paths, hidden ones only if it says so."""
    file_system, path = open_file_system(uri)
    try:
        infos = file_system.get_file_info(fs.FileSelector(path, allow_not_found=True))
    except OSError as error:
        raise ConfigError(f"{uri}: {error}") from error
    wanted = unquote(pattern)
    names = (info.base_name for info in infos if info.type == fs.FileType.Directory)
    return sorted(n for n in names if fnmatchcase(n, wanted) and (wanted.startswith(".") or not n.startswith(".")))


class Written(NamedTuple):
    """What was ever written of a file; the rest is zeros that were only allocated."""

    bytes: int
    end: int


def written(path: str) -> Written:
    """What a file of this machine holds, as its file system tells. Raises OSError: it cannot be opened."""
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        total = end = 0
        for _ in range(_EXTENTS_MAX):
            try:
                start = os.lseek(descriptor, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole
                    return Written(total, end)
                break
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            total += end - start
            if end >= size:
                return Written(total, end)
        return Written(size, size)  # a file system that does not tell, or a file in many pieces


class Folder:
    """A directory at a path or URI, which need not exist yet, and files that are put there whole."""

    def __init__(self, root: str) -> None:
        """Raises ConfigError: a URI of a kind that pyarrow does not know."""
        self.files, self.path = open_file_system(root.rstrip("/"))
        self.root = root.rstrip("/") if "://" in root else self.path  # the same in every process
        self.is_local = isinstance(self.files, fs.LocalFileSystem)

    def read(self, name: str) -> bytes | None:
        """What a file holds; None if there is none. Raises OSError."""
        try:
            with self.files.open_input_stream(f"{self.path}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place of what has its name, whole or not at all; it is on the disk then. Raises OSError."""
        with self.drafted(name) as draft, self.files.open_output_stream(draft) as out:
            out.write(content)

    @contextlib.contextmanager
    def drafted(self, name: str) -> Iterator[str]:
        """The path of a file to write, in a directory that is there; after the block it has the name, as :meth:`write`
        puts it. A block that fails leaves the draft.
        """
        folder, slash, base = name.rpartition("/")
        draft = f"{folder}{slash}.{base}.{os.getpid()}"
        self.files.create_dir(f"{self.path}{slash}{folder}", recursive=True)
        yield f"{self.path}/{draft}"
        self.sync(draft)
        self.files.move(f"{self.path}/{draft}", f"{self.path}/{name}")
        self.sync_folders(folder)

    def sync_folders(self, folder: str) -> None:
        """Have the disk keep the names in a directory of this one, and in those above it."""
        while folder:
            self.sync(folder)
            folder = folder.rpartition("/")[0]
        self.sync("")

    def sync(self, name: str) -> None:
        """Have the disk keep a file or a directory's names. Object stores keep what they have taken."""
        if not self.is_local:
            return
        handle = os.open(f"{self.path}/{name}", os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class FileReader:
    """One file, open for reading. Zeros at its end that were never written are not read: brokers allocate a gigabyte.

    Raises StorageError: there is no such file (any more), or it cannot be read.
    """

    def __init__(self, file_system: fs.FileSystem, path: str) -> None:
        self.path = path
        self._written_to: int | None = None
        try:
            self._file = file_system.open_input_file(path)
            if isinstance(file_system, fs.LocalFileSystem):
                self._size = os.path.getsize(path)
                self._written_to = written(path).end
        except FileNotFoundError:
            raise StorageError(f"{path}: deleted since the store was listed: load it again") from None
        except OSError as error:
            raise StorageError(f"{path}: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, position: int, size: int) -> Bytes:
        """Up to ``size`` bytes, not to be written to; fewer only at the file's end."""
        if self._written_to is not None and self._written_to <= position < self._size:
            return _zeros(min(size, self._size - position))
        try:
            return np.frombuffer(self._file.read_at(size, position), np.uint8)
        except OSError as error:
            raise StorageError(f"{self.path} at {position}: {error}") from error
