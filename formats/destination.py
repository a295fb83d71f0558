"""Where batches of messages are stored on their way to a topic, and what their records and headers say of it.

``Ordinary`` messages are stored in their topic. Those for ``Later`` are stored in the brokers' timer topic: their
properties say when they are due and where they belong, and at its time the broker makes each a message of its topic.
``Delayed`` ones are stored in the schedule topic, in the queue of their delay level, whose time the broker knows.
Whoever sends them numbers the batches like any others, so that a batch which is sent again is stored once, and a
stored message is delivered once. A ``Half`` is stored in the topic of halves until its producer decides. A ``Reply`` is
stored in the topic of replies, for the client that its properties name.
Source of these: RocketMQ ``HookUtils#transformTimerMessage``, ``#transformDelayLevelMessage``,
``TransactionalMessageBridge#parseHalfMessageInner``; there the broker writes these properties.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.proto.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, reply_topic

from .attributes.message_types import MessageType
from .columns import Column, with_property
from .record.properties import (
    DELAY,
    PRODUCER_GROUP,
    REAL_QUEUE_ID,
    REAL_TOPIC,
    TIMER_DELIVER_MS,
    TIMER_OUT_MS,
    TRANSACTION_PREPARED,
)

QueueIds = npt.NDArray[np.int32]

LATER_PROPERTIES = (TIMER_DELIVER_MS, TIMER_OUT_MS, REAL_TOPIC, REAL_QUEUE_ID)
LATER_BYTES_MAX = 512
"""What these properties take at most."""
LATER_S_MAX = 366 * 24 * 3600
"""How far ahead a message may be due. Brokers may allow less (``timerMaxDelaySec``)."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where batches of one topic are stored. A value: equal ones are the same place."""

    topic: str
    """The topic that the messages are for, as headers name it."""

    flags: ClassVar[Mapping[str, Any]] = {}
    """Fields of an ``AppendHeader`` or ``StageHeader`` that say how the batch is to be stored."""

    message_type: ClassVar[MessageType | None] = None
    """Of all messages that go there; MIXED: they fit every topic; None: NORMAL or FIFO, as each has a sharding key."""

    gives_offsets: ClassVar[bool] = True
    """True if a stored message has its offset in its queue; else the receipt cannot tell one yet."""

    @property
    def stored_topic(self) -> str:
        """The topic that the records name."""
        return self.topic

    def producer(self, producer_id: int) -> int:
        """The number under which that producer's batches are known there."""
        return producer_id

    def place(self, properties: Column, queue_ids: QueueIds) -> tuple[Column, QueueIds]:
        """The property strings and queue ids of the records, for messages that belong to ``queue_ids``."""
        return properties, queue_ids


@dataclass(frozen=True, slots=True)
class Ordinary(Destination):
    """Stored in its topic, for consumers to have at once."""


@dataclass(frozen=True, slots=True)
class Later(Destination):
    """Stored in the timer topic until it is due; the time is among the properties already."""

    flags: ClassVar[Mapping[str, Any]] = {"later": 1}
    message_type: ClassVar[MessageType | None] = MessageType.DELAY
    gives_offsets: ClassVar[bool] = False

    @property
    def stored_topic(self) -> str:
        return TIMER_TOPIC

    def producer(self, producer_id: int) -> int:
        # The later messages of all topics are in one topic, where the lanes of one producer's topics would meet.
        return _apart(producer_id, self.topic)

    def place(self, properties: Column, queue_ids: QueueIds) -> tuple[Column, QueueIds]:
        return _with_place(properties, self.topic, queue_ids), np.zeros_like(queue_ids)


@dataclass(frozen=True, slots=True)
class Delayed(Destination):
    """Stored in the schedule topic until its delay level, from 1 on, is over."""

    level: int

    flags: ClassVar[Mapping[str, Any]] = {"later": 2}
    message_type: ClassVar[MessageType | None] = MessageType.DELAY
    gives_offsets: ClassVar[bool] = False

    @property
    def stored_topic(self) -> str:
        return SCHEDULE_TOPIC

    def producer(self, producer_id: int) -> int:
        return _apart(producer_id, f"{self.level}:{self.topic}")

    def place(self, properties: Column, queue_ids: QueueIds) -> tuple[Column, QueueIds]:
        properties = with_property(properties, DELAY, Column.repeated(b"%d" % self.level, len(queue_ids)))
        return _with_place(properties, self.topic, queue_ids), np.full_like(queue_ids, self.level - 1)


@dataclass(frozen=True, slots=True)
class Half(Destination):
    """Stored in the topic of halves until a producer of ``group`` commits it."""

    group: str

    flags: ClassVar[Mapping[str, Any]] = {"later": 3}
    message_type: ClassVar[MessageType | None] = MessageType.TRANSACTION
    gives_offsets: ClassVar[bool] = False

    @property
    def stored_topic(self) -> str:
        return HALF_TOPIC

    def producer(self, producer_id: int) -> int:
        return _apart(producer_id, f"{self.group}:{self.topic}")

    def place(self, properties: Column, queue_ids: QueueIds) -> tuple[Column, QueueIds]:
        # One pass over the strings: the value that is appended ends with the other three pairs.
        pairs = f"true\x02{PRODUCER_GROUP}\x01{self.group}\x02{REAL_TOPIC}\x01{self.topic}\x02{REAL_QUEUE_ID}\x01"
        if len(queue_ids) == 1 or (queue_ids == queue_ids[0]).all():
            values = Column.repeated(f"{pairs}{queue_ids[0]}".encode(), len(queue_ids))
        else:
            known, numbers = np.unique(queue_ids, return_inverse=True)
            texts = Column.of([f"{pairs}{queue_id}".encode() for queue_id in known.tolist()])
            values = texts.take(numbers.astype(np.int64))
        return with_property(properties, TRANSACTION_PREPARED, values), np.zeros_like(queue_ids)


@dataclass(frozen=True, slots=True)
class Reply(Destination):
    """Stored in the topic of replies of ``cluster``; ``topic`` is that of the request."""

    cluster: str

    flags: ClassVar[Mapping[str, Any]] = {"later": 4}
    message_type: ClassVar[MessageType | None] = MessageType.MIXED

    @property
    def stored_topic(self) -> str:
        return reply_topic(self.cluster)

    def producer(self, producer_id: int) -> int:
        return _apart(producer_id, self.topic)

    def place(self, properties: Column, queue_ids: QueueIds) -> tuple[Column, QueueIds]:
        return properties, np.zeros_like(queue_ids)


@functools.lru_cache(4096)
def _apart(producer_id: int, what: str) -> int:
    digest = hashlib.blake2b(f"{producer_id:016x}:{what}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1


def _with_place(properties: Column, topic: str, queue_ids: QueueIds) -> Column:
    """With the properties that say where each message belongs."""
    known, numbers = np.unique(queue_ids, return_inverse=True)
    texts = Column.of([b"%d" % queue_id for queue_id in known.tolist()])
    properties = with_property(properties, REAL_TOPIC, Column.repeated(topic.encode(), len(queue_ids)))
    return with_property(properties, REAL_QUEUE_ID, texts.take(numbers.astype(np.int64)))
