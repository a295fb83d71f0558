"""Topics as the jobs read and write them."""

from __future__ import annotations

from typing import Any

from penstock.formats.record.properties import PROPERTIES_ROOM, SHARDING_KEY, UNKEPT
from penstock.proto.errors import ConfigError
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from ...spark.registration import register
from ...topics.options import GUARANTEES, source_options, writable_topic

ORIGIN = ("PENSTOCK_ORIGIN_MSG_ID", "PENSTOCK_ORIGIN_PLACE")
"""Properties of a message that was copied: its id, and ``topic/broker/queue/offset``, where it came from."""


def require_topic(name_server: str, topic: str) -> TopicRoute:
    """The topic's route, if the cluster has it: told before hours of work, not after.

    Raises TopicNotFound, RouteNotFound, NameserverUnavailable.
    """
    from ...topics.cluster import cluster

    return cluster(name_server).route(topic)


def matching_topics(name_server: str, pattern: str) -> list[str]:
    """The topics whose whole name matches, sorted; system topics too."""
    from ...topics.cluster import cluster

    given = {"nameServer": name_server, "subscribePattern": pattern, "includeSystemTopics": "true"}
    return cluster(name_server).topics(source_options(given, streaming=False))


def read_topics(spark: Any, name_server: str, topics: list[str] | tuple[str, ...], **options: str) -> Any:
    """What the topics hold now, as a frame."""
    register(spark)
    reader = spark.read.format("penstock").option("nameServer", name_server).option("subscribe", ",".join(topics))
    return reader.options(**options).load()


def check_target(job: str, topic: str, guarantee: str, dead_letter_topic: str | None = None) -> None:
    """Raises ConfigError for a name that no topic may have, or an unknown guarantee."""
    writable_topic(topic, f"{job}: to_topic")
    if dead_letter_topic is not None:
        writable_topic(dead_letter_topic, f"{job}: dead_letter_topic")
    if guarantee not in GUARANTEES:
        raise ConfigError(f"{job}: guarantee is {guarantee!r}: one of {', '.join(GUARANTEES)}")


def copies(frame: Any) -> Any:
    """Rows of messages as rows for the sink: order within a queue is kept, and each says where it came from.

    A message that is copied again still says where it was first; one whose properties leave no room for that does not.
    What has waited, or belonged to a transaction, is a message like any other.
    """
    from pyspark.sql import functions as f

    place = f.concat_ws("/", "topic", "brokerName", "queueId", "queueOffset")
    said = f.coalesce("properties", f.create_map().cast("map<string,string>"))
    said = f.map_filter(said, lambda name, _: ~name.isin(*sorted(UNKEPT)))
    origin = f.create_map(f.lit(ORIGIN[0]), f.col("messageId"), f.lit(ORIGIN[1]), place)
    known = f.map_concat(said, f.map_filter(origin, lambda name, _: ~f.map_contains_key(said, name)))
    lengths = f.transform(f.map_entries(known), lambda each: f.octet_length(f.concat(each.key, each.value)) + 2)
    length = f.aggregate(lengths, f.lit(0), lambda total, each: total + f.coalesce(each, f.lit(0)))
    return frame.select(
        "body",
        "tags",
        "keys",
        f.when(length <= PROPERTIES_ROOM, known).otherwise(said).alias("properties"),
        f.try_element_at(said, f.lit(SHARDING_KEY)).alias("shardingKey"),
        f.concat_ws("/", "topic", "brokerName", "queueId").alias("routingKey"),
    )
