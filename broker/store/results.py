"""What the store answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from penstock.formats.record.kernels import gather
from penstock.formats.record.producer_mark import ProducerMark

from .disk import Bytes
from .queues.kernels import Ints, Longs

RUN_BYTES: Final = 16 << 10
"""Records that lie together in the log in so many bytes, or more, are sent from there; fewer are cheaper to copy."""


class AppendResult(NamedTuple):
    """Where a batch went: log bytes ``[start, end)``, and the first offset it got in each of its queues."""

    start: int
    end: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    store_timestamp_ms: int
    queue_ids: list[int]
    queue_offsets: list[int]


class MarkedBatch(NamedTuple):
    """A dispatched batch whose first record carries a producer mark."""

    topic: str
    mark: ProducerMark
    start: int
    end: int
    store_timestamp_ms: int
    queue_ids: list[int]
    queue_offsets: list[int]


class Arrived(Collection[tuple[str, int, int]]):
    """Topic, queue id and new maximum of every queue that grew; to be looked at before the store is called again.

    Made when it is iterated: with thousands of queues that costs as much as half a dispatch, and nobody may wait.
    """

    __slots__ = ("_maxima", "_queue_ids", "_slots", "_topics")

    def __init__(self, topics: Sequence[str], queue_ids: Sequence[int], maxima: Longs, slots: Ints) -> None:
        """``topics``, ``queue_ids`` and ``maxima`` are indexed by slot, ``slots`` are those that grew."""
        self._topics, self._queue_ids, self._maxima, self._slots = topics, queue_ids, maxima, slots

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        slots = self._slots.tolist()
        topics, queue_ids = map(self._topics.__getitem__, slots), map(self._queue_ids.__getitem__, slots)
        return zip(topics, queue_ids, self._maxima[self._slots].tolist(), strict=True)

    def __contains__(self, queue: object) -> bool:
        return queue in list(self)


class DispatchResult(NamedTuple):
    """What a slice of the log held, up to ``end``.

    ``arrived``: topic, queue id and new maximum of every queue that grew. ``state_records``: physical offset and
    bytes of every record of the state topic.
    """

    end: int
    arrived: Collection[tuple[str, int, int]]
    state_records: list[tuple[int, bytes]]
    marks: list[MarkedBatch]


class ReadStatus(IntEnum):
    """As ``FetchReply.Status``."""

    FOUND = 0
    NO_NEW_MESSAGE = 1
    OFFSET_TOO_SMALL = 2
    OFFSET_OVERFLOW = 3
    NO_MATCHED_MESSAGE = 4
    QUEUE_NOT_FOUND = 5
    DAMAGED = 6


@dataclass(slots=True)
class ReadResult:
    """Records found by a read; their bytes stay in the log, and the log's file in memory, as long as this does.

    DAMAGED: ``problem`` says what is wrong with the record at the offset; others go on at ``next_offset``.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    count: int = 0
    bytes: int = 0
    parts: list[tuple[Bytes, Longs, Ints]] = field(default_factory=list)  # log file, positions, sizes
    problem: str = ""
    searched: int = 0
    """Bytes of records that a condition was asked about."""

    def copy_to(self, address: int) -> None:
        """Lay the records end to end at ``address``: ``bytes`` of memory that the caller owns."""
        for source, positions, sizes in self.parts:
            copied = gather(source, positions, sizes, address)
            assert copied >= 0, "read checks every entry against its file"
            address += copied
        self.parts = []

    def views(self) -> list[memoryview]:
        """The records end to end, where they lie in the log; empty if they lie too far scattered."""
        runs: list[memoryview] = []
        for source, positions, sizes in self.parts:
            ends = positions + sizes
            breaks = np.flatnonzero(ends[:-1] != positions[1:])
            starts = positions[np.concatenate(([0], breaks + 1))].tolist()
            stops = ends[np.concatenate((breaks, [len(ends) - 1]))].tolist()
            runs += (source[start:stop].data for start, stop in zip(starts, stops, strict=True))
        return runs if len(runs) * RUN_BYTES <= self.bytes else []


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening found and did."""

    clean: bool  # the last exit was clean: nothing was scanned
    end: int
    truncated_from: int | None = None
    truncated_bytes: int = 0
    reason: str = ""
    scanned_bytes: int = 0
    replayed_from: int = 0
    queues_rebuilt: bool = False
    seconds: float = 0.0
