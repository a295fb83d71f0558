"""What the two small files at a store's root say of how far it is: the checkpoint of RocketMQ, and the one beside it.

``checkpoint`` is RocketMQ's, 4096 bytes, big-endian, the rest zero:

| Offset | Type | Field |
|---|---|---|
| 0 | i64 | physicMsgTimestamp: store time of the last synced record, ms |
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

CHECKPOINT_BYTES = 4096
SLOT_BYTES = 512
HINT_AT = 2 * SLOT_BYTES
OWN_BYTES = 3 * SLOT_BYTES
FIELDS_BYTES = 40
"""Of RocketMQ's file, which is zero behind them."""
_STANDARD = struct.Struct(">5q")
assert _STANDARD.size == FIELDS_BYTES
_MAGIC = b"PENSTOCK"
_FAMILY = b"PENST"  # a later version changes the three bytes behind it
_POSITIONS = struct.Struct(">8sq?10q5q")
_HINT = struct.Struct(">qIqI")


class Standard(NamedTuple):
    """The fields of RocketMQ's checkpoint."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @classmethod
    def decode(cls, content: bytes) -> Standard:
        """The fields; 0 where the file ends before them."""
        return cls(*_STANDARD.unpack(content[: _STANDARD.size].ljust(_STANDARD.size, b"\0")))

    def encode(self) -> bytes:
        return _STANDARD.pack(*self).ljust(CHECKPOINT_BYTES, b"\0")


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


class Own(NamedTuple):
    """What ``penstockCheckpoint`` says.

    ``sequence``: the highest of both copies. ``positions``: the newest that belong to the ``checkpoint`` beside them,
    None without any. ``flushed`` and ``confirmed``: the fields behind them, 0 where they are not whole.
    """

    sequence: int
    positions: Positions | None
    flushed: int
    confirmed: int


def decode_own(content: bytes, standard: Standard, path: str) -> Own:
    """Read the bytes of the file at ``path``, which may be cut or empty.

    Raises:
        WrongStore: a later version wrote them.
    """
    content = content.ljust(OWN_BYTES, b"\0")
    newest, found = 0, None
    for at in (0, SLOT_BYTES):
        body = content[at : at + _POSITIONS.size]
        crc = content[at + _POSITIONS.size : at + _POSITIONS.size + 4]
        magic, sequence, *fields = _POSITIONS.unpack(body)
        if magic != _MAGIC and magic.startswith(_FAMILY):
            raise WrongStore(
                f"{path}: written by a later version of Penstock ({magic!r}), which must open the store",
                path=path,
                offset=at,
            )
        if magic != _MAGIC or zlib.crc32(body) != int.from_bytes(crc, "big"):
            continue
        width = len(Positions._fields)
        if Standard(*fields[width:]) == standard and (found is None or sequence > newest):
            found = Positions(*fields[:width])
        newest = max(newest, sequence)
    flushed, crc_of_flushed, confirmed, crc_of_confirmed = _HINT.unpack_from(content, HINT_AT)
    return Own(
        newest,
        found,
        flushed if _crc_of(flushed) == crc_of_flushed else 0,
        confirmed if _crc_of(confirmed) == crc_of_confirmed else 0,
    )


def encode_slot(sequence: int, positions: Positions, standard: Standard) -> bytes:
    """One copy, with its checksum."""
    body = _POSITIONS.pack(_MAGIC, sequence, *positions, *standard)
    return body + zlib.crc32(body).to_bytes(4, "big")


def encode_hint(flushed: int, confirmed: int) -> bytes:
    """The two fields at :data:`HINT_AT`, each with its checksum."""
    return _HINT.pack(flushed, _crc_of(flushed), confirmed, _crc_of(confirmed))


def _crc_of(offset: int) -> int:
    return zlib.crc32(offset.to_bytes(8, "big"))
