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
import time
from dataclasses import dataclass

import numpy as np

from penstock.formats.checkpoint import Positions
from penstock.formats.record.rows import ROW
from penstock.proto.errors import StorageError

from ..index.index import IndexEnd
from ..log.commit_log import CommitLog
from ..log.flush import Flusher
from ..log.placement import Placement
from ..log.readable_log import ROWS_AT_ONCE
from ..queues.kernels import Ints
from ..queues.queue_files import QueueName
from ..queues.slots import Slots
from .checkpoint_writer import CheckpointWriter
from .marks import track
from .opening import Opened
from .queue_recovery import QueueLoader
from .recovery import MarkTracker

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


class Truncation:
    """Takes the end of an open store's log away, or all of it."""

    def __init__(
        self, root: str, parts: Opened, flusher: Flusher, checkpoints: CheckpointWriter, placement: Placement
    ) -> None:
        self._root = root
        self._parts = parts
        self._flusher = flusher
        self._checkpoints = checkpoints
        self._placement = placement
        self._loader = QueueLoader(parts.queues, parts.log)

    def cut(self, offset: int, *, rebuild: bool) -> None:
        """As :meth:`Store.truncate_to`."""
        log_ = self._parts.log
        if not log_.min_offset <= offset <= log_.end_offset:
            raise StorageError(
                f"log {log_.min_offset}..{log_.end_offset} cannot be cut at {offset}: it has no such offset"
            )
        if offset == log_.end_offset:
            return
        was, started = log_.end_offset, time.monotonic()
        with self._checkpoints.lock:
            self._cut(offset, rebuild=rebuild)
        log.warning("log cut root=%s from=%d to=%d seconds=%.2f", self._root, was, offset, time.monotonic() - started)

    def start_at(self, offset: int) -> None:
        """As :meth:`Store.start_at`."""
        self._parts.log.start_at(offset)
        self._parts.dispatcher.offset = self._parts.log.confirm_offset = offset
        self._flusher.start_at(offset)

    def _cut(self, offset: int, *, rebuild: bool) -> None:
        parts = self._parts
        found = look_below(parts.log, offset)
        try:
            self._flusher.flush()
            parts.queues.flush()
            parts.index.flush()
            below = self._look(parts.dispatcher.offset, found)
            positions = Positions(
                min_offset=parts.log.min_offset,
                end=offset,
                flushed=found.whole,
                derived=below.derived,
                queues=-1 if rebuild else below.queues,  # no queues are so few: a start makes them anew
                entries=below.entries,
                last_store_timestamp_ms=found.last_store_timestamp_ms,
                index_file=below.index.file,
                index_count=below.index.count,
            )
            confirmed = min(parts.log.confirm_offset, offset)
            with self._flusher.held():  # the last sync has noted what it synced, which is more
                parts.checkpoint.write_hint(found.whole, confirmed)
            parts.checkpoint.write(positions, parts.checkpoint.standard._replace(confirm_phy_offset=confirmed))
        except OSError as error:
            raise self._checkpoints.fence(error) from error
        try:
            with self._flusher.held():
                parts.log.cut(offset)
                parts.log.last_store_timestamp_ms = found.last_store_timestamp_ms
                self._flusher.on_cut(offset)
            parts.log.confirm_offset = confirmed
            self._placement.forget()
            if rebuild:
                self._rebuild_queues(below.derived, below.index)
            else:
                self._cut_derived(below)
            self._checkpoints.derived = below.derived
            self._checkpoints.write_locked()
        except (OSError, StorageError) as error:
            raise self._checkpoints.fence(error) from error  # neither here nor there: only a start puts that right

    def _look(self, dispatched: int, found: LogCut) -> DerivedCut:
        """What remains of queues and index. Every entry has been written to the files."""
        derived = min(dispatched, found.derived)
        newest_ms = found.last_store_timestamp_ms - (found.derived < found.whole)  # older than a divided batch
        slots = self._parts.queues.slots
        queues, entries = self._parts.queues.totals()
        cut_queues = []
        for queue in self._parts.queues.files.scan():
            slot = slots.find(queue.topic, queue.queue_id)
            if slot is None or slots.ends[slot] <= derived or not queue.bases:
                continue
            end = self._loader.end_below(queue, derived)
            queues -= end == 0
            entries -= int(slots.next_offsets[slot]) - end
            cut_queues.append((queue, end))
        index = self._parts.index.end_below(derived)
        newest_ms = min(newest_ms, self._parts.dispatcher.last_store_timestamp_ms)
        return DerivedCut(derived, newest_ms, cut_queues, queues, entries, index)

    def _cut_derived(self, found: DerivedCut) -> None:
        """Let queues and index end there; the checkpoint thread is not at them."""
        with self._parts.queues.lock:
            for queue, end in found.cut_queues:
                self._loader.cut(queue, end)
            self._parts.index.cut(found.index, found.derived)
            self._parts.dispatcher.offset = found.derived
            self._parts.dispatcher.last_store_timestamp_ms = found.last_store_timestamp_ms
        self._parts.dispatcher.placed.clear()
        log.info("queues cut queues=%d derived=%d", len(found.cut_queues), found.derived)

    def _rebuild_queues(self, derived: int, index: IndexEnd) -> None:
        """Make the queues anew from the log's beginning up to ``derived``, and cut the index there."""
        queues = self._parts.queues
        with queues.lock, queues.files.making:
            queues.slots = Slots()
            self._loader.drop()
            self._parts.index.cut(index, derived)
            self._parts.dispatcher.offset = self._parts.log.min_offset
            self._parts.dispatcher.last_store_timestamp_ms = 0
        self._parts.dispatcher.placed.clear()
        queues.rebuilding = True
        try:
            self._parts.dispatcher.catch_up(derived, _SLICE_BYTES)
        finally:
            queues.rebuilding = False
        log.info("queues rebuilt from=%d derived=%d", self._parts.log.min_offset, derived)
