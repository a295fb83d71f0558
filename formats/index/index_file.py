"""An index file: which records have a key, by the hash of ``topic#key``.

A header, hash slots, entries; big-endian, sparse, of full length from the start (40 + 4 slots + 20 entries bytes):

| Offset | Type | Header field |
|---|---|---|
| 0 | i64 | beginTimestamp: store time of the first entry's record, ms |
| 8 | i64 | endTimestamp: the same of the last one |
| 16 | i64 | beginPhyOffset: physical offset of the first entry's record |
| 24 | i64 | endPhyOffset: the same of the last one |
| 32 | i32 | hashSlotCount: slots in use |
| 36 | i32 | indexCount: number of the next entry; the first is 1, so it is one more than there are |

| Offset | Type | Slot |
|---|---|---|
| 0 | i32 | number of the newest entry whose hash modulo the slots leads here, 0 for none |

| Offset | Type | Entry |
|---|---|---|
| 0 | i32 | key hash, not negative |
| 4 | i64 | physical offset of the record |
| 12 | i32 | seconds after beginTimestamp (of a file's first entry: after the end of the file before) |
| 16 | i32 | number of the entry before it in the slot, 0 for none |

The entry with the number 0 is never used. No field says how many slots there are.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = 40
SLOT_BYTES = 4
INDEX_ENTRY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
INDEX_ENTRY_BYTES = 20
_PACKED = struct.Struct(">iqii")
assert HEADER.size == HEADER_BYTES
assert INDEX_ENTRY.itemsize == _PACKED.size == INDEX_ENTRY_BYTES

DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000
SECONDS_MAX = (1 << 31) - 1
_PAGE_BYTES = 4096


class IndexHeader(NamedTuple):
    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slot_count: int
    index_count: int

    @classmethod
    def decode(cls, data: bytes) -> IndexHeader:
        """The header that ``data`` begins with; zeros where it ends before."""
        return cls(*HEADER.unpack_from(data.ljust(HEADER_BYTES, b"\0")))

    def encode(self) -> bytes:
        return HEADER.pack(*self)


class IndexEntry(NamedTuple):
    key_hash: int
    physical_offset: int
    seconds: int
    previous: int

    @classmethod
    def decode(cls, data: bytes) -> IndexEntry:
        """The entry that ``data`` begins with; zeros where it ends before."""
        return cls(*_PACKED.unpack_from(data.ljust(INDEX_ENTRY_BYTES, b"\0")))


def slot_at(slot: int) -> int:
    """Where in the file a slot lies."""
    return HEADER_BYTES + SLOT_BYTES * slot


def entry_at(slots: int, number: int) -> int:
    """Where in a file with so many slots the entry ``number`` lies."""
    return HEADER_BYTES + SLOT_BYTES * slots + INDEX_ENTRY_BYTES * number


def file_bytes(slots: int, entries: int) -> int:
    return entry_at(slots, entries)


def likely_slots(size: int) -> Iterator[int]:
    """Numbers of slots that a file of that size has by the default settings, or with their four entries per slot."""
    if size == file_bytes(DEFAULT_SLOTS, DEFAULT_ENTRIES):
        yield DEFAULT_SLOTS
    slots, rest = divmod(size - HEADER_BYTES, SLOT_BYTES + 4 * INDEX_ENTRY_BYTES)
    if rest == 0:
        yield slots


def slot_pages(newest: npt.NDArray[np.int32]) -> Iterator[tuple[int, bytes]]:
    """(position in the file, bytes) of the slots to be written, by stretches of pages; the others stay holes.

    ``newest``: the number of each slot's newest entry.
    """
    table = newest.astype(">i4").view(np.uint8)
    padded = np.zeros(-(-len(table) // _PAGE_BYTES) * _PAGE_BYTES, np.uint8)
    padded[: len(table)] = table
    pages = np.flatnonzero(padded.reshape(-1, _PAGE_BYTES).any(axis=1))
    for run in np.split(pages, np.flatnonzero(np.diff(pages) != 1) + 1):
        if len(run):
            start, end = int(run[0]) * _PAGE_BYTES, (int(run[-1]) + 1) * _PAGE_BYTES
            yield HEADER_BYTES + start, table[start:end].tobytes()
