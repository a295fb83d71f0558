"""Cutting the log's end off, and with it what queues and index have of it: for a log that must become the beginning
of another one.

The steps, and what a start finds after a crash behind each:

| Step | After a crash |
|---|---|
| everything is synced, and a checkpoint that ends at the cut is written | the whole log, or what is left of it |
| the files behind the cut are deleted, the last one first | the same |
| the rest of the last file is zeroed and synced | a beginning of the log that reaches the cut or beyond |
| queues and index are cut | the log up to the cut; entries behind it are cut by the start |
| a checkpoint is written | the same |

What a crash leaves behind the cut are the log's own bytes in their own place, without a gap: it is cut again. The
checkpoint that comes first makes no start miss the bytes that go, and no start believe an entry behind the cut.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from penstock.proto.record.rows import ROW

from .commit_log import ROWS_AT_ONCE, CommitLog
from .consume_queue import ConsumeQueues
from .dispatch import Dispatcher
from .index import Index, IndexEnd
from .kernels import Ints
from .marks import track
from .queue_files import QueueName
from .queue_recovery import QueueLoader
from .recovery import MarkTracker
from .slots import Slots

log = logging.getLogger(__name__)

_SLICE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LogCut:
    """The log's last whole things below a cut."""

    whole: int  # the end of the last record, or blank
    derived: int  # the end of the last record whose marked batch is whole
    last_store_timestamp_ms: int


def look_below(log_: CommitLog, offset: int) -> LogCut:
    """What a log cut at ``offset`` ends with; reads the record heads of one file."""
    if offset <= log_.min_offset:
        return LogCut(offset, offset, 0)
    base = (offset - 1) - (offset - 1) % log_.segment_bytes
    start = max(base, log_.min_offset)
    rows: np.ndarray[tuple[int], np.dtype[np.void]] = np.zeros(ROWS_AT_ONCE, ROW)
    marked: Ints = np.zeros(ROWS_AT_ONCE, np.int32)
    tracker = MarkTracker()
    whole, newest_ms = start, 0
    for chunk in log_.chunks(start, offset, rows, check_crc=False):
        if chunk.count:
            newest_ms = max(newest_ms, int(rows["store_timestamp"][: chunk.count].max()))
            track(tracker, chunk, marked)
            whole = int(rows["physical_offset"][chunk.count - 1] + rows["size"][chunk.count - 1])
        if chunk.end <= offset:
            whole = max(whole, chunk.end)
        if whole == chunk.file.end:
            tracker.on_file_end()
    return LogCut(whole, tracker.cut_at(whole), newest_ms)


@dataclass(frozen=True, slots=True)
class DerivedCut:
    """What queues and index have of the log below a cut."""

    derived: int
    last_store_timestamp_ms: int  # of what is dispatched
    cut_queues: list[tuple[QueueName, int]]  # the queues that get shorter, and their new maxima
    queues: int
    entries: int
    index: IndexEnd


class DerivedFiles:
    """Queues and index, to be cut back together; the checkpoint thread must not be at them."""

    def __init__(self, log_: CommitLog, queues: ConsumeQueues, index: Index, dispatcher: Dispatcher) -> None:
        self._log = log_
        self._queues = queues
        self._index = index
        self._dispatcher = dispatcher
        self._loader = QueueLoader(queues, log_)

    def look(self, dispatched: int, found: LogCut) -> DerivedCut:
        """What remains of what is dispatched. Every entry has been written to the files."""
        derived = min(dispatched, found.derived)
        newest_ms = found.last_store_timestamp_ms - (found.derived < found.whole)  # older than a divided batch
        slots = self._queues.slots
        queues, entries = self._queues.totals()
        cut_queues = []
        for queue in self._queues.files.scan():
            slot = slots.find(queue.topic, queue.queue_id)
            if slot is None or slots.ends[slot] <= derived or not queue.bases:
                continue
            end = self._loader.end_below(queue, derived)
            queues -= end == 0
            entries -= int(slots.next_offsets[slot]) - end
            cut_queues.append((queue, end))
        index = self._index.end_below(derived)
        newest_ms = min(newest_ms, self._dispatcher.last_store_timestamp_ms)
        return DerivedCut(derived, newest_ms, cut_queues, queues, entries, index)

    def cut(self, found: DerivedCut) -> None:
        """Let them end there."""
        with self._queues.lock:
            for queue, end in found.cut_queues:
                self._loader.cut(queue, end)
            self._index.cut(found.index, found.derived)
            self._dispatcher.offset = found.derived
            self._dispatcher.last_store_timestamp_ms = found.last_store_timestamp_ms
        self._dispatcher.placed.clear()
        log.info("queues cut queues=%d derived=%d", len(found.cut_queues), found.derived)

    def rebuild_queues(self, derived: int, index: IndexEnd) -> None:
        """Make the queues anew from the log's beginning up to ``derived``, and cut the index there."""
        queues = self._queues
        with queues.lock:
            queues.slots = Slots()
            self._loader.drop()
            self._index.cut(index, derived)
            self._dispatcher.offset = self._log.min_offset
            self._dispatcher.last_store_timestamp_ms = 0
        self._dispatcher.placed.clear()
        queues.rebuilding = True
        try:
            while self._dispatcher.offset < derived:
                before = self._dispatcher.offset
                self._dispatcher.run(derived, _SLICE_BYTES)
                if self._dispatcher.offset == before:
                    break
        finally:
            queues.rebuilding = False
        log.info("queues rebuilt from=%d derived=%d", self._log.min_offset, derived)
