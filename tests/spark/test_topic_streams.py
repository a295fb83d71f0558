"""Several streams in one session, and what a stream tells its user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.client import Admin
from penstock.pipeline.topics.cluster import Cluster as View
from tests.spark.test_topics import send
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until


def test_queries_of_a_session_share_an_environment_that_never_grows(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    """A task that is serialised while the map of variables grows cannot be read back, and ends its query."""
    send(brokers, topic, [b"%d" % number for number in range(20)])
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    function = manager.lookupDataSource("penstock").dataSourceCls()
    before = set(function.envVars().keySet())
    options = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("penstock").options(**options).load()
    queries = [
        frame.select("body")
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / str(number)))
        .trigger(availableNow=True)
        .start()
        for number in range(3)
    ]
    for query in queries:
        query.awaitTermination()
        assert sum(each.numInputRows for each in query.recentProgress) == 20
    assert function.envVars()["SPARK_PYTHON_RUNTIME"] == "PYTHON_WORKER"  # this is the map that Spark writes to
    assert set(function.envVars().keySet()) == before


def test_a_stream_that_waits_for_brokers_can_be_stopped(spark: Any, tmp_path: Path) -> None:
    with cluster(tmp_path, shards=1, replicas=1) as made:
        made.start()
        with Admin(made.nameservers) as admin:
            admin.create_topic("away", queues=1)
        options = {"nameServer": made.nameservers, "subscribe": "away"}
        frame = spark.readStream.format("penstock").options(**options).load().select("body")
        made.broker("a", 0).kill()
        wait_until(lambda: View(made.nameservers).known_route("away").absent, 30, "the group is gone")
        query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        wait_until(lambda: "Getting offsets" in query.status["message"] or None, 60, "the query asks where to begin")
        query.stop()
        assert not query.isActive
