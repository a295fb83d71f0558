"""I6 and I8: everything goes on after the heal, and soon enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..conditions import Conditions
from ..history import History, Outcome
from ..verdict import EXAMPLES_MAX, Verdict, not_judged, verdict
from .messages import undelivered


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
    if conditions.able_limit_ms is not None:
        return _able(history, conditions, conditions.able_limit_ms)
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


def able_gaps_ms(history: History, conditions: Conditions) -> list[float]:
    """For each time in which a shard could have acknowledged, how long it acknowledged nothing within it."""
    sent = history.sends(Outcome.OK)
    ends = {name: np.sort(sent["end_ns"][sent["shard"] == number]) for number, name in enumerate(history.shards)}
    found = []
    for each in conditions.able:
        mine = ends.get(each.target, np.empty(0, np.int64))
        inside = mine[np.searchsorted(mine, each.start_ns) : np.searchsorted(mine, each.end_ns, side="right")]
        found.append(float(np.diff(np.concatenate([[each.start_ns], inside, [each.end_ns]])).max()) / 1e6)
    return found


def _able(history: History, conditions: Conditions, limit_ms: int) -> Verdict:
    """The same of the times alone in which a shard could have acknowledged."""
    gaps_ms = able_gaps_ms(history, conditions)
    problems = [
        f"{each.target} acknowledged nothing for {gap_ms:,.0f} ms while it could, from "
        f"{(each.start_ns - conditions.began_ns) / 1e9:.1f} s on: at most {limit_ms:,} are allowed"
        for each, gap_ms in zip(conditions.able, gaps_ms, strict=True)
        if gap_ms > limit_ms
    ]
    judged_s = sum(each.end_ns - each.start_ns for each in conditions.able) / 1e9
    note = (
        f"longest time without an acknowledgement while enough brokers were ready: {max(gaps_ms, default=0):,.0f} ms, "
        f"in {judged_s:,.0f} s of all shards"
    )
    return verdict("I8", len(gaps_ms), problems, note=note)
