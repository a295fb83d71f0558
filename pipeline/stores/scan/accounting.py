"""Which log files the consume queues account for: byte by byte, they name every record of such a file.

A query for a few topics may read by queue entries only if no record is missing from them, and nothing in a queue says
that its end is missing: one whose last entries were lost looks like one that is shorter, while the others reach the
end of the log. Nor do other files tell. A closed store may have been copied or repaired; a checkpoint says up to where
queues were synced, not what became of them since; records of a quiet topic lie far from the log's tail, so reading
that proves nothing about it.

The sizes do. Records fill a log file without a hole, so the entries of *all* queues that name records of the file must
fill it too, from its first byte to the blank record at its end (or to the end of the log). If an entry, a queue file, a
queue's directory or a topic is missing, or never came to be, as for half messages and deleted topics, bytes are left
over; that file is scanned, and the others need not be. Compared per file are the sum of the sizes and the sum of
``size * (2 * position + size)``, which is the square of the end where the stretches fill everything once. The second
sum is there so that an entry that occurs twice does not stand for a missing one of the same size.

Nor may a directory hold the entries of another queue, as after a copy under a wrong name: some records that entries of
each queue file name are looked at, and must be of that topic and queue. Where one is not, the queue counts for nothing.

This reads 20 bytes per record of any topic, where a scan reads all of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
from pyarrow import fs

from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES, are_messages
from penstock.formats.record.layout import HEAD, IPV6_EXTRA_BYTES, MAGIC_BLANK, MAGIC_V1, TAIL, SysFlag
from penstock.proto.names import LIGHT_PREFIX

from ..derived import Longs, QueueFile, list_queue_files
from ..files import FileReader, open_file_system
from ..model import LogFile, Store

log = logging.getLogger(__name__)

ENTRY_BYTES_MIN = 16 << 20
ENTRY_SHARE_MAX = 0.1
"""Entries are read by the planner, which is one process: so many bytes, or so large a part of the log's, are little."""
REMOTE_FILES_MAX = 1000
"""Queue files of a store that is not on a local file system: each takes some round trips."""
FIRST_READ, LAST_READ = 250 * ENTRY_BYTES, 250_000 * ENTRY_BYTES
"""Bytes of a queue file that are read at once: most of many queues' files was never written."""
_TAIL_AT = HEAD.size + 8 + 8 + 8


class Account:
    """Sums up, per log file, the records that queue entries name."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self.files = files
        self.starts = np.array([file.start for file in files], np.int64)
        self.ends = self.starts + np.array([file.end for file in files], np.int64)
        self._bytes, self._squares, self._reached = ([0] * len(files) for _ in range(3))

    def add(self, positions: Longs, sizes: Longs) -> bool:
        """Count entries of one queue, in its order; false, and none is counted, if they do not grow along the log."""
        if (positions[1:] <= positions[:-1]).any():
            return False
        firsts, lasts = np.searchsorted(positions, self.starts), np.searchsorted(positions, self.ends)
        for number in np.flatnonzero(lasts > firsts).tolist():
            first, last = firsts[number], lasts[number]
            within, lengths = positions[first:last] - self.starts[number], sizes[first:last]
            self._bytes[number] += int(lengths.sum())
            self._squares[number] += int((lengths * (2 * within + lengths)).sum())
            self._reached[number] = max(self._reached[number], int(within[-1] + lengths[-1]))
        return True

    def covered(self, file_system: fs.FileSystem) -> list[LogFile]:
        """The files of which the counted entries name all records. Raises StorageError: a file cannot be read."""
        sums = zip(self.files, self._bytes, self._squares, self._reached, strict=True)
        return [
            file
            for file, size, square, reached in sums
            if size == reached and square == reached**2 and _ends_at(file_system, file, reached)
        ]


def _ends_at(file_system: fs.FileSystem, file: LogFile, position: int) -> bool:
    """True if the file's last record, or, of what is read of it, ends there."""
    if position == file.end and not file.is_sealed:
        return True
    with FileReader(file_system, file.path) as reader:
        blank = reader.read(position, 8).tobytes()
    return blank == (file.size - position).to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")


def account_for(
    store: Store, files: Sequence[LogFile], is_wanted: Callable[[QueueFile], bool]
) -> tuple[Account, Longs, Longs] | None:
    """Count what all queues name of ``files``; also positions and sizes of what the wanted queues name there.

    None where a scan is about as quick.
    Raises StorageError: a queue file cannot be read.
    """
    account = Account(files)
    file_system, _ = open_file_system(store.root)
    # Light queues name records of other queues once more.
    queue_files = [file for file in list_queue_files(store.root) if not file.topic.startswith(LIGHT_PREFIX)]
    if not isinstance(file_system, fs.LocalFileSystem) and len(queue_files) > REMOTE_FILES_MAX:
        return None
    left = max(ENTRY_BYTES_MIN, ENTRY_SHARE_MAX * int((account.ends - account.starts).sum()))
    parts: list[tuple[Longs, Longs]] = []
    for _, of_queue in groupby(queue_files, lambda file: (file.topic, file.queue_id)):
        queue = list(of_queue)
        for positions, sizes in _entries(file_system, queue, int(account.starts[0]), int(account.ends[-1])):
            left -= len(positions) * ENTRY_BYTES
            if left < 0:
                return None
            if not _names_own(file_system, files, queue[0], positions, sizes):
                log.warning("entries of another queue found directory=%s", queue[0].path.rpartition("/")[0])
            elif account.add(positions, sizes) and is_wanted(queue[0]):
                parts.append((positions, sizes))
    none = np.empty(0, np.int64)
    found, lengths = (np.concatenate([none, *(part[column] for part in parts)]) for column in (0, 1))
    return account, found, lengths


def _names_own(
    file_system: fs.FileSystem, files: Sequence[LogFile], queue: QueueFile, positions: Longs, sizes: Longs
) -> bool:
    """True if the first and the last record in ``files`` that these entries of a queue name are of this queue."""
    within: Longs = np.flatnonzero((positions >= files[0].start) & (positions < files[-1].start + files[-1].end))
    for number in {int(within[0]), int(within[-1])} if len(within) else ():
        position, size = int(positions[number]), int(sizes[number])
        file = next(
            (file for file in files if file.start <= position and position + size <= file.start + file.end), None
        )
        if file is not None and not _is_of(file_system, file, position, queue):
            return False
    return True


def _is_of(file_system: fs.FileSystem, file: LogFile, position: int, queue: QueueFile) -> bool:
    """True if the record at this position of the log says that it is of the queue."""
    at = position - file.start
    with FileReader(file_system, file.path) as reader:
        head = reader.read(at, _TAIL_AT + 2 * IPV6_EXTRA_BYTES + TAIL.size).tobytes()
        if len(head) < _TAIL_AT + TAIL.size:
            return False
        _, magic, _, queue_id, _, _, physical, sys_flag, _ = HEAD.unpack_from(head)
        tail_at = _TAIL_AT + IPV6_EXTRA_BYTES * (
            (sys_flag & SysFlag.BORN_HOST_V6 != 0) + (sys_flag & SysFlag.STORE_HOST_V6 != 0)
        )
        body_size = TAIL.unpack_from(head.ljust(tail_at + TAIL.size, b"\0"), tail_at)[2]
        if physical != position or body_size < 0:
            return False
        name = queue.topic.encode()
        length = len(name).to_bytes(1 if magic == MAGIC_V1 else 2, "big")
        told = reader.read(at + tail_at + TAIL.size + body_size, len(length) + len(name)).tobytes()
    return queue_id == queue.queue_id and told == length + name


def _entries(
    file_system: fs.FileSystem, files: Sequence[QueueFile], start: int, end: int
) -> Iterator[tuple[Longs, Longs]]:
    """Positions and sizes of a queue's entries, at least those in ``[start, end)`` if the queue is sound."""
    for file in files[_first_file(file_system, files, start) :]:
        at, wanted = 0, FIRST_READ
        with FileReader(file_system, file.path) as reader:
            while at < file.size:
                data = reader.read(at, wanted)
                entries = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(ENTRY)
                used = entries[are_messages(entries)]
                positions, sizes = (used[name].astype(np.int64) for name in ("physical_offset", "size"))
                if len(used):
                    yield positions, sizes
                    if positions[-1] >= end:
                        return
                if not len(entries) or not entries["size"][-1]:
                    break  # nothing was written behind it
                at, wanted = at + wanted, min(8 * wanted, LAST_READ)


def _first_file(file_system: fs.FileSystem, files: Sequence[QueueFile], start: int) -> int:
    """The number of the last file that begins with an entry of a record below ``start``, else of the first one."""
    for number in range(len(files) - 1, 0, -1):
        with FileReader(file_system, files[number].path) as reader:
            data = reader.read(0, ENTRY_BYTES)
        entry = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(ENTRY)
        if are_messages(entry).any() and entry["physical_offset"][0] <= start:
            return number
    return 0
