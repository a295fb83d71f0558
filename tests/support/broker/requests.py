"""Requests as a client sends them to a broker, framed, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.formats.record.layout import Host
from penstock.formats.record.producer_mark import producer_mark
from penstock.formats.record.properties import TAGS, encode_properties
from penstock.proto import frames
from penstock.proto.wire import broker_pb2, pipeline_pb2
from tests.support.record.encoding import encode_messages

BORN = Host.parse("10.0.0.9:4711")


def batch(
    bodies: Sequence[bytes] = (b"one",),
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tag: str = "",
    producer: tuple[int, int, int, int] | None = None,
    marked: bool = True,
    digest: int = 0,
    sys_flag: int = 0,
    **header: Any,
) -> bytes:
    """A framed append; ``producer``: (producer id, epoch, lane, sequence)."""
    mark = None
    header.setdefault("count", len(bodies))
    if producer is not None:
        producer_id, epoch, lane, sequence = producer
        mark = producer_mark(producer_id, epoch, lane, sequence, len(bodies), digest) if marked else None
        header |= {"producer_id": producer_id, "producer_epoch": epoch, "lane": lane, "sequence": sequence}
    properties = [encode_properties({TAGS: tag})] * len(bodies) if tag else None
    records = encode_messages(topic, bodies, properties, queue_id, born_host=BORN, mark=mark, sys_flag=sys_flag)
    return frames.pack(broker_pb2.AppendHeader(topic=topic, **header), records)


def wanting(
    *queues: tuple[int, int], topic: str = "orders", expression: str = "", kind: int | None = None, **header: Any
) -> broker_pb2.FetchHeader:
    """A fetch of (queue id, offset) pairs of one topic."""
    if kind is None:
        kind = broker_pb2.Filter.TAG if expression else broker_pb2.Filter.ALL
    part = broker_pb2.FetchHeader.Topic(
        topic=topic,
        queue_ids=[queue_id for queue_id, _ in queues],
        offsets=[offset for _, offset in queues],
        filter=broker_pb2.Filter(kind=broker_pb2.Filter.Kind.Name(kind), expression=expression),
    )
    return broker_pb2.FetchHeader(group="billing", topics=[part], **header)


def chunk(
    bodies: Sequence[bytes] = (b"one",),
    *,
    mark: tuple[int, int, int] = (7, 0, 0),
    queue_id: int = 0,
    coordinator: str = "broker-a",
    digest: int = 0,
    **header: Any,
) -> bytes:
    """A framed chunk to stage; ``mark``: (producer id, lane, sequence)."""
    producer_id, lane, sequence = mark
    topic = header.setdefault("topic", "orders")
    header = {"writer": "w", "batch": 0, "key": "k", "count": len(bodies), "keep_ms": 60_000} | header
    marked = producer_mark(producer_id, 0, lane, sequence, len(bodies), digest)
    records = encode_messages(topic, bodies, None, queue_id, born_host=BORN, mark=marked)
    return frames.pack(pipeline_pb2.StageHeader(coordinator=coordinator, **header), records)
