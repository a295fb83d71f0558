"""Index files, read; and how many slots they have, which no field says (:mod:`penstock.formats.index.index_file`).

A file of the default size has 5,000,000 slots. For others the number is inferred: the entries must begin where the
first one has the header's begin offset and the last one its end offset, and the chains must fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.formats.index.index_file import (
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    IndexEntry,
    IndexHeader,
    entry_at,
    likely_slots,
    slot_at,
)
from penstock.formats.index.index_kernels import check_chains

from ..files import Bytes, InputFile, Unreadable

BLOCK_ENTRIES = 1 << 18
INFERRED_BYTES_MAX = 64 << 20
"""Files up to this are searched for where the entries begin; larger ones are tried with common proportions."""
TRIED_ENTRIES = 4096

Ints = npt.NDArray[np.int32]


class IndexFile:
    """One index file, open for reading; to be closed. ``file``: its content, where that is no file of this machine.

    Raises Unreadable: it cannot be opened or read.
    """

    def __init__(self, path: Path, file: InputFile | None = None) -> None:
        self.path = path
        self.file = file or InputFile(path)
        self.header = IndexHeader.decode(self.file.read(0, HEADER_BYTES))
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
        if likely:
            yield likely
        yield from likely_slots(self.file.size)
        if self.file.size <= INFERRED_BYTES_MAX:
            yield from self._search()

    def _search(self) -> Iterator[int]:
        """Numbers of slots with which the first entry has the header's begin offset, and the last its end offset."""
        data = np.frombuffer(self.file.read(0, self.file.size), np.uint8)
        smallest = (len(data) - HEADER_BYTES) // 4 % 5  # the entries are to fill the rest of the file
        first = entry_at(smallest, 1)
        rows = data[first : first + (len(data) - first) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES].view(INDEX_ENTRY)
        begins = np.flatnonzero(rows["physical_offset"] == self.header.begin_offset)
        ends = begins + self.entries - 1
        begins = begins[ends < len(rows)]
        right = rows["physical_offset"][begins + self.entries - 1] == self.header.end_offset
        for row in begins[right].tolist():
            if smallest + 5 * row > 0:
                yield smallest + 5 * row

    def _fits(self, slots: int) -> bool:
        """True if most chains are right with that many slots."""
        if slots <= 0 or entry_at(slots, self.entries + 1) > self.file.size:
            return False
        count = min(self.entries, TRIED_ENTRIES)
        newest: Ints = np.zeros(slots, np.int32)
        wrong: Bytes = np.zeros(count, np.uint8)
        data = np.empty(count * INDEX_ENTRY_BYTES, np.uint8)
        self.file.read_into(data, entry_at(slots, 1))
        bad = int(check_chains(data, 1, count, newest, wrong))
        if count < self.entries:
            return bad * 2 < count
        table = np.frombuffer(self.file.read(HEADER_BYTES, SLOT_BYTES * slots), ">i4")
        used = np.flatnonzero((newest > 0) & (table <= self.entries))  # others lead to entries of a writer at work
        bad += int(np.count_nonzero(newest[used] != table[used]))
        return bad * 2 < count + len(used)

    def blocks(self) -> Iterator[tuple[int, Bytes]]:
        """The entries in order of writing: number of a block's first, and its bytes; good until the next block."""
        for first in range(1, self.entries + 1, BLOCK_ENTRIES):
            count = min(BLOCK_ENTRIES, self.entries + 1 - first)
            data: Bytes = np.empty(count * INDEX_ENTRY_BYTES, np.uint8)
            if self.file.read_into(data, entry_at(self.slots, first)) < len(data):
                raise Unreadable(f"{self.path}: cut short while it was read")
            yield first, data

    def slot_table(self) -> npt.NDArray[np.signedinteger]:
        """The newest entry of each slot."""
        return np.frombuffer(self.file.read(HEADER_BYTES, SLOT_BYTES * self.slots), ">i4")

    def newest(self, slot: int) -> int:
        """The newest entry of one slot that the header counts; 0 for none."""
        number = int.from_bytes(self.file.read(slot_at(slot), SLOT_BYTES), "big", signed=True)
        while number > self.entries:  # a broker that writes on has not counted it yet
            before = self.entry(number).previous
            number = before if before < number else 0
        return max(0, number)

    def entry(self, number: int) -> IndexEntry:
        """That entry; zeros behind the file's end."""
        return IndexEntry.decode(self.file.read(entry_at(self.slots, number), INDEX_ENTRY_BYTES))
