"""Messages by key, time or queue offset: through index and queue files where they are good, else by reading the log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

import numpy as np

from penstock.formats.hashing import index_key_hash
from penstock.formats.record.layout import Record
from penstock.proto.errors import MessageNotFound, TopicNotFound

from .directory import StoreDirectory
from .files import Unreadable
from .findings import Findings
from .index.files import IndexFile
from .log.model import Progress
from .log.reader import LogReader
from .messages import RecordReader, StoredRecord
from .queues.rest import read_batch_units
from .queues.table import QueueTable
from .queues.view import QueueView, first_true
from .side_files import load_epochs

TIME_MAX = (1 << 63) - 1


class BadIndex(Exception):
    """An index file that cannot be relied on."""


class KeyAnswer(NamedTuple):
    """Messages with a key, newest first; ``source`` says where they were found."""

    messages: list[StoredRecord]
    source: str


class TimeAnswer(NamedTuple):
    """Where a time lies in a queue.

    ``offset``: of the first message stored then or later, the queue's end if all are older. ``upper_offset``: of
    the last one stored then or before, the queue's first if all are newer. ``message`` is the one at ``offset``.
    """

    queue_id: int
    offset: int
    upper_offset: int
    message: StoredRecord | None
    source: str


class OffsetAnswer(NamedTuple):
    """The message at a queue offset."""

    message: StoredRecord
    source: str


class StoreQuery:
    """Answers queries on ``store``. To be closed.

    All methods raise Unreadable when a file of the log cannot be read.
    """

    def __init__(self, store: StoreDirectory, progress: Progress | None = None) -> None:
        self._store = store
        self._progress = progress
        self._records = RecordReader(store)

    def close(self) -> None:
        """Close the files."""
        self._records.close()

    # By key.

    def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX,
        max_count: int = 64,
        scan: bool = False,
    ) -> KeyAnswer:
        """Messages of ``topic`` with that key or unique key, stored in ``[begin_ms, end_ms]``, newest first.

        ``scan``: do not ask the index.
        """
        reason = "as asked"
        if not scan:
            try:
                return self._through_index(topic, key, begin_ms, end_ms, max_count)
            except (BadIndex, Unreadable) as error:
                reason = str(error)
        wanted = _Wanted(topic, key, begin_ms, end_ms)
        found = list(self._scan_keys(wanted, 0, None))[::-1]
        return KeyAnswer(found[:max_count], f"scan of the whole log ({reason})")

    def _through_index(self, topic: str, key: str, begin_ms: int, end_ms: int, max_count: int) -> KeyAnswer:
        """Newest first: the part of the log behind the index, the index, the part before it."""
        if not self._store.index_files:
            raise BadIndex("there are no index files")
        wanted = _Wanted(topic, key, begin_ms, end_ms)
        with ExitStack() as opened:
            used = [index for index in self._open_index(opened) if index.entries]
            if not used:
                raise BadIndex("the index is empty")
            first, last = used[0].header.begin_offset, used[-1].header.end_offset
            found: dict[int, StoredRecord] = {}

            def scan(start: int, end: int | None = None) -> None:
                for stored in reversed(list(self._scan_keys(wanted, start, end))):
                    found.setdefault(stored.record.physical_offset, stored)

            scan(self._next_record(last))
            source = f"index, and scan of the log behind {last}" if found else "index"
            for index in reversed(used):
                for stored in self._walk(index, wanted):
                    found.setdefault(stored.record.physical_offset, stored)
                    if len(found) >= max_count:
                        return KeyAnswer(list(found.values())[:max_count], source)
            if first > self._store.log_start:
                source += f", and scan of the log before {first}"
                scan(0, first)
            if not found and len(load_epochs(self._store.root, Findings())) > 1:
                # RocketMQ leaves keys out that it takes for those of records cut off at a change of master.
                source += ", and scan of the whole log, since its master changed"
                scan(0)
            return KeyAnswer(list(found.values())[:max_count], source)

    def _open_index(self, opened: ExitStack) -> list[IndexFile]:
        """All index files; ``opened`` closes them."""
        files: list[IndexFile] = []
        slots = 0
        for segment in self._store.index_files:
            index = opened.enter_context(closing(IndexFile(segment.path)))
            files.append(index)
            slots = index.infer_slots(slots) or slots
            if index.entries and not index.slots:
                raise BadIndex(f"{segment.path} is damaged")
        return files

    def _next_record(self, physical: int) -> int:
        """Where to go on reading behind the record at ``physical``; its file's start if none is there."""
        if physical < self._store.log_start:
            return self._store.log_start
        stored = self._records.find(physical)
        if stored is not None:
            return physical + stored.size
        segment = self._store.segment_at(physical)
        return segment.start if segment is not None else self._store.log_start

    def _walk(self, index: IndexFile, wanted: _Wanted) -> Iterator[StoredRecord]:
        """The chain of the key's slot, newest first."""
        header = index.header
        if header.begin_timestamp - 1000 > wanted.end_ms or header.end_timestamp + 1000 < wanted.begin_ms:
            return
        slot = wanted.key_hash % index.slots
        number = index.newest(slot)
        while number > 0:
            key_hash, physical, _, previous = index.entry(number)
            if key_hash < 0 or key_hash % index.slots != slot or previous >= number:
                raise BadIndex(f"{index.path}: entry {number} is damaged")
            if key_hash == wanted.key_hash and physical >= self._store.log_start:
                stored = self._records.find(physical)
                if stored is not None and wanted.fits(stored):
                    yield stored
            number = previous

    def _scan_keys(self, wanted: _Wanted, start: int, end: int | None) -> Iterator[StoredRecord]:
        """Messages in the log's order, from a record's position on."""
        reader = self._reader()
        for batch in reader.read(start, end):
            hits = batch.keys["physical_offset"][batch.keys["key_hash"] == wanted.key_hash]
            for physical in np.unique(hits).tolist():
                stored = self._records.find(physical)
                if stored is not None and wanted.fits(stored):
                    yield stored

    def _reader(self) -> LogReader:
        table = QueueTable(frozenset(topic for topic, _ in self._store.batch_queues))
        return LogReader(self._store, table, check_crc=False, progress=self._progress, entry_rows=1 << 16)

    # By time.

    def by_time(self, topic: str, time_ms: int, queue_id: int | None = None) -> list[TimeAnswer]:
        """Where the time lies in each queue of the topic, or in one.

        Raises TopicNotFound: neither queue files nor the log know the topic, or that queue.
        """
        every = self._store.queues.keys() | self._store.batch_queues.keys()
        queues = sorted(number for name, number in every if name == topic and queue_id in (None, number))
        if queues:
            return [self._time_in_queue(topic, number, time_ms) for number in queues]
        times = self._scan_times(topic)
        found = [self._time_in_log(number, rows, time_ms) for number, rows in sorted(times.items())]
        found = [answer for answer in found if queue_id in (None, answer.queue_id)]
        if not found:
            numbered = "" if queue_id is None else f" with number {queue_id}"
            raise TopicNotFound(f"{self._store.root}: no queue of topic {topic!r}{numbered}")
        return found

    def _time_in_queue(self, topic: str, queue_id: int, time_ms: int) -> TimeAnswer:
        name = (topic, queue_id)
        if name in self._store.batch_queues and name not in self._store.queues:
            return self._time_in_batches(topic, queue_id, time_ms)
        try:
            view = QueueView(self._store.queues[name], self._store.log_start)
            lower = first_true(view.min_offset, view.max_offset, lambda at: self._time_at(view, at) >= time_ms)
            upper = first_true(view.min_offset, view.max_offset, lambda at: self._time_at(view, at) > time_ms)
            message = self._records.find(view.entry(lower).physical_offset) if lower < view.max_offset else None
            return TimeAnswer(queue_id, lower, max(upper - 1, view.min_offset), message, "queue")
        except (MessageNotFound, Unreadable):
            rows = self._scan_times(topic).get(queue_id, [])
            return self._time_in_log(queue_id, rows, time_ms)

    def _time_at(self, view: QueueView, offset: int) -> int:
        stored = self._records.find(view.entry(offset).physical_offset)
        if stored is None:
            raise MessageNotFound(f"{view.queue.directory}: entry {offset} leads to no record")
        return stored.record.store_timestamp_ms

    def _time_in_batches(self, topic: str, queue_id: int, time_ms: int) -> TimeAnswer:
        """As RocketMQ: offsets are those of batches; with all of them older, that of the last."""
        units, _ = read_batch_units(self._store.batch_queues[topic, queue_id])
        units = units[units["physical_offset"] >= self._store.log_start]
        if not len(units):
            return TimeAnswer(queue_id, 0, 0, None, "queue")
        times = units["store_timestamp"].astype(np.int64)
        lower = min(int(np.searchsorted(times, time_ms, "left")), len(units) - 1)
        upper = max(int(np.searchsorted(times, time_ms, "right")) - 1, 0)
        message = self._records.find(int(units["physical_offset"][lower]))
        return TimeAnswer(queue_id, int(units["base"][lower]), int(units["base"][upper]), message, "queue")

    def _scan_times(self, topic: str) -> dict[int, list[tuple[int, int, int]]]:
        """(offset, store time, physical offset) of every message of the topic, per queue."""
        reader = self._reader()
        found: dict[int, list[tuple[int, int, int]]] = {}
        for batch in reader.read():
            slots = {slot: number for slot, (name, number) in enumerate(reader.table.names) if name == topic}
            chosen = batch.entries[np.isin(batch.entries["slot"], list(slots))]
            for row in chosen.tolist():
                found.setdefault(slots[row[4]], []).append((row[1], row[3], row[0]))
        return found

    def _time_in_log(self, queue_id: int, rows: list[tuple[int, int, int]], time_ms: int) -> TimeAnswer:
        source = "scan of the whole log (the queue's files are missing or damaged)"
        if not rows:
            return TimeAnswer(queue_id, 0, 0, None, source)
        lower, upper = (find(rows, time_ms, key=lambda row: row[1]) for find in (bisect_left, bisect_right))
        message = self._records.find(rows[lower][2]) if lower < len(rows) else None
        offset = rows[lower][0] if lower < len(rows) else rows[-1][0] + 1
        return TimeAnswer(queue_id, offset, rows[max(upper - 1, 0)][0], message, source)

    # By offset.

    def by_offset(self, topic: str, queue_id: int, offset: int) -> OffsetAnswer:
        """The message at that offset. Raises MessageNotFound: the log has no such message."""
        name = (topic, queue_id)
        try:
            if name in self._store.queues and offset >= 0:
                entry = QueueView(self._store.queues[name], self._store.log_start).entry(offset)
                stored = self._records.find(entry.physical_offset) if entry.is_message else None
                if stored is not None and _is_at(stored, topic, queue_id, offset):
                    return OffsetAnswer(stored, "queue")
            elif name in self._store.batch_queues:
                stored = self._in_batches(topic, queue_id, offset)
                if stored is not None:
                    return OffsetAnswer(stored, "queue")
        except Unreadable:
            pass  # the log may still have it
        reader = self._reader()
        for batch in reader.read():
            slot = reader.table.find(topic, queue_id)
            rows = batch.entries[(batch.entries["slot"] == slot) & (batch.entries["queue_offset"] == offset)]
            stored = self._records.find(int(rows["physical_offset"][-1])) if slot is not None and len(rows) else None
            if stored is not None:
                return OffsetAnswer(stored, "scan of the log (the queue's files do not lead to it)")
        raise MessageNotFound(f"{self._store.root}: no message of {topic} {queue_id} at offset {offset}")

    def _in_batches(self, topic: str, queue_id: int, offset: int) -> StoredRecord | None:
        units, _ = read_batch_units(self._store.batch_queues[topic, queue_id])
        holding = units[(units["base"] <= offset) & (offset < units["base"] + units["count"])]
        return self._records.find(int(holding["physical_offset"][-1])) if len(holding) else None


class _Wanted(NamedTuple):
    """What a message must be to answer a query by key."""

    topic: str
    key: str
    begin_ms: int
    end_ms: int

    @property
    def key_hash(self) -> int:
        """As the index has it."""
        return index_key_hash(self.topic, self.key)

    def fits(self, stored: StoredRecord) -> bool:
        """The real topic, key and time: equal hashes say little."""
        record = stored.record
        right_time = self.begin_ms <= record.store_timestamp_ms <= self.end_ms
        return right_time and record.topic == self.topic and self.key in stored.index_keys()


def _is_at(stored: StoredRecord, topic: str, queue_id: int, offset: int) -> bool:
    record: Record = stored.record
    if record.topic == topic:
        return record.queue_id == queue_id and record.queue_offset == offset
    return topic in stored.properties.get("INNER_MULTI_DISPATCH", "").split(",")
