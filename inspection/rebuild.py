"""A new store from the valid records of another: the log copied, queues and index built afresh.

Records keep their positions, since queues, ids and replicas name them by position. So bytes that are no valid record
cannot be left out; they are replaced by what every broker passes over:

| Damage | In the new log |
|---|---|
| within a file | a record of a rolled-back transaction, which no queue and no index has |
| to a file's end, or a whole file | such a record if messages are lost, and a blank record, which ends the file |
| the tail | zeros |

In a queue, filling stands for records that are lost.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from penstock.formats.batch_unit import pack_units
from penstock.formats.checkpoint import Standard
from penstock.formats.directory import CHECKPOINT, COMMIT_LOG, CONFIG, EPOCHS, IDENTITY, INDEX, file_name
from penstock.formats.index.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS, INDEX_ENTRY_BYTES, entry_at
from penstock.formats.record.layout import (
    BLANK_BYTES,
    FIXED_BYTES,
    MAGIC_BLANK,
    PhysicalOffset,
    Record,
    SysFlag,
    encode_record,
)
from penstock.proto.errors import ConfigError, DiskFull, InvalidArgument
from penstock.proto.names import LIGHT_PREFIX, LOST_TOPIC

from .directory import Segment, StoreDirectory, list_store
from .files import InputFile, Unreadable
from .index.files import IndexFile
from .index.writer import IndexWriter
from .log.model import Damage, OffsetJump, Progress, Rows
from .log.reader import LogReader
from .queues.table import QueueTable, can_name_directory
from .queues.writer import FILLED_MAX, QueueWriter, write_at, write_batch_queues

FILLER_BYTES_MAX = 1 << 20
MARKER_BYTES = FIXED_BYTES + len(LOST_TOPIC)
COPY_BYTES = 8 << 20
COPIED = (CONFIG, "timerlog", "timerwheel", "compaction", EPOCHS, IDENTITY)


@dataclass(slots=True)
class RebuildReport:
    """What the new store holds. ``lost_bytes`` of the old log were no valid records."""

    path: str
    log_bytes: int = 0
    records: int = 0
    queues: int = 0
    queue_entries: int = 0
    filled_entries: int = 0
    keys: int = 0
    lost_bytes: int = 0
    left_out: int = 0  # entries that fit no queue, because of a damaged topic or queue offset
    replaced: list[dict[str, Any]] = field(default_factory=list)


def rebuild(store: StoreDirectory, into: Path, progress: Progress | None = None) -> RebuildReport:
    """Make the new store ``into``, which does not exist yet or is an empty directory. It appears when it is complete.

    Raises ConfigError: ``into`` cannot be used.
    Raises DiskFull: no space for it; what was written is removed.
    Raises Unreadable: a file of the old store cannot be read.
    """
    _check_target(store, into)
    partial = into.with_name(f"{into.name}.partial-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        report = _Rebuild(store, partial, into, progress).run()
        partial.rename(into)
    except OSError as error:
        raise DiskFull(f"{into}: {error.strerror or error}: nothing is left there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _check_target(store: StoreDirectory, into: Path) -> None:
    target = into.resolve()
    for directory in (store.root, *store.log_directories):
        source = directory.resolve()
        if target == source or source in target.parents or target in source.parents:
            raise ConfigError(f"{into}: the new store must lie outside of {directory}, which is only read")
    if into.is_symlink() or (into.exists() and not into.is_dir()):
        raise ConfigError(f"{into}: not a directory")
    if into.exists() and any(into.iterdir()):
        raise ConfigError(f"{into}: not empty: name a directory that does not exist yet")


class _Rebuild:
    def __init__(self, store: StoreDirectory, root: Path, into: Path, progress: Progress | None) -> None:
        self._old = store
        self._root = root
        self._progress = progress
        self._report = RebuildReport(str(into))
        self._fillers = 0

    def run(self) -> RebuildReport:
        """Prove the old log, copy it, derive the rest from the copy."""
        batch_topics = frozenset(topic for topic, _ in self._old.batch_queues)
        old = LogReader(self._old, QueueTable(batch_topics), progress=self._part(0, 3))
        unusable: list[Damage] = []
        for batch in old.read():
            unusable += _nameless(batch.entries, old.table)
        unusable += _misnumbered(old)
        self._copy_log(old, sorted([*old.damages, *unusable]))
        self._derive(list_store(self._root), batch_topics)
        for name in COPIED:
            _copy_tree(self._old.root / name, self._root / name)
        checkpoint = Standard(*[max(0, old.last_time)] * 3)
        (self._root / CHECKPOINT).write_bytes(checkpoint.encode())
        return self._report

    def _part(self, number: int, parts: int) -> Progress | None:
        """The progress of one part of the work, as a part of the whole."""
        report = self._progress
        if report is None:
            return None
        return lambda done, total: report(number * total + done, parts * total)

    def _copy_log(self, old: LogReader, damages: list[Damage]) -> None:
        (self._root / COMMIT_LOG).mkdir()
        size, end = self._old.segment_bytes, old.tail.end
        show = self._part(1, 3)
        used = [segment for segment in self._old.segments if segment.start < end]
        for number, segment in enumerate(used):
            _copy_segment(segment, self._root / COMMIT_LOG / segment.path.name, size, min(size, end - segment.start))
            if show is not None:
                show((number + 1) * size, len(used) * size)
        if not used:  # a log without a record begins where the old one does
            write_at(self._root / COMMIT_LOG / file_name(self._old.log_start), 0, b"", size)
        self._report.log_bytes = end - self._old.log_start
        reached = 0
        for damage in damages:
            if damage.start >= reached:
                self._replace(damage, old)
                reached = damage.end

    def _replace(self, damage: Damage, old: LogReader) -> None:
        """Put what brokers pass over in place of damaged bytes."""
        size = self._old.segment_bytes
        start, end = damage.start, damage.end
        if end == start:
            return
        if damage.lost or not damage.at_end:  # else only the blank record itself is wrong
            self._report.lost_bytes += end - start
        self._report.replaced.append({"start": start, "end": end, "reason": damage.reason})
        while start < end:
            base = self._old.log_start + (start - self._old.log_start) // size * size
            stop = min(end, base + size)
            path = self._root / COMMIT_LOG / file_name(base)
            write_at(path, start - base, self._filling(start, stop, base + size, old), size)
            start = stop

    def _filling(self, start: int, end: int, file_end: int, old: LogReader) -> bytes:
        made = b""
        if end == file_end:
            if end - start < BLANK_BYTES:
                raise InvalidArgument(f"log position {start}: no room for a blank record; restore from a replica")
            if old.jumps and end - start >= MARKER_BYTES + BLANK_BYTES:
                made = _filler(start, MARKER_BYTES, max(0, old.last_time))  # tells that records are lost here
                self._fillers += 1
            left = end - start - len(made)
            return made + left.to_bytes(4, "big") + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")
        while start < end:
            left = end - start
            size = left if left <= FILLER_BYTES_MAX else min(FILLER_BYTES_MAX, left - FIXED_BYTES)
            made += _filler(start, size, max(0, old.last_time))
            start += size
            self._fillers += 1
        return made

    def _derive(self, new: StoreDirectory, batch_topics: frozenset[str]) -> None:
        table = QueueTable(batch_topics)
        queues = QueueWriter(self._root, table, self._old.queue_bytes)
        slots, capacity = _index_shape(self._old)
        index = IndexWriter(self._root / INDEX, slots, capacity)
        reader = LogReader(new, table, check_crc=False, progress=self._part(2, 3))
        for batch in reader.read():
            queues.take(batch.entries)
            index.take(batch.keys)
        index.close()
        sizes = [segment.size for queue in self._old.batch_queues.values() for segment in queue.segments]
        units = {queue: pack_units(own) for queue, own in reader.batch_units.items()}
        write_batch_queues(self._root, units, max(sizes, default=0))
        report = self._report
        report.records = reader.records - self._fillers
        report.queues = len(queues)
        report.queue_entries, report.filled_entries, report.keys = queues.entries, queues.filled, index.keys
        report.left_out = queues.left_out


def _nameless(entries: Rows, table: QueueTable) -> list[Damage]:
    """Records whose topic or queue id is damaged so that it can name no directory."""
    bad = [slot for slot, name in enumerate(table.names) if not can_name_directory(*name)]
    rows = entries[np.isin(entries["slot"], bad)] if bad else entries[:0]
    places = zip(rows["physical_offset"].tolist(), rows["size"].tolist(), strict=True)
    return [Damage(at, at + size, "topic and queue id can name no directory", False) for at, size in places]


def _misnumbered(old: LogReader) -> list[Damage]:
    """Records whose queue offset is damaged: their queue goes on behind them as if they had the right one."""
    found = []
    following: dict[int, int] = {}  # per slot the offset that the queue really goes on with
    by_slot: dict[int, list[OffsetJump]] = {}
    for jump in old.jumps:
        by_slot.setdefault(jump.slot, []).append(jump)
    for slot, jumps in by_slot.items():
        if old.table.names[slot][0].startswith(LIGHT_PREFIX):
            continue  # the record is another queue's
        for jump, later in zip(jumps, [*jumps[1:], None], strict=True):
            due = following.pop(slot, jump.expected)
            goes_back = later is not None and later.expected == jump.queue_offset + 1 and later.queue_offset == due + 1
            if jump.queue_offset == due:
                continue
            beyond = jump.queue_offset < due or jump.queue_offset > due + FILLED_MAX
            is_last = later is None and int(old.table.next_offsets[slot]) == jump.queue_offset + 1
            beyond |= is_last and not old.lost_before(jump.physical_offset)
            if goes_back or (beyond and jump.queue_offset != 0):
                reason = f"queue offset {jump.queue_offset} where {due} is due"
                found.append(Damage(jump.physical_offset, jump.physical_offset + jump.size, reason, False))
                following[slot] = due + 1
    return found


def _filler(physical: int, size: int, time_ms: int) -> bytes:
    """A record of exactly ``size`` bytes, at least 91, that nothing is derived from."""
    topic = LOST_TOPIC[: size - FIXED_BYTES]
    record = Record(
        topic=topic,
        body=bytes(size - FIXED_BYTES - len(topic)),
        physical_offset=PhysicalOffset(physical),
        sys_flag=SysFlag.TRANSACTION_ROLLBACK,
        store_timestamp_ms=time_ms,
        born_timestamp_ms=time_ms,
    )
    encoded = encode_record(record)
    assert len(encoded) == size
    return encoded


def _copy_segment(segment: Segment, target: Path, size: int, end: int) -> None:
    """The first ``end`` bytes of a log file, zeros behind; holes stay holes."""
    write_at(target, 0, b"", size)
    try:
        source = InputFile(segment.path)
    except Unreadable:
        return  # its bytes are damage, and replaced
    with source:
        position = 0
        while position < end:
            data = source.next_data(position)
            if data is None or data >= end:
                return
            position = max(position, data)
            try:
                part = source.read(position, min(COPY_BYTES, end - position))
            except Unreadable:
                return
            if not part:
                return
            write_at(target, position, part, size)
            position += len(part)


def _copy_tree(source: Path, target: Path) -> None:
    """A file, or a directory of files, if it exists."""
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.is_file():
        shutil.copyfile(source, target)


def _index_shape(store: StoreDirectory) -> tuple[int, int]:
    """(slots, entries) of the old index files, or the default if no file tells."""
    for segment in store.index_files:
        try:
            with closing(IndexFile(segment.path)) as index:
                if slots := index.infer_slots():
                    return slots, (index.file.size - entry_at(slots, 0)) // INDEX_ENTRY_BYTES
        except Unreadable:
            continue
    return DEFAULT_SLOTS, DEFAULT_ENTRIES
