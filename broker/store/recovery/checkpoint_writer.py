"""Writing the checkpoint: sync the log and all that is derived from it, then say so."""

from __future__ import annotations

import logging
import threading

from penstock.formats.checkpoint import Positions, Standard
from penstock.proto.errors import StorageError, SyncFailed

from ..log.flush import Flusher
from .opening import Opened

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Notes how far log, queues and index are synced, for the next start.

    ``lock`` is held while one is written, so that nobody takes files away below it. ``derived``: a start after a crash
    needs nothing of the log below it.
    """

    def __init__(self, root: str, parts: Opened, flusher: Flusher) -> None:
        self.lock = threading.Lock()
        self.derived = parts.report.replayed_from
        self._root = root
        self._parts = parts
        self._flusher = flusher

    def write(self, *, clean: bool = False) -> None:
        """As :meth:`Store.checkpoint`; ``clean``: nothing will follow.

        Raises:
            SyncFailed: the store is fenced from now on.
            DiskFull, StorageError: nothing is noted; may be tried again.
        """
        with self.lock:
            self.write_locked(clean=clean)

    def write_locked(self, *, clean: bool = False) -> None:
        """The same, for a caller that has the lock. The order makes it true: first the bytes, then what says so."""
        parts, log_ = self._parts, self._parts.log
        self._flusher.commit()
        with parts.queues.lock:  # a dispatch changes all three under it
            derived = parts.dispatcher.offset
            queues, entries = parts.queues.totals()
            index_file, index_count = parts.index.position()
            derived_ms = parts.dispatcher.last_store_timestamp_ms
        end, newest_ms, confirmed = log_.end_offset, log_.last_store_timestamp_ms, log_.confirm_offset
        try:
            self._flusher.flush()
            parts.queues.flush()
            parts.index.flush()
            parts.checkpoint.write(
                Positions(
                    clean=clean,
                    min_offset=log_.min_offset,
                    end=end,
                    flushed=self._flusher.flushed_offset,
                    derived=derived,
                    queues=queues,
                    entries=entries,
                    last_store_timestamp_ms=newest_ms,
                    index_file=index_file,
                    index_count=index_count,
                ),
                Standard(newest_ms, derived_ms, parts.index.settled_ms, 0, confirmed),
            )
        except OSError as error:
            raise self.fence(error) from error
        self.derived = derived

    def write_hint(self, flushed: int) -> bool:
        """Note that the log is synced up to ``flushed``; false when that failed, and the store is fenced."""
        try:
            self._parts.checkpoint.write_hint(flushed, self._parts.log.confirm_offset)
        except OSError as error:
            self._flusher.fail(SyncFailed(f"{self._root}: writing the checkpoint failed: {error}"))
            return False
        return True

    def write_or_warn(self) -> None:
        """The checkpoint thread's call, which must not end it: what fails is tried again later."""
        try:
            self.write()
        except SyncFailed:
            return  # on_fatal has heard of it
        except StorageError as error:
            log.warning("checkpoint not written, will be tried again root=%s error=%s", self._root, error)
        except Exception:
            # The edge of the thread: without it nobody would write checkpoints any more, and nobody would know.
            log.exception("checkpoint failed, will be tried again root=%s", self._root)

    def progress(self) -> tuple[int, int]:
        """(bytes dispatched since the last one, queue files written since)."""
        return self._parts.dispatcher.offset - self.derived, self._parts.queues.files.dirty_count

    def fence(self, error: Exception) -> SyncFailed:
        """End all writing because of ``error``."""
        failure = SyncFailed(f"{self._root}: sync of log, queues, index or checkpoint failed: {error}")
        self._flusher.fail(failure)
        return failure
