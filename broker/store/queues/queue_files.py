"""Consume queue files: ``<directory>/<topic>/<queue id>/<20-digit byte offset>``, all of one size.

They are sparse files of full length, written with pwrite and never mapped: writing to a mapped hole on a full
disk kills the process. A bounded number of them is open; the least recently used one is closed first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from penstock.formats.directory import file_name, file_starts, is_safe_topic
from penstock.formats.queue_entry import ENTRY_BYTES, FILLER
from penstock.proto.errors import WrongStore

from ..absent import AbsentEntries
from ..disk import Bytes, Disk, opened, storage_error

log = logging.getLogger(__name__)

SYNC_ALL_FROM = 64
"""More files than this are synced by one call for the whole file system."""
_FILLED_AT_ONCE = 1 << 16


class QueueName(NamedTuple):
    """A queue that has a directory."""

    topic: str
    queue_id: int
    bases: list[int]  # first byte offset of each file, ascending


class Turnstile:
    """A lock for ``with``, which a thread may take again, and gets in its turn.

    A plain lock goes back to a thread that takes it again and again, before another that waits has woken up.
    """

    def __init__(self) -> None:
        self._next = threading.Lock()  # held by the one who waits first
        self._lock = threading.Lock()
        self._holder = self._depth = 0  # a thread's identity, and how often it has taken it; the holder's own

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._holder != me:
            with self._next:
                self._lock.acquire()
            self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = 0
            self._lock.release()


class QueueFiles:
    """All files of all queues; one thread at a time, which the caller sees to.

    Only :meth:`prepare` runs beside other calls. ``making`` is held while it makes a file, and by whoever deletes files
    or takes names to be synced; whoever holds the caller's lock may wait for it, never the other way round.
    """

    def __init__(self, disk: Disk, directory: str, file_bytes: int, handles_max: int) -> None:
        self.directory = directory
        self.file_bytes = file_bytes
        self.making = Turnstile()
        self._disk = disk
        self._handles: OrderedDict[str, int] = OrderedDict()
        self._handles_max = handles_max
        self._dirty: set[str] = set()
        self._new_names: set[str] = set()  # directories with names that are not synced

    @property
    def dirty_count(self) -> int:
        """Files written since the last :meth:`take_dirty`."""
        return len(self._dirty)

    def scan(self) -> list[QueueName]:
        """Every queue on the disk. Raises WrongStore: a file of another size than configured."""
        found = []
        for topic in self._disk.list(self.directory):
            queue_ids = self._disk.list(f"{self.directory}/{topic}") if is_safe_topic(topic) else None
            for queue_id in queue_ids or ():
                if queue_id.isdecimal() and queue_id.isascii():
                    names = self._disk.list(f"{self.directory}/{topic}/{queue_id}")
                    found.append(QueueName(topic, int(queue_id), file_starts(names)))
                    continue
                log.warning("queue directory ignored path=%s/%s/%s", self.directory, topic, queue_id)
            if queue_ids is None:
                log.warning("queue directory ignored path=%s/%s", self.directory, topic)
        return found

    def check_size(self, queue: QueueName, base: int) -> None:
        """That the file has its configured size; one that a crash left empty gets it."""
        path = self._path(queue.topic, queue.queue_id, base)
        size = self._disk.size(path)
        if size == self.file_bytes:
            return
        if size != 0:
            raise WrongStore(
                f"{path}: has {size} bytes, consume queue files of this store have {self.file_bytes}: configure "
                f"mappedFileSizeConsumeQueue={size}, if all of them have that; if this one alone is torn, delete its "
                "folder, it is built again",
                path=path,
                size=size,
                configured=self.file_bytes,
            )
        self._disk.truncate(self._handle(path), self.file_bytes)

    def write(self, topic: str, queue_id: int, offset: int, entries: Bytes | bytes) -> None:
        """Write whole entries from ``offset`` on, over files. Raises DiskFull, StorageError: may be repeated."""
        position = offset * ENTRY_BYTES
        end = position + len(entries)
        taken = 0
        path = ""
        try:
            while position < end:
                base = position - position % self.file_bytes
                path = self._path(topic, queue_id, base)
                size = min(end, base + self.file_bytes) - position
                data = entries if size == len(entries) else entries[taken : taken + size]
                self._disk.pwrite(self._handle(path, create=True), data, position - base)
                self._dirty.add(path)
                position += size
                taken += size
        except OSError as error:
            raise storage_error(error, path, "writing queue entries") from error

    def fill_blank(self, topic: str, queue_id: int, offset: int) -> None:
        """Let a queue without files begin at ``offset``: the entries before it in that file are blank."""
        self.fill(topic, queue_id, offset * ENTRY_BYTES // self.file_bytes * self.file_bytes // ENTRY_BYTES, offset)

    def fill(self, topic: str, queue_id: int, start: int, end: int) -> None:
        """Write blank entries ``[start, end)``."""
        while start < end:
            count = min(end - start, _FILLED_AT_ONCE)
            self.write(topic, queue_id, start, FILLER * count)
            start += count

    def prepare(self, topic: str, queue_id: int, is_wanted: Callable[[], bool]) -> None:
        """Make the queue's first file if it has none; beside other calls.

        ``is_wanted``: whether the queue still exists, asked when nobody deletes files.
        """
        queue = f"{self.directory}/{topic}/{queue_id}"
        with self.making:
            if not is_wanted():
                return
            self._disk.make_directories(queue)
            path = self._path(topic, queue_id, 0)
            if self._disk.list(queue):
                return
            self._disk.close(self._make(path))
            self._new_names.update((queue, f"{self.directory}/{topic}", self.directory))

    def read(self, topic: str, queue_id: int, offset: int, count: int) -> bytes:
        """Entries from ``offset`` on, at most ``count``, of one file; fewer where it ends, none if it is missing."""
        position = offset * ENTRY_BYTES
        base = position - position % self.file_bytes
        size = min(count * ENTRY_BYTES, base + self.file_bytes - position)
        path = self._path(topic, queue_id, base)
        try:
            return self._disk.pread(self._handle(path), size, position - base)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise storage_error(error, path, "reading queue entries") from error

    def first(self, topic: str, queue_id: int) -> int | None:
        """The first offset that a file has room for; None without files."""
        bases = file_starts(self._disk.list(f"{self.directory}/{topic}/{queue_id}"))
        return bases[0] // ENTRY_BYTES if bases else None

    def absent(self, topic: str, queue_id: int, offset: int, count: int) -> list[AbsentEntries]:
        """What another thread should bring before :meth:`read`, which would wait for the disk."""
        found: list[AbsentEntries] = []
        position, end = offset * ENTRY_BYTES, (offset + count) * ENTRY_BYTES
        while position < end:
            base = position - position % self.file_bytes
            size = min(end, base + self.file_bytes) - position
            path = self._path(topic, queue_id, base)
            try:
                if not self._disk.is_cached(self._handle(path), size, position - base):
                    found.append(AbsentEntries(self._disk, path, position - base, position - base + size))
            except OSError:
                break  # the read will tell
            position += size
        return found

    def trim(self, queue: QueueName, offset: int) -> None:
        """Remove every entry from ``offset`` on."""
        position = offset * ENTRY_BYTES
        for base in queue.bases:
            path = self._path(queue.topic, queue.queue_id, base)
            if base > position or (base == position and base > queue.bases[0]):
                self._close(path)
                self._disk.unlink(path)
            elif position < base + self.file_bytes:
                handle = self._handle(path)
                self._disk.zero(handle, position - base, self.file_bytes)
                self._dirty.add(path)
        topic = f"{self.directory}/{queue.topic}"  # all names: a process that was killed may have made them
        self._new_names.update((f"{topic}/{queue.queue_id}", topic, self.directory))

    def remove(self, topic: str, queue_id: int | None = None) -> None:
        """Delete the files of a queue, or of all queues of a topic."""
        path = f"{self.directory}/{topic}" + ("" if queue_id is None else f"/{queue_id}")
        for name in [name for name in self._handles if name.startswith(path + "/")]:
            self._close(name)
        self._dirty = {name for name in self._dirty if not name.startswith(path + "/")}
        with self.making:  # a name that comes into a directory while that goes lets it stay
            self._new_names = {name for name in self._new_names if name != path and not name.startswith(path + "/")}
            self._disk.remove_tree(path)
            self._new_names.add(self.directory if queue_id is None else f"{self.directory}/{topic}")

    def remove_leading(self, topic: str, queue_id: int, offset: int) -> None:
        """Delete files that hold nothing from ``offset`` on, but never the last."""
        queue = f"{self.directory}/{topic}/{queue_id}"
        bases = file_starts(self._disk.list(queue))
        gone = [base for base in bases[:-1] if base + self.file_bytes <= offset * ENTRY_BYTES]
        for base in gone:
            path = self._path(topic, queue_id, base)
            self._close(path)
            self._dirty.discard(path)
            self._disk.unlink(path)
        if gone:
            self._new_names.add(queue)

    def take_dirty(self) -> tuple[set[str], set[str]]:
        """What :meth:`sync` must sync: files, and directories; they count as clean from now on."""
        with self.making:  # of a file that is there, and may have entries, the names are among them
            taken = self._dirty, self._new_names
            self._dirty, self._new_names = set(), set()
        return taken

    def sync(self, taken: tuple[set[str], set[str]]) -> None:
        """Sync what was taken; in any thread, beside writes. A file that is gone by now needs no sync."""
        files, directories = taken
        if len(files) > SYNC_ALL_FROM:
            self._disk.sync_all(self.directory)
            return
        for path in files:
            with contextlib.suppress(FileNotFoundError), opened(self._disk, path) as handle:
                self._disk.sync(handle)
        for path in sorted(directories, reverse=True):  # children before their parents
            with contextlib.suppress(FileNotFoundError):
                self._disk.sync_directory(path)

    def close(self) -> None:
        """Close all files; what was not synced stays so."""
        for handle in self._handles.values():
            self._disk.close(handle)
        self._handles.clear()

    def _path(self, topic: str, queue_id: int, base: int) -> str:
        return f"{self.directory}/{topic}/{queue_id}/{file_name(base)}"

    def _handle(self, path: str, *, create: bool = False) -> int:
        handle = self._handles.get(path)
        if handle is not None:
            self._handles.move_to_end(path)
            return handle
        with self.making:  # a file that is being made may be taken away again
            try:
                handle = self._disk.open(path)
            except FileNotFoundError:
                if not create:
                    raise
                handle = self._create(path)
        self._handles[path] = handle
        if len(self._handles) > self._handles_max:
            self._disk.close(self._handles.popitem(last=False)[1])
        return handle

    def _create(self, path: str) -> int:
        queue, _, name = path.rpartition("/")
        before = f"{queue}/{file_name(int(name) - self.file_bytes)}"  # a long queue's directory takes long to list
        if int(name) == 0 or (before not in self._handles and not self._disk.list(queue)):
            # It may be there, of a process that was killed before its name was synced.
            self._disk.make_directories(queue)
            self._new_names.update((queue.rpartition("/")[0], self.directory))
        handle = self._make(path)
        self._new_names.add(queue)
        return handle

    def _make(self, path: str) -> int:
        """A file of full length, open; none where that fails."""
        handle = self._disk.open(path, create=True)
        try:
            self._disk.truncate(handle, self.file_bytes)
        except OSError:
            self._disk.close(handle)
            self._disk.unlink(path)
            raise
        return handle

    def _close(self, path: str) -> None:
        handle = self._handles.pop(path, None)
        if handle is not None:
            self._disk.close(handle)
