"""A job that writes batches to a topic as Spark would, without Spark: tasks, then commit, then a note of the batch.

``python -m tests.support.spark.sink_job DIRECTORY NAMESERVERS TOPIC GUARANTEE BATCHES PHASE`` goes on behind the last
noted batch, as another run of the same query, and dies by SIGKILL in the phase that is named, in its first
batch. Each batch has ``ROWS`` rows in two partitions, ``batch/row`` each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.pipeline.topics.cluster import cluster
from penstock.pipeline.topics.options import sink_options
from penstock.pipeline.topics.write import chunks, sink, writers
from penstock.pipeline.topics.write.sink import Identity
from penstock.pipeline.topics.write.task import Task

ROWS = 400
PARTITIONS = 2
BEFORE, AFTER = "before", "after"
CALLS = ("OpenWriter", "Decide", "Publish", "Finish")
PHASES = (
    "in-writing",
    "written",
    "after-OpenWriter",
    "before-Decide",
    "after-Decide",
    "before-Publish",
    "after-Publish",
    "before-Finish",
    "committed",
)


def rows_of(batch: int) -> list[bytes]:
    """The rows of a batch: the same whenever it is repeated."""
    return [b"%d/%d" % (batch, row) for row in range(ROWS)]


def started(directory: Path, name_server: str, *how: str) -> subprocess.Popen[str]:
    """The job in a process of its own; ``how``: topic, guarantee, batches, phase."""
    command = [sys.executable, "-m", "tests.support.spark.sink_job", str(directory), name_server, *how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def die() -> None:
    """As if somebody had pulled the plug."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm(phase: str) -> None:
    """Have this process die in ``phase``."""
    if phase == "in-writing":
        done: Any = chunks.Sender._done
        left = [3]

        def counting(self: Any, lane: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                die()
            done(self, lane)

        chunks.Sender._done = counting  # type: ignore[method-assign]
    when, _, method = phase.partition("-")
    if method in CALLS:
        call: Callable[..., Any] = writers.WriterCalls._call

        def dying(self: Any, broker: str, name: str, *request: Any) -> Any:
            if name == method and when == BEFORE:
                die()
            answer = call(self, broker, name, *request)
            if name == method:
                die()
            return answer

        writers.WriterCalls._call = dying  # type: ignore[method-assign]


def main() -> None:
    directory, name_server, topic, guarantee, batches, phase = sys.argv[1:]
    noted = Path(directory) / f"{topic}.committed"
    options = sink_options(
        {"nameServer": name_server, "topic": topic, "deliveryGuarantee": guarantee, "batchBytes": "2k"},
        streaming=True,
    )
    run = uuid.uuid4().hex
    arm(phase)
    for batch in range(int(noted.read_text()) + 1 if noted.exists() else 0, int(batches)):
        told = []
        for partition in range(PARTITIONS):
            rows = pa.RecordBatch.from_pydict({"body": rows_of(batch)[partition::PARTITIONS]})
            task = Task(cluster(name_server), options, Identity(f"query-{topic}", run, batch, partition))
            told.append(task.run([rows]))
        if phase == "written":
            die()
        sink._commit(options, told, batch)
        if phase == "committed":
            die()
        fresh = noted.with_suffix(".tmp")
        fresh.write_text(str(batch))
        fresh.replace(noted)
        print(batch, flush=True)


if __name__ == "__main__":
    main()
