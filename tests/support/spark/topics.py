"""Topics for the jobs' tests, and what Spark reads of them."""

from __future__ import annotations

from typing import Any

from penstock.client import Admin, Producer
from tests.support.cluster.cluster import Cluster


def make(brokers: Cluster, topic: str, bodies: int = 0) -> None:
    """A topic with one queue at each broker, and so many messages."""
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    with Producer(brokers.nameservers) as producer:
        for number in range(bodies):
            producer.produce(topic, b"%d" % number, sharding_key=f"{number}")
        producer.flush(60)


def count(spark: Any, brokers: Cluster, topic: str) -> int:
    """How many messages Spark finds there."""
    options = {"nameServer": brokers.nameservers, "subscribe": topic}
    return int(spark.read.format("penstock").options(**options).load().count())
