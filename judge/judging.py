"""From whole queues and stretches to a tally, and from the tally of a whole history to what only the sum shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from .conditions import Conditions
from .history import EVENT, History, Op, Outcome
from .invariants.orderly import one_at_a_time
from .invariants.promises import later, returns, transactions
from .pieces import PROMISES, QUEUE, STRETCH, Column, Group, Rows
from .queues import Queue
from .stretches import Stretch
from .tally import EXAMPLES_MAX, Tally, message_name, shard_name


def judge_groups(
    found: Iterable[Group], shards: Sequence[str], conditions: Conditions, clients: Mapping[int, str] | None = None
) -> Tally:
    """What whole queues and stretches show. ``clients``: the names by which examples tell of them."""
    tally = Tally()
    for kind, a, b, rows in found:
        if kind == QUEUE:
            Queue(a, b, shard_name(shards, a), rows, conditions).judge(tally)
        elif kind == STRETCH:
            Stretch(a, rows, shards, conditions).judge(tally)
        else:
            history = History(_events(rows), tuple(shards), dict(clients or {}))
            for judge in (returns, transactions, later) if kind == PROMISES else (one_at_a_time,):
                tally.on_verdict(judge(history, conditions))
    return tally


def _events(rows: Rows) -> Column:
    """Whole rows, which were taken apart into columns."""
    events = np.empty(len(rows["op"]), EVENT)
    for name in EVENT.names or ():
        events[name] = rows[name]
    return events


def settle(total: Tally, conditions: Conditions, *, reads_due: bool = True) -> None:
    """Add what only the sum shows.

    I1: nothing was read at all; not judged unless somebody was to read, ``reads_due``. I7: of what was delivered again,
    only what the faults do not explain counts. I20: where nobody was a simple consumer, nothing is missing.
    """
    if not was_read(total) and total.checked["I1"]:
        total.wrong["I1"], total.examples["I1"] = total.checked["I1"], ["nothing was read at the end"]
        if not reads_due:
            for counts in (total.checked, total.wrong, total.examples):
                counts.pop("I1")
    if not total.checked["I20"]:
        total.wrong.pop("I20", None)
        total.examples.pop("I20", None)
    surplus = max(total.delivered_again - conditions.duplicates_allowed, 0)
    total.tell("I7", total.again_examples[:surplus], surplus)


def was_read(total: Tally) -> bool:
    """True if somebody read what is there at the end."""
    return bool(total.checked["I5"])


def epoch_limits(total: Tally) -> dict[tuple[int, int], tuple[int, int]]:
    """The epochs of shards that break I9: a send began behind an acknowledgement in a later epoch.

    By shard and epoch: when the first such acknowledgement was, and in which epoch.
    """
    limits = {}
    for (shard, epoch), (_, last_start) in total.epochs.items():
        later = [(end, each) for (other, each), (end, _) in total.epochs.items() if other == shard and each > epoch]
        if later and last_start > min(later)[0]:
            limits[shard, epoch] = min(later)
    return limits


def judge_epochs(events: Column, limits: Mapping[tuple[int, int], tuple[int, int]], shards: Sequence[str]) -> Tally:
    """I9 in some rows, where :func:`epoch_limits` says that it is broken."""
    sent = events[(events["op"] == Op.SEND) & (events["outcome"] == Outcome.OK)]
    tally = Tally()
    for (shard, epoch), (limit, following) in limits.items():
        late = sent[(sent["shard"] == shard) & (sent["epoch"] == epoch) & (sent["start_ns"] > limit)]
        texts = []
        for row in late[:EXAMPLES_MAX]:
            name = message_name(row["stream"], row["sequence"], shard_name(shards, shard), row["queue"], row["offset"])
            texts.append(f"{name} was acknowledged in epoch {epoch} after epoch {following} had begun")
        tally.tell("I9", texts, len(late))
    return tally
