"""Reading a queue from an offset on."""

from __future__ import annotations

import logging
from collections.abc import Collection
from functools import partial

import numpy as np

from penstock.formats.queue_entry import ENTRY_BYTES
from penstock.formats.record.layout import FIXED_BYTES

from .absent import Absent, AbsentEntries, absent_parts
from .disk import Bytes, Disk
from .filter.conditions import DAMAGED, YES, Condition
from .log.commit_log import CommitLog
from .queues.consume_queue import ConsumeQueues
from .queues.ext_kernels import first_and_last_extended, set_tags_codes
from .queues.kernels import Ints, Longs, first_damaged, select_entries
from .queues.other_queues import OtherQueues
from .queues.queue_search import first_offset
from .results import ReadResult, ReadStatus

log = logging.getLogger(__name__)

_ENTRIES_AT_FIRST, _ENTRIES_AT_ONCE = 2048, 16_384
"""So many are looked at, and twice as many each time that those were all taken: small records are many.

Where so few are wanted that fewer may do, fewer; blank ones among them do not, so twice as many come on top."""
_SCANNED_MAX = 1 << 17
"""Entries that one filtered read looks at: 2.6 MB, about a millisecond; the next read goes on behind them."""
_EXTENDED_SCANNED_MAX = 1 << 12
"""As many with extensions, whose records must be looked at."""
SEARCHED_AT_ONCE, SEARCHED_COUNT = 1 << 20, 2048
SEARCH_BYTES_LEAST = 4096
"""What a search counts as at least, however little there is."""
_RECENT_BYTES = 64 << 20
"""What lies so near to the log's end was written a moment ago: it is taken to be in memory."""
_DAMAGES_MAX = 100_000
_ANY_SIZE = 1 << 62
_COUNT_MAX = (1 << 31) - 1
_ANY: Ints = np.zeros(0, np.int32)


class Reader:
    """Reads what is dispatched; for the owner thread."""

    def __init__(self, disk: Disk, log: CommitLog, queues: ConsumeQueues, others: OtherQueues) -> None:
        self._disk = disk
        self._log = log
        self._queues = queues
        self._others = others
        self._positions: Longs = np.zeros(_ENTRIES_AT_ONCE, np.int64)
        self._sizes: Ints = np.zeros(_ENTRIES_AT_ONCE, np.int32)
        self.damages: dict[tuple[str, int, int], str] = {}  # told already: topic, queue id, queue offset

    def check_readable(self, topic: str) -> None:
        """Raises Forbidden for a topic that has batch consume queues of RocketMQ's, not read or written here."""
        self._others.check(topic)

    def queue_ids(self, topic: str) -> list[int]:
        """The queues of the topic that something was stored in."""
        return list(self._queues.slots.by_topic.get(topic, {}))

    def queue_range(self, topic: str, queue_id: int) -> tuple[int, int]:
        """[minimum, maximum) of what can be read; (0, 0) for an unknown queue."""
        _, low, high = self._queues.look(topic, queue_id)
        return low, high

    def read(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_bytes: int,
        *,
        max_count: int = _COUNT_MAX,
        tags: Collection[int] | None = None,
        condition: Condition | None = None,
        max_searched: int = 0,
        verify: bool = False,
    ) -> ReadResult:
        """Records of a queue from ``offset`` on, within the limits, but one at least.

        ``tags``: only records whose tag has one of these hashes; a hash may stand for several tags. ``condition``: only
        those for which it holds; about ``max_searched`` bytes are looked at, a megabyte in about a millisecond at most,
        and with NO_MATCHED_MESSAGE the next offset says how far that came. ``verify``: lengths and checksums are proved
        too. In front of a record that is damaged a read ends; one that begins there tells of it with the status
        DAMAGED, and how to go on.
        """
        max_count = max(1, max_count)
        if condition is not None:
            return self._read_where((topic, queue_id), offset, max_bytes, max_count, condition, max_searched, verify)
        self.check_readable(topic)
        slot, low, high = self._queues.look(topic, queue_id)
        if slot < 0:
            return ReadResult(ReadStatus.QUEUE_NOT_FOUND, 0, 0, 0)
        if offset == high:
            return ReadResult(ReadStatus.NO_NEW_MESSAGE, offset, low, high)
        if offset < low:
            return ReadResult(ReadStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset > high:
            return ReadResult(ReadStatus.OFFSET_OVERFLOW, high, low, high)
        wanted = _ANY if tags is None else np.array(sorted(tags), np.int32)
        result = ReadResult(ReadStatus.FOUND, offset, low, high)
        end, at_once, blank = min(high, offset + _SCANNED_MAX), _ENTRIES_AT_FIRST, 0
        while result.next_offset < end and result.count < max_count:
            left, chosen_max = max_bytes - result.bytes, max_count - result.count
            if result.count and left <= 0:
                break
            fitting = min(_fitting(left), chosen_max) + 2 * blank
            looked = _ENTRIES_AT_FIRST if tags is not None else min(at_once, fitting)
            entries = self._queues.entries(slot, result.next_offset, min(end - result.next_offset, looked))
            count = len(entries) // ENTRY_BYTES
            if tags is not None:
                entries, is_extended = self._with_hashes(entries, count)
                if is_extended:
                    end = min(end, offset + _EXTENDED_SCANNED_MAX)
            scanned, chosen, size = self._select(entries, count, tags is not None, wanted, left, chosen_max)
            if chosen < 0 and scanned:
                end = result.next_offset + scanned  # first what lies before the entry that cannot be true
                continue
            if chosen < 0:
                if not result.count:
                    self._tell_damage(result, topic, queue_id, slot, size)
                break
            if result.count and size > left:
                break  # the first of these records alone is too large
            taken = self._add(result, chosen, verify=verify)
            if taken < chosen:
                physical = int(self._positions[taken])
                # The entry at which the choice ends when one fewer is wanted.
                result.next_offset += self._select(entries, count, tags is not None, wanted, _ANY_SIZE, taken)[0]
                if not result.count:
                    self._tell_damage(result, topic, queue_id, slot, physical)
                break
            result.next_offset += scanned
            if scanned < count:
                break
            at_once, blank = min(2 * at_once, _ENTRIES_AT_ONCE), count - chosen
        if not result.count and result.status is not ReadStatus.DAMAGED:
            result.status = ReadStatus.NO_MATCHED_MESSAGE
        return result

    def read_next(self, topic: str, queue_id: int, offset: int, start: int, end: int) -> ReadResult | None:
        """What a read finds of one record, ``[start, end)`` of the log, when it is dispatched; None if it is already.

        Not all that is before it in its queue need be dispatched.

        Raises as :meth:`read`.
        """
        self.check_readable(topic)
        low, high = self.queue_range(topic, queue_id)
        if high > offset:
            return None
        file, size = self._log.file_of(start), end - start
        part = file.bytes, np.array([start - file.base], np.int64), np.array([size], np.int32)
        return ReadResult(ReadStatus.FOUND, offset + 1, low, offset + 1, 1, size, [part])

    def _read_where(
        self,
        queue: tuple[str, int],
        offset: int,
        max_bytes: int,
        max_count: int,
        condition: Condition,
        max_searched: int,
        verify: bool,
    ) -> ReadResult:
        result = self.read(*queue, offset, 1, max_count=1)
        if result.status is not ReadStatus.FOUND:
            return result
        result = ReadResult(ReadStatus.FOUND, offset, result.min_offset, result.max_offset)
        while result.next_offset < result.max_offset and result.count < max_count and result.searched < max_searched:
            part = self.read(*queue, result.next_offset, SEARCHED_AT_ONCE, max_count=SEARCHED_COUNT, verify=verify)
            if part.status is not ReadStatus.FOUND:
                if result.next_offset == offset:
                    return part  # damage, told of the very offset that was asked for
                break
            if not self._take_where(result, part, queue, max_bytes, max_count, condition):
                break
        if not result.count and result.status is not ReadStatus.DAMAGED:
            result.status = ReadStatus.NO_MATCHED_MESSAGE
        return result

    def _take_where(
        self,
        result: ReadResult,
        part: ReadResult,
        queue: tuple[str, int],
        max_bytes: int,
        max_count: int,
        condition: Condition,
    ) -> bool:
        """Take what holds of ``part``, within the limits. Returns True if all of it was looked at."""
        begin = result.next_offset
        for source, positions, sizes in part.parts:
            verdicts = condition.judge(source, positions, sizes)
            judged = len(verdicts)
            result.searched += int(sizes[:judged].sum()) + SEARCH_BYTES_LEAST
            is_damaged = verdicts[-1] == DAMAGED
            places = np.flatnonzero(verdicts == YES)
            fitting = np.searchsorted(np.cumsum(sizes[places], dtype=np.int64), max_bytes - result.bytes, side="right")
            taken = places[: min(max(int(fitting), int(not result.count)), max_count - result.count)]
            if len(taken):
                result.parts.append((source, positions[taken], sizes[taken]))
                result.count += len(taken)
                result.bytes += int(sizes[taken].sum())
            stop = -1
            if len(taken) < len(places):
                stop = int(places[len(taken)])  # in front of the first one that has no room
            elif is_damaged or judged < len(positions):
                stop = judged - is_damaged
            if stop >= 0:
                physical = int(positions[stop]) + next(file.base for file in self._log.files if file.bytes is source)
                result.next_offset = self._offset_of(*queue, begin, part.next_offset, physical)
                if is_damaged and not result.count and result.next_offset == begin:
                    self._tell_damage(result, *queue, self._queues.look(*queue).slot, physical)
                return False
        result.next_offset = part.next_offset
        return True

    def _offset_of(self, topic: str, queue_id: int, low: int, high: int, physical: int) -> int:
        """The queue offset of the record at ``physical``, which is one of ``[low, high)``."""
        slot = self._queues.look(topic, queue_id).slot
        return first_offset(partial(self._queues.entries, slot), low, high, lambda found: found >= physical)

    def absent_entries(self, topic: str, queue_id: int, offset: int, count: int) -> list[AbsentEntries]:
        """Entries of this range that are not in memory: have another thread ``bring()`` them before :meth:`read`."""
        slot, low, high = self._queues.look(topic, queue_id)
        return self._queues.absent(slot, offset, count) if low <= offset < high else []

    def absent(self, topic: str, queue_id: int, offset: int, max_bytes: int) -> list[Absent]:
        """Old records from ``offset`` on; to be brought in the same way, as far as they are :func:`uncached`."""
        return self.absent_until(topic, queue_id, offset, max_bytes)[0]

    def absent_until(self, topic: str, queue_id: int, offset: int, max_bytes: int) -> tuple[list[Absent], int]:
        """The same, and the offset up to which they are all that is missing."""
        slot, low, high = self._queues.look(topic, queue_id)
        if not low <= offset < high:
            return [], offset
        if self._queues.entry(slot, offset).physical_offset + _RECENT_BYTES > self._log.end_offset:
            return [], high
        found: list[Absent] = []
        at_once, blank = _ENTRIES_AT_FIRST, 0
        while offset < high and max_bytes > 0:
            looked = min(at_once, _fitting(max_bytes) + 2 * blank)
            entries = self._queues.entries(slot, offset, min(high - offset, looked))
            count = len(entries) // ENTRY_BYTES
            scanned, chosen, size = self._select(entries, count, False, _ANY, max_bytes, _ENTRIES_AT_ONCE)
            if chosen < 0:
                break
            found += absent_parts(self._disk, self._log, self._positions[:chosen].copy(), self._sizes[:chosen])
            offset += scanned
            if scanned < count or count == 0:
                break
            max_bytes -= size
            at_once, blank = min(2 * at_once, _ENTRIES_AT_ONCE), count - chosen
        return found, offset

    def _with_hashes(self, entries: Bytes, count: int) -> tuple[Bytes, bool]:
        """The entries with the hash of the tag also where there is an extension; and whether there is any."""
        first, last = first_and_last_extended(entries, count)
        if first < 0:
            return entries, False
        entries = entries.copy()
        position = max(int(first), self._log.min_offset)
        while position <= last and position < self._log.end_offset:
            file = self._log.file_of(position)
            set_tags_codes(entries, count, file.bytes, file.base)
            position = file.end
        return entries, True

    def _select(
        self, entries: Bytes, count: int, filtered: bool, wanted: Ints, bytes_max: int, count_max: int
    ) -> tuple[int, int, int]:
        scanned, chosen, size = select_entries(
            entries,
            count,
            self._log.min_offset,
            self._log.end_offset,
            filtered,
            wanted,
            bytes_max,
            count_max,
            self._positions,
            self._sizes,
        )
        return int(scanned), int(chosen), int(size)

    def _tell_damage(self, result: ReadResult, topic: str, queue_id: int, slot: int, physical: int) -> None:
        """Let the result tell of the record at its next offset, and the log of the process, once."""
        offset = result.next_offset
        result.status, result.next_offset = ReadStatus.DAMAGED, offset + 1
        known = self.damages.get((topic, queue_id, offset))
        if known is not None:
            result.problem = known
            return
        folder = f"{self._queues.files.directory}/{topic}/{queue_id}"
        if self._is_plausible(slot, offset, physical):
            file = self._log.file_of(physical)
            where = f"{file.path}: the record at {physical} is damaged"
            remedy = "take a replica's copy of the store, or leave the record out with penstock store rebuild"
        else:
            where = f"{folder}: entry {offset} points to {physical}, where no such record is"
            remedy = "stop the broker and delete the folder, it is built again"
        result.problem = f"{where} ({topic} queue {queue_id} offset {offset}): seek past it, and {remedy}"
        log.error("record damaged topic=%s queue=%d offset=%d problem=%s", topic, queue_id, offset, result.problem)
        if len(self.damages) < _DAMAGES_MAX:
            self.damages[topic, queue_id, offset] = result.problem

    def _is_plausible(self, slot: int, offset: int, physical: int) -> bool:
        """True if the entry at ``offset`` fits between its neighbours, so that its record is what is wrong."""
        low, high = int(self._queues.slots.min_offsets[slot]), int(self._queues.slots.next_offsets[slot])
        start, end = self._log.min_offset, self._log.end_offset
        if offset > low:
            before = self._queues.entry(slot, offset - 1)
            start = max(start, before.physical_offset + (0 if before.is_filler else before.size))
        if offset + 1 < high:
            after = self._queues.entry(slot, offset + 1)
            end = end if after.is_filler else min(end, after.physical_offset)
        entry = self._queues.entry(slot, offset)
        record = self._log.record_at(physical)
        if record is not None and len(record) != entry.size:
            return False  # a sound one lies there, of another size
        fits = start <= physical and FIXED_BYTES <= entry.size <= end - physical
        return fits and entry.physical_offset == physical

    def _add(self, result: ReadResult, chosen: int, *, verify: bool) -> int:
        """Take the chosen records, split by log file, up to one that is not what its entry says; how many."""
        taken = 0
        for file, part in self._log.by_file(self._positions[:chosen]):
            positions, sizes = self._positions[part] - file.base, self._sizes[part].copy()
            damaged = int(first_damaged(file.bytes, positions, sizes, file.base, verify))
            good = len(positions) if damaged < 0 else damaged
            if good:
                result.parts.append((file.bytes, positions[:good], sizes[:good]))
                result.count += good
                result.bytes += int(sizes[:good].sum())
            taken += good
            if damaged >= 0:
                break
        return taken


def _fitting(bytes_max: int) -> int:
    """As many records as so many bytes may hold, and one more."""
    return max(bytes_max, 0) // FIXED_BYTES + 1
