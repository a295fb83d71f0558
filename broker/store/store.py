"""The store: one log, the queues and the index derived from it, in RocketMQ's files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import numpy as np

from penstock.proto import names
from penstock.proto.errors import StorageError, StoreClosed, SyncFailed
from penstock.runtime.clock import Clock, SystemClock

from .config import StoreConfig
from .disk import Bytes, Disk, named_errors
from .log.commit import Committer
from .log.flush import Checkpointer, Flusher
from .log.placement import Placement
from .lookup import Lookup
from .picking import Picker
from .reading import Reader
from .recovery.checkpoint_writer import CheckpointWriter
from .recovery.opening import Opened, open_parts
from .recovery.removal import Removal
from .recovery.truncation import Truncation, look_below
from .results import AppendResult, DispatchResult, RecoveryReport

log = logging.getLogger(__name__)

DISPATCH_BYTES = 4 << 20
_Batch = memoryview | bytes | Bytes


class Store:
    """One open store directory. The owner thread calls everything; flushing has threads of its own.

    ``reader`` reads queues, ``lookup`` finds records by position, key and time, ``picker`` gathers chosen ones
    of a queue, ``removal`` deletes what is old, ``reserve`` is space for the broker's state on a full disk.

    ``on_flushed(flushed offset)``, ``on_committed(end offset)`` and ``on_fatal(error)`` are called from those threads,
    ``on_committed`` only with a transient store pool, and from the owner's thread as well. After a fatal error every
    append raises it, and the only way on is to end the process and open the store again. While ``refusal`` is set,
    appends raise such an error, except records of the broker's own state.

    Offsets of the log: ``min_offset`` <= ``dispatched_offset`` <= ``confirm_offset`` <= ``end_offset`` <=
    ``appended_offset``. Readers by queue see what is dispatched. What lies behind ``end_offset`` is in buffers of the
    pool, and goes with the process; without a pool there is nothing.
    """

    def __init__(self, config: StoreConfig, disk: Disk, opened: Opened) -> None:
        """See :meth:`open`."""
        self.recovery: RecoveryReport = opened.report
        # Set by the owner before the first append, called as the class says.
        self.on_flushed: Callable[[int], None] = lambda offset: None
        self.on_committed: Callable[[int], None] = lambda end: None
        self.on_fatal: Callable[[StorageError], None] = lambda error: None
        self.segment_bytes = config.segment_bytes
        opened.log.confirm_offset = opened.dispatcher.offset
        self._config = config
        self._root = str(config.root)
        self._disk = disk
        self._parts = opened
        self._log, self._queues, self._dispatcher = opened.log, opened.queues, opened.dispatcher
        lights_max = config.light_queues_max if config.has_light_queues else None
        self._placement = Placement(opened.log, opened.queues, lights_max, opened.dispatcher.deletes)
        self.lights = self._placement.lights
        opened.dispatcher.on_deleted = self._on_deleted
        self.reader = Reader(disk, opened.log, opened.queues, opened.others)
        self.lookup = Lookup(opened.log, opened.queues, opened.others, opened.index, opened.dispatcher)
        self.picker = Picker(disk, opened.log, opened.queues)
        self.removal = Removal(disk, opened.log, opened.queues, opened.index, opened.others)
        self.reserve = opened.reserve
        self.refusal: StorageError | None = None  # set and taken back by the owner (retention)
        self._is_closed = False  # owner; nothing is read or written from then on
        self._flusher = Flusher(config, opened.log, opened.synced, self._tell_flushed, self._tell_fatal)
        self._flusher.on_committed = lambda end: self.on_committed(end)
        self._committer = Committer(config, opened.log, self._flusher) if config.buffers else None
        self._checkpoints = CheckpointWriter(self._root, opened, self._flusher)
        self._truncation = Truncation(self._root, opened, self._flusher, self._checkpoints, self._placement)
        self.checkpointer = Checkpointer(
            config.flush_thorough_interval_ms / 1000, self._checkpoints.progress, self._checkpoints.write_or_warn
        )
        opened.index.on_full = self.checkpointer.want

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        deletes: Callable[[bytes], str] = lambda record: "",
    ) -> Store:
        """Lock and recover the store in ``config.root``, which is made if absent, and dispatch what its queues lack.

        After a clean exit that is quick and ends where the last dispatch ended; otherwise everything in the log is
        dispatched, whether it was confirmed or not, but with ``replicated`` only what is known to be confirmed: a
        master that has replaced this one may take back the rest. ``deletes``: which topic a record of the state topic
        deletes, or none. Dispatch drops its queues, each time anew; what is appended behind begins at offset 0.

        Raises:
            StoreLocked: another process has it open.
            WrongStore: its files have other sizes than configured, or are no store's.
            Corrupt: bytes are damaged in a way that a crash does not explain; nothing was changed.
            DiskFull: there is no space for what recovery must write.
            SyncFailed: what recovery wrote may not be on the disk.
        """
        used = disk or Disk()
        with named_errors(str(config.root), "opening the store"):
            opened = open_parts(config, used, clock or SystemClock(), deletes)
        store = cls(config, used, opened)
        store._flusher.start()
        if store._committer is not None:
            store._committer.start()
        store.checkpointer.start()
        store._flusher.request(store.end_offset)
        if opened.checkpoint.is_known:
            if not store.recovery.clean or store.dispatched_offset > store.recovery.replayed_from:
                store.checkpointer.want()
            return store
        try:
            store.checkpoint()  # now: the next recovery must know what a power cut may have lost, and what not
        except BaseException:
            store.close()
            raise
        return store

    @property
    def min_offset(self) -> int:
        return self._log.min_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def appended_offset(self) -> int:
        return self._log.appended_offset

    @property
    def flushed_offset(self) -> int:
        return self._flusher.flushed_offset

    @property
    def confirm_offset(self) -> int:
        return self._log.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        return self._dispatcher.offset

    @property
    def checkpointed_offset(self) -> int:
        """A start after a crash needs nothing of the log below this."""
        return self._checkpoints.derived

    @property
    def doubt(self) -> str:
        """Why the log may lack bytes that counted as synced, or acknowledged; empty if nothing says so."""
        doubt = self._parts.doubt
        return doubt.read() or ("for a reason that could not be noted" if doubt.exists() else "")

    def end_doubt(self) -> None:
        """The log has everything again, as the owner has found by the others'. Durable on return, or raises OSError."""
        if self._parts.doubt.exists():
            self._parts.doubt.remove()

    def append(
        self, topic: str, records: _Batch, *, queues: int, count: int | None = None, is_kept: bool = False
    ) -> AppendResult:
        """Place one batch of complete records of ``topic`` at the end of the log.

        The store gives each its queue offset, physical offset, store time and host. On return the bytes are
        visible to replication, not yet to readers, not durable: see ``set_confirm`` and ``request_flush``; with a
        transient store pool they are visible to nobody before they are committed: see ``request_commit``. Records of
        the broker's own state are committed on return, for its tables take them over at once. ``records`` are copied.
        ``queues``: queue ids below it are legal. ``count``: how many records there must be. ``is_kept``: they are
        here already, as other records: as large as was allowed, in as many light queues. The broker's own state has
        no limit of messages either.

        Raises:
            InvalidName, CorruptBatch, MessageTooLarge: nothing was stored; ``details['index']`` is the bad record.
            Forbidden: too many light queues, a kind of queues not written here, or ids beyond ``details['queues']``.
            DiskFull, StoreClosed, SyncFailed, StorageError: nothing was stored; a state record: not committed yet.
            FlowControl: no buffer of the pool is free; nothing was stored.
        """
        self._check_writable()
        self.reader.check_readable(topic)
        is_state = topic == names.STATE_TOPIC
        refusal = self._flusher.refusal or (None if is_state else self.refusal)
        if refusal is not None:
            raise type(refusal)(refusal.message, **refusal.details)
        if not self._placement.is_level:
            self._learn_end()
        ends = self._placement.ends(names.check_topic(topic), queues)
        data = records if isinstance(records, np.ndarray) else np.frombuffer(records, np.uint8)
        try:
            placed = self.lights.assign(topic, data, is_kept=is_kept)
            body_max = self._config.body_max(is_kept=is_kept or is_state)
            result = self._log.append(ends, placed, body_max, count, is_state=is_state, is_kept=is_kept)
        except BaseException:
            self.lights.take_back()
            raise
        self._placement.on_appended(result.end, data.tobytes() if is_state else b"")
        self._dispatcher.placed.append(result)
        if is_state and self._committer is not None:
            self._flusher.commit()
        return result

    def changed_sizes(self, start: int, end: int, sent: memoryview) -> list[int]:
        """Sizes of the records of the batch at ``[start, end)``; empty when they are those ``sent``, or gone.

        Offsets in light queues and checksums make each record longer by as much as it happens to need.
        """
        may_differ = self._config.has_light_queues or self._config.append_record_crc or end - start != len(sent)
        return self._log.sizes(start, end) if may_differ and start >= self.min_offset else []

    def holds(self, start: int, end: int, sent: memoryview) -> bool:
        """True if the batch at ``[start, end)`` has the bodies and queues of the records ``sent``; so if it is gone."""
        return start < self.min_offset or self._log.holds(start, end, np.frombuffer(sent, np.uint8))

    def append_bytes(self, start: int, data: memoryview) -> int:
        """Append bytes of the master's log at its end, within a file; the new end. Raises StorageError: none were."""
        self._check_writable()
        self.commit()
        return self._log.append_bytes(start, data)

    def start_at(self, offset: int) -> None:
        """Let the log, which must be empty, begin at ``offset``, as the master's does."""
        self._check_writable()
        self.commit()
        with named_errors(self._root, "beginning anew"):
            self._truncation.start_at(offset)
        self.checkpointer.want()

    def cut_unfinished(self) -> int:
        """Cut a part of a record, or of a batch, off the log's end: the rest of it will not come. The new end, synced.

        For a slave that becomes master, before its epoch begins there.

        Raises SyncFailed: the store is fenced from now on.
        """
        self._check_writable()
        self._learn_end()
        self.flush()
        return self._log.end_offset

    def whole_below(self, offset: int) -> int:
        """Up to where all would be dispatched in a log cut at ``offset``: no record or batch is divided there."""
        return look_below(self._log, offset).derived

    def truncate_to(self, offset: int, *, rebuild: bool = False) -> None:
        """Let the log end at ``offset``, from minimum to end, and queues and index with it. Durable on return.

        What lay behind is zeros, or no file, and does not come back; after a crash in between the log ends at or
        behind ``offset``, with its old bytes. ``rebuild``: the queues are made anew from the whole log, as they must
        be when what is cut off deleted some. The caller brings tables of its own in line.

        Raises:
            StorageError: the log does not have ``offset``; nothing was changed.
            DiskFull, StorageError: the log ends where it did; may be tried again.
            SyncFailed, Corrupt: the store is fenced from now on.
        """
        self._check_writable()
        self.commit()
        with named_errors(self._root, "cutting the log"):
            self._truncation.cut(offset, rebuild=rebuild)

    def read_bytes(self, start: int, max_bytes: int) -> memoryview:
        """A read-only view of at most ``max_bytes`` from ``start`` on, of one file, below the end."""
        return self._log.read_bytes(start, max_bytes)

    def request_commit(self, end: int) -> None:
        """Have everything below ``end`` in the files soon, where appends go to a pool; ``on_committed`` tells when."""
        if self._committer is not None:
            self._committer.request(end)

    def commit(self) -> None:
        """Have everything appended in the files now, and use no buffer of a pool until the next append.

        For a master that becomes a slave, before anybody is told where its log ends.

        Raises:
            DiskFull: it is in buffers still; may be tried again.
            SyncFailed: the store is fenced from now on.
        """
        if self._log.is_buffered:
            self._flusher.commit()
            self._log.give_back_buffers()

    def request_flush(self, end: int) -> None:
        """Have everything below ``end`` synced with whatever else waits; ``on_flushed`` tells when."""
        self.request_commit(end)
        self._flusher.request(end)

    def flush(self) -> None:
        """Return when the disk has everything appended so far; from any thread. Raises as :meth:`Flusher.flush`."""
        self._flusher.flush()

    def set_confirm(self, offset: int) -> None:
        """Readers may see what lies below ``offset``; it never goes back."""
        self._log.confirm_offset = max(self._log.confirm_offset, min(offset, self._log.end_offset))

    def dispatch(self, max_bytes: int = DISPATCH_BYTES) -> DispatchResult:
        """Take the next slice of the log, up to the confirm offset, into queues and index.

        A slice is about ``max_bytes``, of one file, and never divides a marked batch. Nothing to do: the result's
        end is the same as before.

        Raises:
            Corrupt: the log or a queue is damaged; stop.
            DiskFull, StorageError: the same slice may be tried again.
        """
        if self._is_closed:
            raise StoreClosed(f"{self._root}: the store is closed")
        with named_errors(self._root, "dispatching"):
            return self._dispatcher.run(self.confirm_offset, max_bytes)

    def replay(self, start: int) -> Iterator[DispatchResult]:
        """State records and producer marks of ``[start, dispatched_offset)`` again; nothing arrives.

        ``start`` is where a dispatch result ended, or anything at or below ``min_offset``.
        """
        return self._dispatcher.replay(max(start, self._log.min_offset))

    def undispatched(self) -> Iterator[DispatchResult]:
        """State records and producer marks of ``[dispatched_offset, end_offset)``; nothing is dispatched by it.

        For a slave that becomes master: its tables must know what is in its log, confirmed or not.
        """
        return self._dispatcher.replay(self._dispatcher.offset, self.end_offset)

    def drop_topic(self, topic: str) -> None:
        """Forget the topic's queues; its records stay in the log, and a topic made anew begins at offset 0."""
        self._placement.drop_topic(topic)
        with named_errors(self._root, f"dropping topic {topic}"):
            self._queues.drop_topic(topic)
            self._parts.others.drop_topic(topic)
        self.checkpointer.want()

    def queues(self) -> dict[str, list[int]]:
        """Every queue: topic -> queue ids."""
        return {topic: sorted(queues) for topic, queues in self._queues.slots.by_topic.items()}

    def queue_ends(self, topic: str) -> list[int]:
        """Where a master goes on with the topic's queues, by their ids: behind all in the log, dispatched or not."""
        if not self._placement.is_level:
            self._learn_end()
        return self._placement.reached(topic)

    def checkpoint(self) -> None:
        """Sync the log and everything derived from it, and note how far it is, so that a start begins there.

        Raises:
            SyncFailed: the store is fenced from now on.
            DiskFull, StorageError: nothing is noted; may be tried again.
        """
        self._checkpoints.write()

    def close(self) -> None:
        """Sync everything, mark the exit as clean, and give the lock back. Harmless when repeated.

        A store that could not be synced is closed as it is: the next start recovers it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self.checkpointer.stop()
        try:
            if self._flusher.failure is None:
                self._log.allocator.discard()
                self.removal.close(delete=True)
                self._checkpoints.write(clean=True)
                self._parts.abort.remove()
                log.info("store closed root=%s end=%d", self._root, self.end_offset)
        except (StorageError, OSError) as error:
            log.error("store not closed cleanly root=%s error=%s", self._root, error)
        finally:
            self._release()

    def abandon(self) -> None:
        """Give everything back without a sync and without marking the exit as clean, as a killed process would."""
        if not self._is_closed:
            self._is_closed = True
            self.checkpointer.stop()
            self._release()

    def _release(self) -> None:
        if self._committer is not None:
            self._committer.stop()
        self._flusher.stop()
        self.removal.close(delete=False)
        self._log.close()
        self._queues.close()
        self._parts.index.close()
        self._parts.checkpoint.close()
        self._parts.lock.release()

    def _learn_end(self) -> None:
        """Have the placement know the log's end. It may lose a part of a batch there: nobody may count on that."""
        self.commit()
        with named_errors(self._root, "reading the log's end"):
            if self._dispatcher.offset < self._log.end_offset:
                whole = self.whole_below(self._log.end_offset)
                self._truncation.cut(whole, rebuild=False)  # what was synced of it is noted as synced no more
            self._placement.learn(self._dispatcher.offset)

    def _on_deleted(self, topic: str) -> None:
        """Dispatch has dropped queues of the topic."""
        if topic.startswith(names.LIGHT_PREFIX):
            self._placement.forget()
        self._parts.others.drop_topic(topic)
        self.checkpointer.want()

    def _tell_flushed(self, offset: int) -> None:
        if self._checkpoints.write_hint(offset):
            self.on_flushed(offset)

    def _tell_fatal(self, error: SyncFailed) -> None:
        log.error("store fenced root=%s error=%s", self._root, error)
        try:
            self._parts.doubt.create(str(error))
        except OSError as failure:
            log.error("the failure could not be noted for the next start root=%s error=%s", self._root, failure)
        self.on_fatal(error)

    def _check_writable(self) -> None:
        if self._is_closed:
            raise StoreClosed(f"{self._root}: the store is closed")
        if self._flusher.failure is not None:
            raise self._flusher.failure
