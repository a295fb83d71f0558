"""Figures over topics of a real broker on the same machine: batch read, streams, the sink, and an empty micro-batch."""

from __future__ import annotations

import shutil
import statistics
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.client import Admin, Producer
from penstock.client.cluster import again
from penstock.pipeline import topic as read_topic
from penstock.pipeline.columns.schema import MESSAGE_COLUMNS
from penstock.pipeline.spark.arrow_types import arrow_schema
from penstock.pipeline.topics.cluster import cluster
from penstock.pipeline.topics.offsets import slices
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read.reading import SliceReader
from penstock.pipeline.topics.read.starting import ending_offsets, starting_offsets

from ..rig import Rig
from ..runner import Turns
from .discarding import discarding
from .stores import scan
from .turns import Peer, Run, bench_session, per_second, records_of, turns_of

ROWS_PER_BATCH = {1024: 200_000, 100: 300_000}
SMALL_BATCHES = 20
TOPIC, SMALL, TARGET = "bench-read", "bench-small", "bench-write"
QUEUES = 8
EMPTY, EMPTY_SINK = "empty batch", "empty batch to sink"


def turns(rig: Rig, body: int) -> Turns:
    """Reads, writes and streams of topics with messages of ``body`` bytes."""
    records = records_of(body)
    with (
        rig.folder() as folder,
        bench_session() as spark,
        rig.cluster() as bench,
        discarding(TARGET, QUEUES) as nobody,
    ):
        server = bench.cluster.plan.nameserver_addresses
        with Admin(server) as admin:
            for topic in (TOPIC, SMALL, TARGET):
                # A broker that accepts connections may not be registered yet.
                again(partial(admin.create_topic, topic, queues=QUEUES), 60.0)
        _fill(server, body, records)
        topics = _Topics(spark, server, nobody, folder, body, records)
        yield from turns_of(rig, topics.runs(), peers=topics.peers())


def _fill(server: str, body: int, records: int) -> None:
    random = np.random.default_rng(1)
    with Producer(server) as producer:
        for first in range(0, records, 10_000):
            bodies = random.integers(0, 256, (min(10_000, records - first), body), np.uint8)
            producer.produce_many(TOPIC, bodies, tags="TagA", timeout_s=60)
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
        peer = f"file://{folder}/peer"
        self._topic().write.parquet(peer)
        self._lake = spark.read.parquet(peer)  # the same messages

    def runs(self) -> dict[str, Run]:
        rows = ROWS_PER_BATCH[self._body]
        return {
            "bare loop": self._rate(self._loop),
            "topic read": self._rate(lambda: scan(self._topic())),
            "pruned read": self._rate(lambda: _bytes_of_bodies(self._topic(columns=["body"]))),
            "topic stream": lambda: _rows_per_s(self._stream(TOPIC, "noop", rows)),
            "sink": self._rate(lambda: self._write(self._server)),
            "exactly-once sink": self._rate(lambda: self._write(self._server, "exactly-once")),
            "sink alone": self._rate(lambda: self._write(self._nobody, "at-least-once")),
            "stream to stream": lambda: _rows_per_s(self._stream(TOPIC, "penstock", rows)),
            EMPTY: lambda: _batch_ms(self._stream(SMALL, "noop", QUEUES)),
            EMPTY_SINK: lambda: _batch_ms(self._stream(SMALL, "penstock", QUEUES)),
        }

    def peers(self) -> dict[str, Peer]:
        """What figures are shares of: reads of the same read from Parquet, the sink of the same rows written to it."""
        every = Peer("Parquet", self._rate(lambda: scan(self._lake)))
        return {
            "bare loop": every,
            "topic read": every,
            "pruned read": Peer("Parquet", self._rate(lambda: _bytes_of_bodies(self._lake))),
            "topic stream": every,
            "sink": Peer("Parquet", self._rate(self._write_files)),
            "exactly-once sink": Peer("at-least-once", self._rate(lambda: self._write(self._server, "at-least-once"))),
        }

    def _rate(self, work: Callable[[], object]) -> Run:
        return per_second(self._records, work)

    def _loop(self) -> None:
        """The same columns of the same messages in this process alone: what a program without Spark has."""
        options = source_options({"nameServer": self._server, "subscribe": TOPIC}, streaming=False)
        view = cluster(self._server)
        begin, positions = starting_offsets(view, options, timeout_s=60.0)
        end = ending_offsets(view, options, positions, timeout_s=60.0)
        reader = SliceReader(view, options, arrow_schema(MESSAGE_COLUMNS))
        count = sum(len(batch) for batch in reader.read(slices(begin, end)))
        assert count == self._records, (count, self._records)

    def _topic(self, columns: list[str] | None = None) -> Any:
        return read_topic(self._spark, self._server, TOPIC, columns=columns)

    def _write(self, server: str, guarantee: str = "idempotent") -> None:
        writer = self._to_topic(self._lake.select("body").write.mode("append"), server)
        writer.option("deliveryGuarantee", guarantee).save()

    def _write_files(self) -> None:
        self._lake.select("body").write.mode("overwrite").parquet(f"file://{self._folder}/written")

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


def _bytes_of_bodies(frame: Any) -> None:
    frame.selectExpr("sum(length(body))").collect()


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
