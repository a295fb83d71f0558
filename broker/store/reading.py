"""Reading by queue offset, by time and by log position."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from penstock.proto.errors import Corrupt, MessageNotFound

from .commit_log import CommitLog
from .consume_queue import ConsumeQueues
from .kernels import BLANK_SIZE, Ints, Longs, first_foreign, select_entries
from .results import ReadResult, ReadStatus

_ENTRIES_AT_ONCE = 2048
_SAMPLE = 128
_SCANNED_MAX = 1 << 17
"""Entries that one filtered read looks at: 2.6 MB, about a millisecond; the next read goes on behind them."""
_ANY: Ints = np.zeros(0, np.int32)


class Reader:
    """Reads what is dispatched; for the owner thread."""

    def __init__(self, log: CommitLog, queues: ConsumeQueues) -> None:
        self._log = log
        self._queues = queues
        self._positions: Longs = np.zeros(_ENTRIES_AT_ONCE, np.int64)
        self._sizes: Ints = np.zeros(_ENTRIES_AT_ONCE, np.int32)

    def read(
        self, topic: str, queue_id: int, offset: int, bytes_max: int, count_max: int, tags: Collection[int] | None
    ) -> ReadResult:
        """See :meth:`Store.read`."""
        slot = self._queues.slots.find(topic, queue_id)
        if slot is None:
            return ReadResult(ReadStatus.QUEUE_NOT_FOUND, 0, 0, 0)
        low, high = int(self._queues.slots.min_offsets[slot]), int(self._queues.slots.next_offsets[slot])
        if offset == high:
            return ReadResult(ReadStatus.NO_NEW_MESSAGE, offset, low, high)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW, high, low, high)
        wanted = _ANY if tags is None else np.array(sorted(tags), np.int32)
        result = ReadResult(ReadStatus.FOUND, offset, low, high)
        end = min(high, offset + _SCANNED_MAX)
        while result.next_offset < end and result.count < count_max:
            entries = self._queues.entries(slot, result.next_offset, min(end - result.next_offset, _ENTRIES_AT_ONCE))
            count = len(entries) // 20
            left = bytes_max - result.bytes
            if result.count and left <= 0:
                break
            scanned, chosen, size = select_entries(
                entries,
                count,
                self._log.min_offset,
                self._log.end_offset,
                tags is not None,
                wanted,
                left,
                count_max - result.count,
                self._positions,
                self._sizes,
            )
            if chosen < 0:
                raise self._damaged(topic, queue_id, result.next_offset + scanned, size)
            if result.count and size > left:
                break  # the first of these records alone is too large
            foreign = self._add(result, chosen, size)
            if foreign >= 0:
                raise self._damaged(topic, queue_id, result.next_offset, foreign)
            result.next_offset += scanned
            if scanned < count:
                break
        if not result.count:
            result.status = ReadStatus.NO_MATCHED_MESSAGE
        return result

    def _damaged(self, topic: str, queue_id: int, offset: int, physical: int) -> Corrupt:
        path = f"{self._queues.files.directory}/{topic}/{queue_id}"
        return Corrupt(
            f"{path}: an entry from {offset} on points to {physical}, where no such record is: stop the broker and "
            "delete the folder, it is built again",
            path=path,
            offset=offset,
        )

    def _add(self, result: ReadResult, chosen: int, size: int) -> int:
        """Take the chosen records, split by log file; the log offset of one that is not what its entry says, or -1."""
        positions, sizes = self._positions[:chosen], self._sizes[:chosen]
        start = 0
        while start < chosen:
            file = self._log.file_of(int(positions[start]))
            end = chosen
            if positions[-1] >= file.end:
                end = int(np.searchsorted(positions, file.end))
            part = positions[start:end] - file.base, sizes[start:end].copy()
            foreign = int(first_foreign(file.bytes, *part, file.base))
            if foreign >= 0:
                return int(positions[start + foreign])
            result.parts.append((file.bytes, *part))
            start = max(end, start + 1)
        result.count += chosen
        result.bytes += size
        return -1

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time of the record at that queue offset, None without one."""
        slot = self._queues.slots.find(topic, queue_id)
        if slot is None:
            return None
        low, high = int(self._queues.slots.min_offsets[slot]), int(self._queues.slots.next_offsets[slot])
        return self._store_timestamp(slot, offset) if low <= offset < high else None

    def mean_record_bytes(self, topic: str, queue_id: int) -> int:
        """Mean size of some records at both ends of the queue, 0 without any."""
        slot = self._queues.slots.find(topic, queue_id)
        if slot is None:
            return 0
        low, high = int(self._queues.slots.min_offsets[slot]), int(self._queues.slots.next_offsets[slot])
        if low >= high:
            return 0
        parts = [self._queues.entries(slot, low, min(_SAMPLE, high - low))]
        if high - low > _SAMPLE:
            parts.append(self._queues.entries(slot, high - _SAMPLE, _SAMPLE))
        sizes = np.concatenate(parts).reshape(-1, 20)[:, 8:12].copy().view(">i4").ravel()
        sizes = sizes[(sizes > 0) & (sizes != BLANK_SIZE)]
        return int(sizes.mean()) if len(sizes) else 0

    def search(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool) -> int:
        """Lower: the first offset stored at or after the time, the maximum if all are older. Upper: the last one
        stored at or before it, the minimum if all are newer.
        """
        slot = self._queues.slots.find(topic, queue_id)
        if slot is None:
            return 0
        low, high = int(self._queues.slots.min_offsets[slot]), int(self._queues.slots.next_offsets[slot])
        first, end = low, high
        while low < high:
            middle = (low + high) // 2
            stored = self._store_timestamp(slot, middle)
            if stored is None or stored < timestamp_ms or (upper and stored == timestamp_ms):
                low = middle + 1
            else:
                high = middle
        return max(first, low - 1) if upper and first < end else low

    def view(self, physical_offset: int, end: int) -> bytes:
        """The record that begins at ``physical_offset``, below ``end``.

        Raises:
            MessageNotFound: none does.
        """
        found = self._log.record_at(physical_offset) if physical_offset < end else None
        if found is None:
            raise MessageNotFound(f"no message begins at physical offset {physical_offset}", offset=physical_offset)
        return bytes(found)

    def _store_timestamp(self, slot: int, offset: int) -> int | None:
        entry = self._queues.entries(slot, offset, 1)
        physical = int.from_bytes(entry[:8].tobytes(), "big", signed=True)
        size = int.from_bytes(entry[8:12].tobytes(), "big", signed=True)
        if size == BLANK_SIZE or not self._log.min_offset <= physical < self._log.end_offset:
            return None
        file = self._log.file_of(physical)
        return store_timestamp(file.bytes[physical - file.base : physical - file.base + 76].tobytes())


def store_timestamp(record: bytes) -> int:
    """The store time of a record that begins with the bytes ``record``: 76 are enough."""
    at = 56 + (12 if int.from_bytes(record[36:40], "big") & 16 else 0)
    return int.from_bytes(record[at : at + 8], "big", signed=True)
