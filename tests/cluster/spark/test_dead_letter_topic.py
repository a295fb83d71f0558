"""Rows that cannot be messages, and the topic that takes them instead of failing; without Spark's JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from penstock.client import Admin
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructField, StructType

from penstock.pipeline.topics.cluster import cluster as cluster_of
from penstock.pipeline.topics.options import sink_options, source_options
from penstock.pipeline.topics.read.source import TopicDataSource, TopicReader
from penstock.pipeline.topics.write import sink
from penstock.pipeline.topics.write.chunks import Sender
from penstock.pipeline.topics.write.sink import Identity, TopicBatchWriter, TopicStreamWriter
from penstock.pipeline.topics.write.task import Task
from penstock.proto.errors import ChangedBatch, ConfigError, InvalidArgument, TopicNotFound

GUARANTEES = ["at-least-once", "idempotent", "exactly-once"]
SCHEMA = StructType([StructField("body", BinaryType()), StructField("topic", StringType())])


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=1, replicas=1) as made:
        made.start()
        yield made


class Message(NamedTuple):
    body: bytes
    keys: list[str]
    properties: dict[str, str]


def messages(brokers: Cluster, topic: str) -> list[Message]:
    given = {"nameServer": brokers.nameservers, "subscribe": topic}
    columns = (
        ("body", BinaryType()),
        ("keys", ArrayType(StringType())),
        ("properties", MapType(StringType(), StringType())),
    )
    schema = StructType([StructField(name, kind) for name, kind in columns])
    reader = TopicReader(source_options(given, streaming=False), schema)
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    return [Message(row["body"], row["keys"], dict(row["properties"])) for row in rows]


def write(brokers: Cluster, rows: pa.RecordBatch, **options: str) -> sink.Written:
    """A batch of a stream, written twice as after a crash, and committed."""
    made = sink_options({"nameServer": brokers.nameservers, **options}, streaming=True)
    writer = TopicStreamWriter(made, SCHEMA)
    identity = Identity(options["deadLetterTopic"] + options["deliveryGuarantee"], "run", 3, 0)
    told = None
    for _ in range(1 if options["deliveryGuarantee"] == "at-least-once" else 2):
        told = Task(cluster_of(brokers.nameservers), made, identity).run([rows])
        writer.commit([told], 3)
    assert told is not None
    return told


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_rows_that_cannot_be_messages_are_dead_letters_each_once_and_the_others_are_written(
    brokers: Cluster, guarantee: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = f"orders-{guarantee}", f"dead-{guarantee}"
    with Admin(brokers.nameservers) as admin:
        for each in (topic, dead):
            admin.create_topic(each, queues=1)
    bodies: list[Any] = [b"%d" % number for number in range(40)]
    topics: list[Any] = [topic] * 40
    keys = [[f"k{number}"] for number in range(40)]
    bodies[3], bodies[7], bodies[9] = None, b"", b"x" * ((4 << 20) + 1)
    topics[12], topics[13], topics[14], topics[15] = None, "not a name", "absent", "rmq_sys_wheel_timer"
    keys[20] = ["two words"]
    times: list[Any] = [None] * 40
    times[21] = 1 << 50  # ms: in 35,000 years
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array(bodies, pa.binary()),
            "topic": pa.array(topics, pa.string()),
            "keys": keys,
            "deliverAt": pa.array(times, pa.int64()),
            "properties": pa.array([[("n", str(n))] for n in range(40)], pa.map_(pa.string(), pa.string())),
        }
    )
    write(brokers, rows, deadLetterTopic=dead, deliveryGuarantee=guarantee)
    wrong = {3, 7, 9, 12, 13, 14, 15, 20, 21}
    assert sorted(int(each.body) for each in messages(brokers, topic)) == sorted(set(range(40)) - wrong)
    letters = {int(each.properties["n"]): each for each in messages(brokers, dead)}
    assert len(messages(brokers, dead)) == 9
    reasons = {number: each.properties["REFUSED_REASON"] for number, each in letters.items()}
    assert reasons[3] == "body is null: a message needs at least one byte"
    assert letters[3].body == reasons[3].encode()
    assert "body is empty" in reasons[7]
    assert "body of 4194305 bytes, at most" in reasons[9]
    assert letters[9].body == b"x" * (64 << 10)
    assert letters[9].properties["REFUSED_BODY_BYTES"] == "4194305"
    assert "topic is null" in reasons[12]
    assert "not a name" in reasons[13]
    assert "topic absent does not exist" in reasons[14]
    assert letters[14].properties["DLQ_ORIGIN_TOPIC"] == "absent"
    assert "is internal" in reasons[15]
    assert "'two words' has a blank" in reasons[20]
    assert reasons[21].startswith("deliverAt 37648-")
    assert letters[15].body == b"15"
    assert letters[15].keys == ["k15"]
    assert f"9 rows of batch 3 cannot be messages: they are in topic {dead}" in caplog.text


@pytest.mark.parametrize("guarantee", GUARANTEES[1:])
def test_a_job_with_dead_letters_may_be_repeated_and_not_be_another(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    topic, dead = f"job-{guarantee}", f"dead-job-{guarantee}"
    with Admin(brokers.nameservers) as admin:
        for each in (topic, dead):
            admin.create_topic(each, queues=1)
    context = SimpleNamespace(getLocalProperty=lambda _: None, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    given = {"deadLetterTopic": dead, "deliveryGuarantee": guarantee, "producerId": topic}
    bodies = [b"1", None, b"", b"x" * ((4 << 20) + 1), b"2", b"3", b"4"]
    topics = [topic, topic, topic, topic, None, f"absent-{guarantee}", "not a name"]

    def job(bodies: list[Any]) -> None:
        writer = TopicBatchWriter(sink_options({"nameServer": brokers.nameservers, **given}, streaming=False), SCHEMA)
        rows = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary()), "topic": topics})
        writer.commit([writer.write(iter([rows]))])

    for _ in range(2):
        job(bodies)
        wait_until(lambda: (len(messages(brokers, topic)), len(messages(brokers, dead))) == (1, 6), what="seven rows")
    with pytest.raises(ChangedBatch):
        job([*bodies[:-1], b"5"])


def test_a_dead_letter_is_the_same_whichever_topics_were_made_since(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("dead-same", queues=1)
        given = {"nameServer": brokers.nameservers, "deadLetterTopic": "dead-same"}
        for near in ("somewhere-1", "somewhere-2"):
            task = Task(
                cluster_of(brokers.nameservers), sink_options(given, streaming=True), Identity("same", near, 3, 0)
            )
            assert task.run([pa.RecordBatch.from_pydict({"body": [b"1"], "topic": ["somewhere"]})]).refused == 1
            admin.create_topic(near, queues=1)
    wait_until(lambda: messages(brokers, "dead-same"), what="the letter")
    (letter,) = messages(brokers, "dead-same")
    assert letter.properties["REFUSED_REASON"].startswith("topic somewhere does not exist")


def test_without_the_option_the_first_such_row_fails_the_job_and_the_error_names_the_option(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("strict", queues=1)
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"1", None], pa.binary())})
    made = sink_options({"nameServer": brokers.nameservers, "topic": "strict"}, streaming=True)
    told = "row 1 of the batch: body is null.*; in partition 2 of batch 5; the option deadLetterTopic names a topic"
    with pytest.raises(InvalidArgument, match=told):
        Task(cluster_of(brokers.nameservers), made, Identity("q", "run", 5, 2)).run([rows])
    far = pa.RecordBatch.from_pydict({"body": [b"1"], "deliverAt": pa.array([1 << 50], pa.int64())})
    told = "row 0 of the batch: deliverAt .* is more than .*; in partition 2 of batch 5; the option deadLetterTopic"
    with pytest.raises(InvalidArgument, match=told):
        Task(cluster_of(brokers.nameservers), made, Identity("q", "run", 5, 2)).run([far])
    made = sink_options({"nameServer": brokers.nameservers}, streaming=True)
    rows = pa.RecordBatch.from_pydict({"body": [b"1"], "topic": ["absent"]})
    with pytest.raises(TopicNotFound, match="topic absent does not exist"):
        Task(cluster_of(brokers.nameservers), made, Identity("q", "run", 5, 2)).run([rows])


def test_what_brokers_refuse_is_no_rows_fault_and_is_not_sent_a_second_time(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("sent-once", queues=1)
    sent = []

    def send(self: Sender, key: Any, chunk: Any) -> None:
        sent.append(chunk)
        raise InvalidArgument("due more than 5 s from now", index=0)

    monkeypatch.setattr(Sender, "send", send)
    given = {"nameServer": brokers.nameservers, "topic": "sent-once", "deadLetterTopic": "sent-once"}
    task = Task(cluster_of(brokers.nameservers), sink_options(given, streaming=True), Identity("once", "run", 0, 0))
    with pytest.raises(InvalidArgument, match="due more than 5 s"):
        task.run([pa.RecordBatch.from_pydict({"body": [b"1"]})])
    assert len(sent) == 1


def test_a_dead_letter_topic_must_be_one_that_may_be_written_and_exist(brokers: Cluster) -> None:
    given = {"nameServer": brokers.nameservers, "topic": "strict", "deadLetterTopic": "rmq_sys_wheel_timer"}
    with pytest.raises(ConfigError, match="option deadLetterTopic: topic rmq_sys_wheel_timer is internal"):
        sink_options(given, streaming=True)
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("strict-too", queues=1)
    source = TopicDataSource(given | {"topic": "strict-too", "deadLetterTopic": "nowhere"})
    with pytest.raises(TopicNotFound, match="topic nowhere does not exist"):
        source.streamWriter(SCHEMA, overwrite=False)


def test_a_time_that_these_brokers_do_not_allow_is_told_with_its_column_and_what_to_do(tmp_path: Path) -> None:
    soon = pa.array([(time.time_ns() // 1_000_000) + 60_000], pa.int64())
    with cluster(tmp_path, shards=1, replicas=1, timerMaxDelaySec=5) as short:
        short.start()
        with Admin(short.nameservers) as admin:
            admin.create_topic("short", queues=1)
        made = sink_options({"nameServer": short.nameservers, "topic": "short"}, streaming=False)
        task = Task(cluster_of(short.nameservers), made, Identity("w", "run", 0, 2, is_micro_batch=False))
        with pytest.raises(InvalidArgument, match=r"due more than 5 s .* in partition 2; .* column deliverAt is later"):
            task.run([pa.RecordBatch.from_pydict({"body": [b"1"], "deliverAt": soon})])
