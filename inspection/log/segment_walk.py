"""The pass over one log file: what to do about everything that is not simply the next record.

| Found | Then |
|---|---|
| a record with a wrong checksum or own offset, lengths right | damage; its entry and keys count as usual |
| no record, and a sound one later in the file | damage up to there; goes on there |
| no record, and sound ones only in later files | damage to the file's end (or a lost blank record); next file |
| nothing, and nothing sound behind it | the log's end: its tail |

"Sound later" counts only records that are not older than the last good one: brokers leave old bytes behind a tail
that they cut off.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np

from penstock.formats.batch_unit import BatchUnit, messages_of
from penstock.formats.directory import file_name
from penstock.formats.hashing import string_hash
from penstock.formats.intrinsics.text import first_nonzero
from penstock.formats.record.kernels.scanning import find_record, measure_at
from penstock.formats.record.layout import FIXED_BYTES, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, Record, decode_record
from penstock.formats.record.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, TAGS, decode_properties
from penstock.proto.names import LIGHT_PREFIX, LOST_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, SYSTEM_PREFIX

from .. import kernels
from ..files import Bytes, InputFile, Unreadable
from ..kernels import Check
from .model import TIME_MIN, WINDOW_BYTES, Batch, Damage, OffsetJump, Tail

if TYPE_CHECKING:
    from .reader import LogReader

RECORD_BYTES_MAX = 256 << 20
"""What claims to be longer is no record: brokers take 4 MiB by default."""
_PASSES = {
    Check.OFFSET: kernels.PASS_OFFSET,
    Check.BODY: kernels.PASS_BODY,
    Check.RECORD: kernels.PASS_RECORD,
    Check.QUEUE_OFFSET: kernels.PASS_QUEUE_OFFSET,
    Check.SPECIAL: kernels.PASS_SPECIAL,
    Check.ZEROS: kernels.PASS_ZEROS,
}
_SUSPICIOUS = (Check.BODY, Check.RECORD, Check.OFFSET, Check.BAD, Check.ZEROS)


class SegmentWalk:
    """Reads file ``number`` of ``reader``'s store from ``position`` on, which only grows."""

    def __init__(self, reader: LogReader, file: InputFile, number: int, position: int) -> None:
        self.position = position
        self._reader = reader
        self._file = file
        self._number = number
        self._start = reader.store.segments[number].start
        self._bytes = reader.store.segment_bytes
        self._window = self._window_end = 0  # file positions of what the reader's buffer holds
        self._passed = 0  # what of the record at the position has been dealt with

    def run(self) -> Generator[Batch, None, bool]:
        """Batches of the file; the generator returns True if the log ends in it."""
        self._load(min(WINDOW_BYTES, self._bytes - self.position))
        while True:
            status = self._check()
            if status in _SUSPICIOUS and self._is_being_written():
                continue
            if status in (Check.END, Check.INCOMPLETE) and self._slide():
                continue
            if status == Check.ROWS_FULL:
                yield from self._reader.flush()
            elif status == Check.NEW_QUEUE:
                self._slot()
            elif status in _PASSES:
                if status != Check.ZEROS:  # which properties may end in
                    self._deal_with(status)
                self._passed |= _PASSES[status]
            elif status == Check.BLANK:
                return self._after_blank()
            elif not self._resume(status):
                return (yield from self._at_end(status))

    def _check(self) -> Check:
        """Prove records from the position on, as far as the window and what is wrong allow."""
        reader, table = self._reader, self._reader.table
        result = kernels.check_records(
            *(reader.buffer, self.position - self._window, self._window_end - self._window),
            *(self._start + self._window, self._passed, reader.check_crc),
            *(table.table, table.name_bytes, table.name_ends, table.queue_ids, table.next_offsets, table.kinds),
            table.delays,
            *(reader.entries, reader.entry_count, reader.keys, reader.key_count),
        )
        status, position, reader.entry_count, reader.key_count, records, last_time = result
        if records:
            self._passed = 0
            self.position = position + self._window
            reader.records += records
            reader.last_time = last_time
        return Check(status)

    def _is_being_written(self) -> bool:
        """Look again at what is no sound record: beside a running broker it may be about to become one."""
        if not self._reader.second_looks.is_due(self._start + self.position):
            return False
        self._load(min(WINDOW_BYTES, self._bytes - self.position))
        return True

    def _load(self, size: int) -> None:
        reader = self._reader
        if size > len(reader.buffer):
            reader.buffer = np.empty(size, np.uint8)
        self._file.read_into(reader.buffer[:size], self.position)
        self._window, self._window_end = self.position, self.position + size
        reader.show_progress(self._start + self.position)

    def _slide(self) -> bool:
        """Load the next window, from the position on. False if that cannot help."""
        left = self._bytes - self.position
        if self._window_end == self._bytes:
            return False
        size = min(WINDOW_BYTES, left)
        if self._window == self.position:
            claimed = self._number_at(0)
            if claimed <= size or claimed > min(left, RECORD_BYTES_MAX):
                return False
            size = claimed
        self._load(size)
        return True

    def _number_at(self, offset: int) -> int:
        at = self.position - self._window + offset
        return int.from_bytes(self._reader.buffer[at : at + 4].tobytes(), "big", signed=True)

    def _record(self) -> Record:
        view = self._reader.buffer.data[: self._window_end - self._window]
        return decode_record(view, self.position - self._window)

    def _slot(self) -> int:
        """The slot of the queue of the record at the position, by the very bytes of its topic."""
        buffer, at = self._reader.buffer, self.position - self._window
        measured = measure_at(buffer.ctypes.data, at, self._window_end - self._window)
        topic = buffer[measured[5] : measured[5] + measured[6]].tobytes()
        if topic == LOST_TOPIC.encode() and self._reader.lost_at is None:
            self._reader.lost_at = self._start + self.position
        queue_id = int.from_bytes(buffer[at + 12 : at + 16].tobytes(), "big", signed=True)
        return self._reader.table.add(topic, queue_id)

    def _deal_with(self, status: Check) -> None:
        """Keep what is wrong or special about the record at the position."""
        reader = self._reader
        record = self._record()
        physical, size = self._start + self.position, self._number_at(0)
        if status == Check.QUEUE_OFFSET:
            slot = self._slot()
            expected = int(reader.table.next_offsets[slot])
            reader.jumps.append(OffsetJump(slot, physical, size, record.queue_offset, expected))
        elif status == Check.SPECIAL:
            self._add_special(record, physical, size)
        else:
            reason = {
                Check.OFFSET: f"the record says that it lies at {record.physical_offset}",
                Check.BODY: f"the body of {len(record.body)} bytes does not match its checksum {record.body_crc:#010x}",
                Check.RECORD: "the record does not match the checksum in its property __CRC32#",
            }[status]
            reader.damages.append(Damage(physical, physical + size, reason, False))

    def _add_special(self, record: Record, physical: int, size: int) -> None:
        """Inner batches go to a batch consume queue; multi-dispatch adds entries to light queues."""
        reader = self._reader
        properties = decode_properties(record.properties)
        tags_code = string_hash(properties[TAGS]) if TAGS in properties else 0
        slot = self._slot()
        numbers = messages_of(properties, record.queue_offset)
        if reader.table.kinds[slot] & kernels.SLOT_BATCH and numbers is not None:
            unit = BatchUnit(physical, size, tags_code, record.store_timestamp_ms, *numbers)
            reader.batch_units.setdefault((record.topic, record.queue_id), []).append(unit)
        if record.topic.startswith((RETRY_PREFIX, SYSTEM_PREFIX)) or record.topic == SCHEDULE_TOPIC:
            return
        names = properties.get(INNER_MULTI_DISPATCH, "").rstrip(",").split(",")
        offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").rstrip(",").split(",")
        if len(names) != len(offsets):
            return
        lights = dict(reversed(list(zip(names, offsets, strict=True))))  # of a repeated name the first counts
        for name, text in reversed(lights.items()):
            offset = _number(text)
            if name.startswith(LIGHT_PREFIX) and offset is not None:
                reader.add_entry(name, offset, (physical, size, tags_code, record.store_timestamp_ms))

    def _after_blank(self) -> bool:
        """The file ends with a blank record: false, the log goes on in the next."""
        claimed, left = self._number_at(0), self._bytes - self.position
        if claimed != left:
            start = self._start + self.position
            reason = f"the blank record that ends the file says {claimed} bytes, {left} are left"
            self._reader.damages.append(Damage(start, start + left, reason, False, True))
        if self._number == len(self._reader.store.segments) - 1:
            end = self._start + self._bytes
            grown = any((at / file_name(end)).exists() for at in self._reader.store.log_directories)
            self._reader.tail = Tail(end, full=not grown)  # grown: a broker began it since the listing
        return False

    def _resume(self, status: Check) -> bool:
        """Go to the next sound record of the file, if there is one."""
        after = self._search(self._file, self._start, self.position + FIXED_BYTES)
        if after is None:
            return False
        if self._was_appended():
            return True
        reason = "zeros where a record should be" if status == Check.EMPTY else self._describe(status)
        start = self._start + self.position
        self._reader.damages.append(Damage(start, self._start + after, reason, True))
        self.position = after
        self._passed = 0
        self._load(min(WINDOW_BYTES, self._bytes - after))
        return True

    def _was_appended(self) -> bool:
        """True if a record is at the position now, sound or blank: a broker wrote it since the window was loaded."""
        left = self._bytes - self.position
        self._load(min(WINDOW_BYTES, left))
        buffer, size = self._reader.buffer, self._number_at(0)
        if size == left and self._number_at(4) == MAGIC_BLANK:
            return True
        base = self._start + self.position
        fits = 0 < size <= self._window_end - self._window
        return fits and bool(find_record(buffer[:size], 0, size, base, TIME_MIN) == 0)

    def _at_end(self, status: Check) -> Generator[Batch, None, bool]:
        """Deal with a place behind which nothing sound follows in this file. True if the log ends here."""
        start, end = self._start + self.position, self._start + self._bytes
        if self._goes_on():
            if self._was_appended():
                return (yield from self.run())
            reason = self._describe(status)
            if status in (Check.EMPTY, Check.END):
                reason = "no blank record ends the file, but the log goes on in the next one"
            self._reader.damages.append(Damage(start, end, reason, status != Check.END, True))
            return False
        leftover = None
        if status == Check.EMPTY:
            leftover = self._first_nonzero(self.position)
            leftover = None if leftover is None else self._start + leftover
        reason = "" if status in (Check.EMPTY, Check.END) else self._describe(status)
        self._reader.tail = Tail(start, reason, leftover)
        return True

    def _describe(self, status: Check) -> str:
        size, magic = self._number_at(0), self._number_at(4)
        if magic not in (MAGIC_V1, MAGIC_V2):
            return f"no record: its size says {size}, its magic {magic & 0xFFFFFFFF:#010x} is of no known version"
        if status == Check.INCOMPLETE or size > self._bytes - self.position:
            return f"no record: its size says {size}, {self._bytes - self.position} bytes are left in the file"
        return f"no record: its lengths do not add up to its size {size}"

    def _goes_on(self) -> bool:
        """True if a later file holds a sound record."""
        for segment in self._reader.store.segments[self._number + 1 :]:
            try:
                with InputFile(segment.path) as file:
                    if self._search(file, segment.start, 0) is not None:
                        return True
            except Unreadable:
                continue  # told when its turn comes
        return False

    def _search(self, file: InputFile, start: int, position: int) -> int | None:
        """Where the first sound record at or behind ``position`` of ``file`` begins."""
        buffer: Bytes = np.empty(min(WINDOW_BYTES, self._bytes), np.uint8)
        while position + FIXED_BYTES <= self._bytes:
            data = file.next_data(position)
            if data is None:
                return None
            position = max(position, data - FIXED_BYTES)
            size = min(len(buffer), self._bytes - position)
            file.read_into(buffer[:size], position)
            found = find_record(buffer[:size], 0, size, start + position, self._reader.last_time)
            if found >= 0:
                return position + int(found)
            if size < len(buffer):
                return None
            if first_nonzero(buffer, 0, size) == size:
                position += size - FIXED_BYTES
            else:
                position += size // 2  # a record of up to half a window may go on behind its end
        return None

    def _first_nonzero(self, position: int) -> int | None:
        buffer: Bytes = np.empty(min(WINDOW_BYTES, self._bytes), np.uint8)
        while position < self._bytes:
            data = self._file.next_data(position)
            if data is None:
                return None
            position = max(position, data)
            size = min(len(buffer), self._bytes - position)
            self._file.read_into(buffer[:size], position)
            found = int(first_nonzero(buffer, 0, size))
            if found < size:
                return position + found
            position += size
        return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None
