"""Writes index files afresh, as RocketMQ would have: keys in the log's order, linked through hash slots."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from penstock.formats.directory import index_file_name
from penstock.formats.index.index_file import HEADER, entry_at, file_bytes, slot_pages
from penstock.formats.index.index_kernels import link_keys

from ..log.model import Rows
from ..queues.writer import write_at
from .files import Ints


def _names_by_time() -> Iterator[str]:
    last = 0
    while True:
        last = max(last + 1, time.time_ns() // 1_000_000)
        yield index_file_name(last)


class IndexWriter:
    """Makes ``directory`` with files of ``slots`` slots and ``capacity`` entries, the first of which is never used.

    ``names`` of the files, one after the other; by default they are named after the time.
    """

    def __init__(self, directory: Path, slots: int, capacity: int, names: Iterator[str] | None = None) -> None:
        self._directory = directory
        self._slots = slots
        self._capacity = capacity
        self._bytes = file_bytes(slots, capacity)
        self._newest: Ints = np.zeros(slots, np.int32)
        self._path: Path | None = None
        self._count = 1
        self._begin_time = self._end_time = self._begin_offset = self._end_offset = 0
        self._names = names or _names_by_time()
        self.keys = 0

    def take(self, keys: Rows) -> None:
        """Add the keys of a batch. Raises OSError: the disk is full."""
        first = 0
        while first < len(keys):
            if self._path is None:
                self._begin()
            last = min(len(keys), first + self._capacity - self._count)
            if self._count == 1:
                last = first + 1  # the first entry's time is relative to the end of the file before
            self._add(keys, first, last)
            first = last
            if self._count >= self._capacity:
                self.close()

    def _begin(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._path = self._directory / next(self._names)
        self._count = 1
        self._newest[:] = 0
        # As RocketMQ: a file begins with the end of the one before, until its first entry is there.
        self._begin_time, self._begin_offset = self._end_time, self._end_offset

    def _add(self, keys: Rows, first: int, last: int) -> None:
        assert self._path is not None
        out = link_keys(keys[first:last], self._newest, self._count, self._begin_time)
        write_at(self._path, entry_at(self._slots, self._count), out, self._bytes)
        begins = self._count == 1
        self._count += last - first
        if begins:
            self._begin_time = int(keys["store_timestamp"][first])
            self._begin_offset = int(keys["physical_offset"][first])
        self._end_time = int(keys["store_timestamp"][last - 1])
        self._end_offset = int(keys["physical_offset"][last - 1])
        self.keys += last - first

    def close(self) -> None:
        """Write slots and header of the file under work. Pages without a used slot stay holes."""
        if self._path is None:
            return
        used = int(np.count_nonzero(self._newest))
        for at, data in slot_pages(self._newest):
            write_at(self._path, at, data, self._bytes)
        header = HEADER.pack(
            *(self._begin_time, self._end_time, self._begin_offset, self._end_offset, used, self._count)
        )
        write_at(self._path, 0, header, self._bytes)
        self._path = None
