"""The views ``queues`` and ``index``: the entries of consume queues and index files, as they lie in the files.

Also the columns of the views that sum up: :mod:`.parts`.

A queue entry is 20 bytes, big-endian: physical offset i64, size i32, tags code i64. Places that were allocated and not
used, and the fillers in front of a queue that began late (size 2^31 - 1), are no entries.

An index file has a header of 40 bytes (begin and end time, begin and end offset i64; used slots and one more than the
entries i32), slots of 4 bytes, entries of 20: key hash i32, physical offset i64, seconds since the begin i32, entry
before in the chain i32. Their number of slots is no field of it: the first entry must have the header's begin
offset, and the last its end offset.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import fs

from penstock.proto.errors import Corrupt

from .files import FileReader, open_file_system
from .model import Store
from .options import StoreOptions

QUEUE_COLUMNS = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "queueOffset": "bigint",
    "physicalOffset": "bigint",
    "size": "int",
    "tagsCode": "bigint",
}
QUEUE_PART_COLUMNS = {
    "topic": "string",
    "brokerName": "string",
    "queueId": "int",
    "part": "bigint",
    "messages": "bigint",
    "firstOffset": "bigint",
    "lastOffset": "bigint",
    "bytes": "bigint",
    "digest": "bigint",
}
"""``part``: the first queue offset that belongs to it."""
PART_COLUMNS = QUEUE_PART_COLUMNS | {"hasEntries": "boolean", "physicalOffset": "bigint", "entries": "binary"}
"""``hasEntries``: whether consume queues name these messages. ``physicalOffset``: of the first one in the stretch.
``entries``: see :data:`.parts.PART_ENTRY`. With ``onCorrupt=emit`` damage has a row of its own, with its place and
bytes and the reason in ``corrupt``."""
INDEX_COLUMNS = {
    "brokerName": "string",
    "file": "string",
    "entry": "int",
    "keyHash": "int",
    "physicalOffset": "bigint",
    "storeTimestamp": "timestamp",
    "previousEntry": "int",
}
QUEUE_ENTRY = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
INDEX_ENTRY = np.dtype([("key_hash", ">i4"), ("physical_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
ENTRY_BYTES = 20
assert QUEUE_ENTRY.itemsize == INDEX_ENTRY.itemsize == ENTRY_BYTES
_HEADER = struct.Struct(">qqqqii")
FILLER_SIZE = (1 << 31) - 1
TASK_BYTES = 16 << 20
DEFAULT_SLOTS, DEFAULT_ENTRIES = 5_000_000, 20_000_000


@dataclass(frozen=True, slots=True)
class QueueFile:
    """One file of a consume queue."""

    path: str
    topic: str
    queue_id: int
    start: int  # byte offset in the queue
    size: int


@dataclass(frozen=True, slots=True)
class DerivedSplit:
    """Queue files, or one index file, for one task."""

    root: str
    broker_name: str
    files: tuple[QueueFile, ...] = ()
    index_path: str = ""


def list_queue_files(root: str) -> list[QueueFile]:
    """The files of all consume queues of the store, by topic, queue and position."""
    file_system, path = open_file_system(root)
    selector = fs.FileSelector(f"{path}/consumequeue", recursive=True, allow_not_found=True)
    found = []
    for info in file_system.get_file_info(selector):
        parts: list[str] = str(info.path).split("/")
        topic, queue, name = parts[-3:]
        is_named = len(name) == 20 and name.isdecimal() and queue.isdecimal()
        if info.type == fs.FileType.File and is_named and info.size:
            found.append(QueueFile(info.path, topic, int(queue), int(name), info.size))
    found.sort(key=lambda file: (file.topic, file.queue_id, file.start))
    return found


def plan_queues(store: Store, options: StoreOptions) -> Iterator[DerivedSplit]:
    """The queue files of the wanted topics and queues, packed into tasks."""
    packed: list[QueueFile] = []
    size = 0
    for file in list_queue_files(store.root):
        if options.topics and file.topic not in options.topics:
            continue
        if options.queue_ids and file.queue_id not in options.queue_ids:
            continue
        packed.append(file)
        size += file.size
        if size >= TASK_BYTES:
            yield DerivedSplit(store.root, store.broker_name, tuple(packed))
            packed, size = [], 0
    if packed:
        yield DerivedSplit(store.root, store.broker_name, tuple(packed))


def plan_index(store: Store) -> Iterator[DerivedSplit]:
    """One task per index file."""
    file_system, path = open_file_system(store.root)
    selector = fs.FileSelector(f"{path}/index", allow_not_found=True)
    for info in sorted(file_system.get_file_info(selector), key=lambda info: str(info.path)):
        name = info.base_name
        if info.type == fs.FileType.File and len(name) == 17 and name.isdecimal():
            yield DerivedSplit(store.root, store.broker_name, index_path=info.path)


def queue_entries(
    split: DerivedSplit, end: int
) -> Iterator[tuple[QueueFile, npt.NDArray[np.int64], npt.NDArray[np.void]]]:
    """Per file with some: the queue offsets of its entries of records below the log position ``end``, and these."""
    file_system, _ = open_file_system(split.root)
    for file in split.files:
        with FileReader(file_system, file.path) as reader:
            data = reader.read(0, file.size // ENTRY_BYTES * ENTRY_BYTES)
        entries = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES].view(QUEUE_ENTRY)
        numbers = np.flatnonzero(is_entry(entries) & (entries["physical_offset"] < end))
        if len(numbers):
            yield file, numbers + file.start // ENTRY_BYTES, entries[numbers]


def read_queue(split: DerivedSplit, schema: pa.Schema, end: int) -> Iterator[pa.RecordBatch]:
    """The entries of records below the log position ``end``."""
    for file, offsets, entries in queue_entries(split, end):
        values = {
            "topic": file.topic,
            "brokerName": split.broker_name,
            "queueId": file.queue_id,
            "queueOffset": offsets,
            "physicalOffset": entries["physical_offset"],
            "size": entries["size"],
            "tagsCode": entries["tags_code"],
        }
        yield batch_of(values, len(offsets), schema)


def is_entry(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Which places hold an entry."""
    found: npt.NDArray[np.bool_] = (entries["size"] > 0) & (entries["size"] != FILLER_SIZE)
    return found


def read_index(split: DerivedSplit, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The entries of one index file.

    Raises:
        Corrupt: its header and size fit no number of slots.
    """
    file_system, _ = open_file_system(split.root)
    path = split.index_path
    with FileReader(file_system, path) as reader:
        size = int(file_system.get_file_info(path).size)
        header = reader.read(0, _HEADER.size).tobytes()
        if len(header) < _HEADER.size:
            raise Corrupt(f"{path}: {len(header)} bytes are no index file: rebuild the index")
        begin_ms, _, begin_offset, end_offset, _, count = _HEADER.unpack(header)
        count -= 1
        if count <= 0:
            return
        slots = _infer_slots(reader, size, count, (begin_offset, end_offset))
        if not slots:
            raise Corrupt(f"{path}: its header and its entries disagree: rebuild the index")
        start = _HEADER.size + 4 * slots + ENTRY_BYTES
        entries = reader.read(start, ENTRY_BYTES * count).view(INDEX_ENTRY)
    numbers = np.arange(1, count + 1)
    values = {
        "brokerName": split.broker_name,
        "file": path.rsplit("/", 1)[-1],
        "entry": numbers,
        "keyHash": entries["key_hash"],
        "physicalOffset": entries["physical_offset"],
        "storeTimestamp": (begin_ms + entries["seconds"].astype(np.int64) * 1000) * 1000,
        "previousEntry": entries["previous"],
    }
    yield batch_of(values, count, schema)


def _infer_slots(reader: FileReader, size: int, count: int, offsets: tuple[int, int]) -> int:
    def fits(slots: int) -> bool:
        first = _HEADER.size + 4 * slots + ENTRY_BYTES
        if slots <= 0 or first + ENTRY_BYTES * count > size:
            return False
        ends = (first, first + ENTRY_BYTES * (count - 1))
        found = tuple(int(reader.read(at, ENTRY_BYTES).view(INDEX_ENTRY)["physical_offset"][0]) for at in ends)
        # Entry 0 is never used; a log that begins at 0 makes it look like the first one.
        before, entry = (bool(reader.read(at, ENTRY_BYTES).any()) for at in (first - ENTRY_BYTES, first))
        return found == offsets and entry and not before

    body = size - _HEADER.size
    candidates = [DEFAULT_SLOTS] if body == 4 * DEFAULT_SLOTS + ENTRY_BYTES * DEFAULT_ENTRIES else []
    candidates += [body // 84] if body % 84 == 0 else []  # four entries per slot, as by default
    for slots in candidates:
        if fits(slots):
            return slots
    for slots in range(body // 4 % 5 or 5, body // 4, 5):  # the entries are to fill the rest
        if fits(slots):
            return slots
    return 0


def batch_of(values: Mapping[str, Any], count: int, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of ``schema``, each of an Arrow array, a NumPy array, or one value for all ``count`` rows."""
    columns = []
    for field in schema:
        value = values[field.name]
        if isinstance(value, pa.Array):
            columns.append(value)
        elif not isinstance(value, np.ndarray):
            columns.append(pa.repeat(pa.scalar(value, field.type), count))
        elif pa.types.is_timestamp(field.type):
            columns.append(pa.array(value, pa.int64()).cast(field.type))
        else:
            columns.append(pa.array(value.astype(field.type.to_pandas_dtype()), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
