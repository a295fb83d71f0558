"""Index files: their header, and how many slots they have, which no field says.

| Part | Position | Content |
|---|---|---|
| header | 0 | begin and end time i64, begin and end offset i64, used slots i32, count i32 (one more than entries) |
| slots | 40 | i32 each: number of the newest entry in the slot's chain, 0 for none |
| entries | 40 + 4 × slots | key hash i32, physical offset i64, seconds i32, number of the entry before i32 |

A file of the default size has 5,000,000 slots. For others the number is inferred: the entries must begin where the
first one has the header's begin offset and the last one its end offset, and the chains must fit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import derived_kernels
from ..derived_kernels import INDEX_ENTRY_BYTES
from ..files import Bytes, InputFile

HEADER = struct.Struct(">qqqqii")
HEADER_BYTES = 40
assert HEADER.size == HEADER_BYTES
DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000
INDEX_ENTRY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
assert INDEX_ENTRY.itemsize == INDEX_ENTRY_BYTES
BLOCK_ENTRIES = 1 << 18
INFERRED_BYTES_MAX = 64 << 20
"""Files up to this are searched for where the entries begin; larger ones are tried with common proportions."""
TRIED_ENTRIES = 4096

Ints = npt.NDArray[np.int32]


class IndexHeader(NamedTuple):
    """The first 40 bytes."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slot_count: int
    index_count: int  # one more than there are entries: the first has number 1


class IndexFile:
    """One index file, open for reading; to be closed.

    Raises:
        Unreadable: it cannot be opened or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = InputFile(path)
        head = self.file.read(0, HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
        self.header = IndexHeader(*HEADER.unpack(head))
        self.slots = 0
        """Number of slots; 0 while the file has no entries, or if it cannot be inferred."""
        self.entries = max(0, self.header.index_count - 1)

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def infer_slots(self, likely: int = 0) -> int:
        """Find out how many slots the file has, ``likely`` so many (as other files of the store); 0: no number fits."""
        if self.entries == 0:
            return 0
        for slots in self._candidates(likely):
            if self._fits(slots):
                self.slots = slots
                break
        return self.slots

    def _candidates(self, likely: int) -> Iterator[int]:
        size = self.file.size
        if likely:
            yield likely
        if size == HEADER_BYTES + 4 * DEFAULT_SLOTS + INDEX_ENTRY_BYTES * DEFAULT_ENTRIES:
            yield DEFAULT_SLOTS
        if (size - HEADER_BYTES) % 84 == 0:
            yield (size - HEADER_BYTES) // 84  # four entries per slot, as by default
        if size <= INFERRED_BYTES_MAX:
            yield from self._search()

    def _search(self) -> Iterator[int]:
        """Numbers of slots with which the first entry has the header's begin offset, and the last its end offset."""
        data = np.frombuffer(self.file.read(0, self.file.size), np.uint8)
        smallest = (len(data) - HEADER_BYTES) // 4 % 5  # the entries are to fill the rest of the file
        first = HEADER_BYTES + 4 * smallest + INDEX_ENTRY_BYTES
        rows = data[first : first + (len(data) - first) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES].view(INDEX_ENTRY)
        begins = np.flatnonzero(rows["physical_offset"] == self.header.begin_offset)
        ends = begins + self.entries - 1
        begins = begins[ends < len(rows)]
        right = rows["physical_offset"][begins + self.entries - 1] == self.header.end_offset
        for row in begins[right].tolist():
            if smallest + 5 * row > 0:
                yield smallest + 5 * row

    def _fits(self, slots: int) -> bool:
        """Whether most chains are right with that many slots."""
        begin = HEADER_BYTES + 4 * slots
        if slots <= 0 or begin + INDEX_ENTRY_BYTES * (self.entries + 1) > self.file.size:
            return False
        count = min(self.entries, TRIED_ENTRIES)
        newest: Ints = np.zeros(slots, np.int32)
        wrong: Bytes = np.zeros(count, np.uint8)
        data = np.empty(count * INDEX_ENTRY_BYTES, np.uint8)
        self.file.read_into(data, begin + INDEX_ENTRY_BYTES)
        bad = int(derived_kernels.check_chains(data, 1, count, newest, wrong))
        if count < self.entries:
            return bad * 2 < count
        table = np.frombuffer(self.file.read(HEADER_BYTES, 4 * slots), ">i4")
        used = np.flatnonzero((newest > 0) & (table <= self.entries))  # others lead to entries of a writer at work
        bad += int(np.count_nonzero(newest[used] != table[used]))
        return bad * 2 < count + len(used)

    def blocks(self) -> Iterator[tuple[int, Bytes]]:
        """The entries in order of writing: number of a block's first, and its bytes; good until the next block."""
        begin = HEADER_BYTES + 4 * self.slots
        for first in range(1, self.entries + 1, BLOCK_ENTRIES):
            count = min(BLOCK_ENTRIES, self.entries + 1 - first)
            data: Bytes = np.empty(count * INDEX_ENTRY_BYTES, np.uint8)
            self.file.read_into(data, begin + INDEX_ENTRY_BYTES * first)
            yield first, data

    def slot_table(self) -> npt.NDArray[np.signedinteger]:
        """The newest entry of each slot."""
        return np.frombuffer(self.file.read(HEADER_BYTES, 4 * self.slots), ">i4")

    def newest(self, slot: int) -> int:
        """The newest entry of one slot that the header counts; 0 for none."""
        number = int.from_bytes(self.file.read(HEADER_BYTES + 4 * slot, 4), "big", signed=True)
        while number > self.entries:  # a broker that writes on has not counted it yet
            before = self.entry(number)[3]
            number = before if before < number else 0
        return max(0, number)

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """Key hash, physical offset, seconds and the number of the entry before, of one entry."""
        data = self.file.read(HEADER_BYTES + 4 * self.slots + INDEX_ENTRY_BYTES * number, INDEX_ENTRY_BYTES)
        key_hash, physical, seconds, previous = struct.unpack(">iqii", data.ljust(INDEX_ENTRY_BYTES, b"\0"))
        return key_hash, physical, seconds, previous
