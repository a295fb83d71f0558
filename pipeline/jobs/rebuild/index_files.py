"""Index files of a store from its messages' keys, each from a part of the log and by itself.

The format is that of :mod:`penstock.pipeline.stores.derived`. Keys come as the hashes that the column ``keyHashes`` of
a store has. A file is as large as RocketMQ's and mostly holes, which stay holes here.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...stores.derived import ENTRY_BYTES, INDEX_ENTRY

KEYS_PER_FILE = 2_000_000
"""At most, though there is room for ten times as many: a task holds the keys of a file in memory."""
PAGE_BYTES = 4096
_HEADER = struct.Struct(">qqqqii")
WRITTEN = "part int, keys int, first bigint, last bigint"
"""What :func:`write_index_files` tells of a part: its keys, and the log positions of the first and last one."""


def divide(counts: Iterable[tuple[int, int]], entries: int) -> tuple[dict[int, int], list[int]]:
    """The part of each unit of the log, given (unit, keys in it), and how many files each part makes.

    Neighbours share a part while one file of ``entries`` entries, the first of which stays unused, has room for them.
    """
    room = min(entries - 1, KEYS_PER_FILE)
    parts: dict[int, int] = {}
    keys: list[int] = []
    for unit, count in sorted(counts):
        if not keys or keys[-1] + count > room:
            keys.append(0)
        parts[unit] = len(keys) - 1
        keys[-1] += count
    return parts, [-(-count // (entries - 1)) for count in keys]


def write_index_files(root: str, names: list[list[str]], table: pa.Table, slots: int, entries: int) -> pa.Table:
    """Write the keys of one part, all in ``table``, to the files ``names[part]`` below ``root``; what was written.

    ``table`` has a row per message: part, physicalOffset, storeTimestamp in milliseconds, keyHashes.
    """
    table = table.sort_by("physicalOffset").combine_chunks()
    part = table.column("part")[0].as_py()
    hashes = table.column("keyHashes").combine_chunks()
    rows = np.repeat(np.arange(len(hashes)), hashes.value_lengths().to_numpy())
    keys = _Keys(
        hashes.flatten().to_numpy().astype(np.int64),
        table.column("physicalOffset").to_numpy()[rows],
        table.column("storeTimestamp").to_numpy()[rows],
    )
    ended_ms = 0
    for number, name in enumerate(names[part]):
        first = number * (entries - 1)
        _write_file(Path(root) / "index" / name, keys.part(first, first + entries - 1), slots, entries, ended_ms)
        ended_ms = int(keys.stored[min(first + entries - 1, len(rows)) - 1])
    row = {"part": [part], "keys": [len(rows)], "first": [int(keys.physical[0])], "last": [int(keys.physical[-1])]}
    kinds = [pa.int32(), pa.int32(), pa.int64(), pa.int64()]
    return pa.table({name: pa.array(row[name], kind) for name, kind in zip(row, kinds, strict=True)})


class _Keys(NamedTuple):
    """Keys in the log's order."""

    hashes: npt.NDArray[np.int64]
    physical: npt.NDArray[np.int64]
    stored: npt.NDArray[np.int64]  # milliseconds

    def part(self, first: int, last: int) -> _Keys:
        return _Keys(*(column[first:last] for column in self))


def file_names(counts: list[int], from_ms: int) -> list[list[str]]:
    """Names for so many files of each part, ascending: local times with milliseconds, ``from_ms`` first."""
    times = iter(range(from_ms, from_ms + sum(counts)))
    return [
        [datetime.fromtimestamp(next(times) / 1000).strftime("%Y%m%d%H%M%S%f")[:17] for _ in range(count)]
        for count in counts
    ]


def _write_file(target: Path, keys: _Keys, slots: int, entries: int, before_ms: int) -> None:
    """One file; ``before_ms``: when the file before it ended, which RocketMQ reckons the first entry from."""
    begin = int(keys.stored[0])
    made = np.zeros(len(keys.hashes), INDEX_ENTRY)
    made["key_hash"] = keys.hashes
    made["physical_offset"] = keys.physical
    made["seconds"] = _seconds(keys.stored, begin)
    made["seconds"][0] = _seconds(keys.stored[:1], before_ms)[0]
    made["previous"], newest = _chains(keys.hashes % slots, slots)
    used = int(np.count_nonzero(newest))
    ends = int(keys.stored[-1]), int(keys.physical[0]), int(keys.physical[-1])
    _write(target, _HEADER.pack(begin, *ends, used, len(made) + 1), newest, made, entries)


def _seconds(stored: npt.NDArray[np.int64], since_ms: int) -> npt.NDArray[np.int64]:
    if since_ms <= 0:
        return np.zeros(len(stored), np.int64)
    return np.clip((stored - since_ms) // 1000, 0, (1 << 31) - 1)


def _chains(slot_of: npt.NDArray[np.int64], slots: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Of each entry, numbered from 1, the entry before it in its slot (0: none); and the newest one of each slot."""
    order = np.argsort(slot_of, kind="stable").astype(np.int32)
    sorted_slots = slot_of[order]
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = sorted_slots[1:] == sorted_slots[:-1]
    previous = np.zeros(len(order), np.int32)
    previous[order[1:]] = np.where(follows[1:], order[:-1] + 1, 0)
    newest = np.zeros(slots, np.int32)
    newest[sorted_slots] = order + 1  # of several the last one stays
    return previous, newest


def _write(target: Path, header: bytes, newest: npt.NDArray[np.int32], made: npt.NDArray[Any], entries: int) -> None:
    """The file, whole and under its name at once: a task may run twice."""
    table = newest.astype(">i4").tobytes()
    size = len(header) + len(table) + ENTRY_BYTES * entries
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(descriptor, size)
        os.pwrite(descriptor, header, 0)
        for at in range(0, len(table), PAGE_BYTES):
            page = table[at : at + PAGE_BYTES]
            if page.count(0) != len(page):
                os.pwrite(descriptor, page, len(header) + at)
        content = memoryview(made.tobytes())
        at = len(header) + len(table) + ENTRY_BYTES  # the entry with the number 0 is never used
        while content:
            written = os.pwrite(descriptor, content, at)
            content, at = content[written:], at + written
    finally:
        os.close(descriptor)
    draft.replace(target)
