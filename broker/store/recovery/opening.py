"""Opening a store: lock, find the log's end, bring queues and index up to it."""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

from penstock.formats.checkpoint import Positions
from penstock.formats.delay_levels import levels_ms
from penstock.formats.directory import ABORT, CUT_BYTES, DOUBT
from penstock.formats.intrinsics.text import first_nonzero
from penstock.proto.errors import Corrupt
from penstock.runtime.clock import Clock, boot_id

from ..config import StoreConfig
from ..disk import Disk, make_directories_durably
from ..dispatch import Dispatcher
from ..index.index import Index
from ..log.commit_log import CommitLog
from ..log.reserve import BYTES_MAX, Reserve
from ..queues.consume_queue import ConsumeQueues
from ..queues.other_queues import OtherQueues
from ..results import RecoveryReport
from .checkpoint import Checkpoint
from .lock import Marker, StoreLock
from .log_recovery import LogEnd, find_end, first_record, keep_cut
from .queue_recovery import QueueLoader
from .recovery import Plan, plan

log = logging.getLogger(__name__)

_SLICE_BYTES = 16 << 20
_HANDLES_MAX = 12_000
_HANDLES_MIN = 64
_LOOK_BYTES = 4096


@dataclass(slots=True)
class Opened:
    """The parts of an open store."""

    lock: StoreLock
    abort: Marker
    doubt: Marker
    checkpoint: Checkpoint
    log: CommitLog
    queues: ConsumeQueues
    index: Index
    dispatcher: Dispatcher
    others: OtherQueues
    reserve: Reserve
    synced: int  # of the log
    report: RecoveryReport


def open_parts(config: StoreConfig, disk: Disk, clock: Clock, deletes: Callable[[bytes], str]) -> Opened:
    """Open everything; see :meth:`Store.open`. Whatever fails, the lock is given back."""
    root = str(config.root)
    for directory in (root, config.queue_directory, f"{root}/config"):
        make_directories_durably(disk, directory)
    lock = StoreLock(disk, root)
    opening = _Opening(config, disk, clock, lock, deletes)
    try:
        return opening.run()
    except BaseException:
        opening.abandon()
        raise


class _Opening:
    def __init__(
        self, config: StoreConfig, disk: Disk, clock: Clock, lock: StoreLock, deletes: Callable[[bytes], str]
    ) -> None:
        self._config = config
        self._disk = disk
        self._lock = lock
        self._deletes = deletes
        self._abort = Marker(disk, str(config.root), ABORT)
        self._doubt = Marker(disk, str(config.root), DOUBT)
        self._log = CommitLog(config, disk, clock)
        reserve_bytes = min(BYTES_MAX, config.segment_bytes // 4)
        self._reserve = Reserve(disk, str(config.root), reserve_bytes, self._log.keep_free)
        self._queues = self._new_queues()
        self._others = OtherQueues(disk, str(config.root))
        self._index = Index(config, disk, clock)
        self._checkpoint: Checkpoint | None = None

    def run(self) -> Opened:
        started = time.monotonic()
        aborted = self._abort.exists()
        _, _, boot = self._abort.read().partition(" ")
        has_booted = bool(boot) and boot != boot_id()
        self._log.directories.prepare()
        for directory in self._log.directories.writable:
            self._lock.add_log_directory(directory)
        self._reserve.give_if_short()
        self._log.load()
        self._others.load()
        self._checkpoint = Checkpoint(self._disk, str(self._config.root))
        positions = self._checkpoint.read()
        files_end = self._log.end_offset
        if positions is not None and positions.flushed > (files_end if self._log.files else positions.min_offset):
            raise Corrupt(
                f"{self._log.directories}: ends at {files_end}, bytes up to {positions.flushed} were synced: log files "
                f"are missing; is a disk not mounted? If they are gone: where a replica has them, delete all of "
                f"{self._config.root} and of the log, and this broker copies everything from its master; a broker that "
                "is alone goes on without them when penstockCheckpoint is deleted",
                path=str(self._log.directories),
                offset=files_end,
            )
        self._set_min(positions)
        todo = plan(
            positions,
            aborted=aborted or not self._is_unused(positions),
            log_min=self._log.min_offset,
            log_end=self._log.end_offset,
            segment_bytes=self._config.segment_bytes,
        )
        found = self._find_end(todo, positions)
        if found.loses_synced:
            self._note_loss(found)
        if not todo.clean and self._config.is_unclean_doubtful:  # before anything can make the store a clean one
            self._note_unsynced()
        self._abort.create(f"{os.getpid()} {boot_id()}".strip())
        self._checkpoint.begin()
        self._log.remove_before(self._log.min_offset)
        begin = self._log.min_offset
        if positions is not None and (found.end < positions.flushed or positions.min_offset < begin == found.end):
            # Before the bytes go, or their files would be missed; or, when all go, where the log was.
            self._checkpoint.write_hint(found.end, min(found.end, self._checkpoint.confirmed))
            positions = positions._replace(clean=False, min_offset=begin, flushed=found.end)
            self._checkpoint.write(positions, self._checkpoint.standard)
        zeroed = 0 if todo.clean else self._log.cut(found.end, thorough=self._doubt.exists())
        self._log.end_offset = found.end
        self._log.last_store_timestamp_ms = found.last_store_timestamp_ms
        derived = todo.derived if found.derived_is_boundary and (todo.derived or 0) <= found.end else None
        synced = min(positions.flushed, found.end) if positions is not None else self._log.min_offset
        if not todo.clean:  # readers will see all of it
            if not has_booted:  # a sync may have failed: then memory has what the disk has not, and counts as written
                self._log.write_again(synced, found.end)
            self._log.sync(synced, found.end)
            synced = found.end
        rebuilt, replay_from, dispatcher = self._derive(positions, derived, clean=todo.clean, aborted=aborted)
        report = RecoveryReport(
            clean=todo.clean,
            end=found.end,
            truncated_from=found.end if zeroed or found.reason else None,
            truncated_bytes=zeroed,
            reason=found.reason,
            scanned_bytes=found.scanned_bytes,
            replayed_from=replay_from,
            queues_rebuilt=rebuilt,
            seconds=time.monotonic() - started,
        )
        self._tell(report)
        return Opened(
            self._lock,
            self._abort,
            self._doubt,
            self._checkpoint,
            self._log,
            self._queues,
            self._index,
            dispatcher,
            self._others,
            self._reserve,
            synced,
            report,
        )

    def abandon(self) -> None:
        """Close what is open; nothing is written."""
        self._log.close()
        self._queues.close()
        self._index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._lock.release()

    def _note_loss(self, found: LogEnd) -> None:
        """Keep the bytes that go, and that this log may lack something that was acknowledged. Changes nothing else."""
        kept = f"{self._config.root}/{CUT_BYTES}.{found.end:020d}"
        keep_cut(self._disk, self._log, found.end, kept)
        self._doubt.create(f"log cut at {found.end}: {found.reason}; kept as {kept}")
        log.error(
            "synced bytes at the log's end are damaged, they are cut off path=%s at=%d reason=%s kept=%s: what they "
            "held is on replicas, or lost; where masters are elected, this broker is not before it has caught up",
            *(self._log.directories, found.end, found.reason, kept),
        )

    def _note_unsynced(self) -> None:
        """Keep for later starts that this log may lack something that was acknowledged. Changes nothing else."""
        self._doubt.create(self._doubt.read() or "the machine has booted since an exit that was not clean")
        log.warning(
            "what was not synced before the machine booted may be missing path=%s: this broker is not elected before "
            "it has caught up, unless all are in doubt",
            self._log.directories,
        )

    def _set_min(self, positions: Positions | None) -> None:
        log_ = self._log
        if not log_.files:
            log_.min_offset = log_.end_offset = positions.min_offset if positions is not None else 0
        elif positions is not None and log_.min_offset <= positions.min_offset < log_.files[0].end:
            log_.min_offset = positions.min_offset
        elif positions is not None and log_.files[0].end <= positions.min_offset <= log_.files[-1].end:
            log_.min_offset = positions.min_offset  # files before it were on their way out, perhaps all that there are
        else:
            log_.min_offset = first_record(log_)
            if positions is not None and positions.min_offset < log_.min_offset:
                log.warning(
                    "oldest log files are gone path=%s begins_at=%d began_at=%d",
                    log_.directories,
                    log_.min_offset,
                    positions.min_offset,
                )

    def _is_unused(self, positions: Positions | None) -> bool:
        """True if nothing follows what was the log's end: a quick look, in case somebody else has written."""
        if positions is None or not self._log.files or positions.end >= self._log.files[-1].end:
            return True
        if not self._log.files[0].base <= positions.end or self._log.files[-1].base > positions.end:
            return False
        file = self._log.file_of(positions.end)
        at = positions.end - file.base
        stop = min(at + _LOOK_BYTES, len(file.bytes))
        return bool(first_nonzero(file.bytes, at, stop) == stop)

    def _find_end(self, todo: Plan, positions: Positions | None) -> LogEnd:
        if todo.clean and positions is not None:
            return LogEnd(positions.end, positions.last_store_timestamp_ms, True, 0, "")
        if not self._log.files:
            return LogEnd(self._log.end_offset, 0, todo.derived == self._log.end_offset, 0, "")
        if positions is not None:
            self._log.last_store_timestamp_ms = positions.last_store_timestamp_ms if todo.derived else 0
        start = max(todo.scan_from or 0, self._log.min_offset)
        synced = positions.flushed if positions is not None else None
        return find_end(self._log, start, todo.derived, synced, sealed=self._config.force_record_crc)

    def _derive(
        self, positions: Positions | None, derived: int | None, *, clean: bool, aborted: bool
    ) -> tuple[bool, int, Dispatcher]:
        """Load queues and index and dispatch what they lack; (queues rebuilt, dispatched from, dispatcher)."""
        loaded = derived is not None and QueueLoader(self._queues, self._log).load(derived, clean=clean)
        if loaded and positions is not None:
            loaded = self._queues.totals() == (positions.queues, positions.entries)
        rebuilt = not loaded
        assert self._checkpoint is not None
        if rebuilt:
            if positions is not None:  # what is made now is not synced: no start may take it for what was noted
                self._checkpoint.write(positions._replace(clean=False, queues=-1), self._checkpoint.standard)
            self._queues.close()
            self._queues = self._new_queues()
            loader = QueueLoader(self._queues, self._log)
            if positions is None:
                loader.load(None, clean=False)
            else:
                loader.drop()  # some files do not fit the checkpoint: no entry can be believed for looking right
        known = positions if derived is not None else None
        standard = self._checkpoint.standard
        self._index.settled_ms = standard.index_msg_timestamp
        index_good = self._index.load(known, clean=clean if known is not None else not aborted)
        start = derived if derived is not None and loaded and index_good else self._log.min_offset
        dispatcher = Dispatcher(self._log, self._queues, self._index, levels_ms(self._config.delay_levels))
        dispatcher.offset = start
        dispatcher.deletes = self._deletes
        last_ms = self._log.last_store_timestamp_ms
        dispatcher.last_store_timestamp_ms = min(standard.logics_msg_timestamp, last_ms)
        if not clean or start != derived:
            self._queues.rebuilding = rebuilt
            dispatcher.find_batches = self._others.find_batches
            end = self._log.end_offset if not clean or positions is None else positions.derived
            if self._config.replicated and positions is not None and self._checkpoint is not None:
                end = min(end, max(positions.derived, self._checkpoint.confirmed))
            dispatcher.catch_up(end, _SLICE_BYTES)
            self._queues.rebuilding = False
        dispatcher.find_batches = self._others.find_batches if self._others.batch_topics else None
        return rebuilt, start, dispatcher

    def _new_queues(self) -> ConsumeQueues:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        handles = max(_HANDLES_MIN, min(_HANDLES_MAX, soft // 2))
        return ConsumeQueues(
            self._disk,
            self._config.queue_directory,
            self._config.consume_queue_bytes,
            handles,
            has_lights=self._config.has_light_queues,
        )

    def _tell(self, report: RecoveryReport) -> None:
        if report.truncated_from is not None:
            log.warning(
                "log cut at=%d zeroed_bytes=%d reason=%s", report.truncated_from, report.truncated_bytes, report.reason
            )
        log.info(
            "store opened root=%s clean=%s min=%d end=%d scanned_bytes=%d dispatched_from=%d rebuilt=%s seconds=%.2f",
            self._config.root,
            report.clean,
            self._log.min_offset,
            report.end,
            report.scanned_bytes,
            report.replayed_from,
            report.queues_rebuilt,
            report.seconds,
        )
