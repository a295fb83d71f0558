"""Files of a store as annotated items: which kind a file is, and where its items begin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np

from penstock.formats.batch_unit import BATCH_UNIT, BATCH_UNIT_BYTES
from penstock.formats.checkpoint import CHECKPOINT_BYTES, FIELDS_BYTES
from penstock.formats.directory import (
    BATCH_QUEUE,
    CHECKPOINT,
    COMMIT_LOG,
    CONSUME_QUEUE,
    EXTENSIONS,
    INDEX,
    file_start,
    is_index_file_name,
)
from penstock.formats.index.index_file import (
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    SLOT_BYTES,
    entry_at,
    slot_at,
)
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES
from penstock.formats.record.layout import BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from penstock.proto.errors import InvalidArgument

from .annotations import Item, extension_item, fixed_item, record_item
from .files import InputFile

KINDS = ("log", "queue", "batch", "extension", "index", "checkpoint", "timer")
RECORD_BYTES_MAX = 64 << 20
_FOLDERS = {
    COMMIT_LOG: "log",
    CONSUME_QUEUE: "queue",
    BATCH_QUEUE: "batch",
    EXTENSIONS: "extension",
    INDEX: "index",
    "timerlog": "timer",
}
_TIMER_UNIT = (
    *(("size", "i4"), ("previousPosition", "i8"), ("magic", "i4"), ("writeTimestamp", "time"), ("delayMs", "i4")),
    *(("physicalOffset", "i8"), ("recordSize", "i4"), ("topicHash", "i4"), ("reserved", "i8")),
)
_INDEX_HEADER = (
    *(("beginTimestamp", "time"), ("endTimestamp", "time"), ("beginPhyOffset", "i8"), ("endPhyOffset", "i8")),
    *(("hashSlotCount", "i4"), ("indexCount", "i4")),
)
_CHECKPOINT = (
    *(("physicMsgTimestamp", "time"), ("logicsMsgTimestamp", "time"), ("indexMsgTimestamp", "time")),
    *(("masterFlushedOffset", "i8"), ("confirmPhyOffset", "i8")),
)


def _named(row: np.dtype[np.void], names: str) -> tuple[tuple[str, str], ...]:
    """The fields of ``row`` under RocketMQ's names, with what each is."""
    kinds = ["time" if name.endswith("timestamp") else row[name].str.removeprefix(">") for name in row.names or ()]
    return tuple(zip(names.split(), kinds, strict=True))


_INDEX_ENTRY = _named(INDEX_ENTRY, "keyHash phyOffset timeDiff prevIndex")
_BATCH_NAMES = "physicalOffset size tagsCode storeTimestamp msgBaseOffset batchSize compactedOffset reserved"
_FIXED = {
    "queue": ("queue entry", ENTRY_BYTES, _named(ENTRY, "physicalOffset size tagsCode")),
    "batch": ("batch queue unit", BATCH_UNIT_BYTES, _named(BATCH_UNIT, _BATCH_NAMES)),
    "timer": ("timer log unit", 52, _TIMER_UNIT),
}


class Dump(NamedTuple):
    """What a file is, and the chosen items of it."""

    path: Path
    kind: str
    items: Iterator[Item]


def dump(path: Path, *, at: int | None = None, count: int | None = None, kind: str | None = None) -> Dump:
    """Items of ``path`` from the one that holds byte ``at`` on, ``count`` of them.

    Without ``count``: one where ``at`` says which, else 16 (of a log 4). Without ``kind`` the path and the content
    tell what the file is.
    Raises Unreadable: the file cannot be opened.
    Raises InvalidArgument: no file of a store is like it, or it has no such byte.
    """
    with InputFile(path) as file:
        kind = kind or infer_kind(file)
        size = file.size
    if at is not None and not 0 <= at < max(size, 1):
        raise InvalidArgument(f"{path} at {at}: the file has {size} bytes")
    limit = count or (1 if at is not None else 4 if kind == "log" else 16)
    return Dump(path, kind, _items(path, kind, at or 0, limit))


def infer_kind(file: InputFile) -> str:
    """What kind of file this is, by the folder it lies in, else by its content.

    Raises InvalidArgument: neither tells.
    """
    if file.path.name in (CHECKPOINT, "timercheck"):
        return "checkpoint"
    for folder in reversed(file.path.absolute().parts[:-1]):
        if folder in _FOLDERS:
            return _FOLDERS[folder]
    magic = int.from_bytes(file.read(4, 4), "big", signed=True)
    if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return "log"
    if file.size == CHECKPOINT_BYTES:
        return "checkpoint"
    if is_index_file_name(file.path.name) and file.size > HEADER_BYTES:
        return "index"
    if file_start(file.path.name) is not None and file.size % ENTRY_BYTES == 0:
        return "queue"
    raise InvalidArgument(f"{file.path}: neither folder nor content tell what it is; name its kind: {', '.join(KINDS)}")


def _items(path: Path, kind: str, at: int, count: int) -> Iterator[Item]:
    with InputFile(path) as file:
        if kind == "log":
            found = _records(file, at)
        elif kind == "extension":
            found = _extensions(file, at)
        elif kind == "index":
            found = _index_items(path, at, count)
        elif kind == "checkpoint":
            found = iter((fixed_item("checkpoint", file.read(0, FIELDS_BYTES), 0, _CHECKPOINT),))
        else:
            found = _entries(file, kind, at)
        for _, item in zip(range(count), found, strict=False):
            yield item


def _records(file: InputFile, at: int) -> Iterator[Item]:
    """From the record that holds byte ``at`` on; from there itself where the records before do not lead to it."""
    position = _record_start(file, at)
    while position < file.size:
        head = file.read(position, BLANK_BYTES)
        size = int.from_bytes(head[:4], "big", signed=True)
        if size == 0:
            return
        wanted = size if BLANK_BYTES <= size <= RECORD_BYTES_MAX else 128
        magic = int.from_bytes(head[4:8], "big", signed=True)
        item = record_item(head if magic == MAGIC_BLANK else file.read(position, wanted), position)
        yield item
        if item.what != "record":
            return
        position += size


def _record_start(file: InputFile, at: int) -> int:
    magic = int.from_bytes(file.read(at + 4, 4), "big", signed=True)
    if at == 0 or magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return at
    position = 0
    while position < at:
        head = file.read(position, BLANK_BYTES)
        size, magic = (int.from_bytes(head[i : i + 4], "big", signed=True) for i in (0, 4))
        if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or size < BLANK_BYTES:
            return at
        if position + size > at:
            return position
        position += size
    return at


def _entries(file: InputFile, kind: str, at: int) -> Iterator[Item]:
    what, size, layout = _FIXED[kind]
    base = int(file.path.name) if file.path.name.isdecimal() and kind != "timer" else None
    for position in range(at - at % size, file.size, size):
        number = "" if base is None else f" {(base + position) // size}"
        yield fixed_item(f"{what}{number}", file.read(position, size), position, layout)


def _extensions(file: InputFile, at: int) -> Iterator[Item]:
    position = 0
    while position < file.size:
        item = extension_item(file.read(position, 1 << 15), position)
        if item.size == 0 or position + item.size > at:
            yield item
        if item.size == 0:
            return
        position += item.size


def _index_items(path: Path, at: int, count: int) -> Iterator[Item]:
    """Header, used slots, entries; from the file's beginning half of ``count`` slots at most."""
    from .index.files import IndexFile

    with closing(IndexFile(path)) as index:
        index.infer_slots()
        if at < HEADER_BYTES:
            yield fixed_item("index header", index.file.read(0, HEADER_BYTES), 0, _INDEX_HEADER)
        first_slot = max(0, (at - HEADER_BYTES) // SLOT_BYTES)
        left = count // 2 if at < HEADER_BYTES else count
        for slot in range(first_slot, index.slots):
            data = index.file.read(slot_at(slot), SLOT_BYTES)
            if data.strip(b"\0") or (slot == first_slot and at >= HEADER_BYTES):
                yield fixed_item(f"hash slot {slot}", data, slot_at(slot), (("newestIndex", "i4"),))
                left -= 1
            if left <= 0:
                break
        if not index.slots:
            return
        first = max(1, (at - entry_at(index.slots, 0)) // INDEX_ENTRY_BYTES)
        for number in range(first, index.entries + 1):
            position = entry_at(index.slots, number)
            data = index.file.read(position, INDEX_ENTRY_BYTES)
            yield fixed_item(f"index entry {number}", data, position, _INDEX_ENTRY)
