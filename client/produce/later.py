"""Messages that brokers are to deliver later: what their records say.

Such a message is stored in the brokers' timer topic, ``names.TIMER_TOPIC``, and says in its properties when it is due
and where it belongs; at its time the broker makes it a message of its topic. Who sends it numbers its batches like any
others, so that a batch which is sent again is stored once, and a stored message is delivered once.
Source: RocketMQ ``HookUtils#transformTimerMessage``; there the broker writes these properties.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from penstock.formats.record.properties import REAL_QUEUE_ID, REAL_TOPIC, TIMER_DELIVER_MS, TIMER_OUT_MS

from .columns import Column
from .kernels import append_property

PROPERTIES = (TIMER_DELIVER_MS, TIMER_OUT_MS, REAL_TOPIC, REAL_QUEUE_ID)
BYTES_MAX = 512
"""What these properties take at most."""


def placed_later(properties: Column | None, topic: str, queue_ids: npt.NDArray[np.int32]) -> Column:
    """The property strings, completed by where each message belongs."""
    count = len(queue_ids)
    if properties is None:
        properties = Column(np.empty(0, np.uint8), np.zeros(count, np.int64))
    properties = with_property(properties, REAL_TOPIC, Column.repeated(topic.encode(), count))
    known, numbers = np.unique(queue_ids, return_inverse=True)
    texts = Column.of([b"%d" % queue_id for queue_id in known.tolist()])
    return with_property(properties, REAL_QUEUE_ID, texts.take(numbers.astype(np.int64)))


def with_property(properties: Column, name: str, values: Column) -> Column:
    """The property strings with one more pair each; none where the value is empty."""
    encoded, count = np.frombuffer(name.encode(), np.uint8), len(properties)
    room = len(properties.data) + len(values.data) + count * (len(encoded) + 2)
    out, ends = np.empty(room, np.uint8), np.empty(count, np.int64)
    size = append_property(properties.data, properties.ends, encoded, values.data, values.ends, out, ends)
    return Column(out[:size], ends)


def later_producer(producer_id: int, topic: str) -> int:
    """The number of a producer for its later messages of ``topic``.

    All topics' later messages are in one topic of the broker, where the lanes of one producer's topics would meet.
    """
    digest = hashlib.blake2b(f"{producer_id:016x}:{topic}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
