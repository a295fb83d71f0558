"""Dead letters: what lies in ``%DLQ%`` topics, by group, original topic, tag and day; and back into a topic, if asked.

Read from a cluster, or from stores. The original topic is the property ``DLQ_ORIGIN_TOPIC``, else ``RETRY_TOPIC``,
else ``REAL_TOPIC``, as RocketMQ's brokers write them. Where there is no such topic the report says so and is empty;
a group that is named must have one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.pages.plots import Plot
from penstock.proto import names
from penstock.proto.errors import ConfigError

from ..options import setting
from .framework.reading import read_stores
from .framework.report import Report, Table
from .framework.topics import check_target, copies, matching_topics, read_topics, require_topic
from .replay import write

PREFIX = names.DLQ_PREFIX


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Whose dead letters, and what to do with them."""

    namesrv: str | None = setting("nameservers of the cluster to read from, and to re-drive into", None)
    store: tuple[str, ...] = setting("read store directories instead, separated by commas", ())
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    group: str | None = setting("only this consumer group's", None)
    tag: str | None = setting("only with this tag", None)
    redrive_to: str | None = setting("write them to this topic again; it must exist", None)
    producer_id: str | None = setting("names the re-drive, so that it can be repeated", None)
    shown: int = setting("show so many messages", 20)


def run(spark: Any, config: Config) -> Report:
    """Count and show; re-drive where a topic is named.

    Raises ConfigError: an option is wrong.
    Raises ChangedBatch: the producer id stands for other messages.
    """
    from pyspark.sql import functions as f

    if (config.namesrv is None) == (not config.store):
        raise ConfigError("dead-letters: give namesrv or store, one of them")
    if config.redrive_to is not None:
        if config.namesrv is None:
            raise ConfigError("dead-letters: redrive_to needs namesrv, the cluster to write to")
        check_target("dead-letters", config.redrive_to, "exactly-once")
        require_topic(config.namesrv, config.redrive_to)
    report = Report("dead-letters", asdict(config))
    frame = _letters(spark, config)
    if frame is None:
        report.figures |= {"groups": 0, "messages": 0, "note": f"the cluster has no topic {PREFIX}…"}
        return report.finish()
    if config.tag is not None:
        frame = frame.where(f.col("tags") == config.tag)
    origins = [
        f.try_element_at("properties", f.lit(name)) for name in ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC", "REAL_TOPIC")
    ]
    letters = frame.select(
        "*",
        f.substring(f.col("topic"), len(PREFIX) + 1, names.TOPIC_LENGTH_MAX).alias("group"),
        f.coalesce(*origins, f.lit("unknown")).alias("origin"),
        f.to_date("storeTimestamp").alias("day"),
    ).persist()
    try:
        _count(report, letters)
        if not report.figures["messages"]:
            where = "the stores have" if config.store else "the cluster has"
            whose = f"{PREFIX}{config.group}" if config.group else f"{PREFIX}…"
            tagged = "" if config.tag is None else f" with the tag {config.tag!r}"
            report.figures["note"] = f"{where} no message of {whose}{tagged}"
        _show(report, letters, config.shown)
        if config.redrive_to is not None:
            _redrive(report, letters, config)
    finally:
        letters.unpersist()
    return report.finish()


def _letters(spark: Any, config: Config) -> Any:
    """The frame; None where the cluster has no topic of dead letters."""
    if config.store:
        from pyspark.sql import functions as f

        topics = (f"{PREFIX}{config.group}",) if config.group else ()
        frame = read_stores(spark, config.store, brokerName=config.broker_name, topics=topics)
        return frame.where(f.col("topic").startswith(PREFIX))
    assert config.namesrv is not None
    if config.group is not None:
        require_topic(config.namesrv, f"{PREFIX}{config.group}")
        return read_topics(spark, config.namesrv, [f"{PREFIX}{config.group}"])
    topics_there = matching_topics(config.namesrv, f"{PREFIX}.*")
    return read_topics(spark, config.namesrv, topics_there) if topics_there else None


def _count(report: Report, letters: Any) -> None:
    from pyspark.sql import functions as f

    rows = (
        letters.groupBy("group", "origin", "tags")
        .agg(
            f.count("*").alias("messages"),
            f.min("storeTimestamp").alias("first"),
            f.max("storeTimestamp").alias("last"),
            f.max("reconsumeTimes").alias("tries"),
        )
        .orderBy(f.desc("messages"), "group", "origin")
        .collect()
    )
    report.figures |= {"groups": len({row["group"] for row in rows}), "messages": sum(row["messages"] for row in rows)}
    lines = [
        [row["group"], row["origin"], row["tags"], row["messages"], row["tries"], str(row["first"]), str(row["last"])]
        for row in rows
    ]
    columns = ["group", "original topic", "tag", "messages", "most tries", "first", "last"]
    report.tables.append(Table("By group, topic and tag", columns, lines))
    days: dict[str, dict[str, float]] = {}
    for row in letters.groupBy("day", "group").count().orderBy("day").collect():
        days.setdefault(str(row["day"]), {})[row["group"]] = float(row["count"])
    groups = list(dict.fromkeys(row["group"] for row in rows))[:6]
    series = {group: [by_group.get(group, 0.0) for by_group in days.values()] for group in groups}
    report.plots.append(Plot("Dead letters per day", "bars", list(days), series, "messages"))


def _show(report: Report, letters: Any, count: int) -> None:
    columns = ["storeTimestamp", "group", "origin", "tags", "keys", "messageId", "reconsumeTimes"]
    rows = letters.orderBy("storeTimestamp", "brokerName", "physicalOffset").limit(count).collect()
    lines = [
        [
            str(row["storeTimestamp"]),
            *(row[name] for name in columns[1:]),
            bytes(row["body"] or b"")[:200].decode("utf-8", "replace"),
        ]
        for row in rows
    ]
    report.tables.append(Table("The oldest", [*columns, "body"], lines))


def _redrive(report: Report, letters: Any, config: Config) -> None:
    assert config.namesrv is not None
    assert config.redrive_to is not None
    selected = report.figures["messages"]
    told = write(copies(letters), config.namesrv, config.redrive_to, "exactly-once", config.producer_id, selected)
    report.figures |= {"selected": selected}
    report.figures |= {"redriven" if name == "written" else name: value for name, value in told.items()}
