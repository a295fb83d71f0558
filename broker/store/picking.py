"""Records of one queue that are chosen one by one, by their offsets: where they lie, and their bytes."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np

from penstock.formats.queue_entry import ENTRY, FILLER_SIZE
from penstock.formats.record.layout import FIXED_BYTES

from .absent import Absent, absent_parts
from .disk import Bytes, Disk
from .log.commit_log import CommitLog
from .queues.consume_queue import ConsumeQueues
from .queues.kernels import Ints, Longs, first_damaged
from .results import ReadResult, ReadStatus

log = logging.getLogger(__name__)

_WINDOW = 2048
"""Entries that are read at once."""


class Picked(NamedTuple):
    """Records that are there, by ascending offset: where in the log they begin, and their sizes."""

    offsets: Longs
    positions: Longs
    sizes: Ints

    def part(self, chosen: Longs) -> Picked:
        """Those at the places ``chosen``, which ascend."""
        return Picked(self.offsets[chosen], self.positions[chosen], self.sizes[chosen])


class Picker:
    """Finds them; for the owner thread."""

    def __init__(self, disk: Disk, log_: CommitLog, queues: ConsumeQueues) -> None:
        self._disk = disk
        self._log = log_
        self._queues = queues

    def locate(self, topic: str, queue_id: int, offsets: Longs, *, below: bool = False) -> Picked:
        """Those of ``offsets``, which ascend, whose entries point into the log; ``below`` a raised minimum too."""
        look = self._queues.look_below if below else self._queues.look
        slot, low, high = look(topic, queue_id)
        offsets = offsets[(offsets >= low) & (offsets < high)]
        positions, sizes = np.empty(len(offsets), np.int64), np.empty(len(offsets), np.int32)
        at = 0
        while at < len(offsets):
            first = int(offsets[at])
            last = int(offsets[np.searchsorted(offsets, first + _WINDOW) - 1])
            entries = self._queues.entries(slot, first, last - first + 1)
            table = entries.view(ENTRY)
            stop = int(np.searchsorted(offsets, first + len(table)))
            are_neighbours = offsets[stop - 1] - first == stop - 1 - at
            rows = table[: stop - at] if are_neighbours else table[offsets[at:stop] - first]
            positions[at:stop], sizes[at:stop] = rows["physical_offset"], rows["size"]
            at = stop
        is_there = (sizes >= FIXED_BYTES) & (sizes != FILLER_SIZE) & (positions >= self._log.min_offset)
        is_there &= positions + sizes <= self._log.end_offset
        return Picked(offsets[is_there], positions[is_there], sizes[is_there])

    def first_position(self, topic: str, queue_id: int, start: int, stop: int) -> int | None:
        """Where in the log the first record is whose offset is in ``[start, stop)``, or None: none is there."""
        while start < stop:
            found = self.locate(topic, queue_id, np.arange(start, min(start + _WINDOW, stop)))
            if len(found.positions):
                return int(found.positions[0])
            start += _WINDOW
        return None

    def tags_codes(self, topic: str, queue_id: int, start: int, stop: int) -> Longs:
        """What the entries ``[start, stop)``, which are there, hold as tags codes."""
        slot, _, _ = self._queues.look(topic, queue_id)
        parts = []
        while start < stop:
            table = self._queues.entries(slot, start, min(stop - start, _WINDOW)).view(ENTRY)
            parts.append(table["tags_code"].astype(np.int64))
            start += len(table)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def absent(self, picked: Picked) -> list[Absent]:
        """The records, for another thread to bring into memory."""
        return absent_parts(self._disk, self._log, picked.positions, picked.sizes)

    def sound(self, picked: Picked) -> Picked:
        """Without those that are gone, and those that are not what their entries say; these are told."""
        if len(picked.positions) and int(picked.positions.min()) < self._log.min_offset:  # the files went meanwhile
            picked = picked.part(np.flatnonzero(picked.positions >= self._log.min_offset))
        good = np.ones(len(picked.offsets), np.bool_)
        for file, part in self._log.by_file(picked.positions):
            positions, sizes = picked.positions[part] - file.base, picked.sizes[part]
            start, at = part.start, 0
            while at < len(positions):
                damaged = int(first_damaged(file.bytes, positions[at:], sizes[at:], file.base, False))
                if damaged < 0:
                    break
                at += damaged + 1
                good[start + at - 1] = False
                log.error(
                    "record damaged, passed over offset=%d position=%d file=%s",
                    *(picked.offsets[start + at - 1], picked.positions[start + at - 1], file.path),
                )
        return picked if good.all() else picked.part(np.flatnonzero(good))

    def join(self, picked: Picked) -> Bytes:
        """The bytes of sound records, end to end."""
        joined = np.empty(int(picked.sizes.sum()), np.uint8)
        self.read(picked).copy_to(joined.ctypes.data)
        return joined

    def in_place(self, picked: Picked) -> tuple[Bytes, Longs] | None:
        """The bytes of the one log file that has all these records, and where in it each begins; None without one."""
        if not len(picked.positions):
            return None
        file = self._log.file_of(int(picked.positions[0]))
        return (file.bytes, picked.positions - file.base) if picked.positions[-1] < file.end else None

    def read(self, picked: Picked) -> ReadResult:
        """Sound records as a read finds them, which stay in memory as long as it does."""
        parts = [
            (file.bytes, picked.positions[part] - file.base, picked.sizes[part])
            for file, part in self._log.by_file(picked.positions)
        ]
        size = int(picked.sizes.sum())
        return ReadResult(ReadStatus.FOUND, 0, 0, 0, count=len(picked.offsets), bytes=size, parts=parts)
