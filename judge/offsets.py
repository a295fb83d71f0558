"""I5, I6 and I8: offsets and progress."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .conditions import Conditions
from .history import Events, History, Op, Outcome
from .identity import first_of_each, places, queue_numbers
from .messages import undelivered
from .verdict import EXAMPLES_MAX, Verdict, not_judged, verdict

RETURN_NS = 2_000_000_000
"""How long after a heal a slave may still answer in its master's place."""


def offsets(history: History, conditions: Conditions) -> Verdict:
    """I5: a queue has no gaps; its ends, and the group's committed offset, never go back.

    While something is broken, a slave may answer that has not heard yet how far all is confirmed: then the end may be
    behind for that time, if it comes back. The committed offset may go back at a change of master, to what was
    committed one commit interval before it, or before the master was cut off; that is what a slave has at least. It
    never returns to the beginning.
    """
    read = history.of(Op.READ)
    read = read[np.argsort(places(read), kind="stable")]
    read = read[first_of_each(places(read))]
    problems = [f"{history.place_name(event)} follows offset {before}" for event, before in _gaps(read)]
    looks = history.of(Op.POSITION)
    for queue in np.unique(queue_numbers(looks)).tolist():
        mine = looks[queue_numbers(looks) == queue]
        problems += _went_back(history, mine[np.argsort(mine["end_ns"], kind="stable")], conditions)
    return verdict("I5", len(read) + len(looks), problems)


def _is_broken(at_ns: int, conditions: Conditions) -> bool:
    """Whether that was in a fault, or so shortly after it that clients may not have turned back yet."""
    return any(each.start_ns <= at_ns < each.end_ns + RETURN_NS for each in conditions.windows)


def _gaps(read: Events) -> list[tuple[np.void, int]]:
    if len(read) < 2:
        return []
    queues = queue_numbers(read)
    wrong = np.flatnonzero((queues[1:] == queues[:-1]) & (read["offset"][1:] != read["offset"][:-1] + 1))
    return [(read[index + 1], int(read["offset"][index])) for index in wrong.tolist()]


def _went_back(history: History, looks: Events, conditions: Conditions) -> list[str]:
    """``looks``: of one queue, by time."""
    queue = f"{history.shards[int(looks['shard'][0])]} queue {looks['queue'][0]}"
    problems = []
    replicated = conditions.mode in ("sync", "durable")
    for name, field in (("min", "sequence"), ("max", "position")):
        if not replicated and name == "max":
            continue  # what was lost at a failover, as the mode allows, was seen before
        values = looks[field]
        for index in np.flatnonzero(values[1:] < values[:-1]).tolist():
            returns = name == "max" and values[-1] >= values[index]
            if not (returns and _is_broken(int(looks["end_ns"][index + 1]), conditions)):
                problems.append(f"{queue}: the {name} offset went back from {values[index]} to {values[index + 1]}")
    committed = looks["offset"]
    highest = np.maximum.accumulate(committed)
    for index in np.flatnonzero(committed[1:] < committed[:-1]).tolist():
        shard = history.shards[int(looks["shard"][0])]
        seen_ns = _last_shared(int(looks["end_ns"][index]), shard, conditions)
        then = seen_ns - conditions.commit_interval_ms * 1_000_000
        settled = int(np.searchsorted(looks["end_ns"], then, side="right"))
        floor = int(highest[settled - 1]) if settled else -1
        if committed[index + 1] < floor or (committed[index + 1] <= 0 and floor > 0):
            problems.append(
                f"{queue}: the committed offset went back from {committed[index]} to {committed[index + 1]}; "
                f"{floor} was committed {conditions.commit_interval_ms} ms before"
            )
    return problems


def _last_shared(at_ns: int, shard: str, conditions: Conditions) -> int:
    """That time, or the begin of a partition that it lies in: a master cut off goes on telling what it took last."""
    cut_off = (
        each.start_ns
        for each in conditions.windows
        if each.start_ns <= at_ns < each.end_ns + RETURN_NS
        and each.target.startswith(shard)
        and each.what.startswith(("partition", "lost on the way"))
    )
    return min(cut_off, default=at_ns)


def progress(history: History, conditions: Conditions) -> Verdict:
    """I6: after the heal everything serves, the group reaches the end, and it has received whatever is there."""
    problems = list(conditions.unsettled)
    if conditions.settled_s is None and not problems:
        problems.append("the cluster did not settle")
    elif conditions.settled_s is not None and conditions.settled_s > conditions.settle_limit_s:
        problems.append(f"settled {conditions.settled_s:.1f} s after the heal, at most {conditions.settle_limit_s:.0f}")
    left = undelivered(history)
    problems += [
        f"message {event['stream']}.{event['sequence']} at {history.place_name(event)} was never delivered"
        for event in left[:EXAMPLES_MAX]
    ]
    count = len(problems) - min(len(left), EXAMPLES_MAX) + len(left)
    note = "" if conditions.settled_s is None else f"settled {conditions.settled_s:.1f} s after the heal"
    return verdict("I6", len(history.sends(Outcome.OK)), problems, count=count, note=note)


@dataclass(frozen=True, slots=True)
class Outage:
    """How long a shard acknowledged nothing: the longest time, when it began, and the sum of times above 0.5 s."""

    shard: str
    longest_ms: float
    began_ns: int
    sum_ms: float


LONG_NS = 500_000_000


def outages(history: History, start_ns: int, end_ns: int) -> list[Outage]:
    """Per shard, between the last acknowledgement before ``start_ns`` and the first one after ``end_ns``."""
    found = []
    sent = history.sends(Outcome.OK)
    for number, name in enumerate(history.shards):
        ends = np.sort(sent["end_ns"][sent["shard"] == number])
        first = max(int(np.searchsorted(ends, start_ns)) - 1, 0)
        last = int(np.searchsorted(ends, end_ns, side="right"))
        ends = ends[first : last + 1]
        if not len(ends):
            found.append(Outage(name, (end_ns - start_ns) / 1e6, start_ns, (end_ns - start_ns) / 1e6))
            continue
        edges = np.concatenate([ends, [max(int(ends[-1]), end_ns)]])
        gaps = np.diff(edges)
        worst = int(np.argmax(gaps))
        long = float(gaps[gaps > LONG_NS].sum()) / 1e6
        found.append(Outage(name, float(gaps[worst]) / 1e6, int(edges[worst]), long))
    return found


def recovery(history: History, conditions: Conditions) -> Verdict:
    """I8: no shard acknowledges nothing for longer than the drill allows."""
    found = outages(history, conditions.fault_start_ns, conditions.fault_end_ns)
    told = ", ".join(f"{each.shard} {each.longest_ms:,.0f} ms" for each in found)
    if conditions.recovery_limit_ms is None:
        why = conditions.recovery_why or "the drill sets no limit"
        return not_judged("I8", f"{why}; longest time without an acknowledgement: {told}")
    limit = conditions.recovery_limit_ms
    problems = [
        f"{each.shard} acknowledged nothing for {each.longest_ms:,.0f} ms, at most {limit:,} are allowed"
        for each in found
        if each.longest_ms > limit
    ]
    return verdict("I8", len(found), problems, note=f"longest time without an acknowledgement: {told}")
