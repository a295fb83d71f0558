"""From slices of queues to Spark's partitions, decided from the data alone: planners do not see the cluster.

A task costs ten to forty milliseconds, so small queues share one; large slices are cut, so that several cores read
them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from ..offsets import Queue, Slice

TASKS = 8
SMALL_BYTES, LARGE_BYTES = 16 << 20, 128 << 20
"""Without a target: some tasks for a cluster to share, none of which is so small that its start is what it costs, nor
so large that its repetition hurts."""
RECORD_BYTES_GUESSED = 1024


def plan(
    wanted: Sequence[Slice],
    mean_bytes: Mapping[Queue, int],
    *,
    target_bytes: int | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> list[list[Slice]]:
    """The slices in groups of about ``target_bytes``, each group one partition; order within a queue is kept.

    Without a target: an eighth of all, 16 MiB at least and 128 MiB at most. ``at_least`` makes the groups smaller and
    ``at_most`` larger. Every message is in exactly one group.
    """
    slices = [each for each in wanted if each.end > each.start]
    if not slices:
        return []
    size = {each: (each.end - each.start) * _mean(each, mean_bytes) for each in slices}
    total = sum(size.values())
    target_bytes = target_bytes or min(LARGE_BYTES, max(SMALL_BYTES, total // TASKS))
    if at_least is not None:
        target_bytes = min(target_bytes, max(1, total // at_least))
    if at_most is not None:
        target_bytes = max(target_bytes, -(-total // at_most))
    pieces = [piece for each in slices for piece in _cut(each, _mean(each, mean_bytes), target_bytes)]
    groups = _pack(pieces, mean_bytes, target_bytes)
    while at_most is not None and len(groups) > at_most:
        groups = [*groups[: at_most - 1], [piece for group in groups[at_most - 1 :] for piece in group]]
    return groups


def share(wanted: Sequence[Slice], count: int) -> list[list[Slice]]:
    """The slices in ``count`` groups of as many messages each, or in fewer where there are not so many messages.

    Nothing but the two arguments decides, so a batch that is planned again has the same groups.
    """
    slices = sorted((each for each in wanted if each.end > each.start), key=_place)
    total = sum(each.end - each.start for each in slices)
    count = min(count, total)
    groups: list[list[Slice]] = [[] for _ in range(count)]
    taken = 0
    for each in slices:
        start = each.start
        while start < each.end:
            number = ((taken + 1) * count - 1) // total  # the group of the next message
            room = (number + 1) * total // count - taken
            end = min(each.end, start + room)
            groups[number].append(Slice(each.queue, start, end))
            taken += end - start
            start = end
    return groups


def _place(each: Slice) -> tuple[str, str, int, int]:
    """Neighbours are of one broker more often than not."""
    return each.queue.broker, each.queue.topic, each.queue.queue_id, each.start


def _mean(each: Slice, mean_bytes: Mapping[Queue, int]) -> int:
    return max(1, mean_bytes.get(each.queue) or RECORD_BYTES_GUESSED)


def _cut(each: Slice, mean: int, target_bytes: int) -> list[Slice]:
    """Equal pieces of at most about the target; a piece is never empty."""
    count = each.end - each.start
    parts = min(count, max(1, -(-count * mean // target_bytes)))
    bounds = [each.start + count * number // parts for number in range(parts + 1)]
    return [Slice(each.queue, start, end) for start, end in itertools.pairwise(bounds)]


def _pack(pieces: list[Slice], mean_bytes: Mapping[Queue, int], target_bytes: int) -> list[list[Slice]]:
    """Neighbours together while they fit."""
    groups: list[list[Slice]] = []
    room = 0
    for piece in sorted(pieces, key=_place):
        cost = (piece.end - piece.start) * _mean(piece, mean_bytes)
        if not groups or cost > room:
            groups.append([])
            room = target_bytes
        groups[-1].append(piece)
        room -= cost
    return groups
