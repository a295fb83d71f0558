"""From a batch to the framed Append message: records are laid out in the very bytes that gRPC sends."""

from __future__ import annotations

import ctypes
import functools
import ipaddress
import socket
import time

import numpy as np

from penstock.proto import frames
from penstock.proto.record.kernels import encode_batch, encoded_bytes
from penstock.proto.record.layout import Host, SysFlag
from penstock.proto.record.producer_mark import MARK_PREFIX, producer_mark
from penstock.proto.wire.broker_pb2 import AppendHeader

from .columns import Column
from .parts import Batch

MARK_BYTES_MAX = 80
"""Property bytes that the first record of a batch needs for the producer's mark."""


def mark_property(producer_id: int, epoch: int, lane: int, sequence: int, count: int) -> bytes:
    """The property that numbers a batch, with its name and separators."""
    mark = MARK_PREFIX + producer_mark(producer_id, epoch, lane, sequence, count) + b"\x02"
    assert len(mark) <= MARK_BYTES_MAX
    return mark


def local_host(peer: str) -> Host:
    """This machine's address on the way to ``peer`` (``host:port``), as records name the sender; port 0.

    Nothing is sent. Without a route to the peer it is the loopback address.
    """
    host, _, port = peer.rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return Host(ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]).packed, 0)
    except OSError:
        return Host(b"\x7f\0\0\x01", 0)


@functools.lru_cache(maxsize=1024)
def store_host_of(address: str) -> Host:
    """The host that a broker advertised as ``address`` stores in its records; names are looked up."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][4][0]
    except OSError:
        return Host(b"\0\0\0\0", int(port))
    return Host(ipaddress.ip_address(str(found).partition("%")[0]).packed, int(port))


class Encoder:
    """Makes Append messages for one producer. Holds no state between calls, so threads may share it."""

    def __init__(self, producer_id: int, epoch: int, born_host: Host) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self._born_host = np.frombuffer(born_host.encode(), dtype=np.uint8)

    def frame(self, batch: Batch, topic: str, store_host: Host, *, timeout_ms: int, no_wait: bool) -> bytes:
        """The framed Append message of ``batch``; notes the records' sizes in it."""
        count = batch.count
        bodies = Column.joined([part.body_column() for part in batch.parts])
        mark = mark_property(self.producer_id, self.epoch, batch.lane.number, batch.sequence, count)
        properties = _with_mark(mark, batch)
        encoded_topic = topic.encode()
        sys_flag = batch.parts[0].sys_flag | (SysFlag.STORE_HOST_V6 if store_host.is_ipv6 else 0)
        size = encoded_bytes(
            count, len(bodies.data), len(properties.data), len(encoded_topic), sys_flag, len(self._born_host)
        )
        header = AppendHeader(
            topic=topic,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            lane=batch.lane.number,
            sequence=batch.sequence,
            count=count,
            no_wait=no_wait,
            timeout_ms=timeout_ms,
        )
        message, address = frames.allocate(header, size)
        out = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        written = encode_batch(
            out,
            bodies.data,
            bodies.ends,
            properties.data,
            properties.ends,
            np.frombuffer(encoded_topic, dtype=np.uint8),
            batch.queue_ids,
            sys_flag,
            0,
            time.time_ns() // 1_000_000,
            self._born_host,
        )
        assert written == size, (written, size)
        if any(part.futures for part in batch.parts):
            fixed = (size - len(bodies.data) - len(properties.data)) // count
            batch.record_sizes = bodies.lengths + properties.lengths + fixed
        return message


def _with_mark(mark: bytes, batch: Batch) -> Column:
    columns = [part.property_column() for part in batch.parts]
    if not any(columns):
        return Column(np.frombuffer(mark, dtype=np.uint8), np.full(batch.count, len(mark), dtype=np.int64))
    filled = [
        column if column is not None else Column(np.empty(0, np.uint8), np.zeros(part.count, np.int64))
        for column, part in zip(columns, batch.parts, strict=True)
    ]
    joined = Column.joined(filled)
    data = np.concatenate([np.frombuffer(mark, dtype=np.uint8), joined.data])
    return Column(data, joined.ends + len(mark))
