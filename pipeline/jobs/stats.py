"""Statistics per topic and queue of stores: messages, bytes, sizes, skew, the most frequent tags and keys, growth.

Tags and keys are counted with a sketch (Spark's ``approx_top_k``), sizes with approximate percentiles; the rest is
exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError
from penstock.proto.names import is_system_topic

from ..options import setting
from ..stores.directory import list_stores, require_names
from ..stores.model import Store
from ..stores.topic_names import known_queues
from .framework.reading import read_stores
from .framework.report import Report, Table, over_time, step_for
from .query import require_times

_SCHEMA = (
    "topic string, brokerName string, queueId int, size int, tags string, keys array<string>, storeTimestamp timestamp"
)
_SKEWS_MAX = 20
"""Topics in a picture of bars."""
TOP_MAX = 10_000
"""Items that Spark's sketch keeps, by default."""
ON_CORRUPT = ("fail", "skip")
Queue = tuple[str, str, int]
"""Topic, broker name, queue id."""
SKEW_FACTOR = 3.0
"""A queue with so many times its topic's mean is named in the report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to count."""

    store: tuple[str, ...] = setting("store directories, patterns or URIs, separated by commas")
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    topics: tuple[str, ...] = setting("only these topics", ())
    start: str | None = setting("only messages stored at or after this time (ISO 8601 or ms)", None)
    end: str | None = setting("only messages stored before this time", None)
    top: int = setting("how many of the most frequent tags and keys", 20)
    system_topics: bool = setting("count the brokers' own topics too", False)
    on_corrupt: str = setting("what to do about damaged bytes: fail or skip", "fail")


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    if not 1 <= config.top <= TOP_MAX:
        raise ConfigError(f"stats: top is {config.top}: 1 to {TOP_MAX} of the most frequent tags and keys can be told")
    if config.on_corrupt not in ON_CORRUPT:
        raise ConfigError(f"stats: on_corrupt is {config.on_corrupt!r}: {' or '.join(ON_CORRUPT)}")
    require_times("stats", config.start, config.end)
    require_names("stats", config.store, config.broker_name)


def run(spark: Any, config: Config) -> Report:
    """Count everything in three passes over the stores. The report fails when there is nothing to count.

    Raises ConfigError: an option is wrong, or there is no such store.
    """
    from pyspark.sql import functions as f

    check(config)
    stores = list_stores("stats", config.store, config.broker_name, "confirm")
    report = Report("stats", asdict(config))
    frame = read_stores(
        spark,
        config.store,
        _SCHEMA,
        brokerName=config.broker_name,
        topics=config.topics,
        startTimestamp=config.start,
        endTimestamp=config.end,
        onCorrupt=config.on_corrupt,
    )
    found = _sizes_and_tags(report, frame, config)
    topics = sorted(found)
    report.subject += [_told(store) for store in stores]
    times = [time for ends in found.values() for time in ends]
    step = step_for(min(times), max(times)) if times else 1000
    at = f.floor(f.unix_millis("storeTimestamp") / f.lit(step)) * f.lit(step)
    counted = (
        frame.groupBy("topic", "brokerName", "queueId", at.alias("at"))
        .agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"), f.max("size").alias("largest"))
        .collect()
    )
    rows = [row for row in counted if row["topic"] in found]
    known = [
        (topic, store.broker_name, queue_id)
        for store in stores
        for topic, queue_ids in known_queues(store.root).items()
        if topic in topics
        for queue_id in sorted(queue_ids)
    ]
    _count(report, rows, known, step)
    if not topics:
        limits: dict[str, Any] = {"topics": ", ".join(config.topics), "start": config.start, "end": config.end}
        given = {name: value for name, value in limits.items() if value}
        report.problem("no message was found", stores=", ".join(store.root for store in stores), **given)
    else:
        _keys(report, frame.where(f.col("topic").isin(topics)), config.top)
    return report.finish()


def _told(store: Store) -> str:
    """What a store's log is, in a sentence."""
    bytes_ = sum(file.end for file in store.files)
    count = len(store.files)
    return (
        f"{store.root} (broker {store.broker_name}): {bytes_:,} bytes in {count} log file{'' if count == 1 else 's'}."
    )


def _count(report: Report, rows: list[Any], known: Iterable[Queue], step_ms: int) -> None:
    """``known``: queues that count though there may be no message in them. ``step_ms``: what rows are summed over."""
    by_topic: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_queue: dict[Queue, int] = dict.fromkeys(known, 0)
    for row in rows:
        total = by_topic[row["topic"]]
        total[0] += row["messages"]
        total[1] += row["bytes"]
        queue = row["topic"], row["brokerName"], row["queueId"]
        by_queue[queue] = by_queue.get(queue, 0) + row["messages"]
    report.figures |= {
        "topics": len(by_topic),
        "queues": len(by_queue),
        "messages": sum(total[0] for total in by_topic.values()),
        "bytes": sum(total[1] for total in by_topic.values()),
        "largest_record_bytes": max((row["largest"] for row in rows), default=0),
    }
    queues = defaultdict(list)
    for (topic, _, _), count in by_queue.items():
        queues[topic].append(count)
    largest = sorted(by_topic, key=lambda topic: -by_topic[topic][1])
    lines: list[list[Any]] = []
    for topic in largest:
        messages, size = by_topic[topic]
        mean = messages / len(queues[topic])
        skew = round(max(queues[topic]) / mean, 2)
        lines.append([topic, len(queues[topic]), messages, size, round(size / messages), skew])
    report.tables.append(
        Table("Topics", ["topic", "queues", "messages", "bytes", "mean bytes", "largest queue / mean"], lines)
    )
    skewed = [
        [*queue, count, round(count * len(queues[queue[0]]) / by_topic[queue[0]][0], 2)]
        for queue, count in by_queue.items()
        if count * len(queues[queue[0]]) > SKEW_FACTOR * by_topic[queue[0]][0]
    ]
    if skewed:
        report.tables.append(Table("Skewed queues", ["topic", "broker", "queue", "messages", "of mean"], skewed))
    timed = [row for row in rows if row["at"] is not None]
    messages_plot = over_time(
        "Messages over time", [(row["topic"], row["at"], row["messages"]) for row in timed], step_ms
    )
    sized = [(row["topic"], row["at"], row["bytes"]) for row in timed]
    report.plots += [messages_plot, over_time("Bytes over time", sized, step_ms, list(messages_plot.series))]
    skews: dict[str, float] = {line[0]: line[5] for line in lines if line[1] > 1}
    if skews:
        shown = sorted(skews, key=lambda topic: -skews[topic])[:_SKEWS_MAX]
        values = {"largest queue / mean": [skews[topic] for topic in shown]}
        report.plots.append(Plot("Skew of the queues, by topic", "bars", shown, values, "times", axis_name="topic"))
    if largest:
        messages = report.figures["messages"]
        report.summary = f"{messages:,} messages in {len(largest)} topic{'' if len(largest) == 1 else 's'}"
        if skewed:
            report.summary += f"; {len(skewed)} queue{' is' if len(skewed) == 1 else 's are'} skewed"
        counts = {queue[1:]: float(count) for queue, count in sorted(by_queue.items()) if queue[0] == largest[0]}
        is_one = len({broker for broker, _ in counts}) == 1
        names = [f"queue {queue_id}" if is_one else f"{broker} {queue_id}" for broker, queue_id in counts]
        title = f"Messages by queue of {largest[0]}"
        report.plots.append(Plot(title, "bars", names, {"messages": list(counts.values())}, "", axis_name="queue"))


def _sizes_and_tags(report: Report, frame: Any, config: Config) -> dict[str, list[int]]:
    """The topics that count, each with the first and last time that it was stored at (ms), as far as it says so."""
    from pyspark.sql import functions as f

    top = config.top
    summed = frame.groupBy("topic").agg(
        f.percentile_approx("size", [0.5, 0.9, 0.99, 1.0]).alias("sizes"),
        f.expr(f"approx_top_k(tags, {top}) filter (where tags is not null)").alias("tags"),
        f.unix_millis(f.min("storeTimestamp")).alias("first"),
        f.unix_millis(f.max("storeTimestamp")).alias("last"),
    )
    sizes, tags, found = [], [], {}
    for row in summed.orderBy("topic").collect():
        if not config.system_topics and is_system_topic(row["topic"]):
            continue
        found[row["topic"]] = [time for time in (row["first"], row["last"]) if time is not None]
        sizes.append([row["topic"], *row["sizes"]])
        tags += [[row["topic"], item["item"], item["count"]] for item in row["tags"] or ()]
    report.tables.append(Table("Record sizes, bytes", ["topic", "50 %", "90 %", "99 %", "largest"], sizes))
    if sizes:
        shown = sorted(sizes, key=lambda line: -line[3])[:_SKEWS_MAX]
        series = {name: [float(line[at]) for line in shown] for at, name in ((1, "50 %"), (3, "99 %"))}
        report.plots.append(
            Plot("Record sizes", "bars", [line[0] for line in shown], series, "bytes", axis_name="topic")
        )
    if tags:
        report.tables.append(Table("Most frequent tags", ["topic", "tag", "messages"], _by_count(tags)))
    return found


def _keys(report: Report, frame: Any, top: int) -> None:
    from pyspark.sql import functions as f

    keys = frame.select("topic", f.explode("keys").alias("key"))
    found = keys.groupBy("topic").agg(f.expr(f"approx_top_k(key, {top})").alias("keys"))
    rows = [
        [row["topic"], item["item"], item["count"]]
        for row in found.orderBy("topic").collect()
        for item in row["keys"] or ()
    ]
    if rows:
        report.tables.append(Table("Most frequent keys", ["topic", "key", "messages"], _by_count(rows)))


def _by_count(rows: list[list[Any]]) -> list[list[Any]]:
    """The most frequent ones first: a console shows no more than the first rows."""
    return sorted(rows, key=lambda row: (-row[2], row))
