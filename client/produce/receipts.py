"""From a broker's receipt for a batch to one receipt per message."""

from __future__ import annotations

import numpy as np

from penstock.formats.record.layout import Host, offset_message_id
from penstock.proto.wire.broker_pb2 import AppendReceipt
from penstock.proto.wire.broker_pb2 import SendStatus as WireStatus

from ..message import SendReceipt, SendStatus
from .parts import Batch

_STATUS = {value: SendStatus(name) for name, value in WireStatus.items()}


def receipts_of(
    topic: str, batch: Batch, receipt: AppendReceipt, store_host: Host, *, later: bool
) -> list[SendReceipt]:
    """Where each message of ``batch`` lies: records follow each other, and each queue's offsets count up.

    A message for ``later`` has no offset in its queue yet.
    """
    next_offsets = dict(zip(receipt.queue_ids, receipt.queue_offsets, strict=True))
    if later:
        next_offsets = dict.fromkeys(batch.queue_ids.tolist(), -1)
    positions = [receipt.physical_offset]
    if batch.record_sizes is not None:
        sizes = np.array(receipt.record_sizes, np.int64) if receipt.record_sizes else batch.record_sizes
        positions = (receipt.physical_offset + np.cumsum(sizes) - sizes).tolist()
    status = _STATUS[receipt.status]
    message_ids = [message_id for part in batch.parts for message_id in part.message_ids]
    broker_name, stored_ms = batch.lane.broker_name, receipt.store_timestamp_ms
    duplicate, epoch = receipt.duplicate, receipt.epoch
    receipts = []
    for message_id, queue_id, position in zip(message_ids, batch.queue_ids.tolist(), positions, strict=True):
        queue_offset = next_offsets[queue_id]
        next_offsets[queue_id] = queue_offset + (not later)
        receipts.append(
            SendReceipt(
                message_id,
                topic,
                broker_name,
                queue_id,
                queue_offset,
                offset_message_id(store_host, position),
                status,
                stored_ms,
                duplicate,
                epoch,
            )
        )
    return receipts
