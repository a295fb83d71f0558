"""What is found in parts of a history, in a form that adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from .pieces import Column, Rows, take
from .verdict import Verdict

EXAMPLES_MAX = 20
_BINS_PER_E = 1000
"""A value falls into a bin that is a thousandth of it wide."""

SECOND_NS = 1_000_000_000


def shard_name(shards: Sequence[str], shard: int) -> str:
    """A shard, for people."""
    return shards[shard] if 0 <= shard < len(shards) else f"shard {shard}"


def message_name(stream: int, sequence: int, shard: str, queue: int, offset: int) -> str:
    """A message and its place, for people."""
    return f"message {stream}.{sequence} at {shard} queue {queue} offset {offset}"


def percentiles_ms(bins: Counter[int], shares: Iterable[float]) -> list[float]:
    """The values, in milliseconds, below which these shares lie; within a thousandth. ``bins`` is not empty."""
    numbers = sorted(bins)
    reached = np.cumsum([bins[number] for number in numbers])
    found = [numbers[np.searchsorted(reached, max(share * int(reached[-1]), 1))] for share in shares]
    return [bin_ms(number) for number in found]


def bin_ms(number: int) -> float:
    """The middle of a bin, in milliseconds."""
    return float(np.exp((number + 0.5) / _BINS_PER_E)) / 1e6


@dataclass(slots=True)
class Tally:
    """Counts by invariant, with the first examples of what is wrong; latencies and rates.

    Each part of a history has one of its own; :meth:`add` makes them one, in any order.
    """

    checked: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    excused: int = 0  # of I1: missing, as the mode allows at a fault
    lost: list[tuple[int, int]] = field(default_factory=list)  # stream and sequence of I1's examples
    delivered_again: int = 0
    again_examples: list[str] = field(default_factory=list)
    epochs: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """By shard and epoch: when its first acknowledgement ended, and when its last send began."""
    sends: Counter[int] = field(default_factory=Counter)  # by bin: nanoseconds from send to acknowledgement
    deliveries: Counter[int] = field(default_factory=Counter)  # nanoseconds from send to first delivery
    longest_ns: list[int] = field(default_factory=lambda: [0, 0])  # of the two
    acknowledged: Counter[int] = field(default_factory=Counter)  # by second
    received: Counter[int] = field(default_factory=Counter)

    def tell(self, invariant: str, texts: Iterable[str], count: int) -> None:
        """Count violations; ``texts`` are the first of them."""
        if count:
            self.wrong[invariant] += count
            kept = self.examples.setdefault(invariant, [])
            kept += list(texts)[: EXAMPLES_MAX - len(kept)]

    def on_verdict(self, verdict: Verdict) -> None:
        """Note a verdict on a part of the history."""
        self.checked[verdict.invariant] += verdict.checked
        self.tell(verdict.invariant, verdict.examples, verdict.violations)

    def on_lost(self, rows: Rows, excused: int) -> None:
        """Note which acknowledged sends are missing, and how many more are excused."""
        left = EXAMPLES_MAX - len(self.lost)
        self.lost += zip(rows["stream"][:left].tolist(), rows["sequence"][:left].tolist(), strict=True)
        self.excused += excused

    def on_epochs(self, shard: int, rows: Rows) -> None:
        """Note acknowledged sends of a shard that name their epoch."""
        for epoch in np.unique(rows["epoch"]).tolist():
            mine = take(rows, rows["epoch"] == epoch)
            end, start = int(mine["end_ns"].min()), int(mine["start_ns"].max())
            known = self.epochs.get((shard, epoch), (end, start))
            self.epochs[shard, epoch] = (min(known[0], end), max(known[1], start))

    def on_sent(self, rows: Rows) -> None:
        """Note acknowledged sends."""
        self._on_taken(self.sends, rows["end_ns"] - rows["start_ns"], 0)
        _count(self.acknowledged, rows["end_ns"] // SECOND_NS)

    def on_received(self, rows: Rows) -> None:
        """Note deliveries."""
        _count(self.received, rows["end_ns"] // SECOND_NS)

    def on_delivered(self, taken_ns: Column) -> None:
        """Note how long messages took until somebody had them."""
        self._on_taken(self.deliveries, taken_ns, 1)

    def _on_taken(self, bins: Counter[int], taken_ns: Column, which: int) -> None:
        _count(bins, (np.log(np.maximum(taken_ns, 1)) * _BINS_PER_E).astype(np.int64))
        self.longest_ns[which] = max(self.longest_ns[which], int(taken_ns.max(initial=0)))

    def add(self, other: Tally) -> None:
        """Take in another part's."""
        self.checked += other.checked
        for name, count in other.wrong.items():
            self.tell(name, other.examples[name], count)
        self.excused += other.excused
        self.lost = (self.lost + other.lost)[:EXAMPLES_MAX]
        self.delivered_again += other.delivered_again
        self.again_examples = (self.again_examples + other.again_examples)[:EXAMPLES_MAX]
        for key, (end, start) in other.epochs.items():
            known = self.epochs.get(key, (end, start))
            self.epochs[key] = (min(known[0], end), max(known[1], start))
        self.sends += other.sends
        self.deliveries += other.deliveries
        self.longest_ns = [max(pair) for pair in zip(self.longest_ns, other.longest_ns, strict=True)]
        self.acknowledged += other.acknowledged
        self.received += other.received


def _count(counts: Counter[int], values: Column) -> None:
    found, times = np.unique(values, return_counts=True)
    counts.update(dict(zip(found.tolist(), times.tolist(), strict=True)))
