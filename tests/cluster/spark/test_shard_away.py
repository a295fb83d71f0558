"""Streams while a whole broker group is away, called as Spark calls them; without Spark's JVM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.client import Admin, MessageQueue, Producer
from tests.support.cluster.cluster import Cluster, cluster
from tests.support.waiting import wait_until

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.pipeline.topics import waiting
from penstock.pipeline.topics.cluster import Cluster as View
from penstock.pipeline.topics.cluster import cluster as cluster_of
from penstock.pipeline.topics.offsets import begin_of, queues_of
from penstock.pipeline.topics.options import sink_options, source_options
from penstock.pipeline.topics.read import stream
from penstock.pipeline.topics.read.stream import TopicStreamReader
from penstock.pipeline.topics.write.sink import Identity
from penstock.pipeline.topics.write.task import Task
from penstock.pipeline.topics.write.writers import hash_64
from penstock.proto.errors import Retryable

SCHEMA = StructType([StructField("body", BinaryType())])


@pytest.fixture
def brokers(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(waiting, "TURN_S", 1.0)
    monkeypatch.setattr(stream, "TURN_S", 1.0)
    monkeypatch.setattr(stream, "ASKED_S", 0.2)
    with cluster(tmp_path_factory.mktemp("brokers"), shards=2, replicas=1) as made:
        made.start()
        with Admin(made.nameservers) as admin:
            admin.create_topic("both", queues=1)
        yield made


def send(brokers: Cluster, body: bytes, *shards: str) -> None:
    with Producer(brokers.nameservers) as producer:
        for shard in shards:
            producer.send("both", body, queue=MessageQueue("both", shard, 0))


def planned(source: TopicStreamReader, start: Any, count: int) -> Any:
    """The end of the next batch, once it has so many messages."""

    def found() -> Any:
        end = source.latestOffset(start, ReadAllAvailable())
        have = sum(queues_of(end).values()) - sum(begin_of(start, end).values())
        return end if have == count else None

    return wait_until(found, 30, f"{count} messages")


def bodies(source: TopicStreamReader, parts: list[Any]) -> list[bytes]:
    return [body for part in parts for batch in source.read(part) for body in batch.column("body").to_pylist()]


def test_a_stream_goes_on_with_other_shards_and_waits_without_end_for_one_that_is_away(
    brokers: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    names = brokers.nameservers
    given = {"nameServer": names, "subscribe": "both", "startingOffsets": "earliest"}
    source = TopicStreamReader(source_options(given, streaming=True), SCHEMA)
    start = source.initialOffset()
    send(brokers, b"1", "broker-a", "broker-b")
    end = planned(source, start, 2)
    parts = source.partitions(start, end)
    brokers.broker("b", 0).kill()
    assert source.latestOffset(end, ReadAllAvailable()) == end  # also while the nameserver does not know of it
    wait_until(lambda: View(names).known_route("both").absent, 30, "the group is gone")
    send(brokers, b"2", "broker-a")
    later = planned(source, end, 1)
    told = source.reportLatestOffset()
    assert told is not None
    assert told["away"] == {"both": ["broker-b"]}
    assert "topic both: nobody of broker-b answers, its messages wait and others go on" in caplog.text
    with ThreadPoolExecutor(2) as pool:
        reading = pool.submit(bodies, source, parts)  # planned before, with messages of the one that is away
        planning = pool.submit(source.partitions, start, end)
        try:
            wait_until(lambda: "reads at broker group broker-b waits since" in caplog.text, 30, "the task tells")
            wait_until(lambda: "messages of topic both at broker-b waits since" in caplog.text, 30, "the planner too")
            assert not reading.done()
            assert not planning.done()
            brokers.broker("a", 0).kill()
            assert source.latestOffset(later, ReadAllAvailable()) == later
        finally:
            for shard in "ab":
                brokers.broker(shard, 0).restart()
        assert reading.result(60) == [b"1", b"1"]
        assert bodies(source, planning.result(60)) == [b"1", b"1"]
    send(brokers, b"3", "broker-b")
    assert bodies(source, source.partitions(later, planned(source, later, 1))) == [b"3"]
    assert "topic both: broker-b answers again" in caplog.text


WRITER = next(name for number in range(99) if hash_64(name := f"query {number}") % 2 == 0)
"""For which broker-a decides."""
NUMBERS = range(20)
ROWS = pa.RecordBatch.from_pydict({"body": [b"%d" % n for n in NUMBERS], "shardingKey": [str(n) for n in NUMBERS]})


def task(brokers: Cluster, guarantee: str, writer: str, batch: int) -> Task:
    given = {"nameServer": brokers.nameservers, "topic": "both", "sendTimeoutMs": "1000"}
    made = sink_options(given | {"deliveryGuarantee": guarantee}, streaming=True)
    return Task(cluster_of(brokers.nameservers), made, Identity(writer, "run", batch, 0))


def test_an_idempotent_stream_waits_for_a_shard_that_is_away_and_says_so(
    brokers: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    assert task(brokers, "idempotent", WRITER, 0).run([ROWS]).records == 20
    brokers.broker("b", 0).kill()
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(task(brokers, "idempotent", WRITER, 1).run, [ROWS])
            told = "a task that writes to topic both at broker-b waits since"
            wait_until(lambda: told in caplog.text, 30, "that it waits is told")
            assert not writing.done()
        finally:
            brokers.broker("b", 0).restart()
        assert writing.result(60).records == 20


def test_an_exactly_once_stream_goes_around_a_shard_that_is_away_unless_that_decides_for_it(brokers: Cluster) -> None:
    first = task(brokers, "exactly-once", WRITER, 0).run([ROWS])
    assert first.coordinator == "broker-a"
    assert set(first.chunks) == {"broker-a", "broker-b"}
    brokers.broker("b", 0).kill()
    wait_until(lambda: View(brokers.nameservers).known_route("both").absent, 30, "the group is gone")
    assert set(task(brokers, "exactly-once", WRITER, 0).run([ROWS]).chunks) == {"broker-a"}


def test_a_given_time_is_kept_to(brokers: Cluster) -> None:
    given = {"nameServer": brokers.nameservers, "subscribe": "both", "driverRetryTimeoutMs": "2500"}
    source = TopicStreamReader(source_options(given, streaming=True), SCHEMA)
    start = source.initialOffset()
    assert source.latestOffset(start, ReadAllAvailable()) == start
    began = time.monotonic()
    for shard in "ab":
        brokers.broker(shard, 0).kill()
    with pytest.raises(Retryable):
        source.latestOffset(start, ReadAllAvailable())
    assert time.monotonic() - began > 2.0  # two turns of the second that this test has made of ten
