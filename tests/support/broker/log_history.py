"""What a store must hold, kept beside it by a test, and the comparison of the two.

The history is a byte image of the log with the places where it may end, and from the image alone, in plain Python,
come the queues, the entries and the index that a store must have derived. A queue begins at offset 0 again behind
each deletion of its topic.

A store that retention has been at holds what lies from its minimum on; :class:`Slack` is what may be missing there.
"""

from __future__ import annotations

import ctypes
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from penstock.broker.core.tables.topics import deleted_topic
from penstock.broker.store import ReadStatus, Store
from penstock.formats.hashing import index_key_hash, tags_code
from penstock.formats.record.layout import MAGIC_BLANK, decode_record
from penstock.formats.record.properties import (
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    KEYS,
    TAGS,
    UNIQ_KEY,
    decode_properties,
)
from penstock.proto.errors import SyncFailed
from penstock.proto.names import STATE_TOPIC

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


class Deletion(NamedTuple):
    """The record that deletes a topic."""

    start: int
    end: int
    topic: str


@dataclass(slots=True)
class Slack:
    """What a store may have lost although its log has it, or had it.

    A crash can bring log files back that were taken out, whose entries in queues and index are gone: they lie below
    ``taken``. A queue whose messages are all gone goes on where its files say; topics in ``forgotten`` may have lost
    these, and begin at 0 again.
    """

    taken: int = 0
    forgotten: set[str] = field(default_factory=set)


@dataclass(slots=True)
class LogHistory:
    """Everything appended to one log, from offset 0 on."""

    image: bytearray = field(default_factory=bytearray)
    records: list[Written] = field(default_factory=list)
    ends: list[int] = field(default_factory=lambda: [0])  # where the log may end after a crash, ascending
    by_queue: dict[tuple[str, int], list[Written]] = field(default_factory=dict)  # light queues too, in order
    deletions: list[Deletion] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Behind the last byte."""
        return len(self.image)

    def append(
        self, store: Store, topic: str, records: bytes | np.ndarray, *, queues: int, marked: bool = False
    ) -> None:
        """Append a batch, and take what ``store`` has laid down for it, and the blank in front of it."""
        before, segment, was_fenced = self.end, store._config.segment_bytes, store._flusher.failure is not None
        try:
            result = store.append(topic, records, queues=queues)
        except BaseException as error:
            left = store._log.appended_offset - before
            if left > 0:  # the file before it has been filled up
                self.image += struct.pack(">ii", left, MAGIC_BLANK).ljust(left, b"\0")
                self.ends.append(self.end)
            if isinstance(error, SyncFailed) and not was_fenced:  # nobody knows how much of it is there
                start = self.end
                laid_out, count = store._log._laid_out, sum(1 for _ in _sizes(records))
                self.image += laid_out[: sum(islice(_sizes(laid_out), count))].tobytes()
                self._take(start, marked=marked)
            raise
        assert result.start == before or (result.start > before and result.start % segment == 0), "a gap in the log"
        while self.end < result.end:
            self.image += _appended(store, self.end, result.end)
        if result.start > before:
            self.ends.append(result.start)
        self._take(result.start, marked=marked)

    def truncate(self, end: int) -> None:
        """Forget everything from ``end`` on."""
        del self.image[end:]
        for records in (self.records, *self.by_queue.values()):
            del records[bisect_left(records, end, key=_start_of) :]
        del self.ends[bisect_right(self.ends, end) :]
        self.deletions = [one for one in self.deletions if one.end <= end]

    def copy(self) -> LogHistory:
        """Another history of the same log."""
        by_queue = {name: list(records) for name, records in self.by_queue.items()}
        return LogHistory(bytearray(self.image), list(self.records), list(self.ends), by_queue, list(self.deletions))

    def whole_below(self, offset: int) -> int:
        """The last place at or below ``offset`` where the log may end."""
        return self.ends[bisect_right(self.ends, offset) - 1]

    def queue(self, name: tuple[str, int], end: int) -> list[Written]:
        """Records of that queue below ``end``, in order, since its topic was last deleted."""
        records = self.by_queue.get(name, [])
        deleted = max((one.start for one in self.deletions if one.topic == name[0] and one.end <= end), default=0)
        return records[bisect_left(records, deleted, key=_start_of) : bisect_right(records, end, key=_end_of)]

    def forget(self, store: Store, topics: Collection[str]) -> None:
        """Queues of these topics begin at 0 again where all messages are gone, and the store does not know them."""
        for name, written in list(self.by_queue.items()):
            expired = bool(written) and written[-1].start < store.min_offset
            if expired and name[0] in topics and store.reader.queue_range(*name) == (0, 0):
                del self.by_queue[name]

    def _take(self, start: int, *, marked: bool) -> None:
        """Note the batch whose bytes begin at ``start``."""
        at, end = start, self.end
        while at < end:
            size = int.from_bytes(self.image[at : at + 4], "big")
            self._add(at, at + size, end if marked else 0, is_first=at == start)
            at += size
            if not marked:
                self.ends.append(at)
        if marked:
            self.ends.append(end)

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
        if record.topic == STATE_TOPIC:
            self.deletions.append(Deletion(start, end, deleted_topic(bytes(self.image[start:end]))))
        for name, offset in _lights(properties):
            lit = replace(written, topic=name, queue_id=0, queue_offset=offset)
            self.by_queue.setdefault((name, 0), []).append(lit)


def _appended(store: Store, start: int, end: int) -> bytes:
    """Some bytes of the log from ``start`` on, those in buffers of a pool too."""
    if start < store.end_offset:
        return bytes(store.read_bytes(start, end - start))
    assert store._log._buffers is not None
    filling = next(each for each in store._log._buffers._filling if each.file.base <= start < each.file.end)
    if start >= filling.placed:
        return bytes(min(end, filling.file.end) - start)  # behind a blank
    base = filling.file.base
    return filling.buffer[start - base : min(end, filling.placed) - base].tobytes()


def _sizes(records: bytes | np.ndarray) -> Iterator[int]:
    """Of the records that lie there end to end."""
    at = 0
    while at < len(records) and (size := int.from_bytes(bytes(records[at : at + 4]), "big")) > 0:
        yield size
        at += size


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
    at = store.min_offset
    while at < end:
        found = store.read_bytes(at, end - at)
        assert found == history.image[at : at + len(found)], f"bytes from {at} on are not those that were appended"
        at += len(found)
    return end


def check_derived(store: Store, history: LogHistory, slack: Slack) -> None:
    """That queues, index and marks are those of the dispatched part of the history, each by each."""
    begin, end = store.min_offset, store.dispatched_offset
    expected = {name: found for name in history.by_queue if (found := history.queue(name, end))}
    for name, written in expected.items():
        assert [one.queue_offset for one in written] == list(range(len(written))), f"{name} has a gap in the log"
        low, high = store.reader.queue_range(*name)
        if high == 0 and name[0] in slack.forgotten and written[-1].start < begin:
            continue
        assert high == len(written), f"{name} ends at {high}, not at {len(written)}"
        first, last = (bisect_left(written, least, key=_start_of) for least in (begin, max(begin, slack.taken)))
        assert first <= low <= last, f"{name} begins at {low}, not at {first}..{last}"
        slot = store._queues.slots.find(*name)
        assert slot is not None
        entries = b""
        while len(entries) < 20 * (high - low):
            entries += store._queues.entries(slot, low + len(entries) // 20, high - low).tobytes()
        assert entries == b"".join(one.entry for one in written[low:]), f"entries of {name}"
    for topic, queue_ids in store.queues().items():
        for queue_id in queue_ids:
            is_known = (topic, queue_id) in expected
            assert is_known or store.reader.queue_range(topic, queue_id) == (0, 0), "a queue too much"
    marks = [(found.start, found.end) for result in store.replay(0) for found in result.marks]
    assert marks == [
        (one.start, one.marked_end)
        for one in history.records
        if one.marked_end and one.is_first and begin <= one.start and one.end <= end
    ], "whole marked batches, each once"


def check_reading(store: Store, history: LogHistory, topic: str, queue_id: int) -> None:
    """That a consumer of that queue gets the bytes that were appended, all of them in order."""
    offset, _ = store.reader.queue_range(topic, queue_id)
    written = history.queue((topic, queue_id), store.dispatched_offset)[offset:]
    expected, received = [one for one in written if one.start >= store.min_offset], b""
    while expected:
        found = store.reader.read(topic, queue_id, offset, 700)
        if found.status is ReadStatus.NO_NEW_MESSAGE:
            break
        assert found.status is ReadStatus.FOUND, f"{found.status.name} at {offset}"
        out = np.zeros(found.bytes, np.uint8)
        found.copy_to(out.ctypes.data)
        received += ctypes.string_at(out.ctypes.data, found.bytes)
        offset = found.next_offset
    assert received == b"".join(bytes(history.image[one.start : one.end]) for one in expected)


def check_key(store: Store, history: LogHistory, topic: str, key: str, slack: Slack) -> None:
    """That a query by key finds each record that has it, newest first, and no other."""
    found = [decode_record(raw).physical_offset for raw in store.lookup.query(topic, key, 1000, 0, _ALL_TIME)]
    expected = [
        one.start
        for one in reversed(history.records)
        if one.topic == topic and key in one.keys and store.min_offset <= one.start < store.dispatched_offset
    ]
    least = sum(start >= slack.taken for start in expected)
    assert found == expected[: max(least, len(found))], f"key {key}"


def check_index_files(
    files: list[bytes], slots: int, entries: int, history: LogHistory, slack: Slack, end: int
) -> None:
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
    least = sum(start >= slack.taken for _, start in expected)
    assert found == expected[len(expected) - max(least, len(found)) :], "entries of the index"


def mark_of(properties: bytes) -> bool:
    """Whether a property string begins with a producer mark."""
    return properties.startswith(b"__PSEQ\x01")
