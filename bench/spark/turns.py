"""What a turn of a Spark case consists of: figures, each in turn with its peer, and the memory that it took."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import psutil

from penstock.pipeline.spark.sessions import session

from ..load.worker import repeating
from ..rig import Rig
from ..runner import RATIO, Figures, Turns

SAMPLE_S = 0.2
WARM_UPS = 3
"""Turns that count for nothing: Java compiles what is run often."""
GIB = 0.5
"""Size of each generated store and topic."""
RECORD_BYTES = 177
"""Of a generated record besides its body."""
MASTER = "local[2]"
CONF = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}

Run = Callable[[], float]
"""Does the work once; its figure."""


class Peer(NamedTuple):
    """What a figure is a share of."""

    name: str
    run: Run


@contextlib.contextmanager
def bench_session() -> Iterator[Any]:
    """A Spark session for the ``with`` block."""
    spark = session("penstock bench", master=MASTER, conf=CONF)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


def records_of(body: int, gib: float = GIB) -> int:
    """How many messages of so many bytes a store of that size has."""
    return int(gib * (1 << 30) / (body + RECORD_BYTES))


def per_second(rows: int, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> Run:
    """Rows per second of ``work``; ``prepare`` comes before it and does not count."""

    def run() -> float:
        prepare()
        began = time.perf_counter()
        work()
        return rows / (time.perf_counter() - began)

    return run


def turns_of(
    rig: Rig, runs: Mapping[str, Run], *, peers: Mapping[str, Peer] | None = None, warm_ups: int = WARM_UPS
) -> Turns:
    """Turns of all ``runs``, behind warm-ups. The peer of a figure runs right before it and gives its share of it."""
    for turn in itertools.count(-warm_ups):
        figures: Figures = {}
        memory = Memory()
        with repeating(memory.sample, SAMPLE_S):
            for name, run in runs.items():
                rig.progress(f"{name}: {'warm-up' if turn < 0 else f'turn {turn + 1}'}")
                peer = (peers or {}).get(name)
                beside = peer.run() if peer else 0.0
                figures[name] = run()
                if peer:
                    figures[f"{name}{RATIO}{peer.name}"] = figures[name] / beside
        if turn >= 0:
            yield figures | {"java": memory.java, "worker": memory.python}


class Memory:
    """The largest resident memory in MiB, of Java and of one Python process that Java started.

    Brokers beside them are left out: the pages of the log that they map count as resident, and are the page cache's.
    """

    java = python = 0.0

    def sample(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended while it was looked at: the next sample will do
            for process in psutil.Process().children(recursive=True):
                if process.name() == "java":
                    self.java = max(self.java, _resident_mib(process))
                    self.python = max([self.python, *map(_resident_mib, process.children(recursive=True))])


def _resident_mib(process: psutil.Process) -> float:
    return process.memory_info().rss / (1 << 20)
