"""A stream from topic to topic over elections: the master is killed under it, a slave is promoted, twice."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.health import open_cluster
from penstock.client import Admin, Producer
from tests.support.cluster.failover import wait_master
from tests.support.waiting import wait_until

FIRST, MORE = 3000, 500


@pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it")
def test_a_stream_survives_elections_and_nothing_is_lost_or_doubled(spark: Any, tmp_path: Path) -> None:
    cluster = open_cluster(str(tmp_path / "cluster"))
    cluster.up(shards=1, replicas=3, nameservers=1, mode="durable", base_port=0)
    try:
        server = cluster.plan.nameserver_addresses
        wait_master(cluster)
        with Admin(server) as admin:
            for topic in ("elected", "elected-out"):
                admin.create_topic(topic, queues=3)
        wanted = send(server, 0, FIRST)
        frame = spark.readStream.format("penstock").options(
            nameServer=server, subscribe="elected", startingOffsets="earliest", maxOffsetsPerTrigger="300"
        )
        sink = {"nameServer": server, "topic": "elected-out", "checkpointLocation": str(tmp_path / "checkpoint")}
        writer = frame.load().select("body").writeStream.format("penstock").options(**sink)
        query = writer.option("deliveryGuarantee", "exactly-once").start()
        try:
            wait_until(lambda: query.lastProgress is not None or None, 120, "the first batch")
            for turn in range(2):
                dead, before = wait_master(cluster)
                cluster.kill(dead.name)
                wanted += send(server, FIRST + turn * MORE, MORE)  # acknowledged by the next one
                cluster.start(dead.name)
                _, after = wait_master(cluster, 60)
                assert after.epoch > before.epoch
            query.processAllAvailable()
            assert query.isActive
        finally:
            query.stop()
        found = spark.read.format("penstock").options(nameServer=server, subscribe="elected-out").load()
        assert Counter(bytes(row["body"]) for row in found.select("body").collect()) == wanted
    finally:
        cluster.down()


def send(server: str, first: int, count: int) -> Counter[bytes]:
    bodies = [b"%d" % number for number in range(first, first + count)]
    with Producer(server) as producer:
        for body in bodies:
            producer.produce("elected", body, sharding_key=body.decode(), timeout_s=60)
        producer.flush(60)
    return Counter(bodies)
