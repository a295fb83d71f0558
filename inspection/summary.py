"""What a store holds, at a glance: read from names, headers, queue ends and the log's last file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, Final

import numpy as np

from penstock.formats.checkpoint import Standard
from penstock.formats.directory import ABORT, CONFIG, CONSUME_QUEUE, EPOCHS, IDENTITY, LOCK, OWN_CHECKPOINT
from penstock.formats.queue_entry import ENTRY, ENTRY_BYTES
from penstock.formats.rocketmq_config import POP_CODES, leftovers

from .directory import QueueFiles, StoreDirectory
from .files import InputFile, Unreadable
from .findings import printable
from .index.files import IndexFile
from .log.model import Progress
from .log.reader import LogReader
from .messages import RecordReader
from .queues.rest import read_batch_units
from .queues.table import QueueTable
from .queues.view import QueueView, read_segments
from .side_files import is_left_by_rocketmq, load_checkpoint, load_epochs

_ENTRIES_AT_ONCE: Final = 1 << 16
NAMED_FILES = (ABORT, LOCK, EPOCHS, IDENTITY, OWN_CHECKPOINT)


def summarize(store: StoreDirectory, progress: Progress | None = None) -> dict[str, Any]:
    """The store as one JSON object. Not a check: that is :func:`penstock.inspection.verify.verify`.

    ``problems`` and ``notes`` are what names, sizes, queue ends and the last log file say. ``progress`` counts
    queues.
    """
    findings = store.findings
    checkpoint = load_checkpoint(store.root, findings)
    epochs = load_epochs(store.root, findings)
    log = _log(store)
    topics = _topics(store, log["end"], progress)
    index = _index(store)
    if is_left_by_rocketmq(store.root, checkpoint or Standard()):
        ranges = {(topic["topic"], queue): (low, high) for topic in topics for queue, low, high in topic["ranges"]}
        for names, count, text in leftovers(ranges, store.root / CONFIG, partial(_tagged, store)):
            findings.note(store.root / CONSUME_QUEUE / names[0], None, f"{count:,} left by RocketMQ: {text}")
    return {
        "path": printable(str(store.root)),
        "aborted": store.aborted,
        "log": log,
        "topics": topics,
        "queues": sum(topic["queues"] for topic in topics),
        "queue_file_bytes": store.queue_bytes,
        "index": index,
        "keys": sum(file["entries"] for file in index),
        "checkpoint": checkpoint._asdict() if checkpoint else None,
        "epochs": [{"epoch": epoch.epoch, "start": epoch.start} for epoch in epochs],
        "files": [name for name in NAMED_FILES if (store.root / name).exists()],
        "notes": [finding._asdict() for finding in findings.notes],
        "ok": findings.ok,
        "problems": [finding._asdict() for finding in findings.problems],
    }


def _tagged(
    store: StoreDirectory, topic: str, queue_id: int, start: int, end: int
) -> Iterator[tuple[int, Mapping[str, str]]]:
    """See :data:`penstock.formats.rocketmq_config.FindTagged`."""
    with closing(RecordReader(store)) as reader:
        for first in range(start, end, _ENTRIES_AT_ONCE):
            size = min(_ENTRIES_AT_ONCE, end - first) * ENTRY_BYTES
            entries = read_segments(store.queues[topic, queue_id].segments, first * ENTRY_BYTES, size).view(ENTRY)
            for index in np.flatnonzero(np.isin(entries["tags_code"], POP_CODES)).tolist():
                found = reader.find(int(entries["physical_offset"][index]))
                if found is not None:
                    yield first + index, found.properties


def _log(store: StoreDirectory) -> dict[str, Any]:
    """Range and times of the log; only its last file with records is read."""
    first_time = last_time = None
    end, records = store.log_start, 0
    try:
        with closing(RecordReader(store)) as reader:
            first = reader.find(store.log_start)
        first_time = first.record.store_timestamp_ms if first else None
    except Unreadable as error:
        store.findings.problem(store.segments[0].path, None, str(error))
    for number in range(len(store.segments) - 1, -1, -1):
        segment = store.segments[number]
        try:
            with InputFile(segment.path) as file:
                begun = file.read(0, 4).strip(b"\0") != b""
        except Unreadable as error:
            store.findings.problem(segment.path, None, str(error))
            continue
        if not begun and number:
            continue
        walk = LogReader(store, QueueTable(), check_crc=False, entry_rows=1 << 16)
        for _ in walk.read(segment.start):
            pass
        end, records = walk.tail.end, walk.records
        last_time = walk.last_time if records else None
        for damage in walk.damages:
            store.findings.problem(segment.path, damage.start - segment.start, damage.reason)
        if walk.tail.reason:
            at = walk.tail.end - segment.start
            store.findings.tell(
                segment.path, at, f"the log ends with what is {walk.tail.reason}", expected=store.aborted
            )
        break
    return {
        "directories": [str(directory) for directory in store.log_directories],
        "files": len(store.segments),
        "file_bytes": store.segment_bytes,
        "bytes": store.log_bytes,
        "start": store.log_start,
        "end": end,
        "first_store_timestamp_ms": first_time,
        "last_store_timestamp_ms": last_time,
        "records_in_last_file": records,
    }


def _topics(store: StoreDirectory, log_end: int, progress: Progress | None) -> list[dict[str, Any]]:
    """Per topic its queues and messages; says which queues point behind the log's end."""
    found: dict[str, dict[str, Any]] = {}

    def topic_of(queue: QueueFiles) -> dict[str, Any]:
        empty = {"topic": printable(queue.topic), "queues": 0, "messages": 0, "queue_files": 0, "ranges": []}
        topic = found.setdefault(queue.topic, empty)
        topic["queues"] += 1
        topic["queue_files"] += len(queue.segments)
        return topic

    def add(topic: dict[str, Any], queue: QueueFiles, first: int, end: int) -> None:
        topic["messages"] += end - first
        topic["ranges"].append([queue.queue_id, first, end])

    total = len(store.queues)
    for done, (_, queue) in enumerate(sorted(store.queues.items())):
        if progress is not None and done % 256 == 0:
            progress(done, total)
        topic = topic_of(queue)
        try:
            view = QueueView(queue, store.log_start)
            last = view.entry(view.max_offset - 1) if view.max_offset > view.min_offset else None
        except Unreadable as error:
            store.findings.problem(queue.directory, None, str(error))
            continue
        add(topic, queue, view.min_offset, view.max_offset)
        if last is not None and last.is_message and last.physical_offset + last.size > log_end:
            text = f"the last entry points to {last.physical_offset}, behind the log's end"
            store.findings.tell(queue.directory, None, text, expected=store.aborted)
    for _, queue in sorted(store.batch_queues.items()):
        topic = topic_of(queue)
        units, _ = read_batch_units(queue)
        units = units[units["physical_offset"] >= store.log_start]
        if len(units):
            add(topic, queue, int(units["base"][0]), int(units["base"][-1]) + int(units["count"][-1]))
    if progress is not None:
        progress(total, total)
    return list(found.values())


def _index(store: StoreDirectory) -> list[dict[str, Any]]:
    found = []
    slots = 0
    for segment in store.index_files:
        try:
            index = IndexFile(segment.path)
        except Unreadable as error:
            store.findings.problem(segment.path, None, str(error))
            continue
        try:
            slots = index.infer_slots(slots) or slots
        except Unreadable as error:
            store.findings.problem(segment.path, None, str(error))
        finally:
            index.close()
        if index.entries and not index.slots:
            store.findings.problem(segment.path, 0, "no number of slots fits: the file is damaged")
        document: dict[str, Any] = {"file": segment.path.name, "bytes": segment.size, "slots": index.slots}
        document |= {"entries": index.entries, "used_slots": index.header.slot_count}
        names = ("begin_timestamp", "end_timestamp", "begin_offset", "end_offset")
        document |= {name: getattr(index.header, name) for name in names}
        found.append(document)
    return found
