"""From a batch to the framed Append message."""

from __future__ import annotations

import functools

import numpy as np

from penstock.formats.columns import Column, Listed
from penstock.formats.destination import Destination, Ordinary
from penstock.formats.record.form import RecordForm
from penstock.formats.record.framing import frame_batch, marked, record_sizes
from penstock.formats.record.layout import Host, SysFlag
from penstock.formats.record.producer_mark import mark_property
from penstock.proto.frames import pack, unpack
from penstock.proto.wire.broker_pb2 import AppendHeader

from .parts import Batch, Part


class Encoder:
    """Makes Append messages for one producer. Holds no state between calls, so threads may share it."""

    def __init__(self, producer_id: int, epoch: int, born_host: Host, *, tells_sizes: bool = False) -> None:
        """``tells_sizes``: note the records' sizes of every batch, not only of those somebody wants receipts of."""
        self._tells_sizes = tells_sizes
        self.producer_id = producer_id
        self.epoch = epoch
        self._born_host = born_host

    def frame(
        self, batch: Batch, destination: Destination, store_host: Host, *, timeout_ms: int, no_wait: bool
    ) -> bytes:
        """The framed Append message of ``batch``, whose records' sizes it notes in the batch."""
        count, lane, parts = batch.count, batch.lane.number, batch.parts
        producer_id = destination.producer(self.producer_id)
        mark = mark_property(producer_id, self.epoch, lane, batch.sequence, count)
        header = AppendHeader(
            topic=destination.topic,
            producer_id=producer_id,
            producer_epoch=self.epoch,
            lane=lane,
            sequence=batch.sequence,
            count=count,
            no_wait=no_wait,
            timeout_ms=timeout_ms,
            **destination.flags,
        )
        topic = destination.stored_topic
        if count == 1:
            text, queue_id = _placed_alone(destination, parts[0], mark, batch)
            form = _form(topic, self._born_host, parts[0].sys_flag, store_host.is_ipv6)
            return pack(header, form.encode(parts[0].bodies[0], text, queue_id))
        sys_flag = parts[0].sys_flag | (SysFlag.STORE_HOST_V6 if store_host.is_ipv6 else 0)
        bodies = _bodies(parts)
        properties, queue_ids = destination.place(_properties(parts, count), batch.queue_ids)
        properties = marked(properties, mark, count)
        if self._tells_sizes or any(part.futures and not part.is_whole for part in parts):
            batch.record_sizes = record_sizes(
                bodies, properties, topic=topic, sys_flag=sys_flag, born_host=self._born_host
            )
        return frame_batch(
            header, bodies, properties, topic=topic, queue_ids=queue_ids, sys_flag=sys_flag, born_host=self._born_host
        )

    @staticmethod
    def again(message: bytes) -> bytes:
        """The Append message of a batch that was sent before, and may be stored."""
        header, records = unpack(message, AppendHeader)
        header.again = True
        return pack(header, records)


@functools.lru_cache(maxsize=256)
def _form(topic: str, host: Host, sys_flag: int, is_store_v6: bool) -> RecordForm:
    return RecordForm(topic, host, sys_flag, is_store_v6=is_store_v6)


def _placed_alone(destination: Destination, part: Part, mark: bytes, batch: Batch) -> tuple[bytes, int]:
    """The marked properties and the queue id of a batch of one message."""
    encoded = part.properties[0] if part.properties is not None else None
    text = mark + encoded if encoded else mark
    if isinstance(destination, Ordinary):
        return text, int(batch.queue_ids[0])
    properties, queue_ids = destination.place(Column.of([text]), batch.queue_ids)
    return properties[0], int(queue_ids[0])


def _bodies(parts: list[Part]) -> Column:
    values: list[bytes] = []
    if len(parts) > 1:  # often of one message each: one column for all of them costs what one column costs
        for part in parts:
            if isinstance(part.bodies, Column) and not isinstance(part.bodies, Listed):
                return Column.joined([part.body_column() for part in parts])
            values.extend(part.bodies)
        return Column.listed(values) or Column.of(values)
    return parts[0].body_column()


def _properties(parts: list[Part], count: int) -> Column:
    if all(part.properties is None for part in parts):
        return Column.repeated(b"", count)
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
