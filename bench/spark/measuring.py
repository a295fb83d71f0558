"""Timing one case, with the memory of what it starts, and keeping its line at once."""

from __future__ import annotations

import json
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from ..rig import processor

SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class Case:
    """One figure. ``run`` does the work once; ``rows`` and ``log_bytes`` say how much that is.

    ``value``: the figure in ``unit`` of what ``run`` answered, where it is not the rows over the time of all of it.
    """

    name: str
    body_bytes: int
    rows: int
    log_bytes: int
    run: Callable[[], Any]
    target: float | None = None
    prepare: Callable[[], object] = field(default=lambda: None)
    value: Callable[[Any], float] | None = None
    unit: str = "rows/s"


@dataclass(frozen=True, slots=True)
class Peer:
    """The same messages as plain Parquet, which Spark scans beside a case: how fast this machine is just now."""

    rows: int
    scan: Callable[[], Any]


class Memory:
    """The largest resident memory in MiB, of Java and of one Python process that Java started.

    Brokers beside them are left out: the pages of the log that they map count as resident, and are the page cache's.
    """

    def __init__(self) -> None:
        self.java = self.python = self.python_sum = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            with suppress(psutil.NoSuchProcess):  # one that ended while it was looked at: the next sample will do
                self._sample()

    def _sample(self) -> None:
        for process in psutil.Process().children(recursive=True):
            if process.name() != "java":
                continue
            workers = [_resident_mib(each) for each in process.children(recursive=True)]
            self.java = max(self.java, _resident_mib(process))
            self.python = max(self.python, *workers, 0.0)
            self.python_sum = max(self.python_sum, sum(workers))


def _resident_mib(process: psutil.Process) -> float:
    return process.memory_info().rss / (1 << 20)


def measure(
    case: Case, *, repeats: int, warm_ups: int, say: Callable[[str], None], peer: Peer | None = None
) -> dict[str, Any]:
    """Run a case some times, in turn with its peer; the median of both, every time, and the highest memory."""
    times, values, peers = [], [], []
    load = os.getloadavg()[0]
    with Memory() as memory:
        for turn in range(-warm_ups, repeats):
            if peer is not None:
                began = time.perf_counter()
                peer.scan()
                peers.append(peer.rows / (time.perf_counter() - began))
            case.prepare()
            began = time.perf_counter()
            answer = case.run()
            seconds = time.perf_counter() - began
            if turn >= 0:
                times.append(seconds)
                values.append(case.value(answer) if case.value else case.rows / seconds)
            say(f"{case.name} {case.body_bytes} B: {'warm-up' if turn < 0 else f'turn {turn + 1}'} {seconds:.1f} s")
    figure = statistics.median(values)
    at_least = case.unit == "rows/s"
    reached = None
    if case.target is not None:
        reached = figure >= 0.8 * case.target if at_least else figure <= case.target / 0.8
    seconds = statistics.median(times)
    return {
        "case": case.name,
        "body_bytes": case.body_bytes,
        "records": case.rows,
        "log_bytes": case.log_bytes,
        "seconds": round(seconds, 2),
        "times": [round(each, 2) for each in times],
        "figure": round(figure, 1),
        "unit": case.unit,
        "mb_per_s": round(case.log_bytes / seconds / 1e6),
        "target": case.target,
        "peer": round(statistics.median(peers[warm_ups:])) if peer is not None else None,
        "reached": reached,
        "java_peak_mib": round(memory.java),
        "worker_peak_mib": round(memory.python),
        "python_peak_mib": round(memory.python_sum),
        "load_before": round(load, 2),
    }


def keep(result: dict[str, Any], out: Path, master: str) -> None:
    """Append the result's line, with what it was measured on."""
    surroundings = {
        "processor": processor(),
        "cpus": os.cpu_count(),
        "master": master,
        "python": platform.python_version(),
        "spark": metadata.version("pyspark"),
        "pyarrow": metadata.version("pyarrow"),
        "at": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    path = out / "results" / "spark.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(result | surroundings) + "\n")
