"""Names in a store directory, as RocketMQ gives them, and Penstock's own.

| Path below the root | Files |
|---|---|
| ``commitlog/`` (or other directories) | 20 digits: position in the log of the first byte |
| ``consumequeue/<topic>/<queue>/`` | 20 digits: byte offset in the queue (:mod:`.queue_entry`) |
| ``batchconsumequeue/<topic>/<queue>/`` | the same (:mod:`.batch_unit`) |
| ``consumequeue_ext/<topic>/<queue>/`` | the same, units of 20 bytes and more |
| ``index/`` | 17 digits: local time of creation, in milliseconds (:mod:`.index.index_file`) |
| ``checkpoint``, ``penstockCheckpoint`` | :mod:`.checkpoint` |
| ``epochFileCheckpoint`` | :mod:`.epochs` |
| ``abort`` | there while a store is open: found at a start, the last exit was no clean one; pid, boot of the machine |
| ``penstockDoubt`` | there while the log may lack bytes that counted as synced, or acknowledged: why |
| ``penstockCut.<position>`` | damaged bytes that were cut off the log's end there, for inspection |
| ``lock`` | its first byte is locked while a store is open |
| ``brokerIdentity``, ``config/`` | the broker's name; its tables, topics and groups |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime

COMMIT_LOG = "commitlog"
CONSUME_QUEUE = "consumequeue"
BATCH_QUEUE = "batchconsumequeue"
EXTENSIONS = "consumequeue_ext"
INDEX = "index"
CONFIG = "config"
CHECKPOINT = "checkpoint"
OWN_CHECKPOINT = "penstockCheckpoint"
EPOCHS = "epochFileCheckpoint"
ABORT = "abort"
DOUBT = "penstockDoubt"
CUT_BYTES = "penstockCut"
LOCK = "lock"
IDENTITY = "brokerIdentity"

SAFE_TOPIC = "[%|a-zA-Z0-9_-]{1,255}"
"""A topic, whole, that can name a directory. Broader than what may be created: RocketMQ stores up to 255 characters."""
_SAFE_TOPIC = re.compile(SAFE_TOPIC, re.ASCII)
_START = re.compile(r"[0-9]{20}", re.ASCII)
_INDEX_NAME = re.compile(r"[0-9]{17}", re.ASCII)


def is_safe_topic(topic: str) -> bool:
    """True if a topic that stands in a log can name a directory."""
    return _SAFE_TOPIC.fullmatch(topic) is not None


def file_name(start: int) -> str:
    """The name of the file whose first byte has the position ``start`` in its log or queue."""
    return f"{start:020d}"


def file_start(name: str) -> int | None:
    """The position of a file's first byte in its log or queue; None if no such file has that name."""
    return int(name) if _START.fullmatch(name) else None


def file_starts(names: Iterable[str]) -> list[int]:
    """:func:`file_start` of those names that such files have, in the order given."""
    return [int(name) for name in names if _START.fullmatch(name)]


def index_file_name(made_ms: int) -> str:
    """The name of an index file made at that time."""
    return datetime.fromtimestamp(made_ms // 1000).strftime("%Y%m%d%H%M%S") + f"{made_ms % 1000:03d}"


def is_index_file_name(name: str) -> bool:
    return _INDEX_NAME.fullmatch(name) is not None
