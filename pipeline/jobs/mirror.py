"""A topic into a topic of another cluster (or the same), as a stream: each message once, order of queues kept.

What is copied is told by the checkpoint, so the job is repeated, or killed and started again, without loss or
doubles. Messages say in properties where they came from. Without ``follow`` it ends when what is there is copied.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError

from ..options import setting
from ..spark.registration import register
from .framework.reading import claim_checkpoint, ended_by_signals, follow, local_path, same_servers
from .framework.report import Report, Table
from .framework.topics import check_target, copies, require_topic


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
    dead_letter_topic: str | None = setting(
        "the topic, of the cluster to write to, for messages that cannot be written again; else one ends the job", None
    )
    fail_on_data_loss: bool = setting("no: go on where messages of the source are gone", True)
    group: str | None = setting("report the mirror's progress as this consumer group's, at the source", None)
    follow: bool = setting("go on copying until SIGTERM or SIGINT ends the job, which then reports", False)


def run(spark: Any, config: Config) -> Report:
    """Copy what is there, or follow until a signal comes.

    Raises ConfigError: an option is wrong, or the checkpoint is of another source, target or job.
    """
    from ..topics.read.progress import attach

    target = config.to_topic or config.topic
    check_target("mirror", target, config.guarantee, config.dead_letter_topic)
    if config.start not in ("earliest", "latest"):
        raise ConfigError(f"mirror: start is {config.start!r}: earliest or latest")
    routes = require_topic(config.namesrv, config.topic), require_topic(config.to_namesrv, target)
    # By the brokers, as nameservers have many names.
    brokers = [{member.address for shard in route.shards for member in shard.members} for route in routes]
    if target == config.topic and not brokers[0].isdisjoint(brokers[1]):
        raise ConfigError(f"mirror: topic {target} would be copied into itself: name another to_topic or to_namesrv")
    between = {"namesrv": same_servers(config.namesrv), "topic": config.topic}
    between |= {"to_namesrv": same_servers(config.to_namesrv), "to_topic": target}
    claim_checkpoint("mirror", config.checkpoint, between)
    register(spark)
    report = Report("mirror", asdict(config))
    progress = attach(spark, config.namesrv)
    try:
        query = _start(spark, config, target)
        if config.follow:
            with ended_by_signals() as ended:
                follow(query, ended)
        else:
            query.awaitTermination()
        counted = progress.run(str(query.runId))
    finally:
        spark.streams.removeListener(progress)
    report.figures |= {"messages": counted.messages, "batches": counted.batches}
    if counted.last is not None:
        report.tables.append(_ends(counted.last))
        numbers, rates = zip(*counted.rates, strict=True)
        rate = {"messages per second": rates}
        report.plots.append(Plot("Throughput of the batches", "lines", list(numbers), rate))
    return report.finish()


def _start(spark: Any, config: Config, target: str) -> Any:
    source = {"nameServer": config.namesrv, "subscribe": config.topic, "startingOffsets": config.start}
    source |= {"maxOffsetsPerTrigger": str(config.batch), "failOnDataLoss": str(config.fail_on_data_loss).lower()}
    source |= {"group": config.group} if config.group else {}
    sink = {"nameServer": config.to_namesrv, "topic": target, "deliveryGuarantee": config.guarantee}
    sink |= {"checkpointLocation": local_path(config.checkpoint)}
    sink |= {"deadLetterTopic": config.dead_letter_topic} if config.dead_letter_topic else {}
    frame = spark.readStream.format("penstock").options(**source).load()
    writer = copies(frame).writeStream.format("penstock").options(**sink)
    return (writer if config.follow else writer.trigger(availableNow=True)).start()


def _ends(progress: Any) -> Table:
    from ..topics.read.progress import ends_of

    rows = [
        [queue.topic, queue.broker, queue.queue_id, at.end, at.lag]
        for source in progress.sources
        for queue, at in sorted(ends_of(source).items())
    ]
    return Table("Where the mirror is", ["topic", "broker", "queue", "next offset", "behind"], rows)
