"""The index: from a message's key to its place in the log, over all index files."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from penstock.formats.checkpoint import Positions
from penstock.formats.directory import INDEX, index_file_name, is_index_file_name
from penstock.formats.hashing import index_key_hash
from penstock.proto.errors import Corrupt, StorageError
from penstock.runtime.clock import Clock

from ..config import StoreConfig
from ..disk import Bytes, Disk, make_directories_durably
from ..queues.kernels import Ints, Rows
from .index_file import IndexFile
from .index_kernels import COUNT, END_MS, put_keys

log = logging.getLogger(__name__)

_NO_SLOTS: Ints = np.zeros(1, np.int32)
_NO_BYTES: Bytes = np.zeros(1, np.uint8)
_ROUNDS_MAX = 4
_PAGES_AT_ONCE = 64
"""So many pages of slots are written while dispatch waits, which is about half a millisecond."""


class IndexEnd(NamedTuple):
    """Where the index ends: in the file of that name, in front of the entry of that number; zeros without a file."""

    file: int = 0
    count: int = 0  # type: ignore[assignment]  # hides tuple.count, which nobody needs here


class Index:
    """All index files; the owner thread puts and queries, the checkpoint thread writes out.

    Records below ``end`` are indexed already. ``settled_ms`` is the checkpoint's ``indexMsgTimestamp``: files that end
    at or before it are complete on the disk, slots and all, so that RocketMQ too may go on with them after a crash.
    """

    def __init__(self, config: StoreConfig, disk: Disk, clock: Clock) -> None:
        self.enabled = config.index_enable
        self.end = 0
        self.lock = threading.Lock()
        self.settled_ms = 0
        self._config = config
        self._disk = disk
        self._clock = clock
        self._directory = str(config.root / INDEX)
        self._files: list[IndexFile] = []
        self._unsynced: set[str] = set()  # files that are new, or were full, since the last flush
        self._syncing: set[str] = set()  # those that the checkpoint thread is at
        # A file is full. RocketMQ has no use for it after a crash until a checkpoint names its end.
        self.on_full: Callable[[], None] = lambda: None

    def load(self, positions: Positions | None, *, clean: bool) -> bool:
        """Open the files; false when they cannot be relied on: they are gone then, and ``end`` is 0.

        Without positions of ours the files are another program's, and good only after its clean exit.
        """
        if not self.enabled:
            return True
        names = [name for name in self._disk.list(self._directory) if is_index_file_name(name)]
        expected = f"{positions.index_file:017d}" if positions and positions.index_file else ""
        if (positions is None and not clean) or (expected and expected not in names):
            return self._start_anew(names)
        if positions is not None:
            for name in [name for name in names if name > expected]:
                self._disk.unlink(f"{self._directory}/{name}")
                names.remove(name)
        for name in names:
            path = f"{self._directory}/{name}"
            self._files.append(IndexFile.open(self._disk, path, self._config.index_slots, self._config.index_entries))
        lacking = [file.path for file in self._files[:-1] if not file.is_full]
        if lacking:  # none is left before it is full
            log.warning("index damaged, a file before the last is not full path=%s", lacking[0])
            self.close()
            return self._start_anew(names)
        if clean and self._files and not self._files[-1].is_full:
            try:  # 20 MB: not beside the first sends, whose disk others may keep busy
                self._files[-1].begin_writing()
            except OSError as error:
                log.warning("index slots not read, the first key tries again error=%s", error)
        if positions is None:
            self.end = int(self._files[-1].header[3]) + 1 if self._files else 0
            return bool(self._files)
        if not clean and self._files and positions.index_count:
            try:
                self._files[-1].announce(self.settled_ms)
                self._files[-1].restore(positions.index_count)
            except Corrupt as error:
                log.warning("index damaged error=%s", error)
                self.close()
                return self._start_anew(names)
        self.end = positions.derived
        return True

    def put(self, buffer: Bytes, rows: Rows, count: int, end: int) -> None:
        """Index the keys of ``rows[:count]``, which end at ``end``. Raises DiskFull, StorageError: may be repeated."""
        if not self.enabled or end <= self.end:
            return
        with self.lock:
            row, key = 0, 0
            while True:
                file = self._files[-1] if self._files else None
                if file is not None and file.slots is not None:
                    slots, dirty, entries = file.slots, file.dirty, file.buffer
                    first, header, entries_max = file.buffered_first, file.header, file.entries_max
                else:
                    slots, dirty, entries = _NO_SLOTS, _NO_BYTES, _NO_BYTES
                    first, header, entries_max = 0, np.zeros(6, np.int64), 0
                row, key = put_keys(
                    buffer, rows, row, key, count, self.end, slots, dirty, entries, first, header, entries_max
                )
                if row == count:
                    break
                self.end = int(rows["physical_offset"][row]) if key == 0 else self.end
                self._make_room(file)
        self.end = end

    def query(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets that may hold that key, newest first; times as near as a second."""
        if not self.enabled:
            return
        key_hash = index_key_hash(topic, key)
        for file in reversed(self._files):
            with self.lock:
                found = list(file.find(key_hash, begin_ms, end_ms))
            yield from found

    def position(self) -> IndexEnd:
        """Where the index ends."""
        with self.lock:
            return IndexEnd(self._files[-1].number, int(self._files[-1].header[COUNT])) if self._files else IndexEnd()

    def end_below(self, physical_offset: int) -> IndexEnd:
        """Where the index would end if it had the records below ``physical_offset`` only."""
        with self.lock:
            for file in reversed(self._files):
                count = file.count_below(physical_offset)
                if count > 1:
                    return IndexEnd(file.number, count)
        return IndexEnd()

    def cut(self, end: IndexEnd, physical_offset: int) -> None:
        """Let the index end at ``end``, which is that of ``physical_offset``. All of it has been written out.

        Raises:
            Corrupt: an entry is damaged.
            OSError: the disk did not do it.
        """
        if not self.enabled:
            return
        with self.lock:
            removed = False
            while self._files and self._files[-1].number > end.file:
                last = self._files.pop()
                last.close()
                self._unsynced.discard(last.path)
                self._disk.unlink(last.path)
                removed = True
            if removed:
                self._disk.sync_directory(self._directory)
            if self._files and int(self._files[-1].header[COUNT]) > end.count:
                self._files[-1].announce(self.settled_ms)
                self._files[-1].restore(end.count)
            self.end = min(self.end, physical_offset)

    def flush(self) -> None:
        """Write and sync everything that is new; for the checkpoint thread.

        In steps, so that dispatch gets the lock in between. ``settled_ms`` moves on unless keys come too fast.

        Raises:
            OSError: a sync failed.
            DiskFull, StorageError: may be tried again.
        """
        with self.lock:
            if not self._files:
                return
            last = self._files[-1]
            last.write_entries()
            self._syncing, self._unsynced = self._unsynced, set()  # what gets full or begins meanwhile is for the next
            files = [file for file in self._files if file.path in self._syncing or file is last]
        settled_ms = self.settled_ms
        try:
            for file in files:
                settled_ms = max(settled_ms, self._write_out(file))
                file.sync()
            if self._syncing:
                self._disk.sync_directory(self._directory)
        except BaseException:
            with self.lock:
                self._unsynced |= self._syncing
            raise
        finally:
            with self.lock:
                self._syncing = set()
        self.settled_ms = settled_ms

    def remove_before(self, physical_offset: int) -> None:
        """Delete files of which every record lies below ``physical_offset``, but never the last."""
        gone = []
        with self.lock:
            while len(self._files) > 1:
                first = self._files[0]
                if first.path in self._unsynced | self._syncing or int(first.header[3]) >= physical_offset:
                    break  # the checkpoint thread may be at it
                first.close()
                self._disk.unlink(first.path)
                gone.append(self._files.pop(0))
                log.info("index file deleted path=%s", first.path)
        if gone:
            self._disk.sync_directory(self._directory)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    def _write_out(self, file: IndexFile) -> int:
        """Write slots and header; the end time of a file that is whole on the disk now, 0 while keys come too fast."""
        with self.lock:
            if file.slots is not None and not file.dirty.any():
                return int(file.header[END_MS])
            if file.slots is not None:
                file.announce(self.settled_ms)
        for _ in range(_ROUNDS_MAX):
            self._write_slots(file)
            with self.lock:
                if np.count_nonzero(file.dirty) <= _PAGES_AT_ONCE:
                    file.write_entries()
                    self._write_rest(file)
                    return int(file.header[END_MS])
        return 0

    def _write_slots(self, file: IndexFile) -> None:
        """What is dirty, one step at a time; not the header."""
        pages = file.write_slots()
        while True:
            with self.lock:
                page = next(pages, None)
                if page is None:
                    return
                try:
                    file.write(*page)
                except StorageError:
                    file.dirty[:] = 1
                    raise

    def _write_rest(self, file: IndexFile) -> None:
        """What is dirty, and the header, at once."""
        try:
            for page in file.write_slots():
                file.write(*page)
            file.write_header()
        except StorageError:
            file.dirty[:] = 1
            raise

    def _make_room(self, file: IndexFile | None) -> None:
        """For the next key: write out what waits, or begin the next file."""
        if file is not None and not file.is_full:
            file.begin_writing()
            file.write_entries()
            return
        if file is not None:
            file.write_entries()
            file.announce(self.settled_ms)
            self._write_rest(file)
            file.slots = None
            file.buffer = _NO_BYTES
            self.on_full()
        make_directories_durably(self._disk, self._directory)
        path = f"{self._directory}/{self._next_name()}"
        before = None if file is None else file.header
        self._files.append(
            IndexFile.create(self._disk, path, self._config.index_slots, self._config.index_entries, before)
        )
        self._unsynced.update((path,) if file is None else (path, file.path))
        self._files[-1].announce(self.settled_ms)
        log.info("index file made path=%s", path)

    def _next_name(self) -> str:
        name = index_file_name(self._clock.wall_ms())
        last = self._files[-1].number if self._files else 0
        return name if int(name) > last else f"{last + 1:017d}"

    def _start_anew(self, names: list[str]) -> bool:
        for name in names:
            self._disk.unlink(f"{self._directory}/{name}")
        if names:
            log.warning("index dropped, to be built anew path=%s files=%d", self._directory, len(names))
        self.end = 0
        return False
