"""A topic into a topic of another cluster (or the same), as a stream: each message once, order of queues kept.

What is copied is told by the checkpoint, so the job is repeated, or killed and started again, without loss or
doubles. Messages say in properties where they came from. Without ``follow`` it ends when what is there is copied.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.pages.plots import Plot
from penstock.proto.errors import ConfigError, OutcomeUnknown

from ..options import setting
from ..spark.registration import register
from .framework.reading import claim_checkpoint, ended_by_signals, follow, local_path, own_errors, same_servers
from .framework.report import Report, Table
from .framework.topics import check_target, copies, require_topic

RATES_MAX = 1000
EVENTS_TIMEOUT_S = 60.0


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
    follow: bool = setting("go on copying until SIGTERM or SIGINT ends the job, which then reports", False)


def run(spark: Any, config: Config) -> Report:
    """Copy what is there, or follow until a signal comes.

    Raises:
        ConfigError: an option is wrong, or the checkpoint is of another source, target or job.
    """
    target = config.to_topic or config.topic
    check_target("mirror", target, config.guarantee)
    if config.start not in ("earliest", "latest"):
        raise ConfigError(f"mirror: start is {config.start!r}: earliest or latest")
    if config.namesrv == config.to_namesrv and target == config.topic:
        raise ConfigError(f"mirror: topic {target} would be copied into itself: name another to_topic or to_namesrv")
    require_topic(config.namesrv, config.topic)
    require_topic(config.to_namesrv, target)
    between = {"namesrv": same_servers(config.namesrv), "topic": config.topic}
    between |= {"to_namesrv": same_servers(config.to_namesrv), "to_topic": target}
    claim_checkpoint("mirror", config.checkpoint, between)
    register(spark)
    report = Report("mirror", asdict(config))
    tally = _tally()
    listeners = [tally]
    spark.streams.addListener(tally)
    if config.group:
        from ..topics.read.progress import attach

        listeners.insert(0, attach(spark, config.namesrv))
    try:
        with own_errors():
            query = _start(spark, config, target)
            if config.follow:
                with ended_by_signals() as ended:
                    follow(query, ended)
            else:
                query.awaitTermination()
        counted = tally.of(str(query.runId))
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    report.figures |= {"messages": counted.messages, "batches": counted.batches}
    if counted.last is not None:
        report.tables.append(_ends(counted.last))
        numbers, rates = zip(*counted.rates, strict=True)
        rate = {"messages per second": rates}
        report.plots.append(Plot("Throughput of the batches", "lines", list(numbers), rate))
    return report.finish()


@dataclass(slots=True)
class _Counted:
    """What a query did, batch by batch. ``rates``: number and messages per second of the newest batches."""

    messages: int = 0
    batches: int = 0
    last: Any = None
    rates: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RATES_MAX))
    ended: threading.Event = field(default_factory=threading.Event)


def _tally() -> Any:
    """A listener that counts: a query itself remembers its newest hundred batches."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Tally(StreamingQueryListener):
        def __init__(self) -> None:
            self._runs: defaultdict[str, _Counted] = defaultdict(_Counted)
            self._lock = threading.Lock()  # events come in a thread of their own

        def of(self, run: str) -> _Counted:
            """Of a run that has ended; its last events may still be under way.

            Raises:
                OutcomeUnknown: Spark does not tell its end.
            """
            with self._lock:
                counted = self._runs[run]
            if not counted.ended.wait(EVENTS_TIMEOUT_S):
                raise OutcomeUnknown(
                    f"mirror: Spark has not told within {EVENTS_TIMEOUT_S:g} s that its query ended: everything is "
                    "copied, but how much that was is not known"
                )
            return counted

        def onQueryStarted(self, event: Any) -> None:
            """Nothing yet."""

        def onQueryIdle(self, event: Any) -> None:
            """Nothing new."""

        def onQueryProgress(self, event: Any) -> None:
            """A batch is finished."""
            progress = event.progress
            if not progress.numInputRows:
                return
            with self._lock:
                counted = self._runs[str(progress.runId)]
                counted.messages += progress.numInputRows
                counted.batches += 1
                counted.last = progress
                counted.rates.append((progress.batchId, round(progress.processedRowsPerSecond or 0.0, 1)))

        def onQueryTerminated(self, event: Any) -> None:
            """It comes behind all others of the run."""
            with self._lock:
                self._runs[str(event.runId)].ended.set()

    return Tally()


def _start(spark: Any, config: Config, target: str) -> Any:
    reader = (
        spark.readStream.format("penstock")
        .option("nameServer", config.namesrv)
        .option("subscribe", config.topic)
        .option("startingOffsets", config.start)
        .option("maxOffsetsPerTrigger", str(config.batch))
    )
    if config.group:
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
    from ..topics.read.progress import ends_of

    rows = [
        [queue.topic, queue.broker, queue.queue_id, at.end, at.lag]
        for source in progress.sources
        for queue, at in sorted(ends_of(source).items())
    ]
    return Table("Where the mirror is", ["topic", "broker", "queue", "next offset", "behind"], rows)
