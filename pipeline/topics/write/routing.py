"""Which broker and queue a row goes to: the same one whenever the batch is written again.

A *target* is some queues of one broker; the chunks of a target follow each other, those of different targets do not
wait for each other, so the order within a queue holds. A *layout* fixes the targets of a topic. For writers whose
batches may be repeated it is kept by the brokers (``WriterState.layout``), so that a shard that comes or goes between
two attempts changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.cluster import WriteQueues
from penstock.formats.columns import Column
from penstock.formats.destination import Destination, Later, Ordinary
from penstock.proto.errors import Forbidden, InvalidArgument, RouteNotFound
from penstock.proto.names import PERM_WRITE
from penstock.proto.wire.nameserver_pb2 import TopicRoute

from .encoding import DELIVER_AT, Ints, Rows, texts

CHUNK_ROWS = 10_000
CHUNK_BYTES = 64 << 20
"""Of bodies, before they are cut further: what a task holds, and far below what one Arrow column can."""
LANES_MAX = 64
SETTINGS = "*"
"""Name of the layout's entry that is no topic: what else decides which row is in which chunk."""


CONTENT = "="
"""Name of the layout's entry that tells what a job of this name wrote: see :mod:`.content`."""


class Target(NamedTuple):
    """``queues`` of one broker; ``lane`` numbers the targets of that broker."""

    broker: str
    lane: int
    queues: tuple[int, ...]


class Piece(NamedTuple):
    """Rows that go to one target, in their order, each with its queue."""

    target: int
    bodies: Column
    properties: Column
    queue_ids: Ints

    def placed(self, destination: Destination) -> Piece:
        """The same rows as the records that they are there."""
        properties, queue_ids = destination.place(self.properties, self.queue_ids)
        return self._replace(properties=properties, queue_ids=queue_ids)

    def part(self, start: int, stop: int) -> Piece:
        """The rows ``start`` to ``stop``, without the last."""
        bodies, properties = self.bodies.part(start, stop), self.properties.part(start, stop)
        return Piece(self.target, bodies, properties, self.queue_ids[start:stop])


def layout_of(route: TopicRoute) -> str:
    """``broker:queues;…`` of what may be written to; of an order topic, those that keys have for good.

    Raises RouteNotFound: nothing, as no master lives now. Forbidden: nothing.
    """
    queues = WriteQueues.of(route)
    if not queues.total:
        is_writable = any(each.perm & PERM_WRITE and each.write_queues for each in (*route.queues, *route.absent))
        kind = RouteNotFound if is_writable else Forbidden
        raise kind(f"topic {route.topic}: no living master takes messages for it")
    return ";".join(f"{broker}:{count}" for broker, count in queues.ordered or queues.shards)


class Settings(NamedTuple):
    """What decides which row is in which chunk, and of which bytes that is made: kept with the layouts."""

    batch_bytes: int
    lanes: int  # targets per broker
    compression: str
    rows: int = CHUNK_ROWS
    bytes: int = CHUNK_BYTES  # of bodies, beside rows

    @classmethod
    def parse(cls, text: str) -> Settings:
        """The inverse of ``str``."""
        batch_bytes, lanes, compression, rows, size = text.split(";")
        return cls(int(batch_bytes), int(lanes), compression, int(rows), int(size))

    def __str__(self) -> str:
        return ";".join(map(str, self))


class Layout:
    """The targets of one topic."""

    def __init__(self, topic: str, text: str, lanes: int) -> None:
        shards = [(name, int(count)) for name, _, count in (part.rpartition(":") for part in text.split(";"))]
        self.topic = topic
        self.queues = WriteQueues(shards)
        self.targets: list[Target] = []
        self._first: dict[str, tuple[int, int]] = {}  # broker -> its first target, and how many it has
        for broker, count in self.queues.shards:
            width = min(lanes, count, LANES_MAX)
            self._first[broker] = len(self.targets), width
            self.targets += [Target(broker, lane, tuple(range(lane, count, width))) for lane in range(width)]
        # Broker after broker, so that consecutive chunks go to different ones.
        self._turns = sorted(range(len(self.targets)), key=lambda number: (self.targets[number].lane, number))

    def split(self, rows: Rows, turn: int) -> Iterator[Piece]:
        """The rows by target: by queue id, by sharding key, or all to the target whose ``turn`` it is.

        Raises InvalidArgument: a queue id that no broker has.
        """
        if rows.queue_ids is not None:
            yield from self._by_target(rows, *self._of_queue_ids(rows.queue_ids))
        elif rows.hashes is not None:
            shards, queue_ids = self.queues.split_by_hash(rows.hashes)
            yield from self._by_target(rows, shards, queue_ids)
        elif rows.count:
            number = self._turns[turn % len(self._turns)]
            queues = np.array(self.targets[number].queues, np.int32)
            # In runs, not in turns: neighbours of a batch are neighbours in their queue.
            queue_ids = queues[np.arange(rows.count) * len(queues) // rows.count]
            yield Piece(number, rows.bodies, rows.properties, queue_ids)

    def _of_queue_ids(self, wanted: Ints) -> tuple[npt.NDArray[np.int64], Ints]:
        counts = np.array([count for _, count in self.queues.shards])
        highest = int(wanted.max(initial=0))
        if highest >= counts.max():
            row = int(wanted.argmax())
            raise InvalidArgument(
                f"row {row} of the batch: topic {self.topic} has no queue {highest}: its last one is {counts.max() - 1}"
            )
        shards = np.empty(len(wanted), np.int64)
        for queue_id in np.unique(wanted).tolist():
            having = np.flatnonzero(counts > queue_id)
            shards[wanted == queue_id] = having[queue_id % len(having)]
        return shards, wanted

    def _by_target(self, rows: Rows, shards: npt.NDArray[np.int64], queue_ids: Ints) -> Iterator[Piece]:
        firsts = np.array([self._first[broker] for broker, _ in self.queues.shards], np.int64)
        numbers = firsts[shards, 0] + queue_ids % firsts[shards, 1]
        for number in np.unique(numbers).tolist():
            chosen = np.flatnonzero(numbers == number)
            yield Piece(number, rows.bodies.take(chosen), rows.properties.take(chosen), queue_ids[chosen])


def by_topic(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order; ``topic`` is for all of them, unless it is empty.

    Raises InvalidArgument: a row names no topic.
    """
    if "topic" not in batch.schema.names:
        yield topic, batch
        return
    column = batch.column("topic")
    rest = batch.drop_columns(["topic"])
    if topic:
        yield topic, rest
        return
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InvalidArgument(f"row {row} of the batch: topic is null, and there is no option topic")
    encoded = column.dictionary_encode()
    found = texts(encoded.dictionary)
    if len(found) == 1:
        yield found[0], rest
        return
    indices = encoded.indices.to_numpy()
    for number, name in enumerate(found):
        yield name, rest.take(pa.array(np.flatnonzero(indices == number)))


def by_destination(batch: pa.RecordBatch, topic: str) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    """The rows for now, without the column deliverAt, and those for later, as far as there are any."""
    if DELIVER_AT not in batch.schema.names:
        yield Ordinary(topic), batch
        return
    times = batch.column(DELIVER_AT)
    for is_later, wanted in ((False, times.null_count), (True, len(times) - times.null_count)):
        if not wanted:
            continue
        part = batch
        if wanted < len(times):
            chosen = pc.is_valid(times) if is_later else pc.is_null(times)
            part = batch.take(pa.array(np.flatnonzero(chosen.to_numpy(zero_copy_only=False))))
        yield (Later(topic), part) if is_later else (Ordinary(topic), part.drop_columns([DELIVER_AT]))


def rebatched(batches: Iterable[pa.RecordBatch], rows: int, bytes_max: int = CHUNK_BYTES) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of ``rows``, or as many as hold ``bytes_max`` of bodies: however Spark has cut them."""
    held: list[pa.RecordBatch] = []
    count = size = 0
    for batch in map(_without_voids, batches):
        lengths = pc.fill_null(pc.binary_length(batch.column("body")), 0)
        ends = np.cumsum(lengths.to_numpy(zero_copy_only=False), dtype=np.int64)
        start = 0
        while start < batch.num_rows:
            before = int(ends[start - 1]) if start else 0
            fits = int(np.searchsorted(ends, before + bytes_max - size, side="right"))
            stop = min(start + rows - count, max(fits, start + (not held)))
            if stop > start:
                held.append(batch.slice(start, stop - start))
                count += stop - start
                size += int(ends[stop - 1]) - before
            if count == rows or stop < batch.num_rows:
                yield from _joined(held)
                held, count, size = [], 0, 0
            start = stop
    yield from _joined(held)


def _joined(parts: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """One batch, or none; several where a column besides the bodies is more than Arrow holds in one."""
    if len(parts) < 2:
        return parts
    whole: list[pa.RecordBatch] = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return whole


def _without_voids(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without columns that have a null in every row, and no type, as ``lit(None)`` makes them."""
    return batch.drop_columns([field.name for field in batch.schema if pa.types.is_null(field.type)])
