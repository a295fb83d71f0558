"""More shards, and more replicas of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..rig import Bench, Rig
from ..runner import Figures

SIZE = 1024
UNITS = {"processor time": "µs a message", "send": "ms"}


def shards(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """One producer and so many broker groups."""
    for size in sizes:
        with rig.cluster(shards=size) as bench:
            yield _cost(bench)


def replicas(rig: Rig, sizes: Sequence[int]) -> Iterator[Figures]:
    """One broker group of so many members, all of which have what is acknowledged."""
    for size in sizes:
        # A master alone acknowledges what it has; otherwise all members must have it.
        with rig.cluster(replicas=size, mode="sync" if size > 1 else "async", inSyncReplicas=str(size)) as bench:
            yield _cost(bench)


def _cost(bench: Bench) -> Figures:
    """Of all processes for a message of 1 KiB, and what one acknowledged send takes, the median.

    Machines have fewer processors than clusters have processes: time of processors tells more than a rate.
    """
    rate = bench.rate(bench.plan("produce", style="produce", size=SIZE))
    busy = sum(bench.rig.costs[-1].cpu_share.values())
    latency = bench.run(bench.plan("produce", style="sync", size=SIZE)).latency_ms
    return {"processor time": busy / rate * 1e6, "send": float(latency["p50"] or 0.0)}
