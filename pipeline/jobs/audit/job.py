"""The job: from the files of a history to one verdict per invariant.

| Id | Holds when |
|---|---|
| I1 | each acknowledged send is read at its place at the end (in modes without replicas, all but a suffix at a fault) |
| I2 | what was read was sent in this run, and not refused |
| I3 | a place (broker, queue, offset) holds one message, for all readers and times |
| I4 | order: in real time, per key, and of first deliveries |
| I5 | queue offsets have no gaps; minimum, maximum and committed offset do not go back |
| I7 | nothing is stored twice; delivered again is at most what the faults explain |
| I9 | epochs of acknowledged sends of a shard never decrease in real time |

The drill's own checker judges the same in one process; tests keep the two in agreement. With ``store``, acknowledged
sends that I1 misses are looked for in the data directories: "not on disk" and "on disk, not read" are two defects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.proto.record.layout import CRC_MASK

from ...workers import keep_loaded
from ..config import setting
from ..history import (
    READ,
    RECEIVE,
    SEND,
    HistoryFile,
    block_frame,
    list_history,
    load_conditions,
    read_events,
    read_history,
)
from ..reading import local_path, read_stores
from ..report import Plot, Report, Table
from .judging import PIECE_SCHEMA, Group, cut, epoch_limits, groups, judge, judge_epochs, settle, was_read
from .queues import Queue
from .splitting import QUEUE, Column
from .tally import SECOND_NS, Tally, percentiles_ms

INVARIANTS = ("I1", "I2", "I3", "I4", "I5", "I7", "I9")
ROWS_PER_PART = 6_000_000
"""Rows of a history that two tasks judge, about, one its queues and one its messages: some hundred megabytes each. A
queue is judged by one task, whose memory bounds it: 53 bytes a row, held about three times."""
SECONDS_SHOWN_MAX = 1_000_000
SHARES = (0.5, 0.99, 0.999)
MESSAGE = ("stream", "sequence")
PARTS_MIN = 2
ROWS_AT_ONCE = 1 << 17
"""Cut into pieces together: 8 MiB, whose copies stay in memory that was used before."""
_TALLY = "tally string"
_MISSING = "brokerName string, queueId int, queueOffset bigint, bodyCrc bigint"
_MISSING_NAMES = [column.split()[0] for column in _MISSING.split(", ")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to judge."""

    history: str = setting("directory with *.history and conditions.json")
    store: tuple[str, ...] = setting("data directories of the brokers, to look for what is missing", ())
    broker_name: tuple[str, ...] = setting("the shards' names of these directories, in the same order", ())
    topic: str | None = setting("the topic of the run, for the search in stores", None)
    output: str | None = setting("write one row per message as Parquet to this new directory", None)


def run(spark: Any, config: Config) -> Report:
    """Judge a history. The report fails when an invariant does not hold."""
    report = Report("audit", asdict(config))
    folder = Path(config.history)
    files = list_history(folder)
    history = _History(spark, files, load_conditions(folder))
    tally = history.judged()
    for name in INVARIANTS:
        _tell(report, name, tally)
    verdicts = [[name, not tally.wrong[name], tally.checked[name], tally.wrong[name]] for name in INVARIANTS]
    report.tables.append(Table("Verdicts", ["invariant", "holds", "checked", "violations"], verdicts))
    _measure(report, tally, history.conditions)
    if config.store and tally.wrong["I1"]:
        _search_stores(spark, report, history.missing(), config)
    if config.output is not None:
        _write_messages(read_history(spark, files), config.output)
    report.finish()
    report.figures["events"] = sum(file.rows for file in files)
    report.figures["events_per_s"] = round(report.figures["events"] / max(report.seconds, 1e-3))
    return report


class _History:
    """The files of a history, and the passes over them."""

    def __init__(self, spark: Any, files: list[HistoryFile], conditions: dict[str, Any]) -> None:
        self.conditions = conditions
        self._spark = spark
        self._files = files
        self._shards = files[0].shards
        # One queue or stretch is judged by one task; more tasks than processors even out what is uneven.
        self._parts = max(-(-sum(file.rows for file in files) // ROWS_PER_PART), PARTS_MIN)

    def judged(self) -> Tally:
        """Everything."""
        shards, conditions = self._shards, self.conditions

        def tell(found: Iterator[Group]) -> Iterator[pa.RecordBatch]:
            yield _as_row(judge(found, shards, conditions))

        total = _added(self._by_group(tell, _TALLY))
        settle(total, conditions)
        if not was_read(total):  # then no mode excuses what is missing
            self.conditions = {**conditions, "mode": "durable"}
        limits = epoch_limits(total)
        if limits:
            total.add(
                _added(self._by_block(lambda block: _as_row(judge_epochs(_events(block), limits, shards)), _TALLY))
            )
        return total

    def missing(self) -> Any:
        """What I1 misses, as a frame with the columns of a store that name it."""
        shards, conditions = self._shards, self.conditions

        def tell(found: Iterator[Group]) -> Iterator[pa.RecordBatch]:
            for kind, shard, queue, rows in found:
                if kind == QUEUE and 0 <= shard < len(shards):
                    lost = Queue(shard, queue, shards[shard], rows, conditions).missing()
                    count = len(lost["offset"])
                    columns = [
                        pa.array([shards[shard]] * count, pa.string()),
                        pa.array(np.full(count, queue, np.int32)),
                        pa.array(lost["offset"]),
                        pa.array(lost["crc"].astype(np.int64) & CRC_MASK),
                    ]
                    yield pa.RecordBatch.from_arrays(columns, names=_MISSING_NAMES)

        return self._by_group(tell, _MISSING)

    def _by_group(self, tell: Callable[[Iterator[Group]], Iterator[pa.RecordBatch]], schema: str) -> Any:
        """A frame of what ``tell`` makes of the queues and stretches of each task."""
        parts = self._parts

        def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_loaded()
            return tell(groups(batches))

        pieces = self._by_block(lambda block: cut(_events(block), parts, block["number"], block["first"]), PIECE_SCHEMA)
        return pieces.repartitionById(2 * parts, "part").mapInArrow(judged, schema)

    def _by_block(self, tell: Callable[[dict[str, Any]], pa.RecordBatch], schema: str) -> Any:
        """A frame of what ``tell`` makes of each block of the files."""

        def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_loaded()
            for batch in batches:
                for block in batch.to_pylist():
                    end = block["first"] + block["rows"]
                    for first in range(block["first"], end, ROWS_AT_ONCE):
                        yield tell({**block, "first": first, "rows": min(ROWS_AT_ONCE, end - first)})

        return block_frame(self._spark, self._files).mapInArrow(told, schema)


def _events(block: dict[str, Any]) -> Column:
    return read_events(block["path"], block["start"], block["first"], block["rows"])


def _as_row(tally: Tally) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"tally": [tally.to_json()]})


def _added(frame: Any) -> Tally:
    total = Tally()
    for row in frame.collect():
        total.add(Tally.from_json(row["tally"]))
    return total


def _tell(report: Report, name: str, tally: Tally) -> None:
    shown = tally.examples.get(name, [])
    for text in shown:
        report.problem(text, invariant=name)
    hidden = tally.wrong[name] - len(shown)
    if hidden > 0:
        report.problem(f"{hidden} more", count=hidden, invariant=name)


def _measure(report: Report, tally: Tally, conditions: dict[str, Any]) -> None:
    """Latencies, and the throughput of each second around the faults."""
    lines = []
    named = (("send to acknowledgement", tally.sends), ("send to first delivery", tally.deliveries))
    for (name, bins), longest_ns in zip(named, tally.longest_ns, strict=True):
        if bins.any():
            lines.append(
                [name, *(round(value, 2) for value in percentiles_ms(bins, SHARES)), round(longest_ns / 1e6, 2)]
            )
    report.tables.append(Table("Latencies, ms", ["from", "50 %", "99 %", "99.9 %", "largest"], lines))
    counts: dict[str, Counter[int]] = {"acknowledged": tally.acknowledged, "received": tally.received}
    if not tally.acknowledged:
        return
    began = min(tally.acknowledged)
    last = min(max(max(counter, default=began) for counter in counts.values()), began + SECONDS_SHOWN_MAX)
    axis = list(range(last - began + 1))
    series = {name: [float(counter[began + at]) for at in axis] for name, counter in counts.items()}
    marks = [
        (
            window["start_ns"] / SECOND_NS - began,
            window["end_ns"] / SECOND_NS - began,
            f"{window.get('what', '')} {window.get('target', '')}".strip(),
        )
        for window in conditions["windows"]
    ]
    report.plots.append(Plot("Messages per second", "lines", axis, series, "/s", marks))


def _search_stores(spark: Any, report: Report, wanted: Any, config: Config) -> None:
    """Whether what is missing lies on a disk."""
    stored = read_stores(
        spark,
        config.store,
        _MISSING,
        brokerName=config.broker_name,
        topics=config.topic,
        onCorrupt="skip",
        upTo="end",
        useConsumeQueue="false",  # the log itself, and none of it for a topic that is gone is an answer too
    )
    wanted = wanted.persist()
    try:
        found = wanted.join(stored, _MISSING_NAMES, "left_semi").count()
        report.figures |= {"missing_on_disk": found, "missing_not_on_disk": wanted.count() - found}
    finally:
        wanted.unpersist()


def _write_messages(events: Any, output: str) -> None:
    """One row per message, for questions that nobody thought of here."""
    from pyspark.sql import functions as f

    sends = events.where(f.col("op") == SEND)
    reads = events.where(f.col("op") == READ).groupBy(*MESSAGE).agg(f.count("*").alias("reads"))
    received = events.where(f.col("op") == RECEIVE).groupBy(*MESSAGE)
    delivered = received.agg(f.count("*").alias("deliveries"), f.min("end_ns").alias("first_delivery_ns"))
    joined = (
        sends.drop("op", "line").join(reads, list(MESSAGE), "full_outer").join(delivered, list(MESSAGE), "full_outer")
    )
    joined.write.mode("errorifexists").option("compression", "zstd").parquet(local_path(output))
