"""From a batch to the framed Append message: records are laid out in the very bytes that gRPC sends."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from penstock.formats.record.kernels import encode_batch, encoded_bytes
from penstock.formats.record.layout import Host, SysFlag
from penstock.formats.record.producer_mark import MARK_PREFIX, producer_mark
from penstock.proto import frames, names
from penstock.proto.wire.broker_pb2 import AppendHeader

from .columns import Column
from .later import later_producer, placed_later
from .parts import Batch, Part

MARK_BYTES_MAX = 96
"""Property bytes that the first record of a batch needs for the producer's mark."""

_WRITABLE = 0x200  # PyBUF_WRITE
_memory_at = ctypes.pythonapi.PyMemoryView_FromMemory
_memory_at.restype = ctypes.py_object
_memory_at.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int]


def mark_property(producer_id: int, epoch: int, lane: int, sequence: int, count: int, digest: int = 0) -> bytes:
    """The property that numbers a batch, with its name and separators."""
    mark = MARK_PREFIX + producer_mark(producer_id, epoch, lane, sequence, count, digest) + b"\x02"
    assert len(mark) <= MARK_BYTES_MAX
    return mark


class Encoder:
    """Makes Append messages for one producer. Holds no state between calls, so threads may share it."""

    def __init__(self, producer_id: int, epoch: int, born_host: Host) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._born_host = np.frombuffer(born_host.encode(), dtype=np.uint8)

    def frame(
        self, batch: Batch, topic: str, store_host: Host, *, timeout_ms: int, no_wait: bool, later: bool = False
    ) -> bytes:
        """The framed Append message of ``batch``; notes the records' sizes in it. ``later``: see :mod:`.later`."""
        count, queue_ids, producer_id = batch.count, batch.queue_ids, self.producer_id
        if later:
            producer_id = later_producer(producer_id, topic)
        mark = mark_property(producer_id, self.epoch, batch.lane.number, batch.sequence, count)
        if later:
            bodies, properties = _bodies(batch.parts), placed_later(_properties(batch.parts), topic, queue_ids)
            properties = _marked(properties, mark)
            queue_ids = np.zeros_like(queue_ids)
        else:
            bodies, properties = _columns_of_one(batch.parts[0], mark) if count == 1 else _columns(batch, mark)
        encoded_topic = (names.TIMER_TOPIC if later else topic).encode()
        sys_flag = batch.parts[0].sys_flag | (SysFlag.STORE_HOST_V6 if store_host.is_ipv6 else 0)
        size = encoded_bytes(
            count, len(bodies.data), len(properties.data), len(encoded_topic), sys_flag, len(self._born_host)
        )
        header = AppendHeader(
            topic=topic,
            producer_id=producer_id,
            producer_epoch=self.epoch,
            lane=batch.lane.number,
            sequence=batch.sequence,
            count=count,
            no_wait=no_wait,
            timeout_ms=timeout_ms,
            later=later,
        )
        message, address = frames.allocate(header, size)
        out = np.frombuffer(_memory_at(address, size, _WRITABLE), dtype=np.uint8)
        written = encode_batch(
            out,
            bodies.data,
            bodies.ends,
            properties.data,
            properties.ends,
            np.frombuffer(encoded_topic, dtype=np.uint8),
            queue_ids,
            sys_flag,
            0,
            time.time_ns() // 1_000_000,
            self._born_host,
        )
        assert written == size, (written, size)
        if count > 1 and any(part.futures for part in batch.parts):
            fixed = (size - len(bodies.data) - len(properties.data)) // count
            batch.record_sizes = bodies.lengths + properties.lengths + fixed
        return message


def _columns_of_one(part: Part, mark: bytes) -> tuple[Column, Column]:
    """Body and properties of a single message: a waiting send's latency counts in microseconds."""
    body = part.bodies[0]
    encoded = mark + part.properties[0] if part.properties is not None and part.properties[0] else mark
    return (
        Column(np.frombuffer(body, dtype=np.uint8), np.array([len(body)], dtype=np.int64)),
        Column(np.frombuffer(encoded, dtype=np.uint8), np.array([len(encoded)], dtype=np.int64)),
    )


def _columns(batch: Batch, mark: bytes) -> tuple[Column, Column]:
    bodies, properties = _bodies(batch.parts), _properties(batch.parts)
    if properties is None:
        ends = np.full(batch.count, len(mark), dtype=np.int64)
        return bodies, Column(np.frombuffer(mark, dtype=np.uint8), ends)
    return bodies, _marked(properties, mark)


def _marked(properties: Column, mark: bytes) -> Column:
    return Column(np.concatenate([np.frombuffer(mark, dtype=np.uint8), properties.data]), properties.ends + len(mark))


def _bodies(parts: list[Part]) -> Column:
    values: list[bytes] = []
    if len(parts) > 1:  # often of one message each: one column for all of them costs what one column costs
        for part in parts:
            if isinstance(part.bodies, Column):
                return Column.joined([part.body_column() for part in parts])
            values.extend(part.bodies)
        return Column.of(values)
    return parts[0].body_column()


def _properties(parts: list[Part]) -> Column | None:
    if all(part.properties is None for part in parts):
        return None
    if len(parts) > 1 and not any(isinstance(part.properties, Column) for part in parts):
        values: list[bytes] = []
        for part in parts:
            if part.properties is None:
                values.extend([b""] * part.count)
            else:
                values.extend(encoded or b"" for encoded in part.properties)
        return Column.of(values)
    columns = [part.property_column() for part in parts]
    filled = [
        column if column is not None else Column(np.empty(0, np.uint8), np.zeros(part.count, np.int64))
        for column, part in zip(columns, parts, strict=True)
    ]
    return Column.joined(filled)
