"""Latencies in fixed logarithmic buckets: constant memory, mergeable between processes, exact to 2 %."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

RATIO = 1.02
LOWEST_MS = 0.001
HIGHEST_MS = 1_000_000.0
BUCKETS = math.ceil(math.log(HIGHEST_MS / LOWEST_MS) / math.log(RATIO)) + 1
"""Bucket 0 holds up to 1 µs; bucket i up to ``LOWEST_MS * RATIO**i``; the last one everything above."""

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
_LOG_RATIO = math.log(RATIO)


class Histogram:
    """Counts per bucket, and the exact maximum."""

    def __init__(self) -> None:
        self.counts: npt.NDArray[np.int64] = np.zeros(BUCKETS, dtype=np.int64)
        self.max_ms = 0.0

    def add(self, latency_ms: float, count: int = 1) -> None:
        index = math.ceil(math.log(latency_ms / LOWEST_MS) / _LOG_RATIO) if latency_ms > LOWEST_MS else 0
        self.counts[min(index, BUCKETS - 1)] += count
        self.max_ms = max(self.max_ms, latency_ms)

    def add_all(self, latencies_ms: npt.NDArray[np.float64]) -> None:
        """Count each of an array's latencies."""
        if not len(latencies_ms):
            return
        clipped = np.clip(latencies_ms, LOWEST_MS, HIGHEST_MS)
        indexes = np.ceil(np.log(clipped / LOWEST_MS) / _LOG_RATIO).astype(np.int64)
        self.counts += np.bincount(np.minimum(indexes, BUCKETS - 1), minlength=BUCKETS)
        self.max_ms = max(self.max_ms, float(latencies_ms.max()))

    def merge(self, other: Histogram) -> None:
        self.counts += other.counts
        self.max_ms = max(self.max_ms, other.max_ms)

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """The latency in ms that ``share`` of all do not exceed, at most 2 % too high; ``None`` without any."""
        total = self.count
        if not total:
            return None
        index = int(np.searchsorted(np.cumsum(self.counts), math.ceil(share * total)))
        return min(LOWEST_MS * RATIO**index, self.max_ms)

    def summary(self) -> dict[str, float | None]:
        """``p50 p99 p999 max`` in ms; ``None`` each without any latency."""
        found = {name: self.quantile(share) for name, share in QUANTILES.items()}
        found["max"] = self.max_ms if self.count else None
        return {name: round(value, 4) if value is not None else None for name, value in found.items()}

    def coarse(self) -> list[tuple[float, int]]:
        """``(upper limit in ms, count)`` by powers of two, from the first to the last that has any."""
        if not self.count:
            return []
        limits = LOWEST_MS * RATIO ** np.arange(BUCKETS)
        powers = np.ceil(np.log2(limits)).astype(np.int64)
        found = [(float(2.0**power), int(self.counts[powers == power].sum())) for power in np.unique(powers)]
        filled = [index for index, (_, count) in enumerate(found) if count]
        return found[filled[0] : filled[-1] + 1]

    def to_document(self) -> dict[str, Any]:
        """For another process."""
        filled = np.flatnonzero(self.counts)
        return {"at": filled.tolist(), "counts": self.counts[filled].tolist(), "max_ms": self.max_ms}

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Histogram:
        made = cls()
        made.counts[np.asarray(document["at"], dtype=np.int64)] = document["counts"]
        made.max_ms = float(document["max_ms"])
        return made


def merged(histograms: Sequence[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        total.merge(histogram)
    return total
