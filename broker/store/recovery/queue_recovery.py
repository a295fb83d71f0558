"""Loading consume queues: which of their entries can be relied on, and where each queue ends.

Two ways. With a checkpoint of ours, every entry of a record below its *derived* offset is on the disk, and
whatever lies behind may be anything: both are told apart by binary search, and the rest is cut off to be derived
again. Without one (RocketMQ wrote the store, or files were removed), all entries are read and believed as long as
they can be true; the whole log is then dispatched again, and what is there already is passed over.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_left

import numpy as np

from penstock.formats.queue_entry import ENTRY_BYTES, Entry
from penstock.formats.record.layout import FIXED_BYTES, decode_record
from penstock.proto.names import LIGHT_PREFIX

from ..disk import Bytes
from ..log.commit_log import CommitLog
from ..queues.consume_queue import ConsumeQueues
from ..queues.kernels import count_valid_entries
from ..queues.light_queues import light_offset
from ..queues.queue_files import QueueName
from ..queues.queue_search import EntryReader, first_offset, last_used

log = logging.getLogger(__name__)

_READ_ENTRIES = 1 << 16


class QueueLoader:
    """Loads every queue of a store into ``queues``, whose table is empty."""

    def __init__(self, queues: ConsumeQueues, commit_log: CommitLog) -> None:
        self._queues = queues
        self._files = queues.files
        self._log = commit_log

    def load(self, derived: int | None, *, clean: bool) -> bool:
        """Load with the checkpoint's ``derived`` offset, or without one; false if a queue needs the other way.

        ``clean``: nothing was written behind the derived offset, so nothing is cut off.
        """
        for queue in self._files.scan():
            for base in queue.bases:
                self._files.check_size(queue, base)
            if not queue.bases:
                continue
            if self._is_whole(queue) and self._load(queue, derived, clean=clean):
                continue
            if derived is not None:
                return False
            log.warning("queue rebuilt from the log topic=%s queue=%d", queue.topic, queue.queue_id)
            self._files.remove(queue.topic, queue.queue_id)
            if self._queues.slots.find(queue.topic, queue.queue_id) is not None:
                self._queues.slots.remove(queue.topic, queue.queue_id)
        return True

    def drop(self) -> None:
        """Delete every queue that can be derived from the log.

        Light queues can when records are dispatched to them; otherwise they are believed as without a checkpoint. Of a
        queue there remains what retention has left behind: where it goes on when all its records are gone, which
        nothing else tells.
        """
        for queue in self._files.scan():
            for base in queue.bases:
                self._files.check_size(queue, base)
            is_believed = queue.topic.startswith(LIGHT_PREFIX) and not self._queues.has_lights
            derived = None if is_believed else self._log.min_offset
            is_kept = self._is_whole(queue) and (derived is None or self.end_below(queue, derived) > 0)
            if not is_kept or not self._load(queue, derived, clean=False):
                self._files.remove(queue.topic, queue.queue_id)

    def _is_whole(self, queue: QueueName) -> bool:
        """True if the queue has files, none is missing between two, and the first is there unless retention took it."""
        if not self._log.min_offset and queue.bases and queue.bases[0] and not queue.topic.startswith(LIGHT_PREFIX):
            return False
        steps = {later - base for base, later in itertools.pairwise(queue.bases)}
        return bool(queue.bases) and steps <= {self._files.file_bytes} and queue.bases[0] % self._files.file_bytes == 0

    def _load(self, queue: QueueName, derived: int | None, *, clean: bool) -> bool:
        first = queue.bases[0] // ENTRY_BYTES
        end = self.end_below(queue, derived) if derived is not None else self._valid_end(queue)
        if derived is None or not clean:
            self._files.trim(queue, end)
        return self._enter(queue, first, end, clean=clean)

    def cut(self, queue: QueueName, end: int) -> None:
        """Let a queue that is loaded, and written to its files, end at ``end``."""
        slots = self._queues.slots
        slot = slots.find(queue.topic, queue.queue_id)
        assert slot is not None, f"queue {queue.queue_id} of {queue.topic} is not loaded"
        self._files.trim(queue, end)
        slots.clear(slot)
        self._enter(queue, queue.bases[0] // ENTRY_BYTES, end, clean=True)
        if end == 0:
            slots.remove(queue.topic, queue.queue_id)

    def _enter(self, queue: QueueName, first: int, end: int, *, clean: bool) -> bool:
        if end == 0:
            return True  # made ahead, or emptied: it becomes known with its first message
        last = last_used(self._reader(queue), first, end)
        if last is not None and last + 1 < end and not clean:
            end = last + 1  # filling that was written, and no entry behind it
            self._files.trim(queue, end)
        slots = self._queues.slots
        found = slots.find(queue.topic, queue.queue_id)
        slot = slots.add(queue.topic, queue.queue_id) if found is None else found
        slots.next_offsets[slot] = end
        slots.min_offsets[slot] = end
        if last is None:
            return True
        physical, size, _ = self._entry(queue, last)
        slots.ends[slot] = physical + size
        slots.min_offsets[slot] = self._min_offset(queue, first, end)
        return clean or physical < self._log.min_offset or self._agrees(queue, last, physical)

    def _entry(self, queue: QueueName, offset: int) -> Entry:
        """That entry; zeros where there is none."""
        return Entry.decode(self._files.read(queue.topic, queue.queue_id, offset, 1).ljust(ENTRY_BYTES, b"\0"))

    def end_below(self, queue: QueueName, derived: int) -> int:
        """The first offset whose entry is missing, or of a record from ``derived`` on."""

        def is_behind(offset: int) -> bool:
            entry = self._entry(queue, offset)
            return entry.size <= 0 or entry.physical_offset >= derived

        per_file = self._files.file_bytes // ENTRY_BYTES
        for base in reversed(queue.bases):
            first = base // ENTRY_BYTES
            count = bisect_left(range(first, first + per_file), True, key=is_behind)
            if count:
                return first + count
        return queue.bases[0] // ENTRY_BYTES

    def _valid_end(self, queue: QueueName) -> int:
        """The first offset whose entry cannot be true."""
        end = queue.bases[0] // ENTRY_BYTES
        last = (queue.bases[-1] + self._files.file_bytes) // ENTRY_BYTES
        record_end = 0
        while end < last:
            data = np.frombuffer(self._files.read(queue.topic, queue.queue_id, end, _READ_ENTRIES), np.uint8)
            count = len(data) // ENTRY_BYTES
            valid, record_end = count_valid_entries(data, count, record_end, self._log.end_offset)
            end += valid
            if valid < count or count == 0:
                break
        return end

    def _min_offset(self, queue: QueueName, low: int, high: int) -> int:
        """The first entry that is not blank and whose record the log still has."""
        entry = self._entry(queue, low)
        if not entry.is_filler and entry.physical_offset >= self._log.min_offset:
            return low
        return first_offset(self._reader(queue), low, high, lambda physical: physical >= self._log.min_offset)

    def _reader(self, queue: QueueName) -> EntryReader:
        def read(offset: int, count: int) -> Bytes:
            return np.frombuffer(self._files.read(queue.topic, queue.queue_id, offset, count), np.uint8)

        return read

    def _agrees(self, queue: QueueName, offset: int, physical: int) -> bool:
        """True if the record of an entry says that it is that queue's."""
        found = self._log.record_at(physical)
        if found is None or len(found) < FIXED_BYTES:
            return False
        queue_id = int.from_bytes(found[12:16], "big", signed=True)
        queue_offset = int.from_bytes(found[20:28], "big", signed=True)
        if queue.topic.startswith(LIGHT_PREFIX):  # its entries point to records of other topics and queues
            return light_offset(decode_record(found).properties, queue.topic) == offset
        return queue_id == queue.queue_id and queue_offset == offset
