"""Messages of a lake back into a topic, in the order of their queues, with where they came from as properties.

The lake is searched as by the job query. Each source queue goes to one queue of the topic. With ``producer_id`` the job
may be repeated after a death: what was published stays published once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.proto.errors import ConfigError

from ..registration import register
from . import query
from .config import setting
from .report import Report, Table
from .topics import check_target, copies, require_topic, throttled


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What to replay, and where to. All conditions must hold."""

    lake: str = setting("the lake's directory or URI")
    namesrv: str = setting("nameservers of the cluster to write to")
    to_topic: str = setting("the topic to write to; it must exist")
    topic: str | None = setting("only messages of this topic", None)
    queue: int | None = setting("only of the queues with this number", None)
    key: str | None = setting("only with this key", None)
    message_id: str | None = setting("only with this message id", None)
    tag: str | None = setting("only with this tag", None)
    start: str | None = setting("only stored at or after this time (ISO 8601 or ms)", None)
    end: str | None = setting("only stored before this time", None)
    rate: int = setting("messages per second at most; 0: as fast as brokers take them", 0)
    guarantee: str = setting("at-least-once, idempotent or exactly-once", "exactly-once")
    producer_id: str | None = setting("names this replay, so that it can be repeated", None)


def run(spark: Any, config: Config) -> Report:
    """Write all that matches. The report fails where nothing does."""
    check_target("replay", config.to_topic, config.guarantee)
    if config.rate < 0:
        raise ConfigError(f"replay: rate is {config.rate}: messages per second, or 0 for no limit")
    register(spark)
    require_topic(config.namesrv, config.to_topic)
    report = Report("replay", asdict(config))
    wanted = {name: getattr(config, name) for name in ("topic", "queue", "key", "message_id", "tag", "start", "end")}
    found = query.find(spark, query.Config(lake=config.lake, **wanted), report)
    rows = found.groupBy("topic", "brokerName", "queueId").count().collect() if found is not None else []
    report.figures["messages"] = sum(row["count"] for row in rows)
    if found is None or not rows:
        report.problem("no message of the lake matches: nothing was written")
        return report.finish()
    tasks = min(len(rows), spark.sparkContext.defaultParallelism if config.rate == 0 else 1)
    ordered = found.repartition(tasks, "topic", "brokerName", "queueId").sortWithinPartitions(
        "topic", "brokerName", "queueId", "queueOffset"
    )
    made = copies(ordered)
    made = throttled(made, config.rate, tasks) if config.rate else made
    writer = made.write.format("penstock").option("nameServer", config.namesrv).option("topic", config.to_topic)
    writer = writer.option("deliveryGuarantee", config.guarantee)
    if config.producer_id:
        writer = writer.option("producerId", config.producer_id)
    writer.mode("append").save()
    lines = [[row["topic"], row["brokerName"], row["queueId"], row["count"]] for row in rows]
    report.tables.append(Table("Replayed", ["topic", "broker", "queue", "messages"], sorted(lines)))
    report.finish()
    report.figures["messages_per_s"] = round(report.figures["messages"] / max(report.seconds, 1e-3))
    return report
