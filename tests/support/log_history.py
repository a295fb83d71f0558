"""What a store must hold, kept beside it by a test, and the comparison of the two.

The history is a byte image of the log with the places where it may end, and from the image alone, in plain Python,
come the queues, the entries and the index that a store must have derived.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from penstock.broker.store import AppendResult, ReadStatus, Store
from penstock.proto.record.hashing import index_key_hash, tags_code
from penstock.proto.record.layout import decode_record
from penstock.proto.record.producer_mark import parse_producer_mark
from penstock.proto.record.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    KEYS,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)

_ENTRY = struct.Struct(">qiq")
_INDEX_ENTRY = struct.Struct(">iqii")
_ALL_TIME = 1 << 60


@dataclass(frozen=True, slots=True)
class Written:
    """One record that the log holds."""

    start: int
    end: int
    topic: str
    queue_id: int
    queue_offset: int
    keys: tuple[str, ...]
    entry: bytes
    marked_end: int  # end of its marked batch; 0 without a mark
    is_first: bool


@dataclass(slots=True)
class LogHistory:
    """Everything appended to one log, from offset 0 on."""

    image: bytearray = field(default_factory=bytearray)
    records: list[Written] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])  # where the log may end after a crash, ascending
    by_queue: dict[tuple[str, int], list[Written]] = field(default_factory=dict)  # light queues too, in order

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return len(self.image)

    def on_append(self, store: Store, result: AppendResult, *, marked: bool) -> None:
        """Take what ``store`` has laid down for a batch, and the blank in front of it."""
        before = self.end
        while self.end < result.end:
            self.image += _appended(store, self.end, result.end)
        if result.start > before:
            self.ends.append(result.start)
        start = result.start
        while start < result.end:
            size = int.from_bytes(self.image[start : start + 4], "big")
            self._add(start, start + size, result.end if marked else 0, is_first=start == result.start)
            start += size
            if not marked:
                self.ends.append(start)
        if marked:
            self.ends.append(result.end)

    def truncate(self, end: int) -> None:
        """Forget everything from ``end`` on."""
        del self.image[end:]
        for records in (self.records, *self.by_queue.values()):
            del records[bisect_left(records, end, key=_start_of) :]
        del self.ends[bisect_right(self.ends, end) :]

    def copy(self) -> LogHistory:
        """Another history of the same log."""
        by_queue = {name: list(records) for name, records in self.by_queue.items()}
        return LogHistory(bytearray(self.image), list(self.records), list(self.ends), by_queue)

    def whole_below(self, offset: int) -> int:
        """The last place at or below ``offset`` where the log may end."""
        return self.ends[bisect_right(self.ends, offset) - 1]

    def queue(self, name: tuple[str, int], end: int) -> list[Written]:
        """Records of that queue below ``end``, in order."""
        records = self.by_queue.get(name, [])
        return records[: bisect_right(records, end, key=_end_of)]

    def _add(self, start: int, end: int, marked_end: int, *, is_first: bool) -> None:
        record = decode_record(bytes(self.image[start:end]))
        assert record.physical_offset == start
        properties = decode_properties(record.properties)
        keys = tuple(filter(None, (properties.get(UNIQ_KEY, ""), *properties.get(KEYS, "").split(" "))))
        entry = _ENTRY.pack(start, end - start, tags_code(properties.get(TAGS, "")))
        written = Written(
            start, end, record.topic, record.queue_id, record.queue_offset, keys, entry, marked_end, is_first
        )
        self.records.append(written)
        self.by_queue.setdefault((record.topic, record.queue_id), []).append(written)
        for name, offset in _lights(properties):
            lit = replace(written, topic=name, queue_id=0, queue_offset=offset)
            self.by_queue.setdefault((name, 0), []).append(lit)


def _appended(store: Store, start: int, end: int) -> bytes:
    """Some bytes of the log from ``start`` on, those in buffers of a pool too."""
    if start < store.end_offset:
        return bytes(store.read_bytes(start, end - start))
    assert store._log._buffers is not None
    filling = next(each for each in store._log._buffers._filling if each.base <= start < each.end)
    if start >= filling.placed:
        return bytes(min(end, filling.end) - start)  # behind a blank
    return filling.buffer[start - filling.base : min(end, filling.placed) - filling.base].tobytes()


_start_of, _end_of = attrgetter("start"), attrgetter("end")


def _lights(properties: dict[str, str]) -> tuple[tuple[str, int], ...]:
    if INNER_MULTI_DISPATCH not in properties:
        return ()
    light_names = properties[INNER_MULTI_DISPATCH].split(",")
    offsets = properties[INNER_MULTI_QUEUE_OFFSET].split(",")
    return tuple(zip(light_names, map(int, offsets), strict=True))


def check_end(store: Store, history: LogHistory, acknowledged: int) -> int:
    """That the recovered log is all that was acknowledged, a prefix of the rest, and nothing else; where it ends."""
    end = store.end_offset
    assert end >= history.whole_below(acknowledged), f"acknowledged up to {acknowledged}, recovered {end}"
    whole = end in history.ends or (store.recovery.clean and end == acknowledged)  # a slave's may end anywhere
    assert whole, f"the log ends at {end}, inside a record or batch, or behind what was appended"
    at = 0
    while at < end:
        found = store.read_bytes(at, end - at)
        assert found == history.image[at : at + len(found)], f"bytes from {at} on are not those that were appended"
        at += len(found)
    return end


def check_derived(store: Store, history: LogHistory) -> None:
    """That queues, index and marks are those of the dispatched part of the history, each by each."""
    end = store.dispatched_offset
    expected = {name: found for name in history.by_queue if (found := history.queue(name, end))}
    for name, written in expected.items():
        assert [one.queue_offset for one in written] == list(range(len(written))), f"{name} has a gap in the log"
        assert store.queue_range(*name) == (0, len(written)), f"range of {name}"
        slot = store._queues.slots.find(*name)
        assert slot is not None
        entries = b""
        while len(entries) < 20 * len(written):
            entries += store._queues.entries(slot, len(entries) // 20, len(written)).tobytes()
        assert entries == b"".join(one.entry for one in written), f"entries of {name}"
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            assert (topic, queue_id) in expected or store.queue_range(topic, queue_id) == (0, 0), "a queue too much"
    marks = [(found.start, found.end) for result in store.replay(0) for found in result.marks]
    assert marks == [
        (one.start, one.marked_end) for one in history.records if one.marked_end and one.is_first and one.end <= end
    ], "whole marked batches, each once"


def check_reading(store: Store, history: LogHistory, topic: str, queue_id: int) -> None:
    """That a consumer of that queue gets the bytes that were appended, all of them in order."""
    expected = history.queue((topic, queue_id), store.dispatched_offset)
    received, offset = b"", 0
    while expected:
        found = store.read(topic, queue_id, offset, 700)
        if found.status is ReadStatus.NO_NEW_MESSAGE:
            break
        assert found.status is ReadStatus.FOUND, f"{found.status.name} at {offset}"
        out = np.zeros(found.bytes, np.uint8)
        found.copy_to(out.ctypes.data)
        received += ctypes.string_at(out.ctypes.data, found.bytes)
        offset = found.next_offset
    assert received == b"".join(bytes(history.image[one.start : one.end]) for one in expected)


def check_key(store: Store, history: LogHistory, topic: str, key: str) -> None:
    """That a query by key finds each record that has it, newest first, and no other."""
    found = [decode_record(raw).physical_offset for raw in store.query(topic, key, 1000, 0, _ALL_TIME)]
    expected = [one.start for one in history.records if one.topic == topic and key in one.keys]
    assert found == [start for start in reversed(expected) if start < store.dispatched_offset], f"key {key}"


def check_index_files(files: list[bytes], slots: int, entries: int, history: LogHistory, end: int) -> None:
    """That the index files of a closed store hold each key of the log once, in order, and chains over all of them."""
    found: list[tuple[int, int]] = []
    for content in files:
        count = int.from_bytes(content[36:40], "big")
        newest: dict[int, int] = {}
        for number in range(1, count):
            at = 40 + 4 * slots + 20 * number
            key_hash, physical, _, previous = _INDEX_ENTRY.unpack(content[at : at + 20])
            assert previous == newest.get(key_hash % slots, 0), f"chain of entry {number}"
            newest[key_hash % slots] = number
            found.append((key_hash, physical))
        table = struct.unpack(f">{slots}i", content[40 : 40 + 4 * slots])
        assert list(table) == [newest.get(slot, 0) for slot in range(slots)], "slots"
        assert len(content) == 40 + 4 * slots + 20 * entries
    expected = [
        (index_key_hash(one.topic, key), one.start) for one in history.records if one.end <= end for key in one.keys
    ]
    assert found == expected, "entries of the index"


def mark_of(properties: bytes) -> bool:
    """Whether a property string begins with a producer mark."""
    name, _, value = properties.partition(b"\x02")[0].partition(b"\x01")
    return name == b"__PSEQ" and parse_producer_mark(value) is not None
