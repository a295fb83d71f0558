"""All consume queues: entries from dispatch into memory and files, and back.

The newest entries of each queue wait in its arena (:mod:`.slots`); a run that does not fit is written with one
call, together with what waited. So thousands of queues cost one write per 64 messages each, and a few busy ones
one write per dispatch. The owner thread changes and reads queues; the checkpoint thread writes arenas out. Both
hold the lock meanwhile, the latter for a few queues at a time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from penstock.formats.directory import is_safe_topic
from penstock.formats.queue_entry import ENTRY_BYTES, Entry
from penstock.formats.record.rows import ROW
from penstock.proto.errors import Corrupt
from penstock.proto.names import LIGHT_PREFIX

from ..absent import AbsentEntries
from ..disk import Bytes, Disk
from ..results import Arrived
from .kernels import GAP, PLANNED, SPARSE, Ints, Longs, Rows, build_runs, commit_runs, plan_entries
from .light_kernels import count_lights, expand_lights
from .queue_files import QueueFiles
from .slots import ARENA_MAX, Slots

log = logging.getLogger(__name__)

FILLED_MAX = 1 << 24
"""Lost records that blank entries stand for; a queue offset further ahead is damaged."""
LIGHT_FILLED_MAX = 1 << 16
"""As much for a light queue, whose offsets RocketMQ sometimes skips; an entry further ahead is passed over."""
_FLUSHED_AT_ONCE = 32
MAX_OFFSET = ((1 << 63) - 1) // (2 * ENTRY_BYTES)
"""The byte position of an entry is a number of 63 bits."""
_NO_SLOTS: Ints = np.zeros(0, np.int32)
_MADE_INLINE_MAX = 64
"""With more queues than this, their files are made ahead by a thread."""


class QueueRange(NamedTuple):
    """A queue's slot, and the offsets ``[low, high)`` that can be read."""

    slot: int
    low: int
    high: int


class ConsumeQueues:
    """The queues of one store."""

    def __init__(self, disk: Disk, directory: str, file_bytes: int, handles_max: int, *, has_lights: bool) -> None:
        """``has_lights``: records have entries in the light queues that they name, see :mod:`.light_queues`."""
        # Held by the owner thread while it changes what a checkpoint must see as one (slots, arenas, files; and the
        # dispatched offset and the index with them), and by the checkpoint thread while it writes arenas out.
        # ``files.making`` may be taken inside, never the other way round.
        self.lock = threading.RLock()
        self.slots = Slots()  # only the owner adds and removes; the checkpoint thread empties arenas, under the lock
        self.files = QueueFiles(disk, directory, file_bytes, handles_max)  # under the lock, but for prepare()
        self.filled = 0  # blank entries in place of lost records; owner
        self.tells_loss: Callable[[int, int], bool] = lambda start, end: False  # of stretches of the log
        self.ends_of: Callable[[str], Mapping[int, int]] = lambda topic: {}  # see Removal.remember
        self.has_lights = has_lights
        self.rebuilding = False  # recovery: a queue that does not fit the log is begun anew, not an error
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="queue-files")  # calls files.prepare(), without the lock
        # Memory of one put(), of the owner alone. ``_runs``: the entries of each slot end to end, in order of first
        # appearance; ``_touched``, ``_run_starts`` and ``_run_counts`` say whose, where and how many.
        self._runs: Bytes = np.zeros(1 << 16, np.uint8)
        self._touched: Ints = np.zeros(1 << 12, np.int32)
        self._run_counts: Ints = np.zeros(1 << 12, np.int32)
        self._run_starts: Longs = np.zeros(1 << 12, np.int64)
        self._light_rows: Rows = np.zeros(0, ROW)
        self._light_slots: Ints = np.zeros(0, np.int32)
        self._seen: Longs = np.zeros(0, np.int64)  # per slot the stamp of the record that was counted last
        self._stamp = 1  # grows with every record, so that ``_seen`` is never cleared

    def assign(self, buffer: Bytes, rows: Rows, count: int, slots: Ints) -> None:
        """The slot of each row's queue, which is made when it is new; -1 for rows without an entry."""
        done = self.slots.assign(buffer, rows, 0, count, slots)
        while done < count:
            self._add(buffer, rows[done])
            done = self.slots.assign(buffer, rows, done, count, slots)

    def expand(self, buffer: Bytes, rows: Rows, count: int, slots: Ints) -> tuple[Rows, int, Ints]:
        """``rows[:count]`` and their slots with a row more for each light queue that a record stands in.

        They are the given ones if there are none, else good until the next call.
        """
        lights = int(count_lights(buffer, rows, count, slots)) if self.has_lights else 0
        if not lights:
            return rows, count, slots
        if count + lights > len(self._light_rows):
            self._light_rows = np.zeros(2 * (count + lights), ROW)
            self._light_slots = np.zeros(2 * (count + lights), np.int32)
        row = written = 0
        while row < count:
            missing = len(self.slots.next_offsets) - len(self._seen)
            if missing > 0:
                self._seen = np.concatenate((self._seen, np.zeros(missing, np.int64)))
            row, written, name, size = expand_lights(
                buffer,
                rows,
                row,
                count,
                slots,
                self.slots.tables,
                self._seen,
                self._stamp,
                self._light_rows,
                self._light_slots,
                written,
            )
            self._stamp += count
            if row < count:
                self.add_light(buffer[name : name + size].tobytes().decode())
        return self._light_rows, written, self._light_slots

    def add_light(self, name: str) -> None:
        """A slot for a light queue that has none."""
        with self.lock:
            self.slots.add(name, 0)

    def put(self, rows: Rows, count: int, slots: Ints) -> Arrived:
        """Add the entries of ``rows``; the queues that grew.

        Entries that a queue has already are passed over.

        Raises:
            DiskFull, StorageError: nothing is added that a repetition would not add again in its place.
            Corrupt: a record does not continue its queue.
        """
        grown: list[Ints] = []
        start = 0
        with self.lock:
            while start < count:
                status, start = self._put_planned(rows, start, count, slots, grown)
                if status != PLANNED and not self._begin_again(rows[start], int(slots[start]), status):
                    slots[start] = -1
            touched = grown[0] if len(grown) == 1 else np.unique(np.concatenate(grown)) if grown else _NO_SLOTS
            return Arrived(self.slots.topics, self.slots.queue_ids, self.slots.next_offsets, touched)

    def look(self, topic: str, queue_id: int) -> QueueRange:
        """The queue's slot and what of it can be read; without a slot nothing, from where it goes on."""
        slot = self.slots.find(topic, queue_id)
        if slot is None:
            end = self.ends_of(topic).get(queue_id, 0)
            return QueueRange(-1, end, end)
        return QueueRange(slot, int(self.slots.min_offsets[slot]), int(self.slots.next_offsets[slot]))

    def look_below(self, topic: str, queue_id: int) -> QueueRange:
        """The same with what lies below a raised minimum and has its entries still; the log may have it no more."""
        slot, low, high = self.look(topic, queue_id)
        if slot < 0:
            return QueueRange(slot, low, high)
        with self.lock:
            first = self.files.first(topic, queue_id)
            written = high - int(self.slots.arena_counts[slot])
        return QueueRange(slot, min(low, written, written if first is None else first), high)

    def entry(self, slot: int, offset: int) -> Entry:
        """One entry of a queue, see :meth:`entries`."""
        return Entry.decode(self.entries(slot, offset, 1).tobytes())

    def entries(self, slot: int, offset: int, count: int) -> Bytes:
        """Entries from ``offset``, inside the queue, on: one at least, ``count`` at most. Raises Corrupt: none."""
        slots = self.slots
        with self.lock:
            written = int(slots.next_offsets[slot]) - int(slots.arena_counts[slot])
            if offset >= written:
                first = (offset - written) * ENTRY_BYTES
                end = min((offset - written + count), int(slots.arena_counts[slot])) * ENTRY_BYTES
                return slots.arena[slot, first:end].copy()
            topic, queue_id = slots.topics[slot], slots.queue_ids[slot]
            data = self.files.read(topic, queue_id, offset, min(count, written - offset))
        if len(data) < ENTRY_BYTES:
            path = f"{self.files.directory}/{topic}/{queue_id}"
            raise Corrupt(f"{path}: entry {offset} is missing: stop the broker and delete the folder", path=path)
        return np.frombuffer(data, np.uint8, len(data) - len(data) % ENTRY_BYTES)

    def absent(self, slot: int, offset: int, count: int) -> list[AbsentEntries]:
        """What of ``count`` entries from ``offset`` on another thread should bring before :meth:`entries`."""
        slots = self.slots
        with self.lock:
            written = int(slots.next_offsets[slot]) - int(slots.arena_counts[slot])
            if offset >= written:
                return []
            return self.files.absent(slots.topics[slot], slots.queue_ids[slot], offset, min(count, written - offset))

    def drop_topic(self, topic: str, *, below: int | None = None) -> None:
        """Forget the topic's queues and delete their files; with ``below`` only those that end in front of it.

        ``below`` is where the topic was deleted: a queue made anew since then has later records, and those only.

        Raises OSError: files are left, and the queues with them; may be tried again.
        """
        with self.lock, self.files.making:  # a file is made before, and goes, or finds its queue gone
            slots = self.slots.by_topic.get(topic, {})
            gone = [queue_id for queue_id, slot in slots.items() if below is None or self.slots.ends[slot] <= below]
            if len(gone) == len(slots) > 0:
                self.files.remove(topic)
            else:
                for queue_id in gone:
                    self.files.remove(topic, queue_id)
            if gone:
                self.slots.remove(topic, *gone)

    def flush(self) -> None:
        """Write and sync every entry there is; for the checkpoint thread.

        The lock is held for a few queues at a time, so that dispatch gets its turn.

        Raises:
            OSError: a sync failed.
            DiskFull, StorageError: may be tried again.
        """
        with self.lock:
            waiting = np.flatnonzero(self.slots.arena_counts[: len(self.slots.topics)])
        for first in range(0, len(waiting), _FLUSHED_AT_ONCE):
            with self.lock:
                for slot in waiting[first : first + _FLUSHED_AT_ONCE].tolist():
                    self._flush_arena(slot)
        with self.lock:
            taken = self.files.take_dirty()
        self.files.sync(taken)

    def close(self) -> None:
        """Close all files; what was not flushed stays so."""
        self._maker.shutdown(cancel_futures=True)
        self.files.close()

    def totals(self) -> tuple[int, int]:
        """Number of queues with entries, and the sum of their maxima: a checksum of what a checkpoint counts on."""
        maxima = self.slots.next_offsets[: len(self.slots.topics)]
        return int(np.count_nonzero(maxima)), int(maxima.sum())

    def _flush_arena(self, slot: int) -> None:
        slots = self.slots
        count = int(slots.arena_counts[slot])
        if count:
            offset = int(slots.next_offsets[slot]) - count
            entries = slots.arena[slot, : count * ENTRY_BYTES]
            self.files.write(slots.topics[slot], slots.queue_ids[slot], offset, entries)
            slots.arena_counts[slot] = 0

    def _put_planned(self, rows: Rows, start: int, end: int, slots: Ints, grown: list[Ints]) -> tuple[int, int]:
        """Add the rows up to the first that does not continue its queue; (status, that row or ``end``)."""
        table = self.slots
        self._reserve(end - start)
        status, planned, count, size = plan_entries(
            rows,
            start,
            end,
            slots,
            table.next_offsets,
            table.ends,
            table.arena_counts,
            table.new_counts,
            self._touched,
            ARENA_MAX,
            self._run_starts,
            self._run_counts,
        )
        if count == 0:
            return status, planned
        if size > len(self._runs):
            self._runs = np.zeros(2 * size, np.uint8)
        touched = self._touched[:count]
        try:
            build_runs(
                rows,
                start,
                planned,
                slots,
                table.new_counts,
                self._touched,
                count,
                table.arena,
                self._run_starts,
                self._run_counts,
                table.cursors,
                self._runs,
            )
            held = table.arena_counts[touched]
            for at in np.flatnonzero(held + table.new_counts[touched] > ARENA_MAX).tolist():
                slot = int(touched[at])
                first, entries = int(self._run_starts[at]), int(self._run_counts[at])
                offset = int(table.next_offsets[slot]) - int(held[at])
                run = self._runs[first : first + entries * ENTRY_BYTES]
                self.files.write(table.topics[slot], table.queue_ids[slot], offset, run)
        except BaseException:
            table.new_counts[touched] = 0
            raise
        commit_runs(
            self._touched,
            count,
            self._run_starts,
            self._run_counts,
            table.new_counts,
            ARENA_MAX,
            table.arena,
            table.arena_counts,
            table.next_offsets,
            table.ends,
            self._runs,
        )
        grown.append(touched.copy())
        return status, planned

    def _reserve(self, count: int) -> None:
        if count > len(self._touched):
            self._touched = np.zeros(count, np.int32)
            self._run_counts = np.zeros(count, np.int32)
            self._run_starts = np.zeros(count, np.int64)

    def _begin_again(self, row: np.void, slot: int, status: int) -> bool:
        """Make room for a record that does not continue its queue, if there is a good reason for that.

        False: its entry is to be passed over, as only light queues have it: their offsets stand in properties, where
        a broker that does not dispatch to light queues stores whatever a producer writes.
        """
        slots = self.slots
        topic, queue_id = slots.topics[slot], slots.queue_ids[slot]
        offset, expected = int(row["queue_offset"]), int(slots.next_offsets[slot])
        is_light = topic.startswith(LIGHT_PREFIX)
        if status == GAP and self.rebuilding and slots.min_offsets[slot] == expected:
            self.files.remove(topic, queue_id)  # it had nothing to read, and began at a wrong offset
            status = SPARSE
        filled_max = LIGHT_FILLED_MAX if is_light else FILLED_MAX
        is_near = status == GAP and expected < offset <= expected + filled_max
        if is_near and (is_light or self._is_lost(slot, row)):
            log.warning("records lost topic=%s queue=%d offsets=%d..%d", topic, queue_id, expected, offset - 1)
            self._flush_arena(slot)
            self.files.fill(topic, queue_id, expected, offset)
            slots.next_offsets[slot] = offset
            self.filled += offset - expected
            return True
        if is_light and (status == GAP or (status == SPARSE and offset > MAX_OFFSET)):
            at = int(row["physical_offset"])
            log.warning(
                "light queue entry passed over queue=%s offset=%d expected=%d at=%d", topic, offset, expected, at
            )
            return False
        if status == GAP and not self.rebuilding:
            raise Corrupt(
                f"{self.files.directory}/{topic}/{queue_id}: the record at {int(row['physical_offset'])} has queue "
                f"offset {offset}, the queue goes on at {expected}: stop the broker, delete the folder and start again",
                topic=topic,
                queue_id=queue_id,
                offset=int(row["physical_offset"]),
            )
        if status != SPARSE:
            # Offset 0 again: the topic was deleted and made anew, and these are the records since then.
            log.warning("queue begun anew topic=%s queue=%d at=%d dropped_to=%d", topic, queue_id, offset, expected)
            self.files.remove(topic, queue_id)
        slots.clear(slot, offset)
        if offset:
            self.files.fill_blank(topic, queue_id, offset)
        return True

    def _is_lost(self, slot: int, row: np.void) -> bool:
        """True if the log tells that it has lost records between the queue's last one and this."""
        return self.rebuilding or self.tells_loss(int(self.slots.ends[slot]), int(row["physical_offset"]))

    def _add(self, buffer: Bytes, row: np.void) -> None:
        """A slot for the queue of ``row``."""
        start, queue_id = int(row["topic_position"]), int(row["queue_id"])
        topic = bytes(buffer[start : start + int(row["topic_size"])]).decode("utf-8", "replace")
        if queue_id < 0 or not is_safe_topic(topic):
            offset = int(row["physical_offset"])
            raise Corrupt(f"record at {offset}: topic {topic!r}, queue {queue_id} can name no directory", offset=offset)
        with self.lock:
            self.slots.add(topic, queue_id)
        if len(self.slots.topics) > _MADE_INLINE_MAX and row["queue_offset"] == 0:
            self._maker.submit(self._make_file, topic, queue_id)

    def _make_file(self, topic: str, queue_id: int) -> None:
        """Make a new queue's first file before dispatch needs it: a directory can take as long as 1000 messages."""
        try:
            self.files.prepare(topic, queue_id, lambda: self.slots.find(topic, queue_id) is not None)
        except OSError as error:
            log.warning("queue file not made ahead topic=%s queue=%d error=%s", topic, queue_id, error)
