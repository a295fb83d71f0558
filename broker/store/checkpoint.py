"""Two small files that say how far the derived files are, and the marker of a running store.

``checkpoint`` is RocketMQ's, 4096 bytes, big-endian, the rest zero:

| Offset | Type | Field |
|---|---|---|
| 0 | i64 | physicMsgTimestamp: store time of the last synced record |
| 8 | i64 | logicsMsgTimestamp: the same for the consume queues |
| 16 | i64 | indexMsgTimestamp: the same for full index files |
| 24 | i64 | masterFlushedOffset |
| 32 | i64 | confirmPhyOffset |

Times are too coarse to start from, so ``penstockCheckpoint`` holds offsets (:class:`Positions`): two copies of 512
bytes, written in turn, each with a sequence number and a checksum. Both hold the five numbers of the
``checkpoint`` that belongs to them: if RocketMQ has worked on the directory since, they differ, and nothing in here
is believed. Two more fields behind them, not synced, follow the flushed and the confirm offset after every sync of
the log, so that they are exact after a crash of the process, and only behind after a power cut.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

from penstock.proto.errors import WrongStore

from .disk import Disk

CHECKPOINT_BYTES = 4096
_STANDARD = struct.Struct(">5q")
_MAGIC = b"PENSTOCK"
_FAMILY = b"PENST"  # a later version changes the three bytes behind it
_POSITIONS = struct.Struct(">8sq?10q5q")
_SLOT = 512
_HINT = struct.Struct(">qIqI")
_HINT_AT = 2 * _SLOT
_OWN_BYTES = 3 * _SLOT


class Standard(NamedTuple):
    """The fields of RocketMQ's checkpoint."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm: int = 0


class Positions(NamedTuple):
    """How far everything was, all of it synced.

    Every queue entry of a record below ``derived`` is in the files, and ``queues`` and ``entries`` are the number of
    queues and the sum of their maxima there. The same for the index with ``index_derived``: its last file is
    ``index_file`` (0: none), of which the first ``index_count`` entries count.
    """

    clean: bool = False
    min_offset: int = 0
    end: int = 0
    flushed: int = 0
    derived: int = 0
    queues: int = 0
    entries: int = 0
    last_store_timestamp_ms: int = 0
    index_derived: int = 0
    index_file: int = 0
    index_count: int = 0


class Checkpoint:
    """Reads and writes both files; writing is for one thread at a time, the hint for another."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.is_known = False  # whether positions of ours were found
        self.confirmed = 0  # what lies below was confirmed, as far as :meth:`read` can tell
        self._disk = disk
        self._root = root
        self._paths = (f"{root}/penstockCheckpoint", f"{root}/checkpoint")
        self._sequence = 0
        self._own = self._standard = -1
        self.standard = Standard(*_STANDARD.unpack(self._content(1)[: _STANDARD.size].ljust(40, b"\0")))

    def read(self) -> Positions | None:
        """The newest positions that belong to the ``checkpoint`` beside them, None without any.

        Raises:
            WrongStore: a later version wrote them.
        """
        content = self._content(0).ljust(_OWN_BYTES, b"\0")
        found: tuple[int, Positions] | None = None
        for slot in (0, 1):
            data = content[slot * _SLOT : slot * _SLOT + _POSITIONS.size + 4]
            body, crc = data[: _POSITIONS.size], data[_POSITIONS.size :]
            magic, sequence, *fields = _POSITIONS.unpack(body)
            if magic != _MAGIC and magic.startswith(_FAMILY):
                raise WrongStore(
                    f"{self._paths[0]}: written by a later version of Penstock ({magic!r}), which must open the store",
                    path=self._paths[0],
                    offset=slot * _SLOT,
                )
            if magic != _MAGIC or zlib.crc32(body) != int.from_bytes(crc, "big"):
                continue
            self._sequence = max(self._sequence, sequence)
            if Standard(*fields[11:]) == self.standard and (found is None or sequence > found[0]):
                found = sequence, Positions(*fields[:11])
        self.is_known = found is not None
        if found is None:
            return None
        flushed, crc_of_hint, confirmed, crc_of_confirmed = _HINT.unpack_from(content, _HINT_AT)
        self.confirmed = self.standard.confirm
        if confirmed > self.confirmed and _crc_of(confirmed) == crc_of_confirmed:
            self.confirmed = confirmed
        if flushed > found[1].flushed and _crc_of(flushed) == crc_of_hint:
            return found[1]._replace(flushed=flushed)
        return found[1]

    def begin(self) -> None:
        """Open, and if need be make, both files for writing; made ones are not lost in a power cut."""
        is_new = not all(map(self._disk.exists, self._paths))
        self._own, self._standard = (self._disk.open(path, create=True) for path in self._paths)
        if self._disk.size(self._paths[0]) < _OWN_BYTES:
            self._disk.pwrite(self._own, bytes(_OWN_BYTES), 0)  # no later write needs space
        if is_new:
            self._disk.sync_directory(self._root)

    def write(self, positions: Positions, standard: Standard) -> None:
        """Replace both; durable on return. A crash in between leaves the former ones good."""
        self._sequence += 1
        body = _POSITIONS.pack(_MAGIC, self._sequence, *positions, *standard)
        self._disk.pwrite(self._own, body + zlib.crc32(body).to_bytes(4, "big"), self._sequence % 2 * _SLOT)
        self._disk.sync(self._own)
        self._disk.pwrite(self._standard, _STANDARD.pack(*standard).ljust(CHECKPOINT_BYTES, b"\0"), 0)
        self._disk.sync(self._standard)
        self.standard = standard

    def write_hint(self, flushed: int, confirmed: int) -> None:
        """Note the flushed and the confirm offset, without a sync."""
        hint = _HINT.pack(flushed, _crc_of(flushed), confirmed, _crc_of(confirmed))
        self._disk.pwrite(self._own, hint, _HINT_AT)

    def close(self) -> None:
        for descriptor in (self._own, self._standard):
            if descriptor >= 0:
                self._disk.close(descriptor)
        self._own = self._standard = -1

    def _content(self, number: int) -> bytes:
        path = self._paths[number]
        if not self._disk.exists(path):
            return b""
        descriptor = self._disk.open(path)
        try:
            return self._disk.pread(descriptor, CHECKPOINT_BYTES, 0)
        finally:
            self._disk.close(descriptor)


def _crc_of(offset: int) -> int:
    return zlib.crc32(offset.to_bytes(8, "big"))
