"""Dispatch: from confirmed bytes of the log to queue entries, index keys, state records and producer marks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from penstock.formats.record.kernels import ScanStatus, scan
from penstock.formats.record.layout import SysFlag
from penstock.formats.record.producer_mark import ProducerMark
from penstock.formats.record.rows import ROW
from penstock.proto import names
from penstock.proto.errors import Corrupt

from .disk import Bytes
from .index.index import Index
from .log.commit_log import CommitLog
from .log.log_kernels import find_marks, first_offsets, set_delivery_times
from .log.readable_log import Chunk
from .queues.consume_queue import ConsumeQueues
from .queues.kernels import Ints, Rows
from .recovery.marks import batches_of
from .results import AppendResult, DispatchResult, MarkedBatch

_ROWS_FIRST = 1 << 15
_GOES_ON = (ScanStatus.ROWS_FULL, ScanStatus.INCOMPLETE)
_REPLAY_BYTES = 4 << 20


class Dispatcher:
    """Takes the log's records in order, from ``offset`` on."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues, index: Index, delay_levels_ms: Sequence[int]) -> None:
        self.offset = 0
        self.last_store_timestamp_ms = 0
        # Own appends that are not dispatched yet: their queues need no counting.
        self.placed: deque[AppendResult] = deque(maxlen=100_000)
        # Which topic a state record deletes, if any; and who is told of such topics when their queues are gone.
        self.deletes: Callable[[bytes], str] = lambda record: ""
        self.on_deleted: Callable[[str], None] = lambda topic: None
        # For records that RocketMQ wrote; nobody appends inner batches here.
        self.find_batches: Callable[[Chunk, Ints, ConsumeQueues], None] | None = None
        self._log = log
        self._queues = queues
        queues.tells_loss = self._tells_loss
        self._lost: tuple[int, int] = (0, 0)  # a stretch of the log with such a record in it
        self._index = index
        self._delay_levels_ms = np.array(delay_levels_ms, np.int64)
        self._rows: Rows = np.zeros(_ROWS_FIRST, ROW)
        self._slots: Ints = np.zeros(_ROWS_FIRST, np.int32)
        self._marked: Ints = np.zeros(_ROWS_FIRST, np.int32)
        self._marked_count = 0  # of the last scan's rows

    def run(self, limit: int, bytes_max: int) -> DispatchResult:
        """Dispatch one slice of about ``bytes_max``, of one file, that ends at or below ``limit``.

        Topics that it deletes lose their queues, but for those that have begun anew behind the deletion.

        Raises:
            Corrupt: the log or a queue is not as it must be.
            DiskFull, StorageError: the same slice may be tried again.
        """
        chunk = self._scan(self.offset, limit, bytes_max)
        if chunk is None:
            return DispatchResult(self.offset, [], [], [])
        arrived: Collection[tuple[str, int, int]] = ()
        state_records: list[tuple[int, bytes]] = []
        marks: list[MarkedBatch] = []
        if chunk.count:
            self._queues.assign(chunk.file.bytes, chunk.rows, chunk.count, self._slots)
            if self.find_batches is not None:
                self.find_batches(chunk, self._slots, self._queues)
            self._set_delivery_times(chunk)
            state_records, marks = self._state_records(chunk), self._marks(chunk)
            rows, count, slots = self._queues.expand(chunk.file.bytes, chunk.rows, chunk.count, self._slots)
        deletions = {self.deletes(record): position for position, record in state_records}
        deletions.pop("", None)
        with self._queues.lock:  # a checkpoint must see all of it or nothing
            if chunk.count:
                arrived = self._queues.put(rows, count, slots)
                self._index.put(chunk.file.bytes, chunk.rows, chunk.count, chunk.end)
                self.last_store_timestamp_ms = int(chunk.rows["store_timestamp"][chunk.count - 1])
                self._log.last_store_timestamp_ms = max(self._log.last_store_timestamp_ms, self.last_store_timestamp_ms)
            for topic, position in deletions.items():
                self._queues.drop_topic(topic, below=position)
                self.on_deleted(topic)
            self.offset = chunk.end
        if deletions:
            arrived = [queue for queue in arrived if queue[0]]  # without those that are gone
        while self.placed and self.placed[0].start < chunk.end:
            self.placed.popleft()
        return DispatchResult(chunk.end, arrived, state_records, marks)

    def catch_up(self, end: int, bytes_max: int) -> None:
        """Dispatch everything up to ``end`` again, as far as records and batches are whole. Raises as :meth:`run`."""
        before = -1
        while self.offset != before:
            before = self.offset
            self.run(end, bytes_max)

    def replay(self, start: int, end: int | None = None) -> Iterator[DispatchResult]:
        """State records and marks from ``start``, the position of a record, up to ``end``, or what is dispatched."""
        end = self.offset if end is None else end
        while start < end:
            chunk = self._scan(start, end, _REPLAY_BYTES)
            if chunk is None:
                return
            state_records: list[tuple[int, bytes]] = []
            marks: list[MarkedBatch] = []
            if chunk.count:
                self._queues.assign(chunk.file.bytes, chunk.rows, chunk.count, self._slots)
                state_records, marks = self._state_records(chunk), self._marks(chunk)
            start = chunk.end
            yield DispatchResult(start, [], state_records, marks)

    def _tells_loss(self, start: int, end: int) -> bool:
        """True if a record between the two stands for lost ones, as ``penstock store rebuild`` leaves it."""
        if start <= self._lost[0] < self._lost[1] <= end:
            return True
        topic = names.LOST_TOPIC.encode()
        rows = np.zeros(_ROWS_FIRST, ROW)
        for chunk in self._log.chunks(max(start, self._log.min_offset), end, rows, check_crc=False):
            found = rows[: chunk.count]
            for row in found[found["sys_flag"] & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK]:
                at, size = int(row["topic_position"]), int(row["topic_size"])
                if topic.startswith(chunk.file.bytes[at : at + size].tobytes()):
                    self._lost = int(row["physical_offset"]), int(row["physical_offset"]) + int(row["size"])
                    return True
        return False

    def _scan(self, start: int, limit: int, bytes_max: int) -> Chunk | None:
        """Records from ``start`` on with their marked batches whole; None when none is whole below ``limit``."""
        if start >= limit:
            return None
        file = self._log.file_of(start)
        bound = min(limit, file.end)
        stop = min(bound, start + bytes_max)
        while True:
            count, position, code = scan(file.bytes, start - file.base, stop - file.base, file.base, False, self._rows)
            status = ScanStatus(code)
            torn_blank = status == ScanStatus.BLANK and position != len(file.bytes)
            if count == 0 and (status in (ScanStatus.BAD, ScanStatus.EMPTY) or torn_blank):
                raise Corrupt(
                    f"{file.path}: no record at {start}: stop the broker, keep the file and restore it from a replica",
                    path=file.path,
                    offset=start,
                )
            whole = self._whole(file.bytes, count)
            more = status == ScanStatus.ROWS_FULL or (
                status in (ScanStatus.INCOMPLETE, ScanStatus.END) and stop < bound
            )
            if (whole == count > 0) or status == ScanStatus.BLANK or not more:
                break
            if whole > 0:
                break
            if status == ScanStatus.ROWS_FULL:
                self._rows = np.zeros(2 * len(self._rows), ROW)
                self._slots, self._marked = np.zeros(len(self._rows), np.int32), np.zeros(len(self._rows), np.int32)
            else:
                stop = min(bound, stop + max(bytes_max, stop - start))
        if status == ScanStatus.BLANK or (not more and bound == file.end):
            whole = count  # a batch does not span files: nothing more of it will come
        if whole < count:
            position = int(self._rows["position"][whole])
        end = file.base + position
        return Chunk(file, self._rows, whole, end, status) if end > start else None

    def _whole(self, buffer: Bytes, count: int) -> int:
        """How many of the scanned rows to take so that the last marked batch is not torn."""
        marks = self._marked_count = find_marks(buffer, self._rows, count, self._marked)
        if marks == 0:
            return count
        last = int(self._marked[marks - 1])
        ((*_, size, _, _, _, _, _, _),) = batches_of(buffer, self._rows, count, self._marked[marks - 1 : marks])
        return last if last + size > count else count

    def _marks(self, chunk: Chunk) -> list[MarkedBatch]:
        content, rows, count = chunk.file.bytes, chunk.rows, chunk.count
        numbers = self._marked[: self._marked_count]
        numbers = numbers[numbers < count]
        found = []
        for number, batch in zip(numbers.tolist(), batches_of(content, rows, count, numbers), strict=True):
            mark = ProducerMark(*batch[:6])
            if mark.count:
                start, end, time_ms, at, size = batch[6:]
                topic = content[at : at + size].tobytes().decode("utf-8", "replace")
                queues = self._queues_of(rows, number, min(number + mark.count, count), start)
                found.append(MarkedBatch(topic, mark, start, end, time_ms, *queues))
        return found

    def _queues_of(self, rows: Rows, first: int, end: int, start: int) -> tuple[list[int], list[int]]:
        """The queues of a batch, and the batch's first offset in each."""
        while self.placed and self.placed[0].start < start:
            self.placed.popleft()
        if self.placed and self.placed[0].start == start:
            return self.placed[0].queue_ids, self.placed[0].queue_offsets
        if end - first == 1:
            return [int(rows[first]["queue_id"])], [int(rows[first]["queue_offset"])]
        table = np.full(1 << (end - first).bit_length() + 1, -1, np.int32)
        queue_ids, queue_offsets = np.zeros(end - first, np.int32), np.zeros(end - first, np.int64)
        count = first_offsets(rows, first, end, table, queue_ids, queue_offsets)
        return queue_ids[:count].tolist(), queue_offsets[:count].tolist()

    def _state_records(self, chunk: Chunk) -> list[tuple[int, bytes]]:
        slot = self._queues.slots.find(names.STATE_TOPIC, 0)
        if slot is None:
            return []
        found = []
        for number in np.flatnonzero(self._slots[: chunk.count] == slot).tolist():
            row = chunk.rows[number]
            start = int(row["position"])
            found.append((int(row["physical_offset"]), chunk.file.bytes[start : start + int(row["size"])].tobytes()))
        return found

    def _set_delivery_times(self, chunk: Chunk) -> None:
        """Records of the schedule topic have the time of their delivery in place of a tag's hash."""
        slots = self._queues.slots.by_topic.get(names.SCHEDULE_TOPIC)
        if slots:
            schedule = np.array(sorted(slots.values()), np.int32)
            set_delivery_times(chunk.file.bytes, chunk.rows, chunk.count, self._slots, schedule, self._delay_levels_ms)
