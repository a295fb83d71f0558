"""Messages that were taken back before their time: known from records of the timer topic, until that time has come."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import (
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELETED_KEY,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from penstock.formats.record.reposting.timers import text_hash, unique_keys

from ...core.delivering import Waiting
from .timer_wheel import Longs

BODY: Final = b"0"
"""RocketMQ's; nobody reads it."""


class Recall(NamedTuple):
    """A message that is not to be delivered: its topic and UNIQ_KEY, and when it would be due."""

    topic: str
    key: str
    due_ms: int

    @classmethod
    def of(cls, record: bytes, key: str = TIMER_DELETED_KEY) -> Recall:
        """What such a record says, also one that RocketMQ wrote; by UNIQ_KEY what would take back that message."""
        properties = decode_properties(decode_record(record).properties)
        due = properties.get(TIMER_OUT_MS, "")
        is_time = due.isascii() and due.isdecimal()
        return cls(properties.get(REAL_TOPIC, ""), properties.get(key, ""), int(due) if is_time else 0)

    def properties(self) -> bytes:
        """Of the record that says it. Source: RocketMQ ``RecallMessageProcessor``."""
        due = str(self.due_ms)
        where = {REAL_TOPIC: self.topic, REAL_QUEUE_ID: "0"}
        return encode_properties({TIMER_DELIVER_MS: due, TIMER_OUT_MS: due, TIMER_DELETED_KEY: self.key} | where)


class Recalls:
    """Those that one broker knows. The record of each lies behind its message's in the log, due at the same time."""

    def __init__(self) -> None:
        self._known: dict[Recall, int] = {}  # the end of its record, 0 once confirmed
        self._hashes: Any = np.empty(0, np.int64)  # of the keys, sorted; made when it is needed
        self._is_sorted = True
        self._first = 0  # no time is earlier

    def __len__(self) -> int:
        return len(self._known)

    def add(self, recall: Recall, end: int = 0) -> None:
        """A record says so that ends at ``end`` in the log, or is confirmed."""
        self._first = min(self._first, recall.due_ms) if self._known else recall.due_ms
        self._known[recall] = end
        self._is_sorted = False

    def end(self, recall: Recall) -> int | None:
        """Where the record ends that says so already; None without one."""
        return self._known.get(recall)

    def forget(self, until_ms: int) -> None:
        """Everything that is due at ``until_ms`` or before is delivered, or was not."""
        if not self._known or self._first > until_ms:
            return
        self._known = {recall: end for recall, end in self._known.items() if recall.due_ms > until_ms}
        self._first = min((recall.due_ms for recall in self._known), default=0)
        self._is_sorted = False

    def of(self, waiting: Waiting) -> Longs:
        """Which of these messages are not to be delivered."""
        if not self._known:
            return np.empty(0, np.int64)
        if not self._is_sorted:
            wanted = [text_hash(np.frombuffer(recall.key.encode(), np.uint8)) for recall in self._known]
            self._hashes, self._is_sorted = np.unique(np.array(wanted, np.int64)), True
        hashes = np.empty(len(waiting.sizes), np.int64)
        unique_keys(waiting.data, waiting.positions, waiting.sizes, hashes)
        alike = np.flatnonzero(np.isin(hashes, self._hashes))
        return np.array([index for index in alike.tolist() if self._is_meant(waiting, index)], np.int64)

    def _is_meant(self, waiting: Waiting, index: int) -> bool:
        start = int(waiting.positions[index])
        record = waiting.data[start : start + int(waiting.sizes[index])].tobytes()
        return Recall.of(record, UNIQ_KEY) in self._known


def recalls_in(data: Any, positions: Longs, sizes: Any, chosen: Any) -> Iterator[Recall]:
    """What the chosen records of ``data`` say."""
    for index in np.flatnonzero(chosen).tolist():
        start = int(positions[index])
        yield Recall.of(data[start : start + int(sizes[index])].tobytes())
