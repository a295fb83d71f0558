"""Files of a store as annotated items: which kind a file is, and where its items begin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from penstock.formats.record.layout import BLANK_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from penstock.proto.errors import InvalidArgument

from .annotations import Item, extension_item, fixed_item, record_item
from .directory import BATCH_UNIT_BYTES, ENTRY_BYTES
from .files import InputFile
from .index.files import HEADER_BYTES
from .side_files import CHECKPOINT_BYTES

KINDS = ("log", "queue", "batch", "extension", "index", "checkpoint", "timer")
RECORD_BYTES_MAX = 64 << 20
_FOLDERS = {
    "commitlog": "log",
    "consumequeue": "queue",
    "batchconsumequeue": "batch",
    "consumequeue_ext": "extension",
    "index": "index",
    "timerlog": "timer",
}
_QUEUE_ENTRY = (("physicalOffset", "i8"), ("size", "i4"), ("tagsCode", "i8"))
_BATCH_UNIT = (
    *(("physicalOffset", "i8"), ("size", "i4"), ("tagsCode", "i8"), ("storeTimestamp", "time")),
    *(("msgBaseOffset", "i8"), ("batchSize", "i2"), ("compactedOffset", "i4"), ("reserved", "i4")),
)
_TIMER_UNIT = (
    *(("size", "i4"), ("previousPosition", "i8"), ("magic", "i4"), ("writeTimestamp", "time"), ("delayMs", "i4")),
    *(("physicalOffset", "i8"), ("recordSize", "i4"), ("topicHash", "i4"), ("reserved", "i8")),
)
_INDEX_HEADER = (
    *(("beginTimestamp", "time"), ("endTimestamp", "time"), ("beginPhyOffset", "i8"), ("endPhyOffset", "i8")),
    *(("hashSlotCount", "i4"), ("indexCount", "i4")),
)
_INDEX_ENTRY = (("keyHash", "i4"), ("phyOffset", "i8"), ("timeDiff", "i4"), ("prevIndex", "i4"))
_CHECKPOINT = (
    *(("physicMsgTimestamp", "time"), ("logicsMsgTimestamp", "time"), ("indexMsgTimestamp", "time")),
    *(("masterFlushedOffset", "i8"), ("confirmPhyOffset", "i8")),
)
_FIXED = {
    "queue": ("queue entry", ENTRY_BYTES, _QUEUE_ENTRY),
    "batch": ("batch queue unit", BATCH_UNIT_BYTES, _BATCH_UNIT),
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

    Raises:
        Unreadable: the file cannot be opened.
        InvalidArgument: it is none of a store's files, or has no such byte.
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

    Raises:
        InvalidArgument: neither tells.
    """
    if file.path.name in ("checkpoint", "timercheck"):
        return "checkpoint"
    for folder in reversed(file.path.absolute().parts[:-1]):
        if folder in _FOLDERS:
            return _FOLDERS[folder]
    magic = int.from_bytes(file.read(4, 4), "big", signed=True)
    if magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        return "log"
    if file.size == CHECKPOINT_BYTES:
        return "checkpoint"
    if len(file.path.name) == 17 and file.path.name.isdecimal() and file.size > HEADER_BYTES:
        return "index"
    if len(file.path.name) == 20 and file.path.name.isdecimal() and file.size % ENTRY_BYTES == 0:
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
            found = iter((fixed_item("checkpoint", file.read(0, 40), 0, _CHECKPOINT),))
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

    index = IndexFile(path)
    try:
        index.infer_slots()
        if at < HEADER_BYTES:
            yield fixed_item("index header", index.file.read(0, HEADER_BYTES), 0, _INDEX_HEADER)
        entries_at = HEADER_BYTES + 4 * index.slots
        first_slot = max(0, (at - HEADER_BYTES) // 4)
        left = count // 2 if at < HEADER_BYTES else count
        for slot in range(first_slot, index.slots):
            data = index.file.read(HEADER_BYTES + 4 * slot, 4)
            if data.strip(b"\0") or (slot == first_slot and at >= HEADER_BYTES):
                yield fixed_item(f"hash slot {slot}", data, HEADER_BYTES + 4 * slot, (("newestIndex", "i4"),))
                left -= 1
            if left <= 0:
                break
        if not index.slots:
            return
        first = max(1, (at - entries_at) // ENTRY_BYTES)
        for number in range(first, index.entries + 1):
            position = entries_at + ENTRY_BYTES * number
            data = index.file.read(position, ENTRY_BYTES)
            yield fixed_item(f"index entry {number}", data, position, _INDEX_ENTRY)
    finally:
        index.close()
