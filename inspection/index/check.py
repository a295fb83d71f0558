"""Whether the index holds exactly the log's keys, and whether all of its entries can be reached.

Entries stand in the index in the order of the log, so both are walked side by side once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np

from penstock.formats.index.index_file import INDEX_ENTRY, INDEX_ENTRY_BYTES, entry_at, slot_at
from penstock.formats.index.index_kernels import check_chains

from ..directory import StoreDirectory
from ..files import Bytes, Unreadable
from ..kernels import match_keys
from ..log.model import Rows
from .files import IndexFile

SURPLUS_MAX = 1000
"""Entries without a key told or looked at one by one; more are counted."""


class Surplus(NamedTuple):
    """An index entry that belongs to no key of the record at its place, as far as the walk can tell."""

    path: object
    position: int
    physical_offset: int
    key_hash: int
    seconds_wrong: bool


class Missing(NamedTuple):
    """Keys of the log without an index entry, neighbours in the log's order."""

    physical_offset: int
    last_offset: int
    store_timestamp: int  # of the first
    keys: int


class IndexCheck:
    """Walks the index beside the batches of log keys; structure first, since the number of slots is needed."""

    def __init__(self, store: StoreDirectory) -> None:
        self._store = store
        self._findings = store.findings
        self.surplus: list[Surplus] = []
        self.surplus_left_out = 0
        self.behind = 0  # entries of records behind the log's end
        self._log_end: int | None = None
        self.missing: list[Missing] = []
        self.keys = 0
        self.entries = 0
        self.last_indexed = -1
        self._blocks = self._walk_files()
        self._block: Bytes = np.empty(0, np.uint8)
        self._found: Bytes = np.empty(0, np.uint8)
        self._at = self._first = self._begin = self._slots = 0
        self._path: object = None
        self._open = self._next_block()

    def _walk_files(self) -> Iterator[tuple[IndexFile, int, Bytes]]:
        """Every block of entries of every file; checks each file's chains on the way."""
        slots = 0
        for segment in self._store.index_files:
            try:
                with closing(IndexFile(segment.path)) as index:
                    if index.entries and not index.infer_slots(slots):
                        text = "no number of slots fits: the header, the slots or the entries are damaged"
                        self._findings.problem(segment.path, 0, text)
                        continue
                    slots = index.slots or slots
                    yield from self._walk_file(index)
            except Unreadable as error:
                self._findings.problem(segment.path, None, str(error).removeprefix(f"{segment.path}: "))

    def _walk_file(self, index: IndexFile) -> Iterator[tuple[IndexFile, int, Bytes]]:
        if not index.entries:
            return
        header = index.header
        newest = np.zeros(index.slots, np.int32)
        bad = 0
        for first, data in index.blocks():
            count = len(data) // INDEX_ENTRY_BYTES
            wrong: Bytes = np.empty(count, np.uint8)
            bad += check_chains(data, first, count, newest, wrong)
            for number in (first + np.flatnonzero(wrong)[:10]).tolist():
                at = entry_at(index.slots, number)
                self._findings.problem(index.path, at, f"entry {number} does not link to the one before it in its slot")
            yield index, first, data
        table = index.slot_table()
        grown = (table > index.entries) & self._store.aborted  # entries written while this was read
        broken = np.flatnonzero((newest != table) & ~grown)
        for slot in broken[:10].tolist():
            text = f"slot {slot} leads to entry {int(table[slot])}, the newest of its chain is {int(newest[slot])}"
            self._findings.problem(index.path, slot_at(slot), text)
        if len(broken) > 10 or bad > 10:
            text = f"in all {bad} links and {len(broken)} slots are wrong: not every entry can be reached"
            self._findings.problem(index.path, None, text)
        used = int(np.count_nonzero(newest))
        if header.slot_count != used and not self._store.aborted:
            self._findings.problem(index.path, 32, f"the header counts {header.slot_count} used slots, {used} are used")
        if not header.begin_timestamp <= header.end_timestamp or not header.begin_offset <= header.end_offset:
            self._findings.problem(index.path, 0, "the header's range ends before it begins")

    def _next_block(self) -> bool:
        for index, first, data in self._blocks:
            self._block, self._first, self._at = data, first, 0
            self._found = np.zeros(len(data) // INDEX_ENTRY_BYTES, np.uint8)
            self._begin, self._path = index.header.begin_timestamp, index.path
            self._slots = index.slots
            self.entries += len(self._found)
            return True
        return False

    def take(self, keys: Rows) -> None:
        """Walk along the keys of a batch."""
        found: Bytes = np.zeros(len(keys), np.uint8)
        at = 0
        self.keys += len(keys)
        while at < len(keys) and self._open:
            at, self._at = match_keys(
                *(keys, at, len(keys), self._block, self._at, len(self._found), self._first, self._begin),
                *(found, self._found),
            )
            if self._at == len(self._found):
                self._close_block()
        if len(keys):
            hits = np.flatnonzero(found)
            if len(hits):
                self.last_indexed = max(self.last_indexed, int(keys["physical_offset"][hits[-1]]))
            self._keep_missing(keys, np.flatnonzero(found == 0))

    def _close_block(self) -> None:
        entries = self._block.view(INDEX_ENTRY)
        places = entries["physical_offset"]
        rest = (self._found != 1) & (places >= self._store.log_start)  # older records were deleted with their files
        if self._log_end is not None:
            self.behind += int(np.count_nonzero(rest & (places >= self._log_end)))
            rest &= places < self._log_end
        for number in np.flatnonzero(rest).tolist():
            physical, key_hash = int(places[number]), int(entries["key_hash"][number])
            if len(self.surplus) == SURPLUS_MAX:
                self.surplus_left_out += 1
                continue
            at = entry_at(self._slots, self._first + number)
            self.surplus.append(Surplus(self._path, at, physical, key_hash, bool(self._found[number] == 2)))
        self._open = self._next_block()

    def _keep_missing(self, keys: Rows, absent: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        if not len(absent):
            return
        edges = np.flatnonzero(np.diff(absent) != 1) + 1
        for start, end in zip([0, *edges.tolist()], [*edges.tolist(), len(absent)], strict=True):
            first, last = keys[absent[start]], keys[absent[end - 1]]
            run = Missing(
                *(int(first["physical_offset"]), int(last["physical_offset"])),
                *(int(first["store_timestamp"]), end - start),
            )
            if len(self.missing) < SURPLUS_MAX:
                self.missing.append(run)
            else:
                before = self.missing[-1]
                self.missing[-1] = Missing(before[0], run.last_offset, before.store_timestamp, before.keys + run.keys)

    def finish(self, log_end: int) -> None:
        """Take the entries behind the last key; those of records behind ``log_end`` are only counted."""
        self._log_end = log_end
        while self._open:
            self._close_block()
