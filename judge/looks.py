"""What is wrong with the ends and the committed offset of a queue, as somebody who looked again and again saw them.

While something is broken, a slave may answer that has not heard yet how far all is confirmed: then the maximum may be
behind for that time, if it comes back. The committed offset may go back at a change of master, to what was committed
one commit interval before it, or before the master was cut off or lost the slaves that it needs to acknowledge; that is
what a slave has at least. It never returns to the beginning.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

import numpy as np

from .conditions import RETURN_NS, Conditions

SILENT_NS = 500_000_000
"""Two acknowledgements of a queue that takes messages, and commits, are not further apart."""


def went_back(
    looks: Sequence[tuple[int, int, int, int]], conditions: Conditions, shard: str, acknowledged: Sequence[int] = ()
) -> list[str]:
    """What is wrong with ``looks`` at one queue of ``shard``: (time, minimum, maximum, committed), by time.

    ``acknowledged``: when sends to the queue were, ascending; none: at all times.
    """
    if len(looks) < 2:
        return []
    times, lowest, highest, committed = (np.array(column, np.int64) for column in zip(*looks, strict=True))
    found = [
        f"the min offset went back from {lowest[at]} to {lowest[at + 1]}"
        for at in np.flatnonzero(lowest[1:] < lowest[:-1]).tolist()
    ]
    if conditions.is_replicated:  # in other modes, what was lost at a failover was seen before
        for at in np.flatnonzero(highest[1:] < highest[:-1]).tolist():
            returns = highest[-1] >= highest[at] and conditions.is_broken(int(times[at + 1]))
            if not returns:
                found.append(f"the max offset went back from {highest[at]} to {highest[at + 1]}")
    peaks = np.maximum.accumulate(committed)
    interval_ns = conditions.commit_interval_ms * 1_000_000
    for at in np.flatnonzero(committed[1:] < committed[:-1]).tolist():
        shared_ns = _last_shared(int(times[at]), conditions, shard, acknowledged)
        settled = int(np.searchsorted(times, shared_ns - interval_ns, side="right"))
        floor = int(peaks[settled - 1]) if settled else -1
        if committed[at + 1] < floor or (committed[at + 1] <= 0 and floor > 0):
            found.append(
                f"the committed offset went back from {committed[at]} to {committed[at + 1]}; {floor} was committed "
                f"{conditions.commit_interval_ms} ms before"
            )
    return found


def _last_shared(at_ns: int, conditions: Conditions, shard: str, acknowledged: Sequence[int]) -> int:
    """That time, or the begin of a partition that it lies in: a master cut off goes on telling what it took last.

    So does one without slaves, which acknowledges nothing.
    """
    cut_off = [
        window.start_ns
        for window in conditions.windows
        if window.start_ns <= at_ns < window.end_ns + RETURN_NS
        and window.target.startswith(shard)
        and window.what.startswith(("partition", "lost on the way"))
    ]
    before = bisect.bisect_right(acknowledged, at_ns)
    return min([*cut_off, acknowledged[before - 1] + SILENT_NS if before else at_ns, at_ns])
