"""Looking single records up: by log position, by key, by store time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import numpy as np

from penstock.formats.queue_entry import ENTRY, are_messages
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import KEY_SEPARATOR, KEYS, UNIQ_KEY, decode_properties
from penstock.proto.errors import MessageNotFound

from .disk import named_errors
from .dispatch import Dispatcher
from .index.index import Index
from .log.commit_log import CommitLog
from .queues.consume_queue import ConsumeQueues
from .queues.other_queues import OtherQueues
from .queues.queue_search import first_offset, last_used

_SAMPLE = 128


class Lookup:
    """Looks up what is dispatched, and :meth:`view` what is confirmed; for the owner thread."""

    def __init__(
        self, log: CommitLog, queues: ConsumeQueues, others: OtherQueues, index: Index, dispatcher: Dispatcher
    ) -> None:
        self._log = log
        self._queues = queues
        self._others = others
        self._index = index
        self._dispatcher = dispatcher

    def view(self, physical_offset: int) -> bytes:
        """The confirmed record that begins there, dispatched or not. Raises MessageNotFound: none does."""
        return bytes(self.in_place(physical_offset))

    def in_place(self, physical_offset: int) -> memoryview:
        """The same, not copied: for the turn in which the call returns. Raises as :meth:`view`."""
        found = self._log.record_at(physical_offset) if physical_offset < self._log.confirm_offset else None
        if found is None:
            raise MessageNotFound(f"no message begins at physical offset {physical_offset}", offset=physical_offset)
        return found

    def message_at(self, physical_offset: int) -> bytes:
        """The same for a message of a queue that there is, which has its place there: bodies may hold what looks like
        a record too.

        Raises MessageNotFound: none does, or it is not dispatched, or its topic is gone.
        """
        raw = self.view(physical_offset)
        record = decode_record(raw)
        slot, low, high = self._queues.look(record.topic, record.queue_id)
        if low <= record.queue_offset < high:
            entry = self._queues.entry(slot, record.queue_offset)
            if (entry.physical_offset, entry.size) == (physical_offset, len(raw)):
                return raw
        raise MessageNotFound(
            f"at physical offset {physical_offset} lies no message that queue {record.queue_id} of topic "
            f"{record.topic} has",
            offset=physical_offset,
        )

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[bytes]:
        """Records of ``topic`` with ``key`` among their keys, or as unique key, in the time range; newest first."""
        with named_errors("index", "reading the index"):
            positions = self._index.query(topic, key, begin_ms, end_ms)
            return self._with_key(positions, topic, key, max_count, begin_ms, end_ms)

    def search_offset(self, topic: str, queue_id: int, timestamp_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after the time, the maximum if all are older; 0 for an unknown queue.

        With ``upper`` the last offset stored at or before the time, the minimum if all are newer.
        """
        self._others.check(topic)
        slot, low, high = self._queues.look(topic, queue_id)
        read = partial(self._queues.entries, slot)

        def is_enough(physical: int) -> bool:
            stored = self._store_timestamp_of(physical)
            return stored is not None and (stored > timestamp_ms or (stored == timestamp_ms and not upper))

        found = first_offset(read, low, high, is_enough)
        if not upper or low == high:
            return found
        last = last_used(read, low, found)
        return low if last is None else last

    def store_timestamp_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Store time of the record at that queue offset, None without one."""
        slot, low, high = self._queues.look(topic, queue_id)
        if not low <= offset < high:
            return None
        entry = self._queues.entry(slot, offset)
        return None if entry.is_filler else self._store_timestamp_of(entry.physical_offset)

    def mean_record_bytes(self, topic: str, queue_id: int) -> int:
        """Mean size of some records at both ends of the queue, 0 without any."""
        slot, low, high = self._queues.look(topic, queue_id)
        if low >= high:
            return 0
        parts = [self._queues.entries(slot, low, min(_SAMPLE, high - low))]
        if high - low > _SAMPLE:
            parts.append(self._queues.entries(slot, high - _SAMPLE, _SAMPLE))
        entries = np.concatenate(parts).view(ENTRY)
        sizes = entries["size"][are_messages(entries)]
        return int(sizes.mean()) if len(sizes) else 0

    def _with_key(
        self, positions: Iterable[int], topic: str, key: str, max_count: int, begin_ms: int, end_ms: int
    ) -> list[bytes]:
        """Of the records that begin at ``positions``, those of ``topic`` with ``key``: the index has only hashes."""
        found: dict[int, bytes] = {}
        for physical in positions:
            if len(found) >= max_count:
                break
            raw = self._log.record_at(physical) if physical < self._dispatcher.offset else None
            if physical in found or raw is None or not begin_ms <= _store_timestamp(bytes(raw[:76])) <= end_ms:
                continue
            record = decode_record(raw)
            properties = decode_properties(record.properties)
            keys = properties.get(KEYS, "").split(KEY_SEPARATOR)
            if record.topic == topic and (properties.get(UNIQ_KEY) == key or key in keys):
                found[physical] = bytes(raw)
        return list(found.values())

    def _store_timestamp_of(self, physical: int) -> int | None:
        if not self._log.min_offset <= physical < self._log.end_offset:
            return None
        file = self._log.file_of(physical)
        return _store_timestamp(file.bytes[physical - file.base : physical - file.base + 76].tobytes())


def _store_timestamp(record: bytes) -> int:
    """The store time of a record that begins with the bytes ``record``: 76 are enough."""
    at = 56 + (12 if int.from_bytes(record[36:40], "big") & 16 else 0)
    return int.from_bytes(record[at : at + 8], "big", signed=True)
