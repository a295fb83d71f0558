"""Sessions of messages from a trace topic: send, store, first delivery, tries, and how long each took.

Read from a cluster, or from stores; of Penstock's clients or of RocketMQ's, see :mod:`penstock.formats.trace`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.formats.trace import CONTEXT_END, FIELD_SEPARATOR, TRACE_TOPIC, Pub, SubAfter, SubBefore, place
from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError

from ..options import setting
from .framework.reading import read_stores
from .framework.report import Report, Table
from .framework.topics import read_topics, require_topic

SHARES = [0.5, 0.99, 0.999, 1.0]
PLOTTED_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Where the traces are."""

    namesrv: str | None = setting("nameservers of the cluster to read from", None)
    store: tuple[str, ...] = setting("read store directories instead, separated by commas", ())
    broker_name: tuple[str, ...] = setting("their brokers' names, in the same order", ())
    trace_topic: str = setting("the topic of the traces", TRACE_TOPIC)
    topic: str | None = setting("only messages of this topic", None)
    message_id: str | None = setting("only the message with this id", None)
    shown: int = setting("show so many sessions, the slowest first", 50)


def run(spark: Any, config: Config) -> Report:
    """Put sessions together and measure them. The report fails where sends or deliveries did."""
    from pyspark.sql import functions as f

    if (config.namesrv is None) == (not config.store):
        raise ConfigError("trace: give namesrv or store, one of them")
    report = Report("trace", asdict(config))
    contexts = _contexts(_read(spark, config)).persist()
    try:
        sessions = _sessions(contexts)
        if config.topic is not None:
            sessions = sessions.where(f.col("topic") == config.topic)
        if config.message_id is not None:
            sessions = sessions.where(f.col("messageId") == config.message_id)
        sessions = sessions.persist()
        _summarize(report, sessions)
        if not report.figures["messages"] and (config.topic is not None or config.message_id is not None):
            named = {"topic": config.topic, "message id": config.message_id}
            text = " and ".join(f"{name} {value!r}" for name, value in named.items() if value is not None)
            report.problem(f"no trace of {text} in {config.trace_topic}: correct it, or name another trace_topic")
        _show(report, sessions, config.shown)
        sessions.unpersist()
    finally:
        contexts.unpersist()
    return report.finish()


def _read(spark: Any, config: Config) -> Any:
    if config.store:
        return read_stores(spark, config.store, brokerName=config.broker_name, topics=(config.trace_topic,))
    assert config.namesrv is not None
    require_topic(config.namesrv, config.trace_topic)
    return read_topics(spark, config.namesrv, [config.trace_topic])


def _contexts(frame: Any) -> Any:
    """A row per context: its kind, and its fields as an array."""
    from pyspark.sql import functions as f

    parts = frame.select(f.explode(f.split(f.col("body").cast("string"), CONTEXT_END)).alias("context"))
    fields = parts.select(f.split("context", FIELD_SEPARATOR).alias("fields")).where(f.size("fields") > 4)
    return fields.withColumn("kind", f.get("fields", f.lit(0)))


def _sessions(contexts: Any) -> Any:
    """A row per message and consumer group; the group is null where nobody received it."""
    from pyspark.sql import functions as f

    def field(kind: Any, name: str) -> Any:
        return f.get("fields", f.lit(place(kind, name)))

    def number(kind: Any, name: str) -> Any:
        return f.expr(f"try_cast(fields[{place(kind, name)}] as bigint)")

    def of_kind(kind: Any, last: str) -> Any:
        """Those of a kind that have all fields up to that one."""
        return contexts.where(f"kind = '{kind.__name__}' and size(fields) > {place(kind, last)}")

    # Where the offset id is left out, the success stands in its place.
    success = f.coalesce(field(Pub, "success"), field(Pub, "offset_message_id"), f.lit("true"))
    sent = of_kind(Pub, "cost_ms").select(
        number(Pub, "timestamp_ms").alias("began"),
        field(Pub, "group").alias("producer"),
        field(Pub, "topic").alias("topic"),
        field(Pub, "message_id").alias("messageId"),
        field(Pub, "store_host").alias("storeHost"),
        number(Pub, "cost_ms").alias("sendMs"),
        (success == "true").alias("sent"),
    )
    sent = sent.groupBy("messageId").agg(
        f.min("began").alias("began"),
        *(f.first(name).alias(name) for name in ("producer", "topic", "storeHost", "sendMs")),
        f.max("sent").alias("sent"),
    )
    before = of_kind(SubBefore, "retry_times").select(
        number(SubBefore, "timestamp_ms").alias("at"),
        field(SubBefore, "group").alias("group"),
        field(SubBefore, "request_id").alias("request"),
        field(SubBefore, "message_id").alias("messageId"),
    )
    after = of_kind(SubAfter, "success").select(
        field(SubAfter, "request_id").alias("request"),
        field(SubAfter, "message_id").alias("messageId"),
        number(SubAfter, "cost_ms").alias("consumeMs"),
        (field(SubAfter, "success") == "true").alias("consumed"),
    )
    received = (
        before.join(after, ["request", "messageId"], "left")
        .groupBy("messageId", "group")
        .agg(
            f.min("at").alias("firstDelivery"),
            f.count_distinct("request").alias("tries"),
            f.max("consumeMs").alias("consumeMs"),
            f.max(f.coalesce("consumed", f.lit(False))).alias("consumed"),
        )
    )
    return sent.join(received, "messageId", "full_outer").withColumn(
        "deliveryMs", f.col("firstDelivery") - f.col("began")
    )


def _summarize(report: Report, sessions: Any) -> None:
    from pyspark.sql import functions as f

    names = {"sendMs": "send", "deliveryMs": "send to first delivery", "consumeMs": "consumption"}
    row = sessions.agg(
        f.count_distinct("messageId").alias("messages"),
        f.count("group").alias("deliveries"),
        f.coalesce(f.sum(f.when(~f.col("sent"), 1)), f.lit(0)).alias("failed_sends"),
        f.coalesce(f.sum(f.when(~f.col("consumed"), 1)), f.lit(0)).alias("failed_deliveries"),
        f.coalesce(f.sum(f.when(f.col("group").isNull(), 1)), f.lit(0)).alias("never_delivered"),
        f.coalesce(f.sum(f.col("tries") - 1), f.lit(0)).alias("repeated_tries"),
        *(f.percentile_approx(name, SHARES, 10_000).alias(name) for name in names),
    ).first()
    figures = ("messages", "deliveries", "failed_sends", "failed_deliveries", "never_delivered", "repeated_tries")
    report.figures |= {name: row[name] for name in figures}
    lines = [[text, *row[name]] for name, text in names.items() if row[name]]
    report.tables.append(Table("Latencies, ms", ["of", "50 %", "99 %", "99.9 %", "largest"], lines))
    for name in ("failed_sends", "failed_deliveries"):
        if row[name]:
            report.problem(f"{row[name]} {name.replace('_', ' ')}", count=row[name])
    second = f.floor(f.col("began") / 1000) * 1000
    seconds = (
        sessions.where("began is not null")
        .groupBy(second.alias("at"))
        .agg(f.count_distinct("messageId").alias("sent"), f.percentile_approx("deliveryMs", 0.99).alias("late"))
    )
    rows = seconds.orderBy("at").limit(PLOTTED_MAX).collect()
    at = [row["at"] for row in rows]
    report.plots.append(Plot("Messages sent per second", "times", at, {"sent": [float(row["sent"]) for row in rows]}))
    late = {"99 % of first deliveries": [None if row["late"] is None else float(row["late"]) for row in rows]}
    report.plots.append(Plot("Send to first delivery", "times", at, late, "ms"))


def _show(report: Report, sessions: Any, count: int) -> None:
    from pyspark.sql import functions as f

    columns = ["messageId", "topic", "producer", "sent", "storeHost", "sendMs"]
    columns += ["group", "deliveryMs", "tries", "consumeMs", "consumed"]
    rows = sessions.orderBy(f.desc_nulls_last("deliveryMs"), "messageId").limit(count).select(*columns).collect()
    report.tables.append(Table("Sessions, the slowest first", columns, [list(row) for row in rows]))
