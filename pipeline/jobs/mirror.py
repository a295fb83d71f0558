"""A topic into a topic of another cluster (or the same), as a stream: each message once, order of queues kept.

What is copied is told by the checkpoint, so the job is repeated, or killed and started again, without loss or
doubles. Messages say in properties where they came from. Without ``follow`` it ends when what is there is copied.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.proto.errors import ConfigError

from ..registration import register
from .config import setting
from .reading import local_path
from .report import Plot, Report, Table
from .topics import check_target, copies, require_topic


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """From where to where."""

    namesrv: str = setting("nameservers of the cluster to read from")
    topic: str = setting("the topic to read")
    to_namesrv: str = setting("nameservers of the cluster to write to")
    checkpoint: str = setting("directory or URI where Spark keeps what is copied; one for each mirror")
    to_topic: str | None = setting("the topic to write to, which must exist; the same name by default", None)
    start: str = setting("where a new mirror begins: earliest or latest", "earliest")
    batch: int = setting("messages in one micro-batch", 100_000)
    guarantee: str = setting("at-least-once, idempotent or exactly-once", "exactly-once")
    group: str | None = setting("report the mirror's progress as this consumer group's, at the source", None)
    follow: bool = setting("go on copying until the job is ended", False)


def run(spark: Any, config: Config) -> Report:
    """Copy what is there, or follow."""
    target = config.to_topic or config.topic
    check_target("mirror", target, config.guarantee)
    if config.start not in ("earliest", "latest"):
        raise ConfigError(f"mirror: start is {config.start!r}: earliest or latest")
    if config.namesrv == config.to_namesrv and target == config.topic:
        raise ConfigError(f"mirror: topic {target} would be copied into itself: name another to_topic or to_namesrv")
    require_topic(config.namesrv, config.topic)
    require_topic(config.to_namesrv, target)
    register(spark)
    report = Report("mirror", asdict(config))
    query = _start(spark, config, target)
    query.awaitTermination()
    batches = [each for each in query.recentProgress if each.numInputRows]
    report.figures |= {
        "messages": sum(each.numInputRows for each in batches),
        "batches": len(batches),
    }
    if batches:
        report.tables.append(_ends(batches[-1]))
        rate = {"messages per second": [round(each.processedRowsPerSecond or 0.0, 1) for each in batches]}
        report.plots.append(Plot("Throughput of the batches", "lines", [each.batchId for each in batches], rate))
    return report.finish()


def _start(spark: Any, config: Config, target: str) -> Any:
    reader = (
        spark.readStream.format("penstock")
        .option("nameServer", config.namesrv)
        .option("subscribe", config.topic)
        .option("startingOffsets", config.start)
        .option("maxOffsetsPerTrigger", str(config.batch))
    )
    if config.group:
        from ..topics.progress import attach

        attach(spark, config.namesrv)
        reader = reader.option("group", config.group)
    writer = (
        copies(reader.load())
        .writeStream.format("penstock")
        .option("nameServer", config.to_namesrv)
        .option("topic", target)
        .option("deliveryGuarantee", config.guarantee)
        .option("checkpointLocation", local_path(config.checkpoint))
    )
    return (writer if config.follow else writer.trigger(availableNow=True)).start()


def _ends(progress: Any) -> Table:
    from ..topics.progress import ends_of

    rows = [
        [queue.topic, queue.broker, queue.queue_id, at.end, at.lag]
        for source in progress.sources
        for queue, at in sorted(ends_of(source).items())
    ]
    return Table("Where the mirror is", ["topic", "broker", "queue", "next offset", "behind"], rows)
