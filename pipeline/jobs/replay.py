"""Messages of a lake back into a topic, in the order of their queues, with where they came from as properties.

The lake is searched as by the job query. Each source queue goes to one queue of the topic. With ``producer_id`` the job
may be repeated after a death: what was published stays published once, and the report tells that from what was written
now. With ``rate`` messages go out one by one in time, at least once: what is published together has no rate. There a
message that has a sharding key goes to the queue of that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from penstock.client import Producer
from penstock.formats.record.properties import RESERVED, TRANSIENT_PREFIX, UNKEPT
from penstock.proto.errors import ConfigError
from penstock.proto.names import is_system_topic

from ..options import setting
from ..spark.registration import register
from . import query
from .framework.report import Report, Table
from .framework.topics import check_target, copies, require_topic

QUERY_TIMEOUT_S = 30.0


TASKS_MAX = 32
"""With more, queues share tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(query.Wanted):
    """What to replay, and where to."""

    namesrv: str = setting("nameservers of the cluster to write to")
    to_topic: str = setting("the topic to write to; it must exist")
    rate: int = setting("messages per second at most, sent at least once; 0: as fast as brokers take them", 0)
    guarantee: str | None = setting(
        "at-least-once, idempotent or exactly-once, the default; with rate at-least-once only", None
    )
    producer_id: str | None = setting("names this replay, so that it can be repeated", None)
    dead_letter_topic: str | None = setting(
        "the topic for messages that cannot be written again, without rate; else one ends the job", None
    )


def check(config: Config) -> None:
    """Nothing, if the options are right; see :mod:`penstock.pipeline.jobs`."""
    guarantee = guarantee_of(config)
    check_target("replay", config.to_topic, guarantee, config.dead_letter_topic)
    if config.rate > 0 and guarantee != "at-least-once":
        raise ConfigError(
            f"replay: rate is {config.rate} and guarantee {guarantee!r}, whose messages are sent in large chunks or "
            "published together: leave rate out, or set guarantee to 'at-least-once'"
        )
    if config.producer_id and guarantee == "at-least-once":
        raise ConfigError("replay: producer_id is for idempotent and exactly-once, guarantee is 'at-least-once'")
    if config.dead_letter_topic and config.rate:
        raise ConfigError(f"replay: dead_letter_topic goes with no rate, which is {config.rate}: leave one of them out")
    query.require_times("replay", config.start, config.end)
    if config.rate < 0:
        raise ConfigError(f"replay: rate is {config.rate}: messages per second, or 0 for no limit")


def guarantee_of(config: Config) -> str:
    """The guarantee that is named, or the strongest that goes with the rate."""
    return config.guarantee or ("at-least-once" if config.rate else "exactly-once")


def run(spark: Any, config: Config) -> Report:
    """Write all that matches. The report fails where nothing does.

    Raises ConfigError: an option is wrong.
    Raises Corrupt: a file of the lake is missing, or cannot be read.
    Raises ChangedBatch: the producer id stands for other messages.
    """
    check(config)
    register(spark)
    require_topic(config.namesrv, config.to_topic)
    report = Report("replay", asdict(config))
    found = query.find(spark, config, report)
    with query.naming_files(config.lake):
        rows = found.groupBy("topic", "brokerName", "queueId").count().collect() if found is not None else []
    internal = sorted({row["topic"] for row in rows if is_system_topic(row["topic"])} - {config.topic})
    if internal:
        from pyspark.sql import functions as f

        found = found.where(~f.col("topic").isin(internal))
        rows = [row for row in rows if row["topic"] not in internal]
        report.figures["left_out"] = f"the brokers' own topics {', '.join(internal)}"
    selected = sum(row["count"] for row in rows)
    report.figures["selected"] = selected
    if found is None or not rows:
        report.problem("no message of the lake matches: nothing was written")
        return report.finish()
    # The same whenever it is repeated, whatever a session is set to: an idempotent writer knows its rows by them.
    tasks = min(len(rows), TASKS_MAX) if config.rate == 0 else 1
    ordered = found.repartition(tasks, "topic", "brokerName", "queueId").sortWithinPartitions(
        "topic", "brokerName", "queueId", "queueOffset", "physicalOffset"
    )
    made = copies(ordered)
    with query.naming_files(config.lake):
        if config.rate:
            with Producer(config.namesrv) as producer:
                told = {"written": send_at(config.rate, made.toLocalIterator(), producer, config.to_topic)}
        else:
            guarantee = guarantee_of(config)
            dead = config.dead_letter_topic
            told = write(made, config.namesrv, config.to_topic, guarantee, config.producer_id, selected, dead)
            report.figures |= {"refused": f"those that cannot be messages are in topic {dead}"} if dead else {}
    report.figures |= told
    lines = [[row["topic"], row["brokerName"], row["queueId"], row["count"]] for row in rows]
    title = "Replayed" if told.get("written") else "Selected; all of it was there"
    report.tables.append(Table(title, ["topic", "broker", "queue", "messages"], sorted(lines)))
    report.finish()
    report.figures["messages_per_s"] = round(report.figures.get("written", 0) / max(report.seconds, 1e-3))
    return report


def send_at(
    rate: int,
    rows: Iterable[Any],
    producer: Producer,
    topic: str,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Send the rows of :func:`copies` in their order, at no moment more than ``rate`` for each second since the first.

    On return all are acknowledged; how many.
    Raises DeliveryFailed: some are not.
    """
    began = now()
    count = 0
    for count, row in enumerate(rows, 1):
        early_s = began + (count - 1) / rate - now()
        if early_s > 0:
            sleep(early_s)
        said = (row["properties"] or {}).items()
        left_out = RESERVED | UNKEPT
        own = {name: value for name, value in said if name not in left_out and not name.startswith(TRANSIENT_PREFIX)}
        key = row["shardingKey"] or row["routingKey"]
        producer.produce(topic, bytes(row["body"] or b""), row["tags"], row["keys"], own, key)
    producer.flush()
    return count


def write(
    frame: Any,
    name_server: str,
    topic: str,
    guarantee: str,
    producer_id: str | None,
    selected: int,
    dead_letter_topic: str | None = None,
) -> dict[str, Any]:
    """Write rows for the sink; figures of it: ``written``, and ``note`` where the producer id was used before.

    ``selected``: how many rows there are. Without ``written`` nobody knows: an idempotent writer that was used before
    has its answers from brokers that do not say which chunks are new, and a group that was down may know the writer.
    Raises PenstockError: the sink's, as ChangedBatch.
    """
    used, is_published, silent = used_before(name_server, producer_id) if producer_id else (False, False, [])
    sink = {"nameServer": name_server, "topic": topic, "deliveryGuarantee": guarantee}
    sink |= {"producerId": producer_id} if producer_id else {}
    sink |= {"deadLetterTopic": dead_letter_topic} if dead_letter_topic else {}
    frame.write.format("penstock").options(**sink).mode("append").save()
    if not used and silent:
        down = ", ".join(silent)
        return {"note": f"whether the producer id {producer_id!r} was used before is not known: {down} was down"}
    if not used:
        return {"written": selected}
    note = f"the producer id {producer_id!r} was used before"
    if guarantee == "idempotent":
        return {"note": f"{note}: what that job had written was not written again"}
    if is_published:
        return {"written": 0, "note": f"{note}: everything had been written"}
    return {"written": selected, "note": f"{note}, and had published nothing exactly once"}


def used_before(name_server: str, producer_id: str) -> tuple[bool, bool, list[str]]:
    """True if a job of this id has written, or begun to; and True if, as exactly-once, it was decided and is published.

    Brokers keep that for days. Last, the broker groups that are down and were not asked.
    Raises BrokerUnavailable, NameserverUnavailable.
    """
    from penstock.proto.wire.pipeline_pb2 import WriterName
    from penstock.proto.wire.pipeline_pb2_grpc import StagingStub

    from ..topics.cluster import cluster

    calls, request = cluster(name_server).calls, WriterName(writer=producer_id)
    view = calls.directory.cluster()
    asked = [shard.broker_name for shard in view.shards]
    states = [calls.at_master(broker, "QueryWriter", request, QUERY_TIMEOUT_S, service=StagingStub) for broker in asked]
    is_published = any(state.exists and state.decided_batch >= 0 for state in states)
    return (
        any(state.exists for state in states),
        is_published,
        sorted({shard.broker_name for shard in view.absent}.difference(asked)),
    )
