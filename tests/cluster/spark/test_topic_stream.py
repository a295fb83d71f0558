"""The stream reader of ``format("penstock")`` against real brokers, called as Spark calls it; without Spark's JVM."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import Admin, Producer
from tests.support.cluster.cluster import Cluster, cluster, wait_replicated
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructField, StructType

from penstock.pipeline.topics import cluster as topics_cluster
from penstock.pipeline.topics.offsets import begin_of, queues_of
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read.stream import TopicStreamReader
from penstock.proto.errors import DataLoss, TopicNotFound

SCHEMA = StructType(
    [StructField("body", BinaryType()), StructField("queueId", IntegerType()), StructField("queueOffset", LongType())]
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("brokers"), shards=1, replicas=2) as made:
        made.start()
        yield made


def reader(brokers: Cluster, topic: str, **options: str) -> TopicStreamReader:
    given = {"nameServer": brokers.nameservers, "subscribe": topic, "startingOffsets": "earliest"} | options
    return TopicStreamReader(source_options(given, streaming=True), SCHEMA)


def pattern_reader(brokers: Cluster, **options: str) -> TopicStreamReader:
    given = {"nameServer": brokers.nameservers, "startingOffsets": "earliest"} | options
    return TopicStreamReader(source_options(given, streaming=True), SCHEMA)


def send(brokers: Cluster, topic: str, first: int, count: int) -> None:
    with Producer(brokers.nameservers) as producer:
        for number in range(first, first + count):
            producer.produce(topic, b"%d" % number, sharding_key=str(number))
        producer.flush(60)


def stored(offset: Any) -> Any:
    """As Spark keeps it."""
    return json.loads(json.dumps(offset))


def batch(source: TopicStreamReader, start: Any, end: Any) -> list[bytes]:
    """The rows of a batch, each partition read by a copy, as in a worker."""
    found: list[bytes] = []
    for partition in source.partitions(stored(start), stored(end)):
        worker = pickle.loads(pickle.dumps(source))
        for part in worker.read(pickle.loads(pickle.dumps(partition))):
            found += part.column("body").to_pylist()
    return found


def end_behind(source: TopicStreamReader, start: Any, count: int) -> Any:
    """The end of the next batch, once it holds ``count`` messages: a slave that answers may see them a moment later."""

    def is_there() -> bool:
        found.append(source.latestOffset(stored(start), ReadAllAvailable()))
        begin = begin_of(stored(start), stored(found[-1]))
        return sum(queues_of(found[-1]).values()) - sum(begin.values()) == count

    found: list[Any] = []
    wait_until(is_there, what=f"{count} messages behind {start}")
    return found[-1]


def numbers(first: int, count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(first, first + count))


def test_batches_cover_everything_once_over_limits_restarts_and_new_queues(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("covered", queues=3)
        send(brokers, "covered", 0, 500)
        source = reader(brokers, "covered", targetBytesPerPartition="4k")
        start = source.initialOffset()
        assert source.initialOffset() == start
        seen: list[bytes] = []
        sizes = []
        while (end := source.latestOffset(stored(start), ReadMaxRows(200))) != start:
            rows = batch(source, start, end)
            sizes.append(len(rows))
            seen += rows
            start = stored(end)
        assert Counter(seen) == numbers(0, 500)
        assert all(150 <= size <= 203 for size in sizes[:-1])
        admin.update_topic("covered", queues=6)
    send(brokers, "covered", 500, 300)
    source = reader(brokers, "covered")  # a new run
    end = end_behind(source, start, 300)
    assert "init" in end
    assert Counter(batch(source, start, end)) == numbers(500, 300)
    assert Counter(batch(reader(brokers, "covered"), start, end)) == numbers(500, 300)
    again = source.latestOffset(stored(end), ReadAllAvailable())
    assert again == stored(end)


def test_a_batch_that_is_repeated_has_the_partitions_it_had(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("repeated", queues=3)
    with Producer(brokers.nameservers) as producer:
        for number in range(300):
            producer.produce("repeated", bytes(5_000), sharding_key=str(number))  # larger than an unknown size is taken
        producer.flush(60)
    options = {"targetBytesPerPartition": "100k"}
    source = reader(brokers, "repeated", **options)
    start = source.initialOffset()
    end = end_behind(source, start, 300)
    first = [partition.slices for partition in source.partitions(stored(start), stored(end))]
    assert len(first) > 10
    source.latestOffset(stored(end), ReadAllAvailable())
    after_a_crash = reader(brokers, "repeated", **options)
    for asked in (source, after_a_crash, reader(brokers, "repeated")):
        assert [partition.slices for partition in asked.partitions(stored(start), stored(end))] == first


def test_available_now_stops_at_what_was_there(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("frozen", queues=2)
    send(brokers, "frozen", 0, 100)
    source = reader(brokers, "frozen")
    start = source.initialOffset()
    source.prepareForTriggerAvailableNow()
    send(brokers, "frozen", 100, 100)
    end = source.latestOffset(stored(start), ReadMaxRows(60))
    rest = source.latestOffset(stored(end), ReadMaxRows(60))
    assert Counter(batch(source, start, end) + batch(source, end, rest)) == numbers(0, 100)
    assert source.latestOffset(stored(rest), ReadMaxRows(60)) == stored(rest)


def test_a_first_batch_that_crashed_is_read_as_planned(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("first", queues=2)
    source = reader(brokers, "first", startingOffsets="latest")
    start = source.initialOffset()
    send(brokers, "first", 0, 50)
    end = end_behind(source, start, 50)
    send(brokers, "first", 50, 50)
    again = reader(brokers, "first", startingOffsets="latest")
    assert Counter(batch(again, again.initialOffset(), end)) == numbers(0, 50)


def test_a_stream_reads_from_the_slave_while_the_master_is_gone(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("failing", queues=2)
    send(brokers, "failing", 0, 200)
    wait_replicated(brokers.broker("a", 0), brokers.broker("a", 1))
    source = reader(brokers, "failing")
    start = source.initialOffset()
    brokers.broker("a", 0).kill()
    try:
        end = source.latestOffset(stored(start), ReadAllAvailable())
        assert Counter(batch(source, start, end)) == numbers(0, 200)
    finally:
        brokers.broker("a", 0).restart()
    send(brokers, "failing", 200, 100)
    more = end_behind(source, end, 100)
    assert Counter(batch(source, end, more)) == numbers(200, 100)


@pytest.mark.parametrize("count", [10, 100, 250], ids=["shorter", "as long", "longer"])
def test_a_topic_made_anew_is_data_loss_that_may_be_tolerated(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    topic = f"anew-{count}"
    monkeypatch.setattr("penstock.pipeline.topics.read.stream.SHRUNK_S", 0.5)
    monkeypatch.setattr("penstock.client.cluster.directory.VIEW_AGE_S", 0.0)  # the master has just come back
    with Admin(brokers.nameservers) as admin:
        admin.create_topic(topic, queues=1)
        send(brokers, topic, 0, 100)
        source = reader(brokers, topic)
        end = end_behind(source, source.initialOffset(), 100)
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=1)
    send(brokers, topic, 1000, count)
    with pytest.raises(DataLoss, match="made anew"):
        source.latestOffset(stored(end), ReadAllAvailable())
    tolerant = reader(brokers, topic, failOnDataLoss="false")
    later = tolerant.latestOffset(stored(end), ReadAllAvailable())
    assert Counter(batch(tolerant, end, later)) == numbers(1000, count)
    bounded = reader(brokers, topic)
    bounded.prepareForTriggerAvailableNow()
    with pytest.raises(DataLoss, match="made anew"):
        bounded.latestOffset(stored(end), ReadAllAvailable())
    bounded = reader(brokers, topic, failOnDataLoss="false")
    bounded.prepareForTriggerAvailableNow()
    half = bounded.latestOffset(stored(end), ReadMaxRows(4))
    rest = bounded.latestOffset(stored(half), ReadAllAvailable())
    assert Counter(batch(bounded, end, half) + batch(bounded, half, rest)) == numbers(1000, count)
    assert bounded.latestOffset(stored(rest), ReadAllAvailable()) == stored(rest)


def test_a_stream_goes_on_without_a_topic_that_was_deleted_if_losses_are_tolerated(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        for topic in ("kept", "dropped"):
            admin.create_topic(topic, queues=1)
            send(brokers, topic, 0, 10)
        both = {"subscribe": "kept,dropped"}
        source = reader(brokers, "", **both, failOnDataLoss="false")
        end = end_behind(source, source.initialOffset(), 20)
        admin.delete_topic("dropped")
        send(brokers, "kept", 10, 5)
        later = end_behind(source, end, 5)
        assert Counter(batch(source, end, later)) == numbers(10, 5)
        with pytest.raises(TopicNotFound, match="topic dropped does not exist"):
            reader(brokers, "", **both, driverRetryTimeoutMs="0").latestOffset(stored(end), ReadAllAvailable())
        admin.create_topic("dropped", queues=1)
        send(brokers, "dropped", 100, 30)
        last = source.latestOffset(stored(later), ReadAllAvailable())
    assert Counter(batch(source, later, last)) == numbers(100, 30)


def test_a_topic_of_a_pattern_that_is_deleted_is_data_loss(brokers: Cluster) -> None:
    given = {"subscribePattern": "some-.*"}
    with Admin(brokers.nameservers) as admin:
        for topic in ("some-a", "some-b"):
            admin.create_topic(topic, queues=1)
            send(brokers, topic, 0, 10)
        source = pattern_reader(brokers, **given)
        end = end_behind(source, source.initialOffset(), 20)
        admin.delete_topic("some-b")
    send(brokers, "some-a", 10, 5)
    with pytest.raises(DataLoss, match="topic some-b is gone at broker-a: what the query has not read of some-b/"):
        source.latestOffset(stored(end), ReadAllAvailable())
    tolerant = pattern_reader(brokers, **given, failOnDataLoss="false")
    later = end_behind(tolerant, end, 5)
    assert Counter(batch(tolerant, end, later)) == numbers(10, 5)
    view = topics_cluster.cluster(brokers.nameservers)
    assert view.commit("some-readers", queues_of(later), 10) == []
    kept = [queue for queue in queues_of(later) if queue.topic == "some-a"]
    assert view.committed("some-readers", kept, 10) == {queue: queues_of(later)[queue] for queue in kept}


def test_a_batch_that_is_repeated_reads_no_topic_that_was_made_anew(brokers: Cluster) -> None:
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("again", queues=1)
        send(brokers, "again", 0, 10)
        source = reader(brokers, "again")
        start = source.initialOffset()
        end = end_behind(source, start, 10)
        admin.delete_topic("again")
        with pytest.raises(DataLoss, match="topic again is gone at broker-a since the batch was planned"):
            batch(reader(brokers, "again"), start, end)
        admin.create_topic("again", queues=1)
    send(brokers, "again", 100, 30)
    with pytest.raises(DataLoss, match="topic again was made anew at broker-a since the batch was planned"):
        batch(reader(brokers, "again"), start, end)
    tolerant = reader(brokers, "again", failOnDataLoss="false")
    assert batch(tolerant, start, end) == []
    later = tolerant.latestOffset(stored(end), ReadAllAvailable())
    assert Counter(batch(tolerant, end, later)) == numbers(100, 30)


def test_a_pattern_may_wait_for_its_first_topic(brokers: Cluster) -> None:
    given = {"nameServer": brokers.nameservers, "subscribePattern": "later-.*"}
    source = TopicStreamReader(source_options(given, streaming=True), SCHEMA)
    start = source.initialOffset()
    assert source.latestOffset(stored(start), ReadAllAvailable()) == stored(start)
    with Admin(brokers.nameservers) as admin:
        admin.create_topic("later-a", queues=2)
    send(brokers, "later-a", 0, 10)
    end = end_behind(source, start, 10)
    assert Counter(batch(source, start, end)) == numbers(0, 10)
