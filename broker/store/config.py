"""How a store is opened."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from penstock.formats.record.layout import BLANK_BYTES, FIXED_BYTES, NO_HOST, Host
from penstock.runtime.conf import require

from .log.log_directories import split_paths

ENTRY_BYTES = 20
"""A consume queue entry."""
MIB = 1 << 20

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


class FlushMode(enum.Enum):
    """Who waits for the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"  # nobody: synced in the background
    SYNC_FLUSH = "SYNC_FLUSH"  # whoever asks with request_flush


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the store lies, the sizes of its files, and when it syncs. Sizes cannot be changed on existing data."""

    root: Path
    commit_log_path: str = ""  # empty: <root>/commitlog; several with , between them
    read_only_log_paths: str = ""  # further directories of log files, which get no new ones
    segment_bytes: int = 1 << 30
    consume_queue_bytes: int = 300_000 * ENTRY_BYTES
    flush_mode: FlushMode = FlushMode.ASYNC_FLUSH
    flush_interval_ms: int = 500  # ASYNC_FLUSH: from 4 pages on
    flush_thorough_interval_ms: int = 10_000  # ASYNC_FLUSH: anything; queues and index in both modes
    body_bytes_max: int = 4 * MIB
    store_host: Host = NO_HOST
    index_enable: bool = True
    index_slots: int = 5_000_000
    index_entries: int = 20_000_000
    delay_levels: str = DELAY_LEVELS
    append_record_crc: bool = False  # every record gets the whole-record checksum; found ones are always checked
    force_record_crc: bool = False  # recovery takes no record without one
    replicated: bool = False  # after a crash only what is known to be confirmed is dispatched: the rest may have to go
    warm_files: bool = False  # touch the pages of a new log file before it is used
    multi_dispatch: bool = False  # records have entries in the light queues (LMQ) that they name
    light_queues_max: int = 20_000
    lock_files: bool = False  # keep the log file being written, and the next, in memory
    transient_store_pool_size: int = 0  # buffers of a log file's size that appends go to first; ASYNC_FLUSH only
    commit_interval_ms: int = 200  # from them to the files: at the latest, for request_commit has it done at once
    commit_least_pages: int = 4
    commit_thorough_interval_ms: int = 200  # fewer pages
    fast_fail_if_no_buffer: bool = False  # refuse an append for which no buffer is free; else it waits for a commit

    def __post_init__(self) -> None:
        smallest = FIXED_BYTES + BLANK_BYTES
        require(self.segment_bytes > smallest, f"segment_bytes must be above {smallest}", self.segment_bytes)
        whole = self.consume_queue_bytes > 0 and self.consume_queue_bytes % ENTRY_BYTES == 0
        require(whole, f"consume_queue_bytes must be a multiple of {ENTRY_BYTES}", self.consume_queue_bytes)
        require(self.light_queues_max >= 0, "light_queues_max must be at least 0", self.light_queues_max)
        require(self.index_slots >= 1, "index_slots must be at least 1", self.index_slots)
        require(self.index_entries >= 2, "index_entries must be at least 2", self.index_entries)
        pool = self.transient_store_pool_size
        require(pool >= 0, "transient_store_pool_size must be at least 0", pool)
        is_async = self.flush_mode is FlushMode.ASYNC_FLUSH
        require(is_async or not pool, "transient_store_pool_size must be 0 with SYNC_FLUSH", pool)
        require(self.commit_least_pages >= 0, "commit_least_pages must be at least 0", self.commit_least_pages)
        for name in (
            "flush_interval_ms",
            "flush_thorough_interval_ms",
            "commit_interval_ms",
            "commit_thorough_interval_ms",
        ):
            require(getattr(self, name) >= 1, f"{name} must be at least 1", getattr(self, name))
        delay_levels_ms(self.delay_levels)

    @property
    def log_directories(self) -> list[str]:
        """Where the log's files are and new ones go."""
        return split_paths(self.commit_log_path) or [str(self.root / "commitlog")]

    @property
    def queue_directory(self) -> str:
        """Where the consume queues are."""
        return str(self.root / "consumequeue")

    @property
    def index_directory(self) -> str:
        """Where the index files are."""
        return str(self.root / "index")


@cache
def delay_levels_ms(text: str) -> tuple[int, ...]:
    """Milliseconds of each delay level of ``1s 5s 1m 2h``; the first level is 1, at index 0."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    levels = []
    for word in text.split():
        good = word[:-1].isdecimal() and word[-1] in units
        require(good, "messageDelayLevel must be numbers with the unit s, m, h or d", word)
        levels.append(int(word[:-1]) * units[word[-1]])
    return tuple(levels)
