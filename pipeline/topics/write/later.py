"""Rows that brokers are to deliver later: column ``deliverAt``.

Such a message is a record of the brokers' timer topic, whose properties say when it is due and where it belongs; at its
time the broker makes it a message of its topic. How it gets there, and that it gets there once, is as for any other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.produce.later import placed_later

from .encoding import DELIVER_AT
from .routing import Piece, without


def split_later(batch: pa.RecordBatch) -> Iterator[tuple[bool, pa.RecordBatch]]:
    """The rows for now, without the column, and those for later, as far as there are any."""
    if DELIVER_AT not in batch.schema.names:
        yield False, batch
        return
    times = batch.column(DELIVER_AT)
    for is_later, wanted in ((False, times.null_count), (True, len(times) - times.null_count)):
        if not wanted:
            continue
        part = batch
        if wanted < len(times):
            chosen = pc.is_valid(times) if is_later else pc.is_null(times)
            part = batch.take(pa.array(np.flatnonzero(chosen.to_numpy(zero_copy_only=False))))
        yield is_later, part if is_later else without(part, DELIVER_AT)


def for_later(piece: Piece, topic: str) -> Piece:
    """The piece as records of the timer topic, whose one queue they go to."""
    properties = placed_later(piece.properties, topic, piece.queue_ids)
    return Piece(piece.target, piece.bodies, properties, np.zeros_like(piece.queue_ids))
