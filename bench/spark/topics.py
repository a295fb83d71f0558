"""Figures over topics of a real broker on the same machine: batch read, streams, the sink, and an empty micro-batch."""

from __future__ import annotations

import shutil
import statistics
import uuid
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from penstock.client import Admin, Producer
from penstock.client.cluster import again
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
from .stores import parquet
from .turns import Run, bench_session, per_second, records_of, turns_of

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
        parquet(spark, folder, body) as peer,
        rig.cluster() as bench,
        discarding(TARGET, QUEUES) as nobody,
    ):
        server = bench.cluster.plan.nameserver_addresses
        with Admin(server) as admin:
            for topic in (TOPIC, SMALL, TARGET):
                # A broker that accepts connections may not be registered yet.
                again(partial(admin.create_topic, topic, queues=QUEUES), 60.0)
        _fill(server, body, records)
        runs = _Topics(spark, server, nobody, folder, body, records).runs()
        yield from turns_of(rig, runs, peer=peer, alone=frozenset({EMPTY, EMPTY_SINK}))


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

    def runs(self) -> dict[str, Run]:
        """The figures by name."""
        rows = ROWS_PER_BATCH[self._body]
        return {
            "bare loop": per_second(self._records, self._loop),
            "topic read": per_second(self._records, self._read),
            "topic stream": lambda: _rows_per_s(self._stream(TOPIC, "noop", rows)),
            "sink": per_second(self._records, lambda: self._write(self._server)),
            "sink alone": per_second(self._records, lambda: self._write(self._nobody)),
            "stream to stream": lambda: _rows_per_s(self._stream(TOPIC, "penstock", rows)),
            EMPTY: lambda: _batch_ms(self._stream(SMALL, "noop", QUEUES)),
            EMPTY_SINK: lambda: _batch_ms(self._stream(SMALL, "penstock", QUEUES)),
        }

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
