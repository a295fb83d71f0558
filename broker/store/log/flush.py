"""Making bytes durable: a thread that syncs the log, and one that writes queues, index and checkpoint behind it.

The first sync that fails ends it: nobody knows any more what the disk has, and asking it again would only hide that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from penstock.proto.errors import DiskFull, StoreClosed, SyncFailed

from ..config import FlushMode, StoreConfig
from ..disk import storage_error
from .commit_log import CommitLog
from .on_demand import LogFollower

log = logging.getLogger(__name__)

_LEAST_BYTES = 4 * 4096
_DERIVED_BYTES_MAX = 1 << 30  # so much is dispatched again in a second or two
_DERIVED_FILES_MANY = 256
_DERIVED_MANY_S = 60.0


class Flusher(LogFollower):
    """Syncs the log: everything waiting at once, whenever somebody asks; in ASYNC_FLUSH also in intervals."""

    def __init__(
        self,
        config: StoreConfig,
        commit_log: CommitLog,
        flushed: int,
        on_flushed: Callable[[int], None],
        on_failed: Callable[[SyncFailed], None],
    ) -> None:
        super().__init__(
            "log-flush",
            flushed,
            interval_s=config.flush_interval_ms / 1000 if config.flush_mode is FlushMode.ASYNC_FLUSH else None,
            thorough_s=config.flush_thorough_interval_ms / 1000,
            least_bytes=_LEAST_BYTES,
        )
        # Written under ``_condition``: this thread raises it, on_cut() and start_at() set it.
        self.flushed_offset = flushed  # everything of the log below is on the disk
        self._log = commit_log
        commit_log.not_written = self.not_written
        self._on_flushed = on_flushed
        self._on_failed = on_failed
        self._has_pool = config.buffers > 0
        self._syncing = threading.Lock()  # held during a sync, and while the log is cut
        self._cuts = 0  # how often the log was cut: what a sync began before says nothing about the bytes behind
        self.failure: SyncFailed | None = None  # set once, by any thread, and never taken back
        self._committing = threading.Lock()  # held until what a commit found is noted
        self.refusal: DiskFull | None = None  # the last commit found no space: nothing more may be appended
        # Called by any thread: a commit has moved the log's end there.
        self.on_committed: Callable[[int], None] = lambda end: None

    def on_cut(self, end: int) -> None:
        """The log ends at ``end`` now: what lay behind it, synced or not, is gone."""
        with self._condition:
            self._cuts += 1
            self.flushed_offset = min(self.flushed_offset, end)
            self._asked = min(self._asked, end)
            self._condition.notify_all()

    def held(self) -> threading.Lock:
        """For the time in which files of the log go: no sync is under way, and nobody is told of one."""
        return self._syncing

    def start_at(self, offset: int) -> None:
        """The log, which held nothing, begins at ``offset``."""
        with self._condition:
            self.flushed_offset = self._asked = offset

    def commit(self) -> int:
        """Have everything appended so far in the files, where a pool's buffers are used; the log's end. Any thread.

        Raises:
            DiskFull: it is in the buffers still, and may be tried again.
            SyncFailed: it could not; the store is fenced from now on.
        """
        before = self._log.end_offset
        if not self._has_pool:
            return before
        if self.failure is not None:
            raise self.failure
        with self._committing:
            try:
                end = self._log.commit()
            except OSError as error:
                named = self.not_written(error)
                if isinstance(named, DiskFull):
                    self.refusal = named
                raise named from error
            self.refusal = None
        if end > before:
            if self._asked > self.flushed_offset:
                with self._condition:
                    self._condition.notify_all()
            self.on_committed(end)
        return end

    def not_written(self, error: OSError) -> DiskFull | SyncFailed:
        """What a failed write to the log means: without space it may be tried again, else the store is fenced."""
        named = storage_error(error, str(self._log.directories), "appending")
        if isinstance(named, DiskFull):
            return named
        log.error("write failed path=%s error=%s", self._log.directories, error)
        failure = SyncFailed(
            f"{self._log.directories}: writing what was appended last failed: {error.strerror or error}: nothing "
            "is acknowledged any more, check the disk and restart",
            path=str(self._log.directories),
        )
        self.fail(failure)
        return failure

    def flush(self, timeout_s: float | None = None) -> None:
        """Sync everything appended so far, but for what is cut off meanwhile, and wait for it.

        Raises:
            SyncFailed: it could not.
            DiskFull: it could not be committed; may be tried again.
            StoreClosed: the store closes meanwhile, which syncs it.
        """
        end = self.commit()
        self.request(end)

        def is_done() -> bool:
            return self.flushed_offset >= min(end, self._log.end_offset)

        with self._condition:
            self._condition.wait_for(lambda: is_done() or self.failure is not None or self._is_stopping, timeout_s)
            if self.failure is not None:
                raise self.failure
            if self._is_stopping and not is_done():
                raise StoreClosed("the store is closing")

    def fail(self, failure: SyncFailed) -> None:
        """Something else of the store could not be synced: that ends this as well."""
        with self._condition:
            if self.failure is not None:
                return
            self.failure = failure
            self._condition.notify_all()
        self._on_failed(failure)

    def _may_work(self) -> bool:
        return self.failure is None

    def _is_asked(self) -> bool:
        """True if somebody waits for bytes that can be synced: what is not committed cannot."""
        return min(self._asked, self._log.end_offset) > self.flushed_offset

    def _bytes_behind(self) -> int:
        return self._log.end_offset - self.flushed_offset

    def _work(self) -> None:
        with self._syncing:
            self._sync()

    def _sync(self) -> None:
        cuts = self._cuts  # before the end is read: behind a cut it may be lower
        end = self._log.end_offset
        try:
            self._log.sync(self.flushed_offset, end)
        except OSError as error:
            log.error("sync failed path=%s error=%s", self._log.directories, error)
            self.fail(
                SyncFailed(
                    f"{self._log.directories}: sync failed: {error.strerror or error}: the disk may not have what was "
                    "written last; nothing is acknowledged any more, check the disk and restart",
                    path=str(self._log.directories),
                )
            )
            return
        with self._condition:
            if cuts != self._cuts:
                return  # the bytes that were synced are not those that are there now
            self.flushed_offset = end
            self._condition.notify_all()
        self._on_flushed(end)


class Checkpointer(threading.Thread):
    """Calls ``checkpoint`` every thorough interval while there is something new.

    Syncing thousands of queue files takes seconds of the disk's time, and is needed only so that a start has
    little to do: with many of them it is done once a minute, or after a GiB of log.
    """

    def __init__(
        self,
        interval_s: float,
        progress: Callable[[], tuple[int, int]],
        checkpoint: Callable[[], None],
    ) -> None:
        super().__init__(name="store-checkpoint", daemon=True)
        self._interval_s = interval_s
        self._progress = progress  # (bytes dispatched since the last checkpoint, queue files written since)
        self._checkpoint = checkpoint
        self._wake = threading.Event()
        self._is_wanted = False
        self._is_stopping = False

    def want(self) -> None:
        """Have a checkpoint written soon; returns at once."""
        self._is_wanted = True
        self._wake.set()

    def stop(self) -> None:
        """End the thread after what it is doing."""
        self._is_stopping = True
        self._wake.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        last = time.monotonic()
        while True:
            self._wake.wait(min(1.0, self._interval_s))
            self._wake.clear()  # before looking: what happens from here on wakes again
            if self._is_stopping:
                return
            wanted, self._is_wanted = self._is_wanted, False
            new_bytes, files = self._progress()
            interval_s = self._interval_s if files <= _DERIVED_FILES_MANY else max(self._interval_s, _DERIVED_MANY_S)
            if wanted or new_bytes >= _DERIVED_BYTES_MAX or (new_bytes > 0 and time.monotonic() - last >= interval_s):
                self._checkpoint()
                last = time.monotonic()
