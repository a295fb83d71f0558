"""Judges the histories of drills and load tests, of any size, against the invariants of delivery.

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

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.proto.record.layout import CRC_MASK

from .audit_offsets import went_back
from .config import setting
from .history import INVOKE, OK, POSITION, READ, RECEIVE, REFUSED, SEND, list_history, load_conditions, read_history
from .reading import local_path, read_stores
from .report import Plot, Report, Table

EXAMPLES_MAX = 20
LOSS_WINDOW_NS = 2_000_000_000
"""Modes that wait for no replica may lose what was acknowledged so shortly before a fault."""
PLACE = ("shard", "queue", "offset")
MESSAGE = ("stream", "sequence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to judge."""

    history: str = setting("directory with *.history and conditions.json")
    store: tuple[str, ...] = setting("data directories of the brokers, to look for what is missing", ())
    broker_name: tuple[str, ...] = setting("the shards' names of these directories, in the same order", ())
    topic: str | None = setting("the topic of the run, for the search in stores", None)
    output: str | None = setting("write one row per message as Parquet to this new directory", None)


@dataclass(slots=True)
class _Finding:
    """What one invariant found: number of violations, the first few as rows, and what to say of a row."""

    checked: int
    violations: int
    examples: list[str]


class _Audit:
    """The frames of one history, and the questions about them."""

    def __init__(self, events: Any, shards: tuple[str, ...], conditions: dict[str, Any]) -> None:
        from pyspark.sql import functions as f

        self.f = f
        self.shards = shards
        self.conditions = conditions
        self.events = events
        self.sent = events.where((f.col("op") == SEND) & (f.col("outcome") == OK))
        self.read = events.where(f.col("op") == READ)
        self.received = events.where(f.col("op") == RECEIVE)
        self.seen = events.where(f.col("op").isin(READ, RECEIVE))

    def name(self, row: Any) -> str:
        """A row's message and place, for people."""
        shard = self.shards[row["shard"]] if 0 <= row["shard"] < len(self.shards) else f"shard {row['shard']}"
        return f"message {row['stream']}.{row['sequence']} at {shard} queue {row['queue']} offset {row['offset']}"

    def finding(self, checked: Any, *wrong: tuple[Any, str]) -> _Finding:
        """Count and show the rows of each frame in ``wrong`` with its text."""
        examples: list[str] = []
        count = 0
        for frame, text in wrong:
            rows = frame.limit(EXAMPLES_MAX + 1).collect()
            count += len(rows) if len(rows) <= EXAMPLES_MAX else frame.count()
            examples += [f"{self.name(row)} {text}" for row in rows[:EXAMPLES_MAX]]
        return _Finding(checked.count(), count, examples)

    def missing(self) -> Any:
        """Acknowledged sends that are not read at their place, those left out that the mode allows to lose."""
        f = self.f
        there = self.read.select(*PLACE, *MESSAGE).distinct().withColumn("present", f.lit(True))
        joined = self.sent.join(there, [*PLACE, *MESSAGE], "left")
        if self.conditions["mode"] not in ("async", "flush"):
            return joined.where("present is null")
        at_fault = f.lit(False)
        for window in self.conditions["windows"]:
            early = int(window["start_ns"]) - LOSS_WINDOW_NS
            at_fault = at_fault | ((f.col("end_ns") >= early) & (f.col("end_ns") < int(window["end_ns"])))
        tenure = ["shard", "queue", "epoch"]
        last = joined.where("present").groupBy(*tenure).agg(f.max("offset").alias("last"))
        beyond = f.col("offset") > f.coalesce(f.col("last"), f.lit(-1))
        return joined.where("present is null").join(last, tenure, "left").where(~(at_fault & beyond))

    def lost(self) -> _Finding:
        """I1."""
        return self.finding(self.sent, (self.missing(), "was acknowledged and is not there"))

    def phantoms(self) -> _Finding:
        """I2."""
        f = self.f
        sends = self.events.where(f.col("op") == SEND)
        possible = sends.where(f.col("outcome") != REFUSED).select(*MESSAGE)
        refused = sends.where(f.col("outcome") == REFUSED).select(*MESSAGE)
        reserved = self.events.where(f.col("op") == INVOKE).select(
            f.col("stream").alias("of"),
            f.col("sequence").alias("first"),
            (f.col("sequence") + f.col("offset")).alias("end"),
        )
        unexplained = self.seen.join(possible, list(MESSAGE), "left_anti")
        inside = (
            (f.col("stream") == f.col("of"))
            & (f.col("sequence") >= f.col("first"))
            & (f.col("sequence") < f.col("end"))
        )
        others = unexplained.join(refused, list(MESSAGE), "left_anti")
        return self.finding(
            self.seen,
            (unexplained.join(refused, list(MESSAGE), "left_semi"), "was read and had been refused"),
            (others.join(reserved, inside, "left_anti"), "was read and never sent"),
        )

    def one_value(self) -> _Finding:
        """I3."""
        f = self.f
        told = self.seen.unionByName(self.sent).where("offset >= 0")
        places = told.groupBy(*PLACE).agg(
            f.min(f.struct(*MESSAGE)).alias("one"), f.max(f.struct(*MESSAGE)).alias("other")
        )
        wrong = places.where("one <> other").select(*PLACE, "one.*")
        return self.finding(places, (wrong, "is not the only message that this place has held"))

    def order(self) -> _Finding:
        """I4."""
        from pyspark.sql import Window

        f = self.f
        queue = Window.partitionBy("shard", "queue")
        behind = queue.orderBy(f.desc("offset"), "line").rowsBetween(Window.unboundedPreceding, -1)
        late = self.sent.withColumn("acknowledged", f.min("end_ns").over(behind)).where("acknowledged < start_ns")
        by_key = Window.partitionBy("shard", "queue", "stream", "key").orderBy("offset", "line")
        swapped = (
            self.sent.where("key >= 0").withColumn("before", f.lag("sequence").over(by_key)).where("sequence < before")
        )
        by_time = queue.orderBy("end_ns", "line")
        first = self._first_of_each(self.received, PLACE)
        backwards = first.withColumn("before", f.lag("offset").over(by_time)).where("offset < before")
        return self.finding(
            self.sent,
            (late, "was sent after one behind it was acknowledged"),
            (swapped, "lies behind a later one of its key"),
            (backwards, "was delivered after one behind it"),
        )

    def offsets(self) -> _Finding:
        """I5."""
        from pyspark.sql import Window

        f = self.f
        places = self._first_of_each(self.read, PLACE)
        before = f.lag("offset").over(Window.partitionBy("shard", "queue").orderBy("offset"))
        gaps = places.withColumn("before", before).where("offset <> before + 1")
        found = self.finding(self.read, (gaps, "follows a gap"))
        looks = self.events.where(f.col("op") == POSITION).orderBy("shard", "queue", "end_ns", "line")
        by_queue: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        for row in looks.select("shard", "queue", "end_ns", "sequence", "position", "offset").toLocalIterator():
            by_queue.setdefault((row["shard"], row["queue"]), []).append(tuple(row)[2:])
        for (shard, queue), rows in by_queue.items():
            wrong = went_back(rows, self.conditions)
            found.violations += len(wrong)
            found.examples += [f"{self.shards[shard]} queue {queue}: {text}" for text in wrong]
        return found

    def duplicates(self) -> _Finding:
        """I7."""
        places = self._first_of_each(self.read, PLACE)
        kept = self._first_of_each(places, MESSAGE)
        stored_again = places.join(kept.select("line"), "line", "left_anti")
        delivered_again = self.received.join(
            self._first_of_each(self.received, PLACE).select("line"), "line", "left_anti"
        )
        found = self.finding(self.received, (stored_again, "is stored again"))
        surplus = max(delivered_again.count() - int(self.conditions["duplicates_allowed"]), 0)
        if surplus:
            rows = delivered_again.limit(EXAMPLES_MAX).collect()
            found.violations += surplus
            found.examples += [f"{self.name(row)} was delivered again" for row in rows]
        return found

    def one_writer(self) -> _Finding:
        """I9: of each send, the highest epoch that was acknowledged before it began."""
        from pyspark.sql import Window

        f = self.f
        known = self.sent.where("epoch > 0")
        ends = known.select("shard", f.col("end_ns").alias("at"), f.lit(1).alias("kind"), "epoch", "line")
        starts = known.select("shard", f.col("start_ns").alias("at"), f.lit(0).alias("kind"), "epoch", "line")
        past = Window.partitionBy("shard").orderBy("at", "kind").rowsBetween(Window.unboundedPreceding, -1)
        highest = f.max(f.when(f.col("kind") == 1, f.col("epoch"))).over(past)
        wrong = ends.unionByName(starts).withColumn("highest", highest).where("kind = 0 and epoch < highest")
        named = self.sent.join(wrong.select("line"), "line", "left_semi")
        return self.finding(known, (named, "was acknowledged in an epoch below one that had begun"))

    def _first_of_each(self, frame: Any, columns: tuple[str, ...]) -> Any:
        """The row with the earliest answer of each group."""
        from pyspark.sql import Window

        number = self.f.row_number().over(Window.partitionBy(*columns).orderBy("end_ns", "line"))
        return frame.withColumn("number", number).where("number = 1").drop("number")


def run(spark: Any, config: Config) -> Report:
    """Judge a history. The report fails when an invariant does not hold."""
    report = Report("audit", asdict(config))
    folder = Path(config.history)
    files = list_history(folder)
    conditions = load_conditions(folder)
    events = read_history(spark, files).persist()
    try:
        audit = _Audit(events, files[0].shards, conditions)
        invariants: dict[str, Callable[[], _Finding]] = {
            "I1": audit.lost,
            "I2": audit.phantoms,
            "I3": audit.one_value,
            "I4": audit.order,
            "I5": audit.offsets,
            "I7": audit.duplicates,
            "I9": audit.one_writer,
        }
        verdicts = []
        for name, judge in invariants.items():
            found = judge()
            verdicts.append([name, found.violations == 0, found.checked, found.violations])
            if found.violations:
                _tell(report, name, found)
        report.tables.append(Table("Verdicts", ["invariant", "holds", "checked", "violations"], verdicts))
        _measure(report, audit)
        if config.store:
            _search_stores(spark, report, audit, config)
        if config.output is not None:
            _write_messages(audit, config.output)
    finally:
        events.unpersist()
    report.finish()
    report.figures["events"] = sum(file.rows for file in files)
    report.figures["events_per_s"] = round(report.figures["events"] / max(report.seconds, 1e-3))
    return report


def _tell(report: Report, name: str, found: _Finding) -> None:
    shown = found.examples[:EXAMPLES_MAX]
    for text in shown:
        report.problem(text, invariant=name)
    hidden = found.violations - len(shown)
    if hidden > 0:
        report.problem(f"{hidden} more", count=hidden, invariant=name)


def _measure(report: Report, audit: _Audit) -> None:
    """Latencies, and the throughput of each second around the faults."""
    f = audit.f
    shares = [0.5, 0.99, 0.999, 1.0]
    first = audit.received.groupBy(*MESSAGE).agg(f.min("end_ns").alias("delivered"))
    sends = audit.sent.join(first, list(MESSAGE), "left")
    send = f.percentile_approx((f.col("end_ns") - f.col("start_ns")) / 1e6, shares, 10_000)
    delivery = f.percentile_approx((f.col("delivered") - f.col("start_ns")) / 1e6, shares, 10_000)
    row = sends.agg(send.alias("send"), delivery.alias("delivery"), f.min("start_ns").alias("began")).first()
    columns = ["from", "50 %", "99 %", "99.9 %", "largest"]
    lines = [
        [name, *(round(value, 2) for value in row[column])]
        for name, column in (("send to acknowledgement", "send"), ("send to first delivery", "delivery"))
        if row[column] is not None
    ]
    report.tables.append(Table("Latencies, ms", columns, lines))
    began = row["began"]
    if began is None:
        return
    second = f.floor((f.col("end_ns") - f.lit(began)) / 1_000_000_000).alias("second")
    counted = audit.sent.unionByName(audit.received).groupBy(second, "op").count().collect()
    last = max(entry["second"] for entry in counted)
    series: dict[str, list[float]] = {}
    for name, op in (("acknowledged", SEND), ("received", RECEIVE)):
        values = [0.0] * (last + 1)
        for entry in counted:
            if entry["op"] == op and 0 <= entry["second"] <= last:
                values[entry["second"]] = float(entry["count"])
        series[name] = values
    marks = [
        (
            (w["start_ns"] - began) / 1e9,
            (w["end_ns"] - began) / 1e9,
            f"{w.get('what', '')} {w.get('target', '')}".strip(),
        )
        for w in audit.conditions["windows"]
    ]
    report.plots.append(Plot("Messages per second", "lines", list(range(last + 1)), series, "/s", marks))


def _search_stores(spark: Any, report: Report, audit: _Audit, config: Config) -> None:
    """Whether what is missing lies on a disk."""
    f = audit.f
    missing = audit.missing()
    if missing.limit(1).count() == 0:
        return
    names = f.array(*[f.lit(name) for name in audit.shards])
    wanted = missing.where("shard >= 0").select(
        f.element_at(names, f.col("shard") + 1).alias("brokerName"),
        f.col("queue").alias("queueId"),
        f.col("offset").alias("queueOffset"),
        f.col("crc").bitwiseAND(f.lit(CRC_MASK)).alias("bodyCrc"),
    )
    stored = read_stores(
        spark,
        config.store,
        "brokerName string, queueId int, queueOffset bigint, bodyCrc bigint",
        brokerName=config.broker_name,
        topics=config.topic,
        onCorrupt="skip",
        upTo="end",
    )
    found = wanted.join(stored, ["brokerName", "queueId", "queueOffset", "bodyCrc"], "left_semi").count()
    report.figures |= {"missing_on_disk": found, "missing_not_on_disk": wanted.count() - found}


def _write_messages(audit: _Audit, output: str) -> None:
    """One row per message, for questions that nobody thought of here."""
    f = audit.f
    sends = audit.events.where(f.col("op") == SEND)
    reads = audit.read.groupBy(*MESSAGE).agg(f.count("*").alias("reads"))
    received = audit.received.groupBy(*MESSAGE).agg(
        f.count("*").alias("deliveries"), f.min("end_ns").alias("first_delivery_ns")
    )
    joined = (
        sends.drop("op", "line").join(reads, list(MESSAGE), "full_outer").join(received, list(MESSAGE), "full_outer")
    )
    joined.write.mode("errorifexists").option("compression", "zstd").parquet(local_path(output))
