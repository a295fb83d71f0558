"""Old records and entries, which another thread brings into memory so that the owner of the log waits for no disk.

A page of a mapped log file that the system has dropped is read from the disk when it is touched, 0.1 to 10 ms each time
in which the toucher does nothing else. So another thread has the bytes brought first (:meth:`Disk.bring`), and touches
them when they are there. Whether a page of the log is there is not asked: to ask (``mincore``) takes longer than to
touch. A new system tells of a whole stretch whether it is there: then nobody need bring it. Of queue files, which are
read by calls anyway, the same call can be asked not to wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from .disk import Bytes, Disk
from .log.commit_log import CommitLog
from .queues.kernels import Ints, Longs, touch_records

_GAP_BYTES = 64 << 10
"""What lies between two records and is shorter is read with them, as the system would."""
_ASKED_BYTES: Final = 64 << 20
"""A longer stretch of the log is not asked about: the answer takes half a millisecond."""
_ASKED_BYTES_LEAST: Final = 1 << 20
"""A shorter one always is: the answer takes 20 microseconds at most."""
_ASKED_TIMES: Final = 16
"""Between the two, one is not asked about if it is so many times as long as its records: to bring these costs less."""


class Absent(NamedTuple):
    """Records of one log file that may not be in memory; the mapping stays while this is there."""

    disk: Disk
    path: str
    data: Bytes
    positions: Longs  # in the file
    sizes: Ints
    descriptor: int = -1  # of the file, while the log has it

    @property
    def is_cached(self) -> bool:
        """True if everything between the first and the last is in memory; for the log's owner."""
        start, end = int(self.positions[0]), min(int(self.positions[-1] + self.sizes[-1]), len(self.data))
        most = min(max(_ASKED_TIMES * int(self.sizes.sum()), _ASKED_BYTES_LEAST), _ASKED_BYTES)
        return start < end <= start + most and self.disk.all_cached(self.descriptor, end - start, start)

    def touch(self) -> None:
        """Have the pages mapped; releases the interpreter lock."""
        touch_records(self.data, self.positions, self.sizes)


def uncached(parts: Iterable[Absent]) -> list[Absent]:
    """Those of which something is not in memory, or nobody can tell; for the log's owner."""
    return [part for part in parts if not part.is_cached]


def absent_parts(disk: Disk, log: CommitLog, positions: Longs, sizes: Ints) -> list[Absent]:
    """The records at these positions of the log, which ascend; by file."""
    return [
        Absent(disk, file.path, file.bytes, positions[part] - file.base, sizes[part].copy(), file.descriptor)
        for file, part in log.by_file(positions)
    ]


class AbsentEntries(NamedTuple):
    """Entries of a queue file that are not in memory; the file may go meanwhile."""

    disk: Disk
    path: str
    start: int  # in the file
    end: int

    def bring(self) -> None:
        """Bring them into memory; best effort, for any thread."""
        with contextlib.suppress(OSError):  # gone, or the read behind this one says what is wrong
            self.disk.bring(self.path, self.start, self.end)


def bring(parts: Iterable[Absent | AbsentEntries]) -> None:
    """Bring records and entries into memory; best effort, for any thread.

    Neighbours are read together, also where they are of several parts: queues lie interleaved in a log.
    """
    files: dict[str, list[Absent]] = {}
    for part in parts:
        if isinstance(part, Absent):
            files.setdefault(part.path, []).append(part)
        else:
            part.bring()
    for path, found in files.items():
        with contextlib.suppress(OSError):  # the file has gone; its mapping has not
            for start, end in _spans(found):
                found[0].disk.bring(path, start, end)
        for part in found:
            part.touch()


def _spans(parts: list[Absent]) -> list[tuple[int, int]]:
    """Where the records of parts of one file lie, those together that are near to each other."""
    starts = np.concatenate([part.positions for part in parts])
    ends = starts + np.concatenate([part.sizes for part in parts])
    order = np.argsort(starts, kind="stable")
    starts, ends = np.clip(starts[order], 0, len(parts[0].data)), np.clip(ends[order], 0, len(parts[0].data))
    if not len(starts):
        return []
    reached = np.maximum.accumulate(ends)
    first = np.flatnonzero(starts[1:] - reached[:-1] > _GAP_BYTES) + 1
    begins = [int(starts[0]), *starts[first].tolist()]
    stops = [*reached[first - 1].tolist(), int(reached[-1])]
    return list(zip(begins, stops, strict=True))
