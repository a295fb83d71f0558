"""What lies in a store directory, found by names and sizes alone (:mod:`penstock.formats.directory`).

How large the files are meant to be are settings of the broker that no file holds. They are inferred: the size that most
files have.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from penstock.formats.directory import (
    ABORT,
    BATCH_QUEUE,
    COMMIT_LOG,
    CONSUME_QUEUE,
    EXTENSIONS,
    INDEX,
    file_start,
    is_index_file_name,
)
from penstock.proto.errors import ConfigError, WrongStore

from .files import Unreadable, entries_of, is_directory, is_file
from .findings import Findings


class Segment(NamedTuple):
    """One file of a log or queue that goes on in the next: its first byte's position, its path, its size."""

    start: int
    path: Path
    size: int


@dataclass(slots=True)
class QueueFiles:
    """The files of one queue, in order."""

    topic: str
    queue_id: int
    directory: Path
    segments: list[Segment] = field(default_factory=list)


QueueKey = tuple[str, int]


@dataclass(slots=True)
class StoreDirectory:
    """A listing of one store. ``findings`` holds what names and sizes say already."""

    root: Path
    log_directories: list[Path]
    segments: list[Segment] = field(default_factory=list)
    segment_bytes: int = 0
    queues: dict[QueueKey, QueueFiles] = field(default_factory=dict)
    queue_bytes: int = 0
    batch_queues: dict[QueueKey, QueueFiles] = field(default_factory=dict)
    extensions: dict[QueueKey, QueueFiles] = field(default_factory=dict)
    index_files: list[Segment] = field(default_factory=list)  # start: the digits of the name
    findings: Findings = field(default_factory=Findings)

    @property
    def aborted(self) -> bool:
        """True if the store is open now or was not closed: what lies behind the checkpoint is not settled."""
        return (self.root / ABORT).exists()

    @property
    def log_start(self) -> int:
        """Position of the log's first byte that is kept."""
        return self.segments[0].start if self.segments else 0

    @property
    def log_bytes(self) -> int:
        """Sum of the log files' sizes."""
        return sum(segment.size for segment in self.segments)

    def segment_at(self, physical: int) -> Segment | None:
        """The log file that holds a position."""
        number = bisect_right(self.segments, physical, key=lambda segment: segment.start) - 1
        if number < 0 or physical >= self.segments[number].start + self.segment_bytes:
            return None
        return self.segments[number]


def list_store(root: Path, log_directories: Sequence[Path] = ()) -> StoreDirectory:
    """List the store at ``root``; its log lies in ``log_directories``, or in ``root/commitlog``.

    Raises ConfigError: there is no such directory.
    Raises WrongStore: it holds no store.
    Raises Unreadable: one of the directories may not be read.
    """
    if not root.exists():
        raise ConfigError(f"{root}: no such directory")
    if not root.is_dir():
        raise ConfigError(f"{root}: not a directory: give the store's root, which holds commitlog/")
    logs = list(log_directories) or [root / COMMIT_LOG]
    for directory in logs:
        if not directory.is_dir():
            raise WrongStore(
                f"{root} holds no store: there is no directory {directory}; if its log lies elsewhere "
                "(storePathCommitLog), name that directory: --commitlog DIR"
            )
    store = StoreDirectory(root, logs)
    _list_log(store)
    _list_queues(store)
    for entry in entries_of(root / INDEX):
        if is_index_file_name(entry.name) and is_file(entry):
            store.index_files.append(Segment(int(entry.name), Path(entry.path), entry.stat().st_size))
        else:
            _foreign(store, entry)
    return store


def _list_log(store: StoreDirectory) -> None:
    for directory in store.log_directories:
        store.segments += _segments(store, directory)
    store.segments.sort()
    if not store.segments:
        raise WrongStore(f"{store.log_directories[0]} holds no log file: their names are 20 digits")
    store.segment_bytes = _common_size(store.segments)
    if store.segment_bytes == 0:
        raise WrongStore(f"{store.segments[0].path}: the log files are empty")
    kept: list[Segment] = []
    for segment in store.segments:
        last = segment is store.segments[-1]
        if segment.size == 0 and last:
            store.findings.note(segment.path, None, "an empty file behind the log, left over from allocating it")
            continue
        if segment.size != store.segment_bytes:
            text = f"the file has {segment.size} bytes where the other log files have {store.segment_bytes}"
            store.findings.problem(segment.path, None, text)
        if kept and segment.start < kept[-1].start + store.segment_bytes:
            text = f"the file overlaps {kept[-1].path.name}: log files take {store.segment_bytes} bytes each"
            store.findings.problem(segment.path, None, text)
            continue
        kept.append(segment)
    store.segments = kept


def _list_queues(store: StoreDirectory) -> None:
    store.queues = _queues(store, CONSUME_QUEUE)
    store.batch_queues = _queues(store, BATCH_QUEUE)
    store.extensions = _queues(store, EXTENSIONS)
    every = [segment for queue in store.queues.values() for segment in queue.segments]
    store.queue_bytes = _common_size(every)
    for queues, size in ((store.queues, store.queue_bytes), (store.batch_queues, 0), (store.extensions, 0)):
        size = size or _common_size([segment for queue in queues.values() for segment in queue.segments])
        for queue in queues.values():
            for segment in queue.segments:
                if segment.size != size and segment.size > 0:
                    text = f"the file has {segment.size} bytes where the others of its kind have {size}"
                    store.findings.problem(segment.path, None, text)


def _queues(store: StoreDirectory, kind: str) -> dict[QueueKey, QueueFiles]:
    found: dict[QueueKey, QueueFiles] = {}
    for topic in entries_of(store.root / kind):
        if not is_directory(topic):
            _foreign(store, topic)
            continue
        for queue in entries_of(Path(topic.path)):
            if not (is_directory(queue) and queue.name.isascii() and queue.name.isdecimal() and len(queue.name) <= 10):
                _foreign(store, queue)
                continue
            directory = Path(queue.path)
            segments = _segments(store, directory)
            found[topic.name, int(queue.name)] = QueueFiles(topic.name, int(queue.name), directory, segments)
    return found


def _segments(store: StoreDirectory, directory: Path) -> list[Segment]:
    found = []
    try:
        entries = entries_of(directory)
    except Unreadable as error:
        store.findings.problem(directory, None, str(error).partition(": ")[2])
        return []
    for entry in entries:
        start = file_start(entry.name)
        if start is None or not is_file(entry):
            _foreign(store, entry)
            continue
        try:
            size = entry.stat().st_size
        except FileNotFoundError:
            continue  # the broker deleted it meanwhile
        found.append(Segment(start, directory / entry.name, size))
    return found


def _foreign(store: StoreDirectory, entry: os.DirEntry[str]) -> None:
    store.findings.problem(entry.path, None, "not a file of a store: a broker may refuse to start beside it")


def _common_size(segments: Sequence[Segment]) -> int:
    """The size that most files have; of several, the largest."""
    counts = Counter(segment.size for segment in segments if segment.size)
    return max(counts, key=lambda size: (counts[size], size)) if counts else 0
