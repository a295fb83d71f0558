"""Several streams in one session, and what a stream tells its user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Admin
from penstock.pipeline import behind, register
from penstock.pipeline.topics.cluster import Cluster as View
from penstock.proto.errors import ChangedBatch, MessageTooLarge
from tests.spark.test_topics import bodies, read, send
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


def test_a_thread_that_has_registered_writes_and_starts_streams(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    options = {"nameServer": brokers.nameservers, "topic": topic, "checkpointLocation": str(tmp_path / "checkpoint")}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("from a stream")

    def write() -> None:
        register(spark)
        rows = spark.sql("SELECT 'from a batch' AS body")
        rows.write.format("penstock").options(**options).mode("append").save()
        lines = spark.readStream.format("text").load(str(tmp_path / "in")).selectExpr("value AS body")
        writer = lines.writeStream.format("penstock").options(**options).trigger(availableNow=True)
        writer.start().awaitTermination()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(write).result()
    assert set(bodies(read(spark, brokers, topic))) == {b"from a batch", b"from a stream"}


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_chunks_that_brokers_do_not_take_name_the_option_that_makes_them_smaller(
    spark: Any, tmp_path: Path, guarantee: str, errors: Any
) -> None:
    with cluster(tmp_path, shards=1, replicas=1, maxMessageSize=64 << 10) as brokers:
        brokers.start()
        with Admin(brokers.nameservers) as admin:
            admin.create_topic("orders", queues=1)
        rows = spark.range(0, 400, 1, 1).selectExpr("repeat('x', 1000) AS body")
        sink = rows.write.format("penstock").mode("append")
        sink = sink.options(nameServer=brokers.nameservers, topic="orders", deliveryGuarantee=guarantee)
        errors(MessageTooLarge, "batchBytes at once: give this option less than the brokers' maxMessageSize", sink.save)
        sink.option("batchBytes", "50k").save()
        assert read(spark, brokers, "orders").count() == 400


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


def test_a_query_whose_last_batch_comes_again_with_other_rows_goes_on_with_its_checkpoint(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    target, checkpoint = f"{topic}-out", tmp_path / "checkpoint"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=2)

    def run(**sink: str) -> Any:
        options = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"}
        frame = spark.readStream.format("penstock").options(**options).load()
        frame = frame.selectExpr("concat(cast(body as string), ' ', cast(rand() as string)) as body")
        writer = frame.writeStream.format("penstock").options(nameServer=brokers.nameservers, topic=target, **sink)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    send(brokers, topic, [b"%d" % number for number in range(60)])
    assert behind(run()) == {topic: 0}
    (checkpoint / "commits" / "0").unlink()  # as a crash between the last write and the commit leaves it
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    with pytest.raises(ChangedBatch, match=r"query .*, batch 0, partition .*skipBatch=0.*rewriteBatch=0") as caught:
        run()
    assert "\n" not in str(caught.value)
    send(brokers, topic, [b"%d" % number for number in range(60, 80)])
    run(skipBatch="0", deliveryGuarantee="exactly-once")
    found = bodies(read(spark, brokers, target))
    assert sorted(int(body.split()[0]) for body in found.elements()) == list(range(80))
