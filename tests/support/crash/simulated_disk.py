"""A disk in memory that forgets, at a power cut, what was not synced.

It keeps two versions of everything: what running programs see, and what is *saved*. Of a file, the pages that
differ are dirty; of a directory, names made and removed since the last ``sync_directory`` are pending. A cut keeps
of each file any subset of the dirty pages, or of their 512-byte sectors, and any size it had since its last sync;
of each directory the first few of the pending changes. A file whose name was not saved is gone. That is more than
today's file systems lose, and nothing that they promise to keep.

Mapped bytes are the very array that a file's readers see, so writing to them makes pages dirty as well.
For one thread at a time.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable

import numpy as np

from penstock.broker.store.disk import Bytes, Data, Disk
from tests.support.crash.simulated_files import PAGE, SECTOR, Directory, File, Survival, files_in, sync_names


class PowerCut(BaseException):
    """The machine has stopped; no handler may go on after it."""


class SimulatedDisk(Disk):
    """A :class:`penstock.broker.store.disk.Disk` under the directory ``/``, cut by :meth:`cut`.

    ``used_percent`` of it count as in use, and ``now_ms`` is when files are modified: at a write or sync.
    ``cut_after`` effects from now on the power fails by itself. ``on_synced``, when set, is called once by the
    next sync, behind its effect: something else happens while the caller still waits. With ``forgets``
    the next sync of a file fails, and what it should have written counts as written. Of the calls of ``fail_kind``
    the one with number ``fail_nth``, from 1, fails with ``fail_code``, and the next ones, ``fail_times`` in all;
    ``calls`` counts them. The first write that fails has written a part.
    """

    def __init__(self, seed: int = 0, root: Directory | None = None) -> None:
        self.used_percent, self.now_ms = 1, 0
        self.cut_after: int | None = None
        self.forgets = False
        self.on_synced: Callable[[], None] | None = None
        self.fail_kind, self.fail_nth, self.fail_code, self.calls = "", 0, errno.EIO, 0
        self.fail_times = 1
        self._chooser = random.Random(seed)
        self._root = root or Directory()
        self._open: dict[int, tuple[File, str]] = {}
        self._descriptors = itertools.count(1000)
        self._left: Directory | None = None  # after the cut
        self._known: dict[str, Directory] = {}  # paths that were walked since a directory last went

    def cut(self, share: float | None = None) -> SimulatedDisk:
        """End this disk, at once or where it ended already, and begin another with what is left.

        ``share`` of what was not saved is kept, by chance as everything else.
        """
        if self._left is None:
            self._left = self._root.after_cut(Survival(self._chooser, share))
        return self._following(self._left)

    def kill(self) -> SimulatedDisk:
        """The process ends, the machine goes on: another disk that sees everything, saved or not."""
        after = self._following(self._root)
        self._left = Directory()
        return after

    def _following(self, root: Directory) -> SimulatedDisk:
        after = SimulatedDisk(self._chooser.getrandbits(32), root)
        after.fail_kind, after.fail_nth, after.fail_code = self.fail_kind, self.fail_nth, self.fail_code
        after.calls, after.fail_times = self.calls, self.fail_times
        return after

    def write_back(self) -> None:
        """Save some dirty pages, as the system does whenever it likes."""
        survival = Survival(self._chooser)
        for file in files_in(self._root):
            if not file.is_saved:
                left = file.after_cut(survival)
                file.sizes = [len(left), *file.sizes[file.sizes.index(len(left)) + 1 :]]
                file.saved = left

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> int:
        self._call("open", changes=False)
        directory, name = self._parent(path)
        file = directory.names.get(name)
        if isinstance(file, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if file is None:
            if not create:
                raise _missing(path)
            self._call("create")
            file = File()
            directory.change({name: file})
        descriptor = next(self._descriptors)
        self._open[descriptor] = file, path
        return descriptor

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)

    def allocate(self, descriptor: int, size: int) -> None:
        self._call("allocate")
        file = self._file(descriptor)
        if size > len(file.data):
            file.sizes.append(size // 2 - size // 2 % SECTOR)  # in several transactions, each sets the size
            file.resize(size)

    def map(self, descriptor: int, size: int, *, read_only: bool = False) -> Bytes:
        self._call("map", changes=False)
        data = self._file(descriptor).data
        assert len(data) == size, "mapped beyond the end, which ends in SIGBUS"
        return data

    def sync(self, descriptor: int) -> None:
        self._call("sync")
        file = self._file(descriptor)
        if self.forgets:
            self.forgets = False
            file.forget()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        file.sync()
        file.modified_ms = self.now_ms
        self._tell_synced()

    def sync_directory(self, path: str) -> None:
        self._call("sync_directory")
        self._directory(path).sync()
        self._tell_synced()

    def sync_all(self, path: str) -> None:
        self._call("sync_all")
        for file in files_in(self._root):
            file.sync()
        sync_names(self._root)
        self._tell_synced()

    def pwrite(self, descriptor: int, data: Data, position: int) -> None:
        written = np.frombuffer(data, np.uint8)
        try:
            self._call("pwrite")
        except OSError:
            if self.calls == self.fail_nth:
                self._put(descriptor, written[: len(written) * 2 // 3], position)
            raise
        self._put(descriptor, written, position)

    def _put(self, descriptor: int, written: Bytes, position: int) -> None:
        file = self._file(descriptor)
        if position + len(written) > len(file.data):
            file.resize(position + len(written))
        file.data[position : position + len(written)] = written
        file.written(position, position + len(written))
        file.modified_ms = self.now_ms

    def pread(self, descriptor: int, size: int, position: int) -> bytes:
        self._call("pread", changes=False)
        return self._file(descriptor).data[position : position + size].tobytes()

    def is_cached(self, descriptor: int, size: int, position: int) -> bool:
        return True

    def all_cached(self, descriptor: int, size: int, position: int) -> bool:
        return True

    def bring(self, path: str, start: int, end: int) -> None:
        """Everything is in memory."""

    def truncate(self, descriptor: int, size: int) -> None:
        self._call("truncate")
        self._file(descriptor).resize(size)

    def zero(self, descriptor: int, start: int, size: int) -> None:
        self._call("zero")
        file = self._file(descriptor)
        assert size == len(file.data)
        file.data[start:size] = 0

    def data_range(self, descriptor: int, start: int, size: int) -> tuple[int, int] | None:
        self._call("data_range", changes=False)
        data = self._file(descriptor).data[:size]
        pages = range(start - start % PAGE, size, PAGE)
        first = next((page for page in pages if data[page : page + PAGE].any()), None)
        if first is None:
            return None
        hole = next((page for page in range(first, size, PAGE) if not data[page : page + PAGE].any()), size)
        return max(start, first), hole

    def size(self, path: str) -> int:
        self._call("size", changes=False)
        entry = self._entry(path)
        return len(entry.data) if isinstance(entry, File) else PAGE

    def exists(self, path: str) -> bool:
        try:
            self._entry(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: str) -> list[str]:
        self._call("list", changes=False)
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def make_directories(self, path: str) -> None:
        self._call("make_directories", changes=False)
        found = self._root
        for name in path.strip("/").split("/"):
            entry = found.names.get(name)
            if entry is None:
                self._call("mkdir")
                entry = Directory()
                found.change({name: entry})
            assert isinstance(entry, Directory)
            found = entry

    def rename(self, old: str, new: str) -> None:
        self._call("rename")
        self._known.clear()
        (source, old_name), (target, new_name) = self._parent(old), self._parent(new)
        entry = self._entry(old)
        if source is target:
            source.change({old_name: None, new_name: entry})
        else:
            target.change({new_name: entry})
            source.change({old_name: None})

    def unlink(self, path: str) -> None:
        self._call("unlink")
        directory, name = self._parent(path)
        if name not in directory.names:
            raise _missing(path)
        if isinstance(directory.names[name], Directory):
            self._known.clear()
        directory.change({name: None})

    def remove_tree(self, path: str) -> None:
        self._call("remove_tree", changes=False)
        if self.exists(path):
            self._remove(path)

    def free_bytes(self, path: str) -> int:
        return (100 - self.used_percent) << 30

    def used_bytes(self, path: str) -> int:
        return self.used_percent << 30

    def modified_ms(self, path: str) -> int:
        entry = self._entry(path)
        return entry.modified_ms if isinstance(entry, File) else 0

    def lock(self, descriptor: int) -> int | None:
        return None

    def lock_directory(self, path: str) -> int | None:
        return next(self._descriptors)

    def unlock_directory(self, descriptor: int) -> None:
        self.close(descriptor)

    def lose(self, path: str) -> None:
        """Take away that file or directory, for good, as somebody with a shell may."""
        directory, name = self._parent(path)
        self._known.clear()
        directory.change({name: None})
        directory.sync()

    def save(self, path: str) -> None:
        """Save that file, and the names in its directory, as the system may do at any time."""
        directory, _ = self._parent(path)
        directory.sync()
        entry = self._entry(path)
        assert isinstance(entry, File)
        entry.sync()

    def contents(self, path: str) -> bytes:
        """What a reader sees of that file."""
        entry = self._entry(path)
        assert isinstance(entry, File)
        return entry.data.tobytes()

    def replace(self, path: str, content: bytes) -> None:
        """Give that file, which is there, other bytes, saved at once."""
        entry = self._entry(path)
        assert isinstance(entry, File)
        entry.data = np.frombuffer(content, np.uint8).copy()
        entry.sync()

    def _call(self, kind: str, *, changes: bool = True) -> None:
        """Each call of the seam begins with this; most of them change something."""
        if changes and self._left is None and self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                self._left = self._root.after_cut(Survival(self._chooser))
        if self._left is not None:
            raise PowerCut
        if kind == self.fail_kind:
            self.calls += 1
            if self.fail_nth <= self.calls < self.fail_nth + self.fail_times:
                raise OSError(self.fail_code, os.strerror(self.fail_code))

    def _remove(self, path: str) -> None:
        """One after the other: a cut may leave any of it."""
        entry = self._entry(path)
        if isinstance(entry, Directory):
            for name in sorted(entry.names):
                self._remove(f"{path}/{name}")
        self.unlink(path)

    def _tell_synced(self) -> None:
        told, self.on_synced = self.on_synced, None
        if told is not None:
            told()

    def _file(self, descriptor: int) -> File:
        return self._open[descriptor][0]

    def _entry(self, path: str) -> File | Directory:
        if path == "/":
            return self._root
        directory, name = self._parent(path)
        entry = directory.names.get(name)
        if entry is None:
            raise _missing(path)
        return entry

    def _directory(self, path: str) -> Directory:
        known = self._known.get(path)
        if known is not None:
            return known
        found = self._root
        for name in path.strip("/").split("/") if path.strip("/") else ():
            entry = found.names.get(name)
            if not isinstance(entry, Directory):
                raise _missing(path) if entry is None else NotADirectoryError(errno.ENOTDIR, "not a directory", path)
            found = entry
        self._known[path] = found
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
