"""Histories of drills and load tests, as frames: one row per operation of a client.

A ``*.history`` file is a head (8 bytes ``PENHIST1``; u32 little-endian length; JSON description with ``client``,
``name`` and ``shards``) and rows of 64 bytes, little-endian, see :data:`EVENT`. ``conditions.json`` beside them holds
the drill's mode, its faults and what it allows. Times are nanoseconds of one machine's monotonic clock.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.proto.errors import ConfigError, Corrupt

MAGIC = b"PENHIST1"
EVENT = np.dtype(
    [
        ("start_ns", "<i8"),
        ("end_ns", "<i8"),
        ("sequence", "<i8"),  # POSITION: the queue's min offset
        ("offset", "<i8"),  # INVOKE: how many sequences follow; POSITION: the committed offset
        ("position", "<i8"),  # in the log; POSITION: the queue's max offset
        ("stream", "<u4"),
        ("crc", "<u4"),
        ("key", "<i4"),  # -1: none
        ("epoch", "<i4"),  # 0: unknown
        ("client", "<u2"),
        ("shard", "<i2"),
        ("queue", "<i2"),
        ("op", "u1"),
        ("outcome", "u1"),
    ]
)
assert EVENT.itemsize == 64
INVOKE, SEND, RECEIVE, READ, POSITION = range(5)
OK, REFUSED, UNKNOWN = range(3)
MODES = ("async", "flush", "sync", "durable")
TASK_ROWS = 500_000
FOLDERS_NAMED_MAX = 5
_WIDE = {"stream", "crc"}
SCHEMA = "line bigint, " + ", ".join(
    f"{name} {'bigint' if EVENT[name].itemsize == 8 or name in _WIDE else 'int'}" for name in EVENT.names or ()
)


@dataclass(frozen=True, slots=True)
class HistoryFile:
    """One client's file: where its rows begin, and how many are whole."""

    path: str
    client: int
    shards: tuple[str, ...]
    start: int
    rows: int


def list_history(folder: Path) -> list[HistoryFile]:
    """The files of one drill.

    Raises:
        ConfigError: there is none; drills in the folders below are named, each has to be judged by itself.
        Corrupt: one is no history, or of another drill.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such directory: name the one that holds *.history")
    found: list[HistoryFile] = []
    for path in sorted(folder.glob("*.history")):
        with open(path, "rb") as file:
            head = file.read(12)
            if len(head) < 12 or head[:8] != MAGIC:
                raise Corrupt(f"{path}: no history of a drill: begins with {head[:8]!r}, not {MAGIC!r}")
            (length,) = struct.unpack("<I", head[8:])
            try:
                description = json.loads(file.read(length))
                client, shards = int(description["client"]), tuple(map(str, description["shards"]))
            except (ValueError, KeyError, TypeError) as error:
                raise Corrupt(f"{path}: its description cannot be read: {error}") from error
        if found and shards != found[0].shards:
            raise Corrupt(f"{path}: has the shards {shards}, {found[0].path} has {found[0].shards}: not of one drill")
        rows = max(path.stat().st_size - 12 - length, 0) // EVENT.itemsize
        found.append(HistoryFile(str(path), client, shards, 12 + length, rows))
    if not found:
        below = sorted({str(path.parent) for path in folder.rglob("*.history")})
        more = f" and {len(below) - FOLDERS_NAMED_MAX} more" if len(below) > FOLDERS_NAMED_MAX else ""
        hint = f"; name one of {', '.join(below[:FOLDERS_NAMED_MAX])}{more}" if below else ""
        raise ConfigError(f"{folder}: holds no file *.history{hint}")
    return found


def load_conditions(folder: Path) -> dict[str, Any]:
    """The document of ``conditions.json``; defaults of a run without faults where there is none.

    Raises:
        Corrupt: it is no such document; the field and its value are named.
    """
    document: dict[str, Any] = {"mode": "durable", "windows": [], "duplicates_allowed": 0, "commit_interval_ms": 1000}
    path = folder / "conditions.json"
    if not path.exists():
        return document
    try:
        loaded = json.loads(path.read_text())
    except ValueError as error:
        raise Corrupt(f"{path}: not the conditions of a drill: {error}") from error
    if not isinstance(loaded, dict):
        raise Corrupt(f"{path}: not the conditions of a drill: {_shortened(loaded)} is no object with the field mode")
    document |= {name: loaded[name] for name in document if name in loaded}
    if document["mode"] not in MODES:
        raise Corrupt(f"{path}: mode is {_shortened(document['mode'])}: expected one of {', '.join(MODES)}")
    for name in ("duplicates_allowed", "commit_interval_ms"):
        _require_whole(path, name, document[name], 0)
    if not isinstance(document["windows"], list):
        raise Corrupt(f"{path}: windows is {_shortened(document['windows'])}: expected a list of faults")
    for number, window in enumerate(document["windows"]):
        _require_window(path, f"windows[{number}]", window)
    return document


def _require_window(path: Path, name: str, window: Any) -> None:
    if not isinstance(window, dict):
        raise Corrupt(f"{path}: {name} is {_shortened(window)}: expected an object with start_ns and end_ns")
    for field in ("start_ns", "end_ns"):
        if field not in window:
            raise Corrupt(f"{path}: {name} has no {field}: expected nanoseconds of the monotonic clock")
        _require_whole(path, f"{name}.{field}", window[field])
    if window["end_ns"] < window["start_ns"]:
        raise Corrupt(f"{path}: {name} ends at {window['end_ns']}, before its start_ns {window['start_ns']}")
    for field in ("what", "target"):
        if not isinstance(window.get(field, ""), str):
            raise Corrupt(f"{path}: {name}.{field} is {_shortened(window[field])}: expected a text")


def _require_whole(path: Path, name: str, value: Any, least: int | None = None) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise Corrupt(f"{path}: {name} is {_shortened(value)}: expected a whole number{bound}")


def _shortened(value: Any) -> str:
    return json.dumps(value)[:60]


def block_frame(spark: Any, files: list[HistoryFile]) -> Any:
    """One row per stretch of a file that a task reads at once, spread over as many partitions."""
    blocks = [
        (number, file.path, file.start, first, min(TASK_ROWS, file.rows - first))
        for number, file in enumerate(files)
        for first in range(0, file.rows, TASK_ROWS)
    ]
    frame = spark.createDataFrame(blocks, "number int, path string, start bigint, first bigint, rows bigint")
    return frame.repartition(max(len(blocks), 1))


def read_history(spark: Any, files: list[HistoryFile]) -> Any:
    """All rows, with ``line``: a number that keeps the order of each file's rows."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.to_pylist():
                yield read_rows(task["path"], task["start"], task["first"], task["rows"], task["number"])

    return block_frame(spark, files).mapInArrow(read, SCHEMA)


def read_events(path: str, start: int, first: int, rows: int) -> npt.NDArray[Any]:
    """``rows`` rows of a file from row ``first`` on."""
    return np.fromfile(path, EVENT, count=rows, offset=start + first * EVENT.itemsize)


def read_rows(path: str, start: int, first: int, rows: int, number: int) -> pa.RecordBatch:
    """``rows`` rows of a file from row ``first`` on, as Arrow."""
    events = read_events(path, start, first, rows)
    lines = (np.int64(number) << 40) + first + np.arange(len(events), dtype=np.int64)
    columns: dict[str, pa.Array] = {"line": pa.array(lines)}
    for name in EVENT.names or ():
        wide = EVENT[name].itemsize == 8 or name in _WIDE
        columns[name] = pa.array(events[name].astype(np.int64 if wide else np.int32))
    return pa.RecordBatch.from_pydict(columns)
