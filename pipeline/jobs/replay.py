"""Messages of a lake back into a topic, in the order of their queues, with where they came from as properties.

The lake is searched as by the job query. Each source queue goes to one queue of the topic. With ``producer_id`` the job
may be repeated after a death: what was published stays published once, and the report tells that from what was written
now.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from penstock.proto.errors import ConfigError

from ..registration import register
from . import query
from .config import setting
from .reading import own_errors
from .report import Report, Table
from .topics import check_target, copies, require_topic, throttled

QUERY_TIMEOUT_S = 30.0


TASKS_MAX = 32
"""With more, queues share tasks."""


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


def check(config: Config) -> None:
    """Nothing, if the options are right, as far as can be told without Spark.

    Raises:
        ConfigError: they are not.
    """
    check_target("replay", config.to_topic, config.guarantee)
    if config.producer_id and config.guarantee == "at-least-once":
        raise ConfigError("replay: producer_id is for idempotent and exactly-once, guarantee is 'at-least-once'")
    query.require_times("replay", config.start, config.end)
    if config.rate < 0:
        raise ConfigError(f"replay: rate is {config.rate}: messages per second, or 0 for no limit")


def run(spark: Any, config: Config) -> Report:
    """Write all that matches. The report fails where nothing does.

    Raises:
        ConfigError: an option is wrong.
        Corrupt: a file of the lake is missing, or cannot be read.
        ChangedBatch: the producer id stands for other messages.
    """
    check(config)
    register(spark)
    require_topic(config.namesrv, config.to_topic)
    report = Report("replay", asdict(config))
    wanted = {name: getattr(config, name) for name in ("topic", "queue", "key", "message_id", "tag", "start", "end")}
    found = query.find(spark, query.Config(lake=config.lake, **wanted), report)
    with query.naming_files(config.lake):
        rows = found.groupBy("topic", "brokerName", "queueId").count().collect() if found is not None else []
    selected = sum(row["count"] for row in rows)
    report.figures["selected"] = selected
    if found is None or not rows:
        report.problem("no message of the lake matches: nothing was written")
        return report.finish()
    # The same whenever it is repeated, whatever a session is set to: an idempotent writer knows its rows by them.
    tasks = min(len(rows), TASKS_MAX if config.rate == 0 else 1)
    ordered = found.repartition(tasks, "topic", "brokerName", "queueId").sortWithinPartitions(
        "topic", "brokerName", "queueId", "queueOffset", "physicalOffset"
    )
    made = copies(ordered)
    made = throttled(made, config.rate, tasks) if config.rate else made
    with query.naming_files(config.lake):
        told = write(made, config.namesrv, config.to_topic, config.guarantee, config.producer_id, selected)
    report.figures |= told
    lines = [[row["topic"], row["brokerName"], row["queueId"], row["count"]] for row in rows]
    report.tables.append(Table("Replayed", ["topic", "broker", "queue", "messages"], sorted(lines)))
    report.finish()
    report.figures["messages_per_s"] = round(report.figures.get("written", 0) / max(report.seconds, 1e-3))
    return report


def write(
    frame: Any, name_server: str, topic: str, guarantee: str, producer_id: str | None, selected: int
) -> dict[str, Any]:
    """Write rows for the sink; figures of it: ``written``, and ``note`` where the producer id was used before.

    ``selected``: how many rows there are. Without ``written`` nobody knows: an idempotent writer that was used before
    has its answers from brokers that do not say which chunks are new.

    Raises:
        PenstockError: the sink's, as ChangedBatch.
    """
    used, is_published = used_before(name_server, producer_id) if producer_id else (False, False)
    writer = frame.write.format("penstock").option("nameServer", name_server).option("topic", topic)
    writer = writer.option("deliveryGuarantee", guarantee)
    if producer_id:
        writer = writer.option("producerId", producer_id)
    with own_errors():
        writer.mode("append").save()
    if not used:
        return {"written": selected}
    note = f"the producer id {producer_id!r} was used before"
    if guarantee == "idempotent":
        return {"note": f"{note}: what that job had written was not written again"}
    if is_published:
        return {"written": 0, "note": f"{note}: everything had been written"}
    return {"written": selected, "note": f"{note}, and had published nothing exactly once"}


def used_before(name_server: str, producer_id: str) -> tuple[bool, bool]:
    """Whether a job of this id has written, or begun to, and whether, as exactly-once, it was decided and is published.

    Brokers keep that for days.

    Raises:
        BrokerUnavailable, NameserverUnavailable.
    """
    from penstock.proto.wire.pipeline_pb2 import WriterName

    from ..topics.cluster import cluster

    calls, request = cluster(name_server).calls, WriterName(writer=producer_id)
    states = [calls.staging(broker, "QueryWriter", request, QUERY_TIMEOUT_S) for broker in calls.shards()]
    return any(state.exists for state in states), any(state.exists and state.decided_batch >= 0 for state in states)
