"""Tasks of the sink and batch plans against a real broker, called as Spark calls them; without Spark's JVM."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import Admin
from tests.support.cluster import Cluster, cluster
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from penstock.pipeline.topics import sink
from penstock.pipeline.topics.cluster import cluster as cluster_of
from penstock.pipeline.topics.options import SinkOptions, sink_options, source_options
from penstock.pipeline.topics.sink import Identity, TopicBatchWriter, Written
from penstock.pipeline.topics.source import TopicReader
from penstock.pipeline.topics.task import Task
from penstock.proto.errors import ChangedBatch, ConfigError

SCHEMA = StructType([StructField("body", BinaryType())])
COLUMNS = [
    ("body", BinaryType()),
    ("topic", StringType()),
    ("queueId", IntegerType()),
    ("storeTimestamp", TimestampType()),
]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=1, replicas=1) as made:
        made.start()
        yield made


def options(brokers: Cluster, topic: str, guarantee: str) -> SinkOptions:
    given = {"nameServer": brokers.nameservers, "topic": topic, "deliveryGuarantee": guarantee}
    return sink_options(given, streaming=True)


def write(brokers: Cluster, topic: str, guarantee: str, writer: str, batch: int) -> Written:
    rows = pa.RecordBatch.from_pydict({"body": [b"%d" % number for number in range(10)]})
    identity = Identity(writer, uuid.uuid4().hex, batch, 0)
    return Task(cluster_of(brokers.nameservers), options(brokers, topic, guarantee), identity).run([rows])


def count(brokers: Cluster, topic: str) -> int:
    with Admin(brokers.nameservers) as admin:
        return int(admin.topic_stats(topic).messages)


@pytest.mark.parametrize("first", ["idempotent", "exactly-once"])
def test_a_writer_keeps_its_guarantee(brokers: Cluster, first: str) -> None:
    topic, (second,) = f"kept-{first}", {"idempotent", "exactly-once"} - {first}
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    told = write(brokers, topic, first, topic, 4)
    sink._commit(options(brokers, topic, first), [told], 4)
    assert count(brokers, topic) == 10
    with pytest.raises(ConfigError, match=f"has written with deliveryGuarantee={first}.*begin {second} with a new"):
        write(brokers, topic, second, topic, 4)
    told = write(brokers, topic, first, topic, 4)
    sink._commit(options(brokers, topic, first), [told], 4)
    assert count(brokers, topic) == 10


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_nameless_write_in_foreach_batch_would_be_doubled_and_is_refused(
    monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    local = {sink.QUERY_ID: "a query", sink.BATCH_ID: "3"}
    context = SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    given = {"nameServer": "127.0.0.1:1", "topic": "t", "deliveryGuarantee": guarantee}
    writer = TopicBatchWriter(sink_options(given, streaming=False), SCHEMA)
    with pytest.raises(ConfigError, match="give each write in it a producerId of its own, or say deliveryGuarantee=at"):
        writer.write(iter([]))


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_job_whose_topic_was_made_anew_is_no_repetition(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    topic = f"anew-{guarantee}"
    context = SimpleNamespace(getLocalProperty=lambda _: None, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    given = {"nameServer": brokers.nameservers, "topic": topic, "deliveryGuarantee": guarantee, "producerId": topic}

    def job() -> None:
        writer = TopicBatchWriter(sink_options(given, streaming=False), SCHEMA)
        writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})]))])

    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
        job()
        job()
        assert count(brokers, topic) == 2
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
    with pytest.raises(ChangedBatch, match=r"before their topic was deleted and made anew.*another producerId"):
        job()


def test_times_that_contradict_each_other_are_refused(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("times", queues=1)
    write(brokers, "times", "at-least-once", "w", 0)
    given: dict[str, Any] = {"nameServer": brokers.nameservers, "subscribe": "times"}
    given |= {"startingTimestamp": "2000", "endingTimestamp": "1000"}
    with pytest.raises(ConfigError, match="startingTimestamp 2000 is behind endingTimestamp 1000"):
        TopicReader(source_options(given, streaming=False), SCHEMA).partitions()
    given |= {"startingOffsets": "latest", "endingTimestamp": "1000"}
    del given["startingTimestamp"]
    with pytest.raises(ConfigError, match=r"startingOffsets begins at .*, behind endingTimestamp's"):
        TopicReader(source_options(given, streaming=False), SCHEMA).partitions()


@pytest.mark.parametrize("guarantee", ["at-least-once", "idempotent", "exactly-once"])
def test_rows_for_later_come_once_at_their_times(brokers: Cluster, guarantee: str) -> None:
    topics = [f"later-{guarantee}-{number}" for number in range(2)]
    with Admin(brokers.nameservers) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=3)
    due_ms = time.time_ns() // 1_000_000 + 2000
    times = [None if number % 3 == 0 else due_ms + number % 3 for number in range(60)]
    rows = pa.RecordBatch.from_pydict(
        {
            "body": [b"%d" % number for number in range(60)],
            "topic": [topics[number % 2] for number in range(60)],
            "queueId": pa.array([number % 3 for number in range(60)], pa.int32()),
            "deliverAt": pa.array(times, pa.int64()).cast(pa.timestamp("ms", "UTC")),
        }
    )
    told = []
    for _ in range(1 if guarantee == "at-least-once" else 2):
        identity = Identity(f"later-{guarantee}", "one run", 7, 0)
        task = Task(cluster_of(brokers.nameservers), options(brokers, "", guarantee), identity)
        told.append(task.run([rows]))
        sink._commit(options(brokers, "", guarantee), [told[0]], 7)
    assert sum(count(brokers, topic) for topic in topics) == 20
    wait_until(lambda: sum(count(brokers, topic) for topic in topics) >= 60, 20, "rows for later")
    given = {"nameServer": brokers.nameservers, "subscribe": ",".join(topics)}
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS])
    reader = TopicReader(source_options(given, streaming=False), schema)
    found = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert len(found) == 60
    for row in found:
        number = int(row["body"])
        assert (row["topic"], row["queueId"]) == (topics[number % 2], number % 3)
        stored_ms = row["storeTimestamp"].timestamp() * 1000
        assert (stored_ms >= due_ms) == (number % 3 > 0)
