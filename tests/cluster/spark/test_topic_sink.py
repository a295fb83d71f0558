"""Tasks of the sink and batch plans against a real broker, called as Spark calls them; without Spark's JVM."""

from __future__ import annotations

import itertools
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client import Admin
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructField, StructType, TimestampType

from penstock.pipeline.spark.workers import BATCH_ID, QUERY_ID
from penstock.pipeline.topics.cluster import cluster as cluster_of
from penstock.pipeline.topics.options import SinkOptions, sink_options, source_options
from penstock.pipeline.topics.read.source import TopicReader
from penstock.pipeline.topics.write import sink
from penstock.pipeline.topics.write.sink import RUN_ID, Identity, TopicBatchWriter, Written
from penstock.pipeline.topics.write.task import Task
from penstock.proto.errors import ChangedBatch, ConfigError, StaleProducer

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
    """Of all that is acknowledged: queues show it a little later."""
    with Admin(brokers.nameservers) as admin:
        (acknowledged,) = admin.cluster().brokers
        wait_until(lambda: admin.cluster().brokers[0].dispatched_offset >= acknowledged.max_offset, what="the queues")
        return int(admin.topic_stats(topic, timeout_s=30).messages)


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
    job = Identity(topic, "another run", 4, 0, is_micro_batch=False)
    with pytest.raises(ConfigError, match=f"begin {second} with a new producerId$"):  # no batch that could be skipped
        Task(cluster_of(brokers.nameservers), options(brokers, topic, second), job).run([])
    told = write(brokers, topic, first, topic, 4)
    sink._commit(options(brokers, topic, first), [told], 4)
    assert count(brokers, topic) == 10


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_nameless_write_in_foreach_batch_would_be_doubled_and_is_refused(
    monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    local = {QUERY_ID: "a query", BATCH_ID: "3"}
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


def test_a_batch_of_foreach_batch_may_come_again_with_other_rows_and_a_second_write_of_its_name_may_not(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = "decided"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    local = {QUERY_ID: "a query"}
    context = SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    given = {"nameServer": brokers.nameservers, "topic": topic, "producerId": "p", "deliveryGuarantee": "exactly-once"}

    def attempt(run: str, batch: int, *writes: bytes, there: int, groups: Iterable[str] = ()) -> None:
        """``groups``: job groups of the user's own, one of each write."""
        ours = itertools.repeat(str(uuid.uuid5(uuid.NAMESPACE_OID, run)))
        for body, group in zip(writes, groups or ours, strict=False):
            local.update({RUN_ID: group, BATCH_ID: str(batch)})
            writer = TopicBatchWriter(sink_options(given, streaming=False), SCHEMA)
            writer.commit([writer.write(iter([pa.RecordBatch.from_pydict({"body": [body]})]))])
        wait_until(lambda: count(brokers, topic) == there, what=f"{there} messages")

    attempt("one", 0, b"rand() is 0.1", there=1)
    attempt("two", 0, b"rand() is 0.2", there=1)
    for batch, run in ((1, "two"), (1, "three"), (2, "four")):
        with pytest.raises(ChangedBatch, match="'p' has written 1 messages already, and these 1 are not the same"):
            attempt(run, batch, b"even", b"odd", there=batch + 1)
    attempt("four", 3, b"x", b"x", there=4)
    with pytest.raises(ChangedBatch, match="these 1 are not the same"):  # or the second would be lost in silence
        attempt("four", 4, b"even", b"odd", there=5, groups=["write even", "write odd"])


def test_moving_on_by_a_batch_is_for_those_who_have_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"nameServer": "127.0.0.1:1", "topic": "t", "skipBatch": "3"}
    with pytest.raises(ConfigError, match="give only one of skipBatch, rewriteBatch"):
        sink_options(given | {"rewriteBatch": "3"}, streaming=True)
    with pytest.raises(ConfigError, match="option skipBatch is for deliveryGuarantee=idempotent or exactly-once"):
        sink_options(given | {"deliveryGuarantee": "at-least-once"}, streaming=True)
    context = SimpleNamespace(getLocalProperty=lambda _: None, partitionId=lambda: 0)
    monkeypatch.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
    with pytest.raises(ConfigError, match="option skipBatch is for streams, and for foreachBatch"):
        TopicBatchWriter(sink_options(given | {"producerId": "p"}, streaming=False), SCHEMA).write(iter([]))


def test_times_that_contradict_each_other_are_refused(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("times", queues=1)
    write(brokers, "times", "at-least-once", "w", 0)
    given: dict[str, Any] = {"nameServer": brokers.nameservers, "subscribe": "times"}
    given |= {"startingTimestamp": "2026-11-28T10:00", "endingTimestamp": "2026-11-28"}
    told = r"startingTimestamp 2026-11-28T10:00:00\+00:00 is behind endingTimestamp 2026-11-28T00:00:00\+00:00"
    with pytest.raises(ConfigError, match=told):
        TopicReader(source_options(given, streaming=False), SCHEMA).partitions()
    given |= {"startingOffsets": "latest"}
    del given["startingTimestamp"]
    offsets = json.dumps({"times": {"broker-a": {"0": 7}}})
    behind = {**given, "startingOffsets": offsets}
    with pytest.raises(ConfigError, match=r"times.*: startingOffsets begins at 7, behind endingTimestamp's 0"):
        TopicReader(source_options(behind, streaming=False), SCHEMA).partitions()
    later = {**given, "startingTimestamp": "2000", "endingOffsets": json.dumps({"times": {"broker-a": {"0": 0}}})}
    del later["endingTimestamp"], later["startingOffsets"]
    assert TopicReader(source_options(later, streaming=False), SCHEMA).partitions() == []
    with pytest.raises(ConfigError, match=r"startingOffsets begins at .*, behind endingTimestamp's"):
        TopicReader(source_options(given, streaming=False), SCHEMA).partitions()


@pytest.mark.parametrize("guarantee", ["at-least-once", "idempotent", "exactly-once"])
def test_rows_for_later_come_once_at_their_times(brokers: Cluster, guarantee: str) -> None:
    topics = [f"later-{guarantee}-{number}" for number in range(2)]
    with Admin(brokers.nameservers) as admin:
        for topic in topics:
            admin.create_topic(topic, queues=3)
    due_ms = time.time_ns() // 1_000_000 + 4000
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
    wait_until(lambda: sum(count(brokers, topic) for topic in topics) >= 60, 60, "rows for later")
    given = {"nameServer": brokers.nameservers, "subscribe": ",".join(topics)}
    schema = StructType([StructField(name, kind) for name, kind in COLUMNS])
    reader = TopicReader(source_options(given, streaming=False), schema)
    found = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert len(found) == 60
    for row in found:
        number = int(row["body"])
        assert (row["topic"], row["queueId"]) == (topics[number % 2], number % 3)
        stored_ms = row["storeTimestamp"].timestamp() * 1000
        assert stored_ms >= due_ms or number % 3 == 0


ROWS = [b"%d" % number * 600 for number in range(60)]


def replay(
    brokers: Cluster, topic: str, rows: list[bytes], *, partition: int = 0, batch: int = 3, run: str = ""
) -> int:
    """Write a batch of an idempotent writer in chunks of about four rows; how many messages there are."""
    given = {"nameServer": brokers.nameservers, "topic": topic, "batchBytes": "4096", "maxInFlight": "1"}
    made = sink_options(given, streaming=True)
    identity = Identity(topic, run or uuid.uuid4().hex, batch, partition)
    Task(cluster_of(brokers.nameservers), made, identity).run(
        [pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())})]
    )
    return count(brokers, topic)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("shorter", ROWS[:40]),
        ("gone", []),
        ("longer", [*ROWS, b"more"]),
        ("early", [b"other" * 300, *ROWS[1:]]),
        ("swapped", [ROWS[1], ROWS[0], *ROWS[2:]]),
    ],
)
def test_a_batch_that_comes_again_and_is_another_is_refused_whatever_its_length(
    brokers: Cluster, name: str, rows: list[bytes]
) -> None:
    topic = f"replay-{name}"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    assert replay(brokers, topic, ROWS) == 60
    assert replay(brokers, topic, ROWS) == 60
    told = f"query {topic}, batch 3, partition 0: .*skipBatch=3 .*rewriteBatch=3 .*deliveryGuarantee=exactly-once"
    with pytest.raises(ChangedBatch, match=told):
        replay(brokers, topic, rows)
    assert count(brokers, topic) == 60
    assert replay(brokers, topic, [], partition=1) == 60
    assert replay(brokers, topic, ROWS[:5], batch=4) == 65


@pytest.mark.parametrize("is_later", [False, True])
def test_a_batch_that_comes_again_after_queues_were_removed_is_the_same_and_its_other_rows_go_to_those_left(
    brokers: Cluster, is_later: bool
) -> None:
    topic = f"fewer-queues-{is_later}"
    columns: dict[str, Any] = {"body": ROWS, "shardingKey": [str(number) for number in range(60)]}
    if is_later:
        columns["deliverAt"] = pa.array([time.time_ns() // 1_000_000 - 1000] * 60, pa.int64())
    rows = pa.RecordBatch.from_pydict(columns)
    given = {"nameServer": brokers.nameservers, "topic": topic, "batchBytes": "4096"}
    made = sink_options(given, streaming=True)

    def run(batch: int, there: int) -> None:
        Task(cluster_of(brokers.nameservers), made, Identity(topic, uuid.uuid4().hex, batch, 0)).run([rows])
        wait_until(lambda: count(brokers, topic) >= there, what=f"{there} messages")

    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=12)
        run(0, 60)
        admin.update_topic(topic, write_queues=2)
        run(0, 60)
        admin.update_topic(topic, queues=2)
        left = count(brokers, topic)
        run(1, left + 60)
        assert count(brokers, topic) == left + 60


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
@pytest.mark.parametrize(("way", "there"), [("skipBatch", 60), ("rewriteBatch", 105)])
def test_a_query_whose_batch_has_changed_goes_on_by_an_option_that_counts_for_this_batch_alone(
    brokers: Cluster, guarantee: str, way: str, there: int
) -> None:
    topic = f"stuck-{guarantee}-{way}"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    assert replay(brokers, topic, ROWS) == 60
    others = [b"other" * 300, *ROWS[1:45]]
    with pytest.raises(ChangedBatch):
        replay(brokers, topic, others)
    given = {"nameServer": brokers.nameservers, "topic": topic, "batchBytes": "4096", "maxInFlight": "1"}
    writer = sink.TopicStreamWriter(
        sink_options(given | {"deliveryGuarantee": guarantee, way: "3"}, streaming=True), SCHEMA
    )

    def run(batch: int, rows: list[bytes]) -> int:
        identity = Identity(topic, f"run-{guarantee}", batch, 0)
        task = Task(cluster_of(brokers.nameservers), writer._options, identity)
        writer.commit([task.run([pa.RecordBatch.from_pydict({"body": pa.array(rows, pa.binary())})])], batch)
        return count(brokers, topic)

    assert run(3, others) == there
    assert run(4, ROWS) == there + 60
    assert run(4, ROWS) == there + 60  # the option stays, and the guarantee holds again
    if guarantee == "idempotent":
        with pytest.raises(ChangedBatch, match="batch 4, partition 0"):
            run(4, others)
    else:
        assert run(4, others) == there + 60
        writer._options = sink_options(given | {"deliveryGuarantee": guarantee}, streaming=True)
        assert run(5, ROWS) == there + 120


@pytest.mark.parametrize("guarantee", ["idempotent", "exactly-once"])
def test_a_batch_of_which_nothing_is_there_is_not_skipped_by_an_option_that_stayed(
    brokers: Cluster, guarantee: str
) -> None:
    """As of a query with a new checkpoint, whose batches have the same numbers."""
    topic = f"fresh-{guarantee}"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=2)
    given = {"nameServer": brokers.nameservers, "topic": topic, "deliveryGuarantee": guarantee}
    writer = sink.TopicStreamWriter(sink_options(given | {"skipBatch": "3"}, streaming=True), SCHEMA)

    def run(batch: int) -> int:
        task = Task(cluster_of(brokers.nameservers), writer._options, Identity(topic, "run", batch, 0))
        writer.commit([task.run([pa.RecordBatch.from_pydict({"body": pa.array(ROWS, pa.binary())})])], batch)
        return count(brokers, topic)

    assert run(2) == 60
    if guarantee == "idempotent":
        with pytest.raises(ConfigError, match=f"skipBatch=3: brokers have nothing of batch 3 of query {topic}"):
            run(3)
        writer._options = sink_options(given, streaming=True)
    assert run(3) == 120


def test_a_batch_of_which_less_is_there_than_came_first_may_be_moved_on_too(brokers: Cluster) -> None:
    topic = "stuck-fewer"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    assert replay(brokers, topic, ROWS, partition=2) == 60
    given = {"nameServer": brokers.nameservers, "topic": topic}
    told = Written(writer=topic, run="another", batch=3)
    with pytest.raises(ChangedBatch, match=r"query stuck-fewer, batch 3, partition 2: .*skipBatch=3"):
        sink.TopicStreamWriter(sink_options(given, streaming=True), SCHEMA).commit([told] * 2, 3)
    sink.TopicStreamWriter(sink_options(given | {"skipBatch": "3"}, streaming=True), SCHEMA).commit([told] * 2, 3)


def test_a_batch_that_comes_again_with_fewer_partitions_is_not_committed(brokers: Cluster) -> None:
    topic = "fewer"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    made = options(brokers, topic, "idempotent")
    writer = sink.TopicStreamWriter(made, SCHEMA)

    def run(partitions: int, batch: int) -> None:
        rows = pa.RecordBatch.from_pydict({"body": [b"row"]})
        tasks = [Identity(topic, "run", batch, number) for number in range(partitions)]
        writer.commit([Task(cluster_of(brokers.nameservers), made, each).run([rows]) for each in tasks], batch)

    run(3, 0)
    run(3, 0)
    with pytest.raises(ChangedBatch, match="holds 1 chunks of batch 0 from partition 2, and now it has 0"):
        run(2, 0)
    run(2, 1)
    assert count(brokers, topic) == 5


def test_a_run_that_was_replaced_writes_nothing_more(brokers: Cluster) -> None:
    topic = "fenced"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
    assert replay(brokers, topic, ROWS, run="one") == 60
    assert replay(brokers, topic, ROWS, run="two") == 60
    with pytest.raises(StaleProducer, match="run one is fenced"):
        replay(brokers, topic, ROWS, batch=4, run="one")
    assert replay(brokers, topic, ROWS, batch=4, run="two") == 120


def test_a_task_under_way_is_fenced_in_the_middle(brokers: Cluster) -> None:
    topic = "fenced-later"
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)

    def rows() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            if number == 1:
                replay(brokers, topic, ROWS, run="two")
            yield pa.RecordBatch.from_pydict({"body": [b"x" * 600] * 10_000})

    given = {"nameServer": brokers.nameservers, "topic": topic, "batchBytes": "65536"}
    made = sink_options(given, streaming=True)
    task = Task(cluster_of(brokers.nameservers), made, Identity(topic, "one", 2, 0))
    with pytest.raises(StaleProducer, match="run one is fenced: run two has taken over"):
        task.run(rows())
