"""``format("penstock")`` in a real session against real brokers: two shards of one broker each."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.client import Admin, Producer
from penstock.client.cluster import Calls
from penstock.pipeline import topic as penstock_topic
from penstock.pipeline.jobs.archive.marks import archive_marks
from penstock.proto.errors import ConfigError, DataLoss, GroupNotFound, InvalidArgument, PenstockError, TopicNotFound
from tests.support.cluster.cluster import Cluster
from tests.support.waiting import wait_until

full = pytest.mark.skipif(not os.environ.get("SINK_KILLS"), reason="make test-spark-full runs it")
"""What is tested without Spark's JVM as well, or in another form here."""


def send(brokers: Cluster, topic: str, bodies: list[bytes], tags: Callable[[int], str] | None = None) -> None:
    with Producer(brokers.nameservers) as producer:
        for number, body in enumerate(bodies):
            tag = tags(number) if tags else None
            producer.produce(topic, body, tag=tag, keys=[f"key-{number}"], sharding_key=f"{number}")
        producer.flush(60)


def read(spark: Any, brokers: Cluster, topic: str, **options: str) -> Any:
    options = {"nameServer": brokers.nameservers, "subscribe": topic} | options
    return spark.read.format("penstock").options(**options).load()


def bodies(frame: Any) -> Counter[bytes]:
    return Counter(bytes(row["body"]) for row in frame.select("body").collect())


def stream(spark: Any, brokers: Cluster, topic: str, checkpoint: Path, target: str, **options: str) -> Any:
    """Everything that is there from one topic to another, then stop."""
    sink = {"deliveryGuarantee": options.pop("deliveryGuarantee", "exactly-once")}
    options = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"} | options
    frame = spark.readStream.format("penstock").options(**options).load().select("body", "tags", "properties")
    query = (
        frame.writeStream.format("penstock")
        .options(nameServer=brokers.nameservers, topic=target, checkpointLocation=str(checkpoint), **sink)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_batch_read_has_every_message_and_its_columns(spark: Any, brokers: Cluster, topic: str) -> None:
    wanted = [b"body %d" % number for number in range(500)]
    send(brokers, topic, wanted, lambda number: "even" if number % 2 == 0 else "odd")
    frame = read(spark, brokers, topic, targetBytesPerPartition="20k")
    rows = frame.collect()
    assert Counter(bytes(row["body"]) for row in rows) == Counter(wanted)
    assert {row["topic"] for row in rows} == {topic}
    assert {row["brokerName"] for row in rows} == {"broker-a", "broker-b"}
    assert sorted(row["keys"][0] for row in rows) == sorted(f"key-{number}" for number in range(500))
    by_queue: dict[tuple[str, int], list[int]] = {}
    for row in rows:
        by_queue.setdefault((row["brokerName"], row["queueId"]), []).append(row["queueOffset"])
    assert all(sorted(offsets) == list(range(len(offsets))) for offsets in by_queue.values())
    assert bodies(read(spark, brokers, topic, subExpression="even")) == Counter(wanted[::2])
    narrow = spark.read.schema("size int, queueId int").format("penstock")
    counted = narrow.options(nameServer=brokers.nameservers, subscribe=topic).load()
    assert counted.count() == 500
    # Two queries on one DataFrame do not influence each other.
    assert frame.where("tags = 'odd'").count() == 250
    assert frame.count() == 500
    cut = {topic: {name: {"0": 3, "1": -1} for name in ("broker-a", "broker-b")}}
    some = read(spark, brokers, topic, startingOffsets=json.dumps(cut))
    zero = {name: len(by_queue.get((name, 0), ())) for name in ("broker-a", "broker-b")}
    assert some.count() == sum(max(0, count - 3) for count in zero.values())
    pruned = penstock_topic(spark, brokers.nameservers, topic, columns=["tags"], queues={"broker-a": [0]}, tags="odd")
    assert pruned.columns == ["tags"]
    assert pruned.count() == sum((r["brokerName"], r["queueId"], r["tags"]) == ("broker-a", 0, "odd") for r in rows)
    middle = sorted(row["storeTimestamp"].timestamp() for row in rows)[250]
    after = read(spark, brokers, topic, startingTimestamp=str(int(middle * 1000)))  # a queue may have none so late
    assert after.count() == sum(row["storeTimestamp"].timestamp() >= middle for row in rows)


@pytest.mark.parametrize(
    "guarantee", [pytest.param("at-least-once", marks=full), pytest.param("idempotent", marks=full), "exactly-once"]
)
def test_a_batch_write_arrives_once(spark: Any, brokers: Cluster, topic: str, guarantee: str) -> None:
    frame = spark.range(3000).selectExpr(
        "concat('row ', id) as body",
        "concat('t', id % 3) as tags",
        "array(concat('k', id)) as keys",
        "map('n', cast(id as string)) as properties",
    )
    options = {"nameServer": brokers.nameservers, "topic": topic, "deliveryGuarantee": guarantee, "batchBytes": "20k"}
    frame.write.format("penstock").options(**options).mode("append").save()
    found = read(spark, brokers, topic).collect()
    assert sorted(bytes(row["body"]) for row in found) == sorted(b"row %d" % number for number in range(3000))
    for row in found[:50]:
        number = bytes(row["body"]).decode().removeprefix("row ")
        assert (row["tags"], row["keys"]) == (f"t{int(number) % 3}", [f"k{number}"])
        assert row["properties"]["n"] == number
    assert {row["brokerName"] for row in found} == {"broker-a", "broker-b"}


def write(frame: Any, brokers: Cluster, topic: str, **options: str) -> None:
    given = {"nameServer": brokers.nameservers, "topic": topic} | options
    frame.write.format("penstock").options(**given).mode("append").save()


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_job_with_a_producer_id_may_be_repeated_and_not_be_another(
    spark: Any, brokers: Cluster, topic: str, guarantee: str
) -> None:
    options = {"producerId": topic, "deliveryGuarantee": guarantee, "batchBytes": "1k"}
    frame = spark.range(200).selectExpr("cast(id as string) as body")
    write(frame.where("false"), brokers, topic, **options)
    for _ in range(2):
        write(frame, brokers, topic, **options)
    wanted = Counter(str(number).encode() for number in range(200))
    assert bodies(read(spark, brokers, topic)) == wanted
    for other in ("cast(id + 1 as string) as body", "concat('x', id) as body"):
        with pytest.raises(Exception, match=r"producerId of their own|stands for other messages"):
            write(spark.range(200).selectExpr(other), brokers, topic, **options)
    fewer = spark.range(40).selectExpr("cast(id as string) as body")
    told = r"has written 200 messages already, and these 40 are not the same|holds \d+ chunks of batch 0 from partition"
    with pytest.raises(Exception, match=told):
        write(fewer, brokers, topic, **options)
    if guarantee == "exactly-once":
        assert bodies(read(spark, brokers, topic)) == wanted


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_producer_id_in_foreach_batch_stands_for_one_batch_after_the_other(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path, guarantee: str
) -> None:
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=1)
    send(brokers, topic, [b"%d" % number for number in range(300)])

    def copy(frame: Any, number: int) -> None:
        for _ in range(2):  # as after a crash behind the write
            write(frame.select("body"), brokers, target, producerId=target, deliveryGuarantee=guarantee)

    reader = spark.readStream.format("penstock").option("nameServer", brokers.nameservers).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100")
    writer = reader.load().writeStream.foreachBatch(copy).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len([each for each in query.recentProgress if each.numInputRows]) >= 3
    assert bodies(read(spark, brokers, target)) == Counter(b"%d" % number for number in range(300))

    def split(frame: Any, number: int) -> None:
        for parity in (0, 1):  # two writes of one name
            part = frame.where(f"cast(cast(body as string) as int) % 2 = {parity}").select("body")
            write(part, brokers, target, producerId="both", deliveryGuarantee=guarantee)

    writer = reader.load().writeStream.foreachBatch(split).option("checkpointLocation", str(tmp_path / "again"))
    told = {"idempotent": "another write in the same foreachBatch", "exactly-once": "a producerId of their own"}
    with pytest.raises(Exception, match=told[guarantee]):
        writer.trigger(availableNow=True).start().awaitTermination()
    if guarantee != "exactly-once":
        return

    def random(frame: Any, number: int) -> None:
        write(frame.selectExpr("uuid() as body"), brokers, target, producerId="random", deliveryGuarantee=guarantee)

    for _ in range(2):  # the second time as after a crash behind the write
        writer = reader.load().writeStream.foreachBatch(random).option("checkpointLocation", str(tmp_path / "random"))
        writer.trigger(availableNow=True).start().awaitTermination()
        commits = tmp_path / "random" / "commits"
        last = max(int(each.name) for each in commits.iterdir() if each.name.isdecimal())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()
        wait_until(lambda: read(spark, brokers, target).where("length(body) = 36").count() == 300, what="each once")


@pytest.mark.parametrize("changed", [{"compression": "zstd"}, {"batchBytes": "3k"}, {"maxInFlight": "2"}], ids=str)
def test_options_that_change_between_a_failure_and_the_repetition_cost_nothing(
    spark: Any, brokers: Cluster, topic: str, changed: dict[str, str]
) -> None:
    good = spark.range(0, 400, 1, 1).selectExpr("concat(id, ':', repeat(cast(id % 10 as string), 500)) as body")
    poisoned = good.union(spark.range(0, 1, 1, 1).selectExpr("'' as body")).coalesce(1)
    options = {"producerId": topic, "batchBytes": "8k", "maxInFlight": "1"}
    with pytest.raises(Exception, match="body is empty"):
        write(poisoned, brokers, topic, **options)
    write(good, brokers, topic, **options | changed)
    found = bodies(read(spark, brokers, topic))
    assert found == Counter(b"%d:%s" % (number, b"%d" % (number % 10) * 500) for number in range(400))


def test_rows_for_later_come_once_each_and_a_condition_picks_among_them(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    soon = time.time_ns() // 1_000_000 + 3_000
    when = f"case when id < 20 then null when id < 40 then timestamp_millis({soon}) "
    frame = spark.range(60).selectExpr(
        "cast(id as string) as body",
        "map('n', cast(id as string)) as properties",
        when + f"else timestamp_millis({soon + 3_600_000}) end as deliverAt",
    )
    for _ in range(2):  # its repetition adds nothing
        write(frame, brokers, topic, producerId=topic)
    wait_until(lambda: sum(bodies(read(spark, brokers, topic)).values()) >= 40, timeout_s=60)
    assert bodies(read(spark, brokers, topic)) == Counter(b"%d" % number for number in range(40))
    picked = {"filterSql": "n >= 10 AND n < 30"}
    assert bodies(read(spark, brokers, topic, **picked)) == Counter(b"%d" % number for number in range(10, 30))
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=1)
    stream(spark, brokers, topic, tmp_path / "checkpoint", target, **picked)
    assert bodies(read(spark, brokers, target)) == Counter(b"%d" % number for number in range(10, 30))


def test_a_missing_target_is_named_before_any_task_runs(spark: Any, brokers: Cluster, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    def touch(batches: Any) -> Any:
        ran.touch()
        yield from batches

    frame = spark.range(1).selectExpr("'x' as body").mapInArrow(touch, "body string")
    with pytest.raises(Exception, match="topic nowhere does not exist at any living broker: create it first"):
        write(frame, brokers, "nowhere")
    assert not ran.exists()


@full
def test_a_stream_goes_on_where_it_was_and_meets_new_queues(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=2)
        send(brokers, topic, [b"first %d" % number for number in range(300)])
        query = stream(spark, brokers, topic, tmp_path, target, maxOffsetsPerTrigger="100")
        assert sum(each.numInputRows for each in query.recentProgress) == 300
        sizes = [each.numInputRows for each in query.recentProgress if each.numInputRows]
        assert len(sizes) >= 3
        assert max(sizes) <= 100
        admin.update_topic(topic, queues=4)
        send(brokers, topic, [b"second %d" % number for number in range(300)])
    query = stream(spark, brokers, topic, tmp_path, target)
    assert sum(each.numInputRows for each in query.recentProgress) == 300
    wanted = [b"first %d" % number for number in range(300)] + [b"second %d" % number for number in range(300)]
    assert bodies(read(spark, brokers, target)) == Counter(wanted)
    assert read(spark, brokers, topic).select("queueId").distinct().count() == 4


def test_an_idempotent_stream_writes_to_the_queues_that_are_left_of_those_it_began_with(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    options = {"deliveryGuarantee": "idempotent", "maxOffsetsPerTrigger": "10"}
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=4)
        send(brokers, topic, [b"first %d" % number for number in range(20)])
        stream(spark, brokers, topic, tmp_path, target, **options)
        admin.update_topic(target, write_queues=1)
        admin.update_topic(target, queues=1)
    before = bodies(read(spark, brokers, target))
    wanted = [b"second %d" % number for number in range(40)]
    send(brokers, topic, wanted)
    stream(spark, brokers, topic, tmp_path, target, **options)
    assert bodies(read(spark, brokers, target)) == before + Counter(wanted)


def is_level(admin: Admin) -> bool:
    try:
        return admin.group_lag("etl").lag == 0
    except GroupNotFound:
        return False


def test_progress_is_committed_for_the_group_also_of_the_last_batch(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    from penstock.pipeline.topics.read.progress import attach

    send(brokers, topic, [b"%d" % number for number in range(50)])
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=1)
        listener = attach(spark, brokers.nameservers)
        try:
            query = stream(spark, brokers, topic, tmp_path, target, group="etl", deliveryGuarantee="idempotent")
            wait_until(lambda: is_level(admin) or None, 60, "the group's offsets")  # Spark tells listeners later
            seen = listener.queues(query.id)
        finally:
            spark.streams.removeListener(listener)
    assert sum(queue.end for queue in seen.values()) == 50
    assert {queue.lag for queue in seen.values()} == {0}
    assert read(spark, brokers, topic, group="etl", startingOffsets="group").count() == 0
    assert bodies(read(spark, brokers, target)) == Counter(b"%d" % number for number in range(50))


@full
def test_a_topic_made_anew_under_a_stream_is_data_loss_and_may_be_tolerated(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=1)
        send(brokers, topic, [b"old %d" % number for number in range(40)])
        stream(spark, brokers, topic, tmp_path, target)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=2)
    send(brokers, topic, [b"new %d" % number for number in range(8)])
    with pytest.raises(Exception, match="made anew") as caught:
        stream(spark, brokers, topic, tmp_path, target)
    assert DataLoss.__name__ in str(caught.value)
    stream(spark, brokers, topic, tmp_path, target, failOnDataLoss="false")
    found = bodies(read(spark, brokers, target))
    assert found == Counter([b"old %d" % n for n in range(40)] + [b"new %d" % n for n in range(8)])


@full
def test_a_broker_that_dies_under_a_stream_delays_it_and_nothing_is_lost_or_doubled(
    spark: Any, brokers: Cluster, topic: str, tmp_path: Path
) -> None:
    target = f"{topic}-out"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(target, queues=2)
    send(brokers, topic, [b"first %d" % number for number in range(2000)])
    options = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.readStream.format("penstock").options(**options, maxOffsetsPerTrigger="300").load().select("body")
    sink = {"nameServer": brokers.nameservers, "topic": target, "checkpointLocation": str(tmp_path)}
    query = frame.writeStream.format("penstock").options(**sink, deliveryGuarantee="exactly-once").start()
    try:
        wait_until(lambda: query.lastProgress is not None or None, 120, "the first batch")
        for shard in "ab":
            broker = brokers.broker(shard, 0)
            broker.kill()
            broker.restart()
        send(brokers, topic, [b"second %d" % number for number in range(500)])
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    wanted = [b"first %d" % number for number in range(2000)] + [b"second %d" % number for number in range(500)]
    assert bodies(read(spark, brokers, target)) == Counter(wanted)


def marks(brokers: Cluster, name: str) -> dict[str, int]:
    with contextlib.closing(Calls.to(brokers.nameservers)) as calls:
        names = list(calls.directory.shards())
    return {broker: marks[name] for broker, marks in archive_marks(brokers.nameservers, names).items()}


Errors = Callable[[type[PenstockError], str, Callable[[], object]], None]


def test_bad_input_is_named_before_any_task_runs(spark: Any, brokers: Cluster, topic: str, errors: Errors) -> None:
    def reading(**options: str) -> Callable[[], object]:
        return lambda: read(spark, brokers, topic, **options).count()

    def writing(frame: Any, **options: str) -> Callable[[], object]:
        given = {"nameServer": brokers.nameservers, "topic": topic} | options
        return lambda: frame.write.format("penstock").options(**given).mode("append").save()

    errors(ConfigError, "did you mean 'subExpression'", reading(subExpresion="a"))
    errors(TopicNotFound, "topic nowhere does not exist", reading(subscribe="nowhere"))
    errors(
        ConfigError,
        "offset 77 is beyond its end 0",
        reading(startingOffsets=json.dumps({topic: {b: {"0": 77, "1": 0} for b in ("broker-a", "broker-b")}})),
    )
    errors(
        ConfigError,
        "queue .*/broker-a/1 is missing",
        reading(startingOffsets=json.dumps({topic: {"broker-a": {"0": 0}, "broker-b": {"0": 0, "1": 0}}})),
    )
    errors(InvalidArgument, "SQL92 condition, character 4: expected a property", reading(filterSql="n >"))
    errors(
        ConfigError, "startingOffsets and startingTimestamp", reading(startingOffsets="latest", startingTimestamp="1")
    )
    narrow = spark.read.schema("queueID int").format("penstock")
    errors(
        ConfigError,
        "did you mean 'queueId'",
        narrow.options(nameServer=brokers.nameservers, subscribe=topic).load().count,
    )
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    sink = frame.write.format("penstock").options(nameServer=brokers.nameservers, topic=topic)
    errors(ConfigError, r"a topic cannot be overwritten: say mode\('append'\)", sink.mode("overwrite").save)
    errors(
        ConfigError, "no option 'kafka.bootstrap.servers': give nameServer", reading(**{"kafka.bootstrap.servers": "k"})
    )
    errors(ConfigError, "did you mean 'idempotent'", writing(frame, deliveryGuarantee="idempotant"))
    errors(ConfigError, "there is no column body", writing(spark.range(3).selectExpr("'x' as tags")))
    errors(TopicNotFound, "nowhere does not exist", writing(frame, topic="nowhere", sendRetryTimeoutMs="0"))
