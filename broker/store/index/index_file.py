"""One index file (:mod:`penstock.formats.index.index_file`), growing or full.

Entries are only ever appended, so after a crash the slots are made from them again. Nothing is mapped: writing to a
mapped hole on a full disk kills the process.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from penstock.formats.index.index_file import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    IndexEntry,
    entry_at,
    file_bytes,
    slot_at,
)
from penstock.proto.errors import Corrupt, WrongStore

from ..disk import Bytes, Disk, named_errors, storage_error
from ..queues.kernels import Ints, Longs
from .index_kernels import BEGIN_MS, BEGIN_OFFSET, COUNT, END_MS, PAGE_SLOTS, USED_SLOTS, rebuild_slots

_BUFFERED = 1 << 14
_READ_ENTRIES = 1 << 18


class IndexFile:
    """A file whose newest entries and slots are in memory while it grows; a full one is only read."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int, header: Longs) -> None:
        self.path = path
        self.header = header  # see the places in index_kernels
        self.entries_max = entries
        self.slots: Ints | None = None
        self.dirty: Bytes = np.zeros(-(-slots // PAGE_SLOTS), np.uint8)
        self.buffer: Bytes = np.zeros(0, np.uint8)
        self.buffered_first = int(header[COUNT])
        self._written = header.copy()  # the header in the file, which others read while it grows
        self._disk = disk
        self._slot_count = slots
        self._descriptor = -1

    @classmethod
    def open(cls, disk: Disk, path: str, slots: int, entries: int) -> IndexFile:
        """A file that is there. Raises WrongStore: it is of another size than configured."""
        size, found = file_bytes(slots, entries), disk.size(path)
        if found not in (0, size):
            raise WrongStore(
                f"{path}: has {found} bytes, index files of this store have {size}: maxHashSlotNum or maxIndexNum is "
                "not what it was; set them back, or delete the folder to build the index anew",
                path=path,
                size=found,
                configured=size,
            )
        file = cls(disk, path, slots, entries, np.zeros(6, np.int64))
        if found == 0:  # a crash between making it and giving it its size
            disk.truncate(file.descriptor, size)
        data = disk.pread(file.descriptor, HEADER_BYTES, 0)
        if len(data) == HEADER_BYTES:
            file.header[:] = HEADER.unpack(data)
        file.header[COUNT] = file.buffered_first = max(1, min(int(file.header[COUNT]), entries))
        file._written[:] = file.header
        return file

    @classmethod
    def create(cls, disk: Disk, path: str, slots: int, entries: int, before: Longs | None) -> IndexFile:
        """A new file, which begins with the end of the one before it. Raises DiskFull, StorageError: none is left."""
        header = np.zeros(6, np.int64)
        if before is not None:
            header[0] = header[1] = before[1]
            header[2] = header[3] = before[3]
        header[COUNT] = 1
        file = cls(disk, path, slots, entries, header)
        try:
            file._descriptor = disk.open(path, create=True)
            disk.truncate(file._descriptor, file_bytes(slots, entries))
            disk.pwrite(file._descriptor, HEADER.pack(*header), 0)
        except OSError as error:
            file.close()
            with contextlib.suppress(OSError):  # or the next start would find it, not full, before others
                disk.unlink(path)
            raise storage_error(error, path, "making the index file") from error
        file.slots = np.zeros(slots, np.int32)
        file.buffer = np.zeros(_BUFFERED * INDEX_ENTRY_BYTES, np.uint8)
        return file

    @property
    def descriptor(self) -> int:
        """Opened when it is first needed."""
        if self._descriptor < 0:
            self._descriptor = self._disk.open(self.path)
        return self._descriptor

    @property
    def number(self) -> int:
        """The file's name, which is a number."""
        return int(self.path.rpartition("/")[2])

    @property
    def is_full(self) -> bool:
        return bool(self.header[COUNT] >= self.entries_max)

    def begin_writing(self) -> None:
        """Have the slots in memory, as a file that grows must."""
        if self.slots is None:
            data = self._disk.pread(self.descriptor, SLOT_BYTES * self._slot_count, HEADER_BYTES)
            self.slots = np.zeros(self._slot_count, np.int32)
            self.slots[: len(data) // 4] = np.frombuffer(data, ">i4", len(data) // 4)
            self.buffer = np.zeros(_BUFFERED * INDEX_ENTRY_BYTES, np.uint8)

    def restore(self, count: int) -> None:
        """Let the file have the entries below number ``count``, which are on the disk, and nothing else."""
        self.slots = np.zeros(self._slot_count, np.int32)
        self.buffer = np.zeros(_BUFFERED * INDEX_ENTRY_BYTES, np.uint8)
        self.buffered_first = count  # the header in the file may have counted fewer
        self.header[USED_SLOTS] = 0
        number = 1
        while number < count:
            data = np.frombuffer(self._read(number, min(_READ_ENTRIES, count - number)), np.uint8)
            entries = len(data) // INDEX_ENTRY_BYTES
            if entries == 0:
                raise Corrupt(f"{self.path}: ends before entry {number}: delete the index folder", path=self.path)
            used = rebuild_slots(data, number, entries, self.slots)
            if used < 0:
                raise Corrupt(f"{self.path}: an entry from {number} on is damaged", path=self.path)
            self.header[USED_SLOTS] += used
            number += entries
        first = IndexEntry.decode(self._read(1, 1)) if count > 1 else None
        last = IndexEntry.decode(self._read(count - 1, 1)) if count > 1 else None
        if first is not None and last is not None:
            self.header[2], self.header[3] = first.physical_offset, last.physical_offset
            self.header[1] = self.header[0] + 1000 * last.seconds
        self.header[COUNT] = count
        announced_ms = int(self._written[END_MS])
        self._written[:] = self.header
        self._written[END_MS] = announced_ms
        self._disk.pwrite(self.descriptor, HEADER.pack(*self._written), 0)
        self._disk.zero(self.descriptor, self._entry_at(count), self._entry_at(self.entries_max))
        self.dirty[:] = 1

    def count_below(self, physical_offset: int) -> int:
        """The number of the first entry of a record at or behind ``physical_offset``; of the next one without any."""

        def physical_of(number: int) -> int:
            return IndexEntry.decode(self._read(number, 1)).physical_offset

        return 1 + bisect_left(range(1, int(self.header[COUNT])), physical_offset, key=physical_of)

    def write_entries(self) -> None:
        """Write out the entries that wait in memory. Raises DiskFull, StorageError: they still wait."""
        count = int(self.header[COUNT]) - self.buffered_first
        if count:
            self._write(self.buffer[: count * INDEX_ENTRY_BYTES], self._entry_at(self.buffered_first))
            self.buffered_first += count

    def write_slots(self) -> Iterator[tuple[bytes, int]]:
        """What of the slots must be written: bytes and where, a page at each step.

        Between two steps the file may get full: then everything has been written, and this ends.
        """
        for page in np.flatnonzero(self.dirty).tolist():
            if self.slots is None:
                return
            self.dirty[page] = 0
            first = page * PAGE_SLOTS
            yield self.slots[first : first + PAGE_SLOTS].astype(">i4").tobytes(), slot_at(first)

    def write_header(self) -> None:
        """Write the header, behind all that it counts. Raises DiskFull, StorageError: the file has its old one."""
        self._write(HEADER.pack(*self.header), 0)
        self._written[:] = self.header

    def announce(self, settled_ms: int) -> None:
        """Say that the slots are about to be written: an end behind every time that a checkpoint names.

        RocketMQ deletes such a file after a crash, and it must: the slots may be newer than the header, which still
        counts what it counted. Where the file begins is said too: after a crash its times are counted from there.

        Raises DiskFull, StorageError: nothing was said.
        """
        self._written[[BEGIN_MS, BEGIN_OFFSET]] = self.header[[BEGIN_MS, BEGIN_OFFSET]]
        self._written[END_MS] = max(int(self.header[END_MS]), settled_ms) + 1
        self._write(HEADER.pack(*self._written), 0)

    def write(self, data: bytes, position: int) -> None:
        """Write what :meth:`write_slots` gave, behind the entries that it leads to."""
        self.write_entries()
        self._write(data, position)

    def sync(self) -> None:
        self._disk.sync(self.descriptor)

    def find(self, key_hash: int, begin_ms: int, end_ms: int) -> Iterator[int]:
        """Physical offsets of that hash in the time range, newest first; times are as near as a second."""
        header = self.header
        count, base_ms = int(header[COUNT]), int(header[0])
        if count <= 1 or base_ms > end_ms or int(header[1]) < begin_ms - 1000:
            return
        slot = key_hash % self._slot_count
        if self.slots is not None:
            number = int(self.slots[slot])
        else:
            number = int.from_bytes(self._disk.pread(self.descriptor, SLOT_BYTES, slot_at(slot)), "big", signed=True)
        while 0 < number < count:
            found_hash, physical, seconds, previous = IndexEntry.decode(self._read(number, 1))
            stored_ms = base_ms + 1000 * seconds
            if seconds < 0 or stored_ms < begin_ms - 1000:
                return
            if found_hash == key_hash and stored_ms <= end_ms:
                yield physical
            if previous >= number:
                return
            number = previous

    def close(self) -> None:
        if self._descriptor >= 0:
            self._disk.close(self._descriptor)
            self._descriptor = -1

    def _entry_at(self, number: int) -> int:
        return entry_at(self._slot_count, number)

    def _read(self, number: int, entries: int) -> bytes:
        if number >= self.buffered_first:
            at = (number - self.buffered_first) * INDEX_ENTRY_BYTES
            return self.buffer[at : at + entries * INDEX_ENTRY_BYTES].tobytes()
        return self._disk.pread(self.descriptor, entries * INDEX_ENTRY_BYTES, self._entry_at(number))

    def _write(self, data: bytes | Bytes, position: int) -> None:
        with named_errors(self.path, "writing the index"):
            self._disk.pwrite(self.descriptor, data, position)
