"""What producers and consumers tell of their work: counts since they were made, and how long things took."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

BUCKETS_PER_DOUBLING = 4
LOWEST_MS = 0.001
BUCKETS = 128
"""Bucket 0 holds up to 1 µs, each next one up to 2 ** 0.25 times as much; the last one everything above an hour."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long events took, in milliseconds; quantiles are at most 19 % too high. Zeros where nothing happened."""

    count: int = 0
    mean_ms: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    max_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """What one producer has done. Messages, where nothing else is said."""

    acknowledged: int
    refused: int  # known not to be stored, for whatever reason
    unknown: int  # given up, and perhaps stored
    pending: int  # accepted, and none of the above yet
    pending_bytes: int  # what those in batches take of ``buffer_bytes``
    batches: int  # acknowledged
    failed_tries: int  # of batches; most are tried again
    append: Latency  # from the last try of an acknowledged batch to its answer
    traces_dropped: int = 0  # of what ``trace`` was to tell: there was no room, or nobody took it
    ends_lost: int = 0  # of transactions whose end nobody waited for: brokers ask about them


@dataclass(frozen=True, slots=True)
class ConsumerStatistics:
    """What one consumer has done. Messages, where nothing else is said."""

    queues: int  # that are this consumer's now
    received: int  # that its subscriptions want
    received_bytes: int
    handed_out: int  # to the listener, or by polls; again after a reset or a rebalance
    buffered_bytes: int  # received and not finished now
    failed: int  # calls of the listener that failed or took too long
    dropped: int  # by a broadcasting consumer, whose listener failed with them too often
    listener: Latency  # of its calls, each counted with the mean of the few that were made together
    traces_dropped: int = 0  # of what ``trace`` was to tell: there was no room, or nobody took it


class Stopwatch:
    """Collects durations for a :class:`Latency`. Not thread-safe: its owner holds a lock."""

    __slots__ = ("counts", "longest_ms", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total_ms = 0.0
        self.longest_ms = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """``count`` events took so long each."""
        duration_ms = seconds * 1000
        at = math.ceil(math.log2(duration_ms / LOWEST_MS) * BUCKETS_PER_DOUBLING) if duration_ms > LOWEST_MS else 0
        self.counts[min(at, BUCKETS - 1)] += count
        self.total_ms += duration_ms * count
        self.longest_ms = max(self.longest_ms, duration_ms)


def latency_of(stopwatches: Iterable[Stopwatch]) -> Latency:
    watches = list(stopwatches)
    counts = [sum(column) for column in zip(*(watch.counts for watch in watches), strict=True)]
    count = sum(counts)
    if not count:
        return Latency()
    longest_ms = max(watch.longest_ms for watch in watches)
    mean_ms = sum(watch.total_ms for watch in watches) / count

    def quantile(share: float) -> float:
        left = math.ceil(share * count)
        for at, found in enumerate(counts):
            left -= found
            if left <= 0:
                return min(LOWEST_MS * 2 ** (at / BUCKETS_PER_DOUBLING), longest_ms)
        return longest_ms

    return Latency(count, mean_ms, quantile(0.5), quantile(0.99), longest_ms)
