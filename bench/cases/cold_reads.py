"""What a consumer that reads from the disk, far behind, does to the latency of sends."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from ..load.load import run_load
from ..load.worker import repeating
from ..rig import Rig

BEHIND_BYTES = 20 << 30
SIZE = 1024
_SECONDS = 20.0
_NAP_S = 0.005


def cold_reads(rig: Rig) -> dict[str, float]:
    """p99 in milliseconds of single sends, alone and while a consumer reads ``BEHIND_BYTES`` behind; what that adds.

    The broker is started anew and the page cache of its files dropped first. The consumer's rate is for the time of
    the sends; both together show whether the disk was what it read from. ``late_p99`` is how late a thread of this
    process wakes up meanwhile that does nothing but sleep: about what the machine itself adds to whoever waits.
    """
    with rig.cluster() as bench:
        bench.prepare(bench.plan("produce", style="columnar", size=SIZE, count=BEHIND_BYTES // SIZE))
        bench.cluster.down(timeout_s=60.0)
        _forget(bench.cluster.directory)
        bench.cluster.up()
        sends = bench.plan("produce", style="sync", size=SIZE, seconds=_SECONDS)
        bench.warm(sends)
        alone = bench.run(sends)
        reads = bench.plan("consume", consume_style="arrays", size=SIZE, seconds=_SECONDS + 2.0)
        with ThreadPoolExecutor(1, "bench-cold-reader") as reader, sleeping() as late_ms:
            reading = reader.submit(run_load, reads)
            behind = bench.run(sends)
        p99_alone, p99 = (float(report.latency_ms["p99"] or 0.0) for report in (alone, behind))
        return {
            "added": p99 - p99_alone,
            "p99_alone": p99_alone,
            "p99": p99,
            "max": float(behind.latency_ms["max"] or 0.0),
            "late_p99": float(np.percentile(late_ms, 99)),
            "late_max": max(late_ms),
            "read_rate": reading.result().bytes_per_s / 1e6,
        }


@contextlib.contextmanager
def sleeping() -> Iterator[list[float]]:
    """By how many milliseconds a thread that sleeps five at a time wakes up late, during the ``with`` block."""
    late_ms: list[float] = []

    def sleep() -> None:
        began = time.monotonic()
        time.sleep(_NAP_S)
        late_ms.append((time.monotonic() - began - _NAP_S) * 1000)

    with repeating(sleep, 0.0):
        yield late_ms


def _forget(directory: Path) -> None:
    """Take the files below ``directory`` out of the page cache; no process maps them."""
    os.sync()  # a page that is not written out yet stays
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
