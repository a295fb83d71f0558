"""I4 and I9: what happened before what."""

from __future__ import annotations

import itertools

import numpy as np

from .history import NO_KEY, Events, History, Op, Outcome
from .identity import Numbers, first_of_each, places, queue_numbers
from .verdict import EXAMPLES_MAX, Verdict, verdict

_NEVER = np.iinfo(np.int64).max


def order(history: History) -> Verdict:
    """I4: in time, by key, and in delivery.

    - A acknowledged before B was sent, to the same queue: A lies before B.
    - Messages of one stream and key, in one queue: they lie as they were sent. (A key moves to another queue while its
      broker group has no master; between queues there is no order.)
    - What a queue delivers for the first time comes in the order of its offsets.
    """
    sent = history.sends(Outcome.OK)
    early, late = _acknowledged_too_late(sent), _keys_out_of_order(sent)
    swapped = _delivered_out_of_order(history.of(Op.RECEIVE))
    problems = [
        *(f"{_at(history, event)} was sent after one behind it was acknowledged" for event in early[:EXAMPLES_MAX]),
        *(f"{_at(history, event)} lies behind a later one of its key" for event in late[:EXAMPLES_MAX]),
        *(f"{_at(history, event)} was delivered after one behind it" for event in swapped[:EXAMPLES_MAX]),
    ]
    count = len(early) + len(late) + len(swapped)
    return verdict("I4", len(sent), problems, count=count)


def _at(history: History, event: np.void) -> str:
    return f"message {event['stream']}.{event['sequence']} at {history.place_name(event)}"


def _acknowledged_too_late(sent: Events) -> Events:
    """Messages that were sent when one at a larger offset of their queue was acknowledged already."""
    ordered = sent[np.argsort(places(sent), kind="stable")]
    if not len(ordered):
        return ordered
    queues = queue_numbers(ordered)
    earliest = np.full(len(ordered), _NEVER, dtype=np.int64)  # acknowledgement of any message behind this one
    for start, end in _runs(queues):
        ends = ordered["end_ns"][start:end]
        suffix = np.minimum.accumulate(ends[::-1])[::-1]
        earliest[start : end - 1] = suffix[1:]
    late: Events = ordered[earliest < ordered["start_ns"]]
    return late


def _keys_out_of_order(sent: Events) -> Events:
    keyed = sent[sent["key"] != NO_KEY]
    by_place = np.lexsort((keyed["offset"], keyed["key"], keyed["stream"], queue_numbers(keyed)))
    keyed = keyed[by_place]
    queues = queue_numbers(keyed)
    together = (queues[1:] == queues[:-1]) & (keyed["stream"][1:] == keyed["stream"][:-1])
    together &= keyed["key"][1:] == keyed["key"][:-1]
    late: Events = keyed[1:][together & (keyed["sequence"][1:] < keyed["sequence"][:-1])]
    return late


def _delivered_out_of_order(received: Events) -> Events:
    by_time = received[np.argsort(received["end_ns"], kind="stable")]  # stable: a poll's messages stay in their order
    first = by_time[first_of_each(places(by_time))]
    by_queue = first[np.argsort(queue_numbers(first), kind="stable")]
    queues = queue_numbers(by_queue)
    backwards = (queues[1:] == queues[:-1]) & (by_queue["offset"][1:] < by_queue["offset"][:-1])
    late: Events = by_queue[1:][backwards]
    return late


def _runs(numbers: Numbers) -> list[tuple[int, int]]:
    """``[start, end)`` of each stretch of equal numbers."""
    borders = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    edges = [0, *borders.tolist(), len(numbers)]
    return list(itertools.pairwise(edges))


def one_writer(history: History) -> Verdict:
    """I9: when A was acknowledged before B was sent, to the same shard, B's epoch is not below A's."""
    sent = history.sends(Outcome.OK)
    sent = sent[sent["epoch"] > 0]
    problems: list[str] = []
    count = 0
    for shard in np.unique(sent["shard"]).tolist():
        mine = sent[sent["shard"] == shard]
        by_end = mine[np.argsort(mine["end_ns"], kind="stable")]
        highest = np.maximum.accumulate(by_end["epoch"])
        before = np.searchsorted(by_end["end_ns"], mine["start_ns"], side="left")
        known = np.where(before > 0, highest[np.maximum(before - 1, 0)], 0)
        wrong = mine[mine["epoch"] < known]
        count += len(wrong)
        problems += [
            f"{_at(history, event)} was acknowledged in epoch {event['epoch']} after epoch {seen} had begun"
            for event, seen in zip(wrong[:EXAMPLES_MAX], known[mine["epoch"] < known], strict=False)
        ]
    return verdict("I9", len(sent), problems, count=count, note=_epochs_seen(history, sent))


def _epochs_seen(history: History, sent: Events) -> str:
    told = []
    for shard in np.unique(sent["shard"]).tolist():
        epochs = np.unique(sent["epoch"][sent["shard"] == shard]).tolist()
        told.append(f"{history.shards[shard]} {', '.join(map(str, epochs))}")
    return f"epochs that acknowledged: {'; '.join(told)}" if told else ""
