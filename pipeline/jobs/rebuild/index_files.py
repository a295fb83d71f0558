"""Index files of a store from its messages' keys, each from a part of the log and by itself.

Keys come as the hashes that the column ``keyHashes`` of a store has.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.formats.directory import INDEX, index_file_name
from penstock.formats.index.index_kernels import KEY_ROW
from penstock.inspection.index.writer import IndexWriter

from ...spark.arrow_types import arrow_schema

KEYS_PER_FILE = 2_000_000
"""At most, though there is room for ten times as many: a task holds the keys of a file in memory."""
WRITTEN = {"part": "int", "keys": "int", "first": "bigint", "last": "bigint"}
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
    keys = np.zeros(len(rows), KEY_ROW)
    keys["key_hash"] = hashes.flatten().to_numpy()
    keys["physical_offset"] = table.column("physicalOffset").to_numpy()[rows]
    keys["store_timestamp"] = table.column("storeTimestamp").to_numpy()[rows]
    writer = IndexWriter(Path(root) / INDEX, slots, entries, iter(names[part]))
    writer.take(keys)  # a task that runs twice writes the same bytes again
    writer.close()
    first, last = (int(keys["physical_offset"][at]) for at in (0, -1))
    row = {"part": part, "keys": len(rows), "first": first, "last": last}
    return pa.Table.from_pylist([row], arrow_schema(WRITTEN))


def file_names(counts: list[int], from_ms: int) -> list[list[str]]:
    """Names for so many files of each part, ascending: local times with milliseconds, ``from_ms`` first."""
    times = iter(range(from_ms, from_ms + sum(counts)))
    return [[index_file_name(next(times)) for _ in range(count)] for count in counts]
