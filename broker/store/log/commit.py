"""Committing: a thread that writes what was appended to a pool's buffers to the log files."""

from __future__ import annotations

import logging

from penstock.proto.errors import FlowControl, StorageError, SyncFailed

from ..config import StoreConfig
from .commit_log import CommitLog
from .flush import Flusher
from .on_demand import LogFollower

log = logging.getLogger(__name__)

_PAGE = 4096


class Committer(LogFollower):
    """Commits everything appended whenever somebody asks, and in intervals what nobody asks for.

    A commit that finds no space is tried again after the interval, and appends are refused until one has succeeded
    (:attr:`Flusher.refusal`).
    Source: RocketMQ CommitLog.CommitRealTimeService; differs: whoever waits is not made to wait for an interval.
    """

    def __init__(self, config: StoreConfig, commit_log: CommitLog, flusher: Flusher) -> None:
        super().__init__(
            "log-commit",
            0,
            interval_s=config.commit_interval_ms / 1000,
            thorough_s=config.commit_thorough_interval_ms / 1000,
            least_bytes=max(config.commit_least_pages * _PAGE, 1),
        )
        commit_log.on_no_buffer = self._on_no_buffer
        self._config = config
        self._log = commit_log
        self._flusher = flusher

    def _on_no_buffer(self, is_state: bool) -> None:
        """All buffers are in use, and the owner's append needs one."""
        if self._config.fast_fail_if_no_buffer and not is_state:
            raise FlowControl(
                f"transient store pool empty: none of transientStorePoolSize={self._config.buffers} "
                "buffers is free, the disk does not keep up; nothing was stored, try again"
            )
        self._flusher.commit()

    def _may_work(self) -> bool:
        return self._flusher.failure is None

    def _is_asked(self) -> bool:
        """True if somebody waits for bytes that are not committed; those of a log that was cut are not waited for."""
        return min(self._asked, self._log.appended_offset) > self._log.end_offset

    def _bytes_behind(self) -> int:
        return self._log.appended_offset - self._log.end_offset

    def _work(self) -> None:
        was_refused = self._flusher.refusal is not None
        try:
            self._flusher.commit()
        except SyncFailed:
            return  # on_fatal has heard of it
        except StorageError as error:
            if not was_refused:
                log.error("commit waits for space, messages are refused error=%s", error)
            with self._condition:
                self._condition.wait_for(lambda: self._is_stopping, self._interval_s)
            return
        if was_refused:
            log.warning("commit has found space, messages are taken again end=%d", self._log.end_offset)
