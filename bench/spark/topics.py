"""Cases over topics of a real broker on the same machine: batch read, streams, the sink, and an empty micro-batch."""

from __future__ import annotations

import shutil
import statistics
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.client import Admin, Producer
from penstock.client.cluster import again
from penstock.deploy import LocalCluster
from penstock.pipeline.columns.schema import MESSAGE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.topics.cluster import cluster
from penstock.pipeline.topics.offsets import slices
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read.reading import SliceReader
from penstock.pipeline.topics.read.starting import ending_offsets, starting_offsets

from ..rig import FULL_SIZE_FILES
from .discarding import discarding
from .measuring import Case

NAMES = (
    *("bare loop", "topic read", "topic stream", "sink", "sink alone", "stream to stream", "empty batch"),
    "empty batch to sink",
)
LOOP, READ, STREAM, SINK, SINK_ALONE, THROUGH, EMPTY, EMPTY_SINK = NAMES
TARGETS: dict[tuple[str, int], float] = {
    (READ, 1024): 300_000,
    (READ, 100): 900_000,
    (STREAM, 1024): 160_000,
    (STREAM, 100): 550_000,
    (SINK_ALONE, 1024): 350_000,  # measured where no broker limited it
    (SINK_ALONE, 100): 1_500_000,
    (THROUGH, 1024): 70_000,
    (THROUGH, 100): 250_000,
    (EMPTY, 100): 170,
    (EMPTY_SINK, 100): 240,
}
ROWS_PER_BATCH = {1024: 200_000, 100: 300_000}
SMALL_BATCHES = 20
TOPIC, SMALL, TARGET = "bench-read", "bench-small", "bench-write"
QUEUES = 8


def cases(spark: Any, folder: Path, body: int, gib: float, wanted: tuple[str, ...]) -> Iterator[Case]:
    """The wanted cases; the broker lives while they run, and so does its data."""
    records = int(gib * (1 << 30) / (body + 177))
    brokers = LocalCluster(folder / "cluster")
    brokers.up(shards=1, replicas=1, nameservers=1, mode="async", base_port=0, settings=FULL_SIZE_FILES)
    try:
        server = brokers.plan.nameserver_addresses
        with Admin(server) as admin:
            for topic in (TOPIC, SMALL, TARGET):
                # A broker that accepts connections may not be registered yet.
                again(partial(admin.create_topic, topic, queues=QUEUES), 60.0)
        _fill(server, body, records)
        with discarding(TARGET, QUEUES) as nobody:
            topics = _Topics(spark, server, nobody, folder, body, records)
            for name in wanted:
                yield topics.case(name)
    finally:
        brokers.down()
        shutil.rmtree(folder / "cluster", ignore_errors=True)


def _fill(server: str, body: int, records: int) -> None:
    bodies = np.random.default_rng(1).integers(0, 256, (10_000, body), np.uint8)
    with Producer(server) as producer:
        for first in range(0, records, len(bodies)):
            producer.produce_many(TOPIC, bodies[: records - first], tags="TagA", timeout_s=60)
        for number in range(SMALL_BATCHES * QUEUES):
            producer.produce(SMALL, b"%d" % number, sharding_key=str(number))
        producer.flush(60)


class _Topics:
    def __init__(self, spark: Any, server: str, nobody: str, folder: Path, body: int, records: int) -> None:
        self._spark = spark
        self._server = server
        self._nobody = nobody  # a nameserver of a broker that keeps nothing
        self._folder = folder
        self._body = body
        self._records = records

    def case(self, name: str) -> Case:
        """The case of that name."""
        runs = {
            LOOP: self._loop,
            READ: self._read,
            STREAM: lambda: self._stream(TOPIC, "noop", ROWS_PER_BATCH.get(self._body, 200_000)),
            SINK: lambda: self._write(self._server),
            SINK_ALONE: lambda: self._write(self._nobody),
            THROUGH: lambda: self._stream(TOPIC, "penstock", ROWS_PER_BATCH.get(self._body, 200_000)),
            EMPTY: lambda: self._stream(SMALL, "noop", QUEUES),
            EMPTY_SINK: lambda: self._stream(SMALL, "penstock", QUEUES),
        }
        target, run = TARGETS.get((name, self._body)), runs[name]
        if name in (EMPTY, EMPTY_SINK):
            rows = SMALL_BATCHES * QUEUES
            return Case(name, self._body, rows, 0, run, target, value=_batch_ms, unit="ms a batch")
        size = self._records * (self._body + 177)
        if name in (STREAM, THROUGH):
            return Case(name, self._body, self._records, size, run, target, value=_rows_per_s)
        return Case(name, self._body, self._records, size, run, target)

    def _loop(self) -> None:
        """The same columns of the same messages in this process alone: what a program without Spark has."""
        options = source_options({"nameServer": self._server, "subscribe": TOPIC}, streaming=False)
        view = cluster(self._server)
        begin, positions = starting_offsets(view, options, timeout_s=60.0)
        end = ending_offsets(view, options, positions, timeout_s=60.0)
        reader = SliceReader(view, options, arrow_schema(MESSAGE_COLUMNS))
        count = sum(len(batch) for batch in reader.read(slices(begin, end)))
        assert count == self._records, (count, self._records)

    def _read(self) -> None:
        frame = self._spark.read.format("penstock").option("nameServer", self._server).option("subscribe", TOPIC)
        frame.load().write.format("noop").mode("overwrite").save()

    def _write(self, server: str) -> None:
        rows = self._spark.range(0, self._records, numPartitions=2).selectExpr(f"repeat('x', {self._body}) as body")
        self._to_topic(rows.write.mode("append"), server).option("deliveryGuarantee", "at-least-once").save()

    def _to_topic(self, writer: Any, server: str) -> Any:
        return writer.format("penstock").option("nameServer", server).option("topic", TARGET)

    def _stream(self, topic: str, sink: str, rows: int) -> Any:
        frame = (
            self._spark.readStream.format("penstock")
            .option("nameServer", self._server)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(rows))
            .option("maxPartitions", "2")
            .load()
        )
        checkpoint = self._folder / f"checkpoint-{uuid.uuid4().hex}"
        if sink == "noop":
            writer = frame.writeStream.format("noop")
        else:
            writer = self._to_topic(frame.select("body").writeStream, self._server)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()
        shutil.rmtree(checkpoint, ignore_errors=True)
        return query


def _rows_per_s(query: Any) -> float:
    """What a stream carries while it runs: all batches but the first, in which the query and its workers start."""
    batches = query.recentProgress
    later = batches[1:] or batches
    seconds = sum(each.durationMs["triggerExecution"] for each in later) / 1000
    return float(sum(each.numInputRows for each in later) / max(seconds, 1e-3))


def _batch_ms(query: Any) -> float:
    """The median time of the small batches, the first ones, in which workers start, left out."""
    times = [each.durationMs["triggerExecution"] for each in query.recentProgress if each.numInputRows]
    return float(statistics.median(times[2:] or times))
