"""A figure over a generated history of a drill: what the job audit judges per second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from penstock.judge.history import EVENT, NO_KEY, SUFFIX, Op, Outcome, Recorder
from penstock.pipeline.jobs import audit

from ..rig import Rig
from ..runner import Turns
from .turns import bench_session, per_second, turns_of

MESSAGES = 1 << 21
STREAMS, QUEUES, STEP_NS = 8, 8, 10_000


def turns(rig: Rig) -> Turns:
    """Judging a history in which nothing is wrong."""
    with rig.folder() as folder, bench_session() as spark:
        generate(folder / "history", MESSAGES)
        yield from turns_of(rig, {"audit": per_second(MESSAGES, lambda: _judge(spark, folder / "history"))})


def _judge(spark: Any, history: Path) -> None:
    report = audit.run(spark, audit.Config(history=str(history)))
    assert report.ok, report.problems[:3]


def generate(folder: Path, messages: int) -> None:
    """Each message sent, delivered once and read once."""
    folder.mkdir(parents=True)
    numbers = np.arange(messages, dtype=np.int64)
    rows = np.zeros(messages, EVENT)
    rows["sequence"], rows["stream"] = numbers // STREAMS, numbers % STREAMS
    rows["queue"], rows["offset"] = numbers % QUEUES, numbers // QUEUES
    rows["position"], rows["key"], rows["epoch"] = numbers * 1177, NO_KEY, 1
    rows["start_ns"], rows["end_ns"] = numbers * STEP_NS, numbers * STEP_NS + STEP_NS // 2
    first = np.zeros(STREAMS, EVENT)
    first["stream"], first["offset"], first["op"], first["key"] = np.arange(STREAMS), messages, Op.INVOKE, NO_KEY
    for client, (op, delay_ns) in enumerate(((Op.SEND, 0), (Op.RECEIVE, 5_000_000), (Op.READ, 3_600_000_000_000))):
        recorder = Recorder(folder / f"client-{client}{SUFFIX}", client, f"client-{client}", ["broker-a"])
        if op == Op.SEND:
            recorder.add_all(first)
        rows["op"], rows["outcome"] = op, Outcome.OK
        moved = rows.copy()
        moved["start_ns"] += delay_ns
        moved["end_ns"] += delay_ns
        recorder.add_all(moved)
        recorder.close()
