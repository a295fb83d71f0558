"""How a store is opened: the keys of ``broker.conf`` that are the store's, and what the broker adds."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from penstock.formats.delay_levels import DEFAULT_LEVELS, levels_ms
from penstock.formats.directory import COMMIT_LOG, CONSUME_QUEUE
from penstock.formats.index.index_file import DEFAULT_ENTRIES, DEFAULT_SLOTS
from penstock.formats.queue_entry import ENTRY_BYTES, FILE_ENTRIES
from penstock.formats.record.layout import BLANK_BYTES, BODY_BYTES_MAX, FIXED_BYTES, NO_HOST, Host
from penstock.runtime.conf import key, require

from .log.log_directories import split_paths

MIB, GIB = 1 << 20, 1 << 30
BODY_BYTES_LIMIT = 32 * MIB
"""No broker may be set to take larger bodies."""
_SEGMENT_BYTES_MIN = FIXED_BYTES + BLANK_BYTES + 1


class FlushMode(enum.Enum):
    """Who waits for the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"  # nobody: synced in the background
    SYNC_FLUSH = "SYNC_FLUSH"  # whoever asks with request_flush


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the store lies, the sizes of its files, and when it syncs. Sizes cannot be changed on existing data."""

    root: Path = key(  # noqa: RUF009
        "storePathRootDir", default_factory=lambda: Path("~/store").expanduser(), doc="made, in a directory that exists"
    )
    commit_log_path: str = key(
        "storePathCommitLog", default="", doc="empty: commitlog under storePathRootDir; several with , between them"
    )
    read_only_log_paths: str = key(
        "readOnlyCommitLogStorePaths", default="", doc="directories with log files that get no new ones"
    )
    segment_bytes: int = key("mappedFileSizeCommitLog", default=GIB, doc="bytes of one log file")
    consume_queue_bytes: int = key(
        "mappedFileSizeConsumeQueue",
        default=FILE_ENTRIES * ENTRY_BYTES,
        doc="bytes of one queue file, 20 a message",
    )
    body_bytes_max: int = key("maxMessageSize", default=BODY_BYTES_MAX, doc="largest message body")
    index_enable: bool = key("messageIndexEnable", default=True, doc="find messages by key and id")
    index_slots: int = key("maxHashSlotNum", default=DEFAULT_SLOTS, doc="of one index file")
    index_entries: int = key("maxIndexNum", default=DEFAULT_ENTRIES, doc="entries of one index file")
    delay_levels: str = key("messageDelayLevel", default=DEFAULT_LEVELS, doc="how long each level is: 1s 5m 2h 1d")
    warm_files: bool = key("warmMapedFileEnable", default=False, doc="touch a new log file's pages ahead of need")
    lock_files: bool = key(
        "mlockMappedFileEnable",
        default=False,
        doc="keep the log file being written in memory",
        differs="has no such key",
    )
    append_record_crc: bool = key(
        "enabledAppendPropCRC", default=False, doc="add a checksum of the whole record to each; 20 bytes"
    )
    force_record_crc: bool = key(
        "forceVerifyPropCRC", default=False, doc="recovery takes no record without that checksum"
    )
    lmq_enable: bool = key("enableLmq", default=False, doc="light queues, with enableMultiDispatch")
    multi_dispatch: bool = key(
        "enableMultiDispatch", default=False, doc="messages also stand in the light queues (%LMQ%…) that they name"
    )
    light_queues_max: int = key("maxLmqConsumeQueueNum", default=20_000, doc="light queues at most")

    flush_mode: FlushMode = key(  # noqa: RUF009
        "flushDiskType", default=FlushMode.ASYNC_FLUSH, doc="acknowledge before or after the disk has it"
    )
    flush_interval_ms: int = key(
        "flushIntervalCommitLog", default=500, doc="ASYNC_FLUSH: time between two syncs of 4 pages or more"
    )
    flush_thorough_interval_ms: int = key(
        "flushCommitLogThoroughInterval", default=10_000, doc="ASYNC_FLUSH: sync even little; queues and index: always"
    )

    # Appends to memory first, and from there to the files; for ASYNC_FLUSH and masters. Unlike in RocketMQ, a message
    # that is only in memory is neither acknowledged, replicated nor read: whoever waits has it committed at once, and
    # the intervals are for what nobody waits for.
    is_pooled: bool = key(
        "transientStorePoolEnable",
        default=False,
        doc="append to buffers, not to mapped files; lost by no kill",
        differs="acknowledges what is only in a buffer, and a killed process loses it",
    )
    pool_size: int = key("transientStorePoolSize", default=5, doc="buffers, each of mappedFileSizeCommitLog bytes")
    fast_fail_if_no_buffer: bool = key(
        "fastFailIfNoBufferInStorePool", default=False, doc="refuse messages then; else they wait for a commit"
    )
    commit_interval_ms: int = key("commitIntervalCommitLog", default=200, doc="time between two commits, at most")
    commit_least_pages: int = key(
        "commitCommitLogLeastPages", default=4, doc="of 4 KiB: fewer wait until all are committed"
    )
    commit_thorough_interval_ms: int = key("commitCommitLogThoroughInterval", default=200, doc="commit even little")

    store_host: Host = NO_HOST  # stands in every record
    replicated: bool = False  # after a crash only what is known to be confirmed is dispatched: the rest may have to go
    is_unclean_doubtful: bool = False  # others count on what an unclean exit may have lost: opening notes that

    def __post_init__(self) -> None:
        whole = -(-self.consume_queue_bytes // ENTRY_BYTES) * ENTRY_BYTES  # as RocketMQ rounds
        object.__setattr__(self, "consume_queue_bytes", whole)
        for name, value, low, high in (
            ("maxMessageSize", self.body_bytes_max, 1, BODY_BYTES_LIMIT),
            ("mappedFileSizeCommitLog", self.segment_bytes, _SEGMENT_BYTES_MIN, 2 * GIB - 1),
            ("mappedFileSizeConsumeQueue", self.consume_queue_bytes, ENTRY_BYTES, GIB),
            ("maxHashSlotNum", self.index_slots, 1, 100_000_000),
            ("maxIndexNum", self.index_entries, 2, 100_000_000),
            ("maxLmqConsumeQueueNum", self.light_queues_max, 0, 1_000_000),
            ("transientStorePoolSize", self.pool_size, 1, 1000),
            ("commitCommitLogLeastPages", self.commit_least_pages, 0, 1 << 20),
        ):
            require(low <= value <= high, f"{name} must be {low}..{high}", value)
        for name, value in (
            ("flushIntervalCommitLog", self.flush_interval_ms),
            ("flushCommitLogThoroughInterval", self.flush_thorough_interval_ms),
            ("commitIntervalCommitLog", self.commit_interval_ms),
            ("commitCommitLogThoroughInterval", self.commit_thorough_interval_ms),
        ):
            require(1 <= value <= 600_000, f"{name} must be 1..600000 ms", value)
        try:
            levels_ms(self.delay_levels)
        except ValueError as error:
            require(False, "messageDelayLevel must be numbers with the unit s, m, h or d", str(error))

    def body_max(self, *, is_kept: bool) -> int:
        """How large bodies may be; ``is_kept``: those that were taken once, perhaps when they could be larger."""
        return BODY_BYTES_LIMIT if is_kept else self.body_bytes_max

    @property
    def has_light_queues(self) -> bool:
        """True if records have entries in the light queues that they name."""
        return self.lmq_enable and self.multi_dispatch

    @property
    def buffers(self) -> int:
        """Number of buffers that appends go to first; 0 if they go to the files."""
        return self.pool_size if self.is_pooled and self.flush_mode is FlushMode.ASYNC_FLUSH else 0

    @property
    def log_directories(self) -> list[str]:
        """Where the log's files are and new ones go."""
        return split_paths(self.commit_log_path) or [str(self.root / COMMIT_LOG)]

    @property
    def read_only_log_directories(self) -> list[str]:
        """Those that get no new files, which are never made: a missing one is a disk that is not mounted."""
        return split_paths(self.read_only_log_paths)

    @property
    def queue_directory(self) -> str:
        """Where the consume queues are."""
        return str(self.root / CONSUME_QUEUE)
