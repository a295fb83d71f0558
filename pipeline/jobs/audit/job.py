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
| I15 | what a consumer gave back came again or is a dead letter, once |
| I16 | an orderly queue is worked on by one member at a time |
| I17 | a transaction's message is shown once if it was committed, else never |
| I18 | a message for later is shown once, and not before its time |
| I19 | what a simple consumer has is given to nobody else before its time |
| I20 | simple consumers are given every message, and none again that is acknowledged |

:mod:`penstock.judge` judges each queue and each stretch of a stream, as for drills. With ``store``, acknowledged
sends that I1 misses are looked for in the data directories: "not on disk" and "on disk, not read" are two defects.
Where the history has no reads, as that of a load test, the stores' records stand for them, and the report says so.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.formats.record.layout import CRC_MASK
from penstock.judge.conditions import Conditions
from penstock.judge.history import HistoryFile, Op, Outcome, read_events
from penstock.judge.judging import epoch_limits, judge_epochs, judge_groups, settle, was_read
from penstock.judge.pieces import QUEUE, Column, Group
from penstock.judge.queues import Queue
from penstock.judge.tally import SECOND_NS, Tally, bin_ms, percentiles_ms
from penstock.judge.verdict import TITLES
from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError

from ...options import setting
from ...spark.workers import keep_loaded
from ..framework.here import mapped
from ..framework.reading import require_absent, write_new
from ..framework.report import Check, Report, Table
from .history import PIECE_SCHEMA, cut, each_block, groups, has_conditions, list_history, load_conditions, read_history
from .stored import PLACE, Stored, Stores, as_reads, shards_of

NOT_JUDGED = {
    "I1": "no send was acknowledged",
    "I2": "nothing was read",
    "I3": "no place of a message is known",
    "I4": "nothing was read, by which order shows",
    "I5": "no offset was told",
    "I7": "no consumer was given a message",
    "I9": "no acknowledgement names its epoch",
    "I15": "no consumer gave a message back",
    "I16": "no orderly consumer took part",
    "I17": "there was no transaction",
    "I18": "no message for later was sent",
    "I19": "no simple consumer took part",
    "I20": "no simple consumer took part",
}
"""The invariants in their order, each with why a history may say nothing of it."""
NO_READS = "no reads in this history; give --store"
"""The same of I1, where sends were acknowledged."""
ROWS_PER_PART = 6_000_000
"""Rows of a history that two tasks judge, about, one its queues and one its messages: some hundred megabytes each. A
queue is judged by one task, whose memory bounds it: 53 bytes a row, held about three times."""
SECONDS_SHOWN_MAX = 1_000_000
SHARES = (0.5, 0.99, 0.999)
MESSAGE = ("stream", "sequence")
PARTS_MIN = 2
ROWS_AT_ONCE = 1 << 17
"""Cut into pieces together: 8 MiB, whose copies stay in memory that was used before."""
_STEPS = (1, 2, 5)
_TALLY = "tally binary"
_MISSING = "brokerName string, queueId int, queueOffset bigint, bodyCrc bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to judge."""

    history: str = setting("directory with *.history and conditions.json")
    store: tuple[str, ...] = setting(
        "data directories, one of each shard: what is missing is looked for there, and read if nobody did", ()
    )
    broker_name: tuple[str, ...] = setting("the shards' names of these directories, in the same order", ())
    topic: str | None = setting("the topic of the run in these stores", None)
    output: str | None = setting("write one row per message as Parquet to this new directory", None)


def check(config: Config) -> None:
    """Nothing, if there is a history to judge and the options fit it, as far as can be told without Spark.

    Raises ConfigError: no history is there, a store is of no shard of the history, or the output exists.
    Raises Corrupt: the history or its conditions cannot be read. WrongStore: a directory holds no store.
    """
    _prepared(config)


def run(spark: Any, config: Config) -> Report:
    """Judge a history. The report fails when an invariant does not hold, or there is nothing to judge.

    Raises ConfigError, Corrupt, WrongStore: see :func:`check`.
    """
    files, conditions, names = _prepared(config)
    report = Report("audit", asdict(config))
    # A drill has conditions, and reads at its end. A load test has neither.
    reads_due = bool(names) or has_conditions(Path(config.history))
    history = _History(spark, files, conditions, reads_due=reads_due)
    tally = history.judged()
    stored = None
    if names:
        stores = Stores(spark, config.store, names, config.topic)
        stored = stores.measured(history.sends(acknowledged=True), SHARES)
        topic = config.topic or _only_topic(stored)
        if topic is not None and not was_read(tally):
            history.read_from(stores, topic)
            tally = history.judged()
            report.figures |= {"reads": "none in the history: the stores stand for them", "topic": topic}
    if not tally.acknowledged and not tally.checked["I2"]:
        report.problem("there is nothing to judge: no message was acknowledged, and none was read", path=config.history)
    for name in NOT_JUDGED:
        _tell(report, name, tally)
        note = "" if tally.checked[name] or tally.wrong[name] else NOT_JUDGED[name]
        if name == "I1" and note and tally.acknowledged:
            note = NO_READS
        report.checks.append(Check(name, TITLES[name], tally.checked[name], tally.wrong[name], note))
    if tally.excused:
        report.checks[0].note = f"{tally.excused:,} more are missing, as the mode {conditions.mode} allows at a fault"
    _sum_up(report, files, history.conditions, tally)
    _measure(report, tally, stored, history.conditions)
    if names and tally.wrong["I1"]:
        _search_stores(report, history.missing(), stores.records())
    if config.output is not None:
        _write_messages(read_history(spark, files), config.output)
    report.finish()
    report.figures["events"] = sum(file.rows for file in files)
    report.figures["events_per_s"] = round(report.figures["events"] / max(report.seconds, 1e-3))
    return report


def _prepared(config: Config) -> tuple[list[HistoryFile], Conditions, list[str]]:
    """The files of the history, its conditions, and the shard of each store."""
    folder = Path(config.history)
    files, conditions = list_history(folder), load_conditions(folder)
    if config.output is not None:
        require_absent("audit", config.output)
    names = shards_of(config.store, config.broker_name, config.topic, files[0].shards) if config.store else []
    return files, conditions, names


def _only_topic(stored: Stored) -> str | None:
    if len(stored.topics) > 1:
        raise ConfigError(
            f"audit: messages of the history lie in the topics {', '.join(stored.topics)}: set topic to that of the run"
        )
    return stored.topics[0] if stored.topics else None


def _sum_up(report: Report, files: list[HistoryFile], conditions: Conditions, tally: Tally) -> None:
    """The verdict in words, and what was judged."""
    judged = sum(check.holds is not None for check in report.checks)
    sent, received = sum(tally.acknowledged.values()), sum(tally.received.values())
    report.summary = f"all {judged} invariants hold that this history can break"
    shards = ", ".join(files[0].shards)
    events = f"{sum(file.rows for file in files):,} events of {len(files)} client{'' if len(files) == 1 else 's'}"
    faults = f"{len(conditions.windows)} fault{'' if len(conditions.windows) == 1 else 's'}"
    report.subject.append(f"{events}, mode {conditions.mode}, shards {shards}; {faults}.")
    deliveries = f"{received:,} deliveries" if received else "no consumer took part"
    report.subject.append(f"{sent:,} messages were acknowledged; {deliveries}.")
    if judged < len(report.checks):
        left = len(report.checks) - judged
        said = "1 invariant is" if left == 1 else f"{left} invariants are"
        report.subject.append(f"{said} not judged; the remarks below say why.")


class _History:
    """The files of a history, and the passes over them."""

    def __init__(self, spark: Any, files: list[HistoryFile], conditions: Conditions, *, reads_due: bool) -> None:
        self._reads_due = reads_due
        self.conditions = self._given = conditions
        self._spark = spark
        self._files = files
        self._shards = files[0].shards
        # One queue or stretch is judged by one task; more tasks than processors even out what is uneven.
        self._parts = max(-(-sum(file.rows for file in files) // ROWS_PER_PART), PARTS_MIN)
        self._stored: Any = None  # pieces of what stands for the reads

    def sends(self, *, acknowledged: bool = False) -> Any:
        """The sends, all or the acknowledged ones, as a frame of :data:`PLACE`, stream and sequence."""
        from pyspark.sql import functions as f

        events = read_history(self._spark, self._files).where(f.col("op") == int(Op.SEND))
        if acknowledged:
            events = events.where(f.col("outcome") == int(Outcome.OK))
        shard = f.get(f.array(*map(f.lit, self._shards)), f.col("shard"))
        crc = f.col("crc").bitwiseAND(f.lit(CRC_MASK))
        return events.select(shard, "queue", "offset", crc, "stream", "sequence").toDF(*PLACE, "stream", "sequence")

    def read_from(self, stores: Stores, topic: str) -> None:
        """Let what lies in the stores be what was read at the end."""
        from pyspark.sql import functions as f

        events = read_history(self._spark, self._files).where(f.col("op").isin(int(Op.INVOKE), int(Op.SEND)))
        streams = [row["stream"] for row in events.select("stream").distinct().collect()]
        shards, parts, number = self._shards, self._parts, len(self._files)

        def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_loaded()
            for batch in batches:
                if batch.num_rows:
                    rows = as_reads(batch, shards, streams)
                    yield cut(rows, parts, number, int(rows["position"][0]))

        found = stores.reads(self.sends(acknowledged=True), self.sends(), topic)
        self._stored = mapped(self._spark, found, told, PIECE_SCHEMA)

    def judged(self) -> Tally:
        """Everything."""
        shards, conditions = self._shards, self._given
        clients = {file.client: file.name for file in self._files}

        def tell(found: Iterator[Group]) -> Iterator[pa.RecordBatch]:
            yield _as_row(judge_groups(found, shards, conditions, clients))

        total = _added(self._by_group(tell, _TALLY))
        settle(total, conditions, reads_due=self._reads_due)
        excused = was_read(total)  # else no mode excuses what is missing
        self.conditions = conditions if excused else replace(conditions, mode="durable")
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
                    yield pa.RecordBatch.from_arrays(columns, names=PLACE)

        return self._by_group(tell, _MISSING)

    def _by_group(self, tell: Callable[[Iterator[Group]], Iterator[pa.RecordBatch]], schema: str) -> Any:
        """A frame of what ``tell`` makes of the queues and stretches of each task."""
        parts = self._parts

        def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_loaded()
            return tell(groups(batches))

        pieces = self._by_block(lambda block: cut(_events(block), parts, block["number"], block["first"]), PIECE_SCHEMA)
        if self._stored is not None:
            pieces = pieces.union(self._stored)
        return mapped(self._spark, pieces.repartitionById(2 * parts, "part"), judged, schema)

    def _by_block(self, tell: Callable[[dict[str, Any]], pa.RecordBatch], schema: str) -> Any:
        """A frame of what ``tell`` makes of each block of the files."""

        def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            keep_loaded()
            for batch in batches:
                for block in batch.to_pylist():
                    end = block["first"] + block["rows"]
                    for first in range(block["first"], end, ROWS_AT_ONCE):
                        yield tell({**block, "first": first, "rows": min(ROWS_AT_ONCE, end - first)})

        return each_block(self._spark, self._files, told, schema)


def _events(block: dict[str, Any]) -> Column:
    return read_events(block["path"], block["start"], block["first"], block["rows"])


def _as_row(tally: Tally) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"tally": [pickle.dumps(tally)]})


def _added(frame: Any) -> Tally:
    total = Tally()
    for row in frame.collect():
        total.add(pickle.loads(row["tally"]))  # noqa: S301  written by _as_row, of the same job
    return total


def _tell(report: Report, name: str, tally: Tally) -> None:
    shown = tally.examples.get(name, [])
    for text in shown:
        report.problem(text, invariant=name)
    hidden = tally.wrong[name] - len(shown)
    if hidden > 0:
        report.problem(f"{hidden} more", count=hidden, invariant=name)


def _measure(report: Report, tally: Tally, stored: Stored | None, conditions: Conditions) -> None:
    """Latencies, and the throughput of each second around the faults."""
    lines: list[list[Any]] = []
    named = (("send to acknowledgement", tally.sends), ("send to first delivery", tally.deliveries))
    for (name, bins), longest_ns in zip(named, tally.longest_ns, strict=True):
        if bins:
            lines.append(
                [name, *(round(value, 2) for value in percentiles_ms(bins, SHARES)), round(longest_ns / 1e6, 2)]
            )
    if stored is not None and stored.taken_ms:  # by the client's and the broker's clocks, in whole milliseconds
        lines.insert(1, ["birth to store", *stored.taken_ms])
    columns = ["50 %", "99 %", "99.9 %", "largest"]
    report.tables.append(Table("Latencies, ms", ["from", *columns], lines))
    taken = {name: found for name, found in named if found}
    if taken:
        report.plots.append(_latency_plot(taken))
    counts: dict[str, Counter[int]] = {"acknowledged": tally.acknowledged} | (
        {"received": tally.received} if tally.received else {}
    )
    if not tally.acknowledged:
        return
    began = min(tally.acknowledged)
    last = min(max(max(counter, default=began) for counter in counts.values()), began + SECONDS_SHOWN_MAX)
    axis = list(range(last - began + 1))
    series = {name: [float(counter[began + at]) for at in axis] for name, counter in counts.items()}
    marks = [
        (each.start_ns / SECOND_NS - began, each.end_ns / SECOND_NS - began, f"{each.what} {each.target}".strip())
        for each in conditions.windows
    ]
    title = "Messages per second of the run" + (", and the faults" if marks else "")
    report.plots.append(Plot(title, "lines", axis, series, "/s", marks, "second"))


def _latency_plot(named: Mapping[str, Counter[int]]) -> Plot:
    """How many messages took how long, in steps of 1, 2, 5."""
    spread: dict[str, Counter[int]] = {}
    for name, bins in named.items():
        found: Counter[int] = Counter()
        spread[name] = found
        for number, count in bins.items():
            found[_step_of(bin_ms(number))] += count
    steps = range(min(map(min, spread.values())), max(map(max, spread.values())) + 1)
    series = {name: [float(found[step]) for step in steps] for name, found in spread.items()}
    axis = [f"≤ {_STEPS[step % 3] * 10.0 ** (step // 3):g} ms" for step in steps]
    return Plot("Latency of messages", "bars", axis, series, "messages", axis_name="took")


def _step_of(value_ms: float) -> int:
    """The number of the smallest of …, 0.1, 0.2, 0.5, 1, 2, 5, … that is no less."""
    power = math.floor(math.log10(value_ms))
    over = next((at for at, step in enumerate(_STEPS) if value_ms <= step * 10.0**power), 3)
    return 3 * power + over


def _search_stores(report: Report, wanted: Any, records: Any) -> None:
    """Note how much of what is missing lies on a disk."""
    wanted = wanted.persist()
    try:
        found = wanted.join(records, PLACE, "left_semi").count()
        report.figures |= {"missing_on_disk": found, "missing_not_on_disk": wanted.count() - found}
    finally:
        wanted.unpersist()


def _write_messages(events: Any, output: str) -> None:
    """One row per message, for questions that nobody thought of here."""
    from pyspark.sql import functions as f

    sends = events.where(f.col("op") == int(Op.SEND))
    reads = events.where(f.col("op") == int(Op.READ)).groupBy(*MESSAGE).agg(f.count("*").alias("reads"))
    received = events.where(f.col("op") == int(Op.RECEIVE)).groupBy(*MESSAGE)
    delivered = received.agg(f.count("*").alias("deliveries"), f.min("end_ns").alias("first_delivery_ns"))
    joined = (
        sends.drop("op", "line").join(reads, list(MESSAGE), "full_outer").join(delivered, list(MESSAGE), "full_outer")
    )
    write_new(joined, output)
