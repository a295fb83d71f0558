"""The broker's store in memory: same interface and promises, no files, no threads, one record at a time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import numpy as np

from penstock.broker.core.state import deleted_topic
from penstock.broker.store.absent import Absent, AbsentEntries
from penstock.broker.store.filter.conditions import YES, Condition
from penstock.broker.store.log.log_kernels import same_messages
from penstock.formats.hashing import string_hash
from penstock.formats.record.layout import Host, decode_record
from penstock.formats.record.producer_mark import ProducerMark, find_producer_mark
from penstock.formats.record.properties import TAGS, decode_properties
from penstock.proto import names
from penstock.proto.errors import Corrupt, CorruptBatch, MessageNotFound, PenstockError
from penstock.proto.wire.broker_pb2 import FetchReply

HOST = Host.parse("127.0.0.1:10911")


class AppendResult(NamedTuple):
    start: int
    end: int
    count: int
    store_timestamp_ms: int
    queue_ids: list[int]
    queue_offsets: list[int]


class MarkedBatch(NamedTuple):
    topic: str
    mark: ProducerMark
    start: int
    end: int
    store_timestamp_ms: int
    queue_ids: list[int]
    queue_offsets: list[int]


class DispatchResult(NamedTuple):
    end: int
    arrived: list[tuple[str, int, int]]
    state_records: list[tuple[int, bytes]]
    marks: list[MarkedBatch]


class Batch(NamedTuple):
    result: AppendResult
    topic: str
    records: list[tuple[int, bytes, int, int]]  # physical offset, bytes, queue id, tag hash


class ReadResult:
    def __init__(
        self, status: int, next_offset: int, low: int, high: int, records: list[bytes], problem: str = ""
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = low
        self.max_offset = high
        self.records = records
        self.problem = problem
        self.searched = 1
        self.count = len(records)
        self.bytes = sum(map(len, records))

    def copy_to(self, address: int) -> None:
        data = b"".join(self.records)
        ctypes.memmove(address, data, len(data))


class FakeStore:
    """``confirms``, ``flushes``, ``commits``: whether appended bytes are confirmed, and asked-for flushes and commits
    done, at once.
    """

    def __init__(self, *, confirms: bool = True, flushes: bool = True, commits: bool = True) -> None:
        self.reader = self.lookup = self
        self.confirms = confirms
        self.flushes = flushes
        self.commits = commits
        self.appended_offset = 0
        self.min_offset = self.end_offset = self.flushed_offset = self.confirm_offset = self.dispatched_offset = 0
        self.segment_bytes = 1 << 26
        self.batches: list[Batch] = []
        self.requested = 0
        self.closed = False
        self.failure: PenstockError | None = None
        self.on_flushed: Callable[[int], None] | None = None
        self.on_committed: Callable[[int], None] | None = None
        self.on_fatal: Callable[[Any], None] | None = None
        self._next: dict[tuple[str, int], int] = {}
        self._queues: dict[tuple[str, int], list[tuple[bytes, int]]] = {}
        self.on_disk: dict[tuple[str, int], list[Absent]] = {}  # what reads of a queue must have brought first
        self.damaged: dict[tuple[str, int, int], str] = {}  # topic, queue id, offset: what is told to who verifies
        self.entries_on_disk: dict[tuple[str, int], list[AbsentEntries]] = {}
        self._clock_ms = 1_700_000_000_000

    def append(self, topic: str, records: Any, *, queues: int, count: int | None = None) -> AppendResult:
        if self.failure is not None:
            raise self.failure
        data = bytes(records)
        placed: list[tuple[int, bytes, int, int]] = []
        queue_ids: list[int] = []
        queue_offsets: list[int] = []
        following = dict(self._next)
        position = 0
        while position < len(data):
            try:
                record = decode_record(data, position, check_crc=True)
            except Corrupt as error:
                raise CorruptBatch(f"record {len(placed)}: {error}", index=len(placed)) from error
            size = int.from_bytes(data[position : position + 4], "big")
            if record.topic != topic or not 0 <= record.queue_id < queues:
                raise CorruptBatch(f"record {len(placed)}: topic or queue", index=len(placed))
            offset = following.get((topic, record.queue_id), 0)
            following[topic, record.queue_id] = offset + 1
            if record.queue_id not in queue_ids:
                queue_ids.append(record.queue_id)
                queue_offsets.append(offset)
            physical = self.appended_offset + position
            raw = bytearray(data[position : position + size])
            raw[20:28] = offset.to_bytes(8, "big")
            raw[28:36] = physical.to_bytes(8, "big")
            tag = decode_properties(record.properties).get(TAGS)
            placed.append((physical, bytes(raw), record.queue_id, string_hash(tag) if tag else 0))
            position += size
        if count is not None and len(placed) != count:
            raise CorruptBatch(f"{count} records announced, {len(placed)} there", index=len(placed))
        self._next = following
        self._clock_ms += 1
        start = self.appended_offset
        self.appended_offset += len(data)
        if self.commits:
            self.end_offset = self.appended_offset
        result = AppendResult(start, self.appended_offset, len(placed), self._clock_ms, queue_ids, queue_offsets)
        self.batches.append(Batch(result, topic, placed))
        if self.confirms:
            self.confirm_offset = self.end_offset
        return result

    def changed_sizes(self, start: int, end: int, sent: memoryview) -> list[int]:
        return []

    def holds(self, start: int, end: int, sent: memoryview) -> bool:
        (held,) = (each for each in self.batches if each.result.start == start)
        stored = np.frombuffer(b"".join(raw for _, raw, _, _ in held.records), np.uint8)
        return bool(same_messages(stored, 0, len(stored), np.frombuffer(sent, np.uint8)))

    def request_commit(self, end: int) -> None:
        self.requested = max(self.requested, end)

    def commit(self) -> None:
        self.end_offset = self.appended_offset
        if self.on_committed is not None:
            self.on_committed(self.end_offset)

    def request_flush(self, end: int) -> None:
        self.requested = max(self.requested, end)
        if self.flushes:
            self.flush()

    def flush(self) -> None:
        self.flushed_offset = self.end_offset
        if self.on_flushed is not None:
            self.on_flushed(self.flushed_offset)

    def set_confirm(self, offset: int) -> None:
        self.confirm_offset = min(offset, self.end_offset)

    def dispatch(self, max_bytes: int = 1 << 22) -> DispatchResult:
        arrived: dict[tuple[str, int], int] = {}
        state_records: list[tuple[int, bytes]] = []
        marks: list[MarkedBatch] = []
        done = 0
        for batch in self.batches:
            if batch.result.start < self.dispatched_offset:
                continue
            if batch.result.end > self.confirm_offset or done >= max_bytes:
                break
            for _, raw, queue_id, tag in batch.records:
                queue = self._queues.setdefault((batch.topic, queue_id), [])
                queue.append((raw, tag))
                arrived[batch.topic, queue_id] = len(queue)
            self._collect(batch, state_records, marks)
            self._drop_deleted(batch)
            self.dispatched_offset = batch.result.end
            done += batch.result.end - batch.result.start
        rows = [(topic, queue_id, high) for (topic, queue_id), high in arrived.items() if topic != names.STATE_TOPIC]
        return DispatchResult(self.dispatched_offset, rows, state_records, marks)

    def replay(self, start: int) -> Iterator[DispatchResult]:
        for batch in self.batches:
            if start <= batch.result.start < self.dispatched_offset:
                state_records: list[tuple[int, bytes]] = []
                marks: list[MarkedBatch] = []
                self._collect(batch, state_records, marks)
                yield DispatchResult(batch.result.end, [], state_records, marks)

    def check_readable(self, topic: str) -> None:
        """All of them are."""

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 0, len(self._queues.get((topic, queue_id), ()))

    def absent_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[AbsentEntries]:
        return list(self.entries_on_disk.get((topic, queue_id), ()))

    def absent(self, topic: str, queue_id: int, offset: int, max_bytes: int) -> list[Absent]:
        return list(self.on_disk.get((topic, queue_id), ()))

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_bytes: int,
        *,
        max_count: int = 1 << 31,
        tags: Collection[int] | None = None,
        verify: bool = False,
    ) -> ReadResult:
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            return ReadResult(FetchReply.QUEUE_NOT_FOUND, 0, 0, 0, [])
        if offset == len(queue):
            return ReadResult(FetchReply.NO_NEW_MESSAGE, offset, 0, len(queue), [])
        if offset > len(queue):
            return ReadResult(FetchReply.OFFSET_OVERFLOW, len(queue), 0, len(queue), [])
        found: list[bytes] = []
        size = 0
        problem = self.damaged.get((topic, queue_id, offset)) if verify else None
        if problem is not None:
            return ReadResult(FetchReply.DAMAGED, offset + 1, 0, len(queue), [], problem)
        for raw, tag in queue[offset:]:
            if verify and (topic, queue_id, offset) in self.damaged:
                break
            if tags is None or tag in tags:
                if len(found) == max_count or (found and size + len(raw) > max_bytes):
                    break
                found.append(raw)
                size += len(raw)
            offset += 1
        status = FetchReply.FOUND if found else FetchReply.NO_MATCHED_MESSAGE
        return ReadResult(status, offset, 0, len(queue), found)

    def read_where(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_bytes: int,
        *,
        max_count: int,
        condition: Condition,
        max_searched: int,
        verify: bool = False,
    ) -> ReadResult:
        result = self.read(topic, queue_id, offset, 1 << 30)
        if result.status != FetchReply.FOUND:
            return result
        found: list[bytes] = []
        end = offset
        for end, raw in enumerate(result.records, offset):  # noqa: B007  where it stops counts
            log = np.frombuffer(raw, np.uint8)
            if condition.judge(log, np.zeros(1, np.int64), np.full(1, len(raw), np.int32))[0] == YES:
                if len(found) == max_count or (found and sum(map(len, found)) + len(raw) > max_bytes):
                    break
                found.append(raw)
        else:
            end = result.next_offset
        status = FetchReply.FOUND if found else FetchReply.NO_MATCHED_MESSAGE
        return ReadResult(status, end, 0, result.max_offset, found)

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        return len(self._queues.get((topic, queue_id), ())) if upper else 0

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        return self._clock_ms if offset < self.queue_range(topic, queue_id)[1] else None

    def view(self, physical_offset: int) -> bytes:
        for batch in self.batches:
            for physical, raw, _, _ in batch.records:
                if physical == physical_offset:
                    return raw
        raise MessageNotFound(f"no message at physical offset {physical_offset}")

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        return []

    def drop_topic(self, topic: str) -> None:
        for table in (self._queues, self._next):
            for key in [key for key in table if key[0] == topic]:
                del table[key]

    def close(self) -> None:
        self.closed = True

    def _drop_deleted(self, batch: Batch) -> None:
        if batch.topic == names.STATE_TOPIC:
            for topic in filter(None, (deleted_topic(raw) for _, raw, _, _ in batch.records)):
                self.drop_topic(topic)

    @staticmethod
    def _collect(batch: Batch, state_records: list[tuple[int, bytes]], marks: list[MarkedBatch]) -> None:
        if batch.topic == names.STATE_TOPIC:
            state_records.extend((physical, raw) for physical, raw, _, _ in batch.records)
        mark = find_producer_mark(decode_record(batch.records[0][1]).properties)
        if mark is not None:
            result = batch.result
            marks.append(
                MarkedBatch(
                    batch.topic,
                    mark,
                    result.start,
                    result.end,
                    result.store_timestamp_ms,
                    result.queue_ids,
                    result.queue_offsets,
                )
            )
