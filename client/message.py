"""Messages as users make them and as they come back, and what a send returns."""

from __future__ import annotations

import datetime as dt
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.formats.record import properties as names
from penstock.formats.record.compression import body_fields
from penstock.formats.record.layout import offset_message_id as make_offset_message_id
from penstock.formats.record.properties import KEY_SEPARATOR, KEYS, SHARDING_KEY, TAGS, UNIQ_KEY
from penstock.proto.errors import PenstockError
from penstock.proto.names import PRODUCER_PROPERTY, RETRY_PREFIX

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch

DeliverAt = dt.datetime | int
"""A time with a time zone, or milliseconds since 1970 UTC."""

SYSTEM_PROPERTIES = frozenset(
    {
        *(
            names.TAGS,
            names.KEYS,
            names.UNIQ_KEY,
            names.WAIT,
            names.SHARDING_KEY,
            PRODUCER_PROPERTY,
            names.TIMER_OUT_MS,
            names.REAL_TOPIC,
            names.REAL_QUEUE_ID,
        ),
        *names.LATER_WISHES,
        *(names.RETRY_TOPIC, names.ORIGIN_MESSAGE_ID, names.DLQ_ORIGIN_TOPIC, names.DLQ_ORIGIN_MESSAGE_ID),
        *(names.TRANSACTION_PREPARED, names.PRODUCER_GROUP, names.TRANSACTION_CHECK_TIMES),
        *(names.PREPARED_QUEUE_OFFSET, names.CHECK_IMMUNITY_SECONDS, names.BORN_HOST, names.BORN_TIMESTAMP),
    }
)
"""Property names that have an attribute of their own, or are the system's alone."""
REQUEST_PROPERTIES = frozenset(
    {
        names.CORRELATION_ID,
        names.REPLY_TO_CLIENT,
        names.TTL,
        names.MESSAGE_TYPE,
        names.PUSH_REPLY_TIME,
        names.ARRIVE_TIME,
    }
)
"""The same in requests and replies, which have a ``CORRELATION_ID``."""


class MessageQueue(NamedTuple):
    """One queue of a topic at one broker group; ordered by topic, broker name, queue id."""

    topic: str
    broker_name: str
    queue_id: int


class SendStatus(enum.StrEnum):
    """What an acknowledged send has reached; everything but ``SEND_OK`` is stored and less safe than configured."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send. Immutable, so it may be sent again."""

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] | str = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    deliver_at: DeliverAt | None = None
    """When consumers are to get it; at once without."""
    delay_s: float | None = None
    """The same as so many seconds from the send on."""
    delay_level: int | None = None
    """The same as a delay level of the broker, 1..18 (its ``messageDelayLevel``)."""
    message_id: str | None = None
    """The message's own id, where somebody else has made it; else the producer makes one."""


class SendReceipt(NamedTuple):
    """Where an acknowledged message lies."""

    message_id: str  # UNIQ_KEY: made by the producer, in the message's properties
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int  # -1 of a message for later, or in a transaction: it has none yet
    offset_message_id: str  # address of the broker and position in its log: finds the message without an index
    status: SendStatus
    store_timestamp_ms: int
    duplicate: bool = False  # the broker had stored it at an earlier try
    epoch: int = 0  # of the master that acknowledged
    recall_handle: str = ""  # of a message with a time to come, for Producer.recall; else empty
    transaction_id: str = ""  # of a message that was sent in a transaction

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that the message went to."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


@dataclass(frozen=True, slots=True)
class FailedDelivery:
    """Messages of one batch that were not acknowledged, with the reason.

    Of more than 1,000 batches since the last flush: all others of one topic with one kind of error.
    """

    topic: str
    count: int
    error: Exception
    bodies: tuple[bytes, ...] = field(
        default=(), repr=False
    )  # of the first messages, at most 10; of all batches, at most 16 MiB


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of messages of one batch that ``produce`` or ``produce_many`` had accepted."""

    topic: str
    broker_name: str  # the broker group that stored them, "" where none is known to
    bodies: tuple[bytes, ...] = field(repr=False)  # in the order of the calls, as they were handed in
    error: Exception | None  # None: acknowledged


class MessageView:
    """One received message. Decoded when looked at; keeps the fetched bytes it lies in alive."""

    __slots__ = ("_batch", "_index", "_properties", "broker_name")

    def __init__(self, batch: RecordBatch, index: int, broker_name: str) -> None:
        self._batch = batch
        self._index = index
        self.broker_name = broker_name
        self._properties: dict[str, str] | None = None

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        return self._batch.topic(self._index)

    @property
    def body(self) -> bytes:
        """The body as sent, decompressed."""
        plain = self._batch.plain_bodies
        if plain is None:
            return self._batch.body(self._index)
        buffer, starts, ends = plain
        index = self._index
        return buffer[starts[index] : ends[index]]

    @property
    def stored_body(self) -> bytes:
        """The body as brokers keep it, compressed where its sender compressed it."""
        return self._batch.stored_body(self._index)

    @property
    def all_properties(self) -> dict[str, str]:
        """Every property of the record, RocketMQ's own ones included."""
        found = self._properties
        if found is None:
            found = self._properties = self._batch.properties(self._index)
        return found

    @property
    def properties(self) -> dict[str, str]:
        """The sender's own properties: without tag, keys and what the system keeps there."""
        found = self.all_properties
        system = SYSTEM_PROPERTIES | REQUEST_PROPERTIES if names.CORRELATION_ID in found else SYSTEM_PROPERTIES
        return {name: value for name, value in found.items() if name not in system}

    @property
    def tag(self) -> str | None:
        """The message's tag."""
        return self.all_properties.get(TAGS)

    @property
    def keys(self) -> list[str]:
        """The message's keys."""
        return [key for key in self.all_properties.get(KEYS, "").split(KEY_SEPARATOR) if key]

    @property
    def sharding_key(self) -> str | None:
        """What chose the queue, if the sender said it."""
        return self.all_properties.get(SHARDING_KEY)

    @property
    def message_id(self) -> str:
        """UNIQ_KEY where the producer made one, else the offset message id."""
        return self.all_properties.get(UNIQ_KEY) or self.offset_message_id

    @property
    def queue_id(self) -> int:
        """The queue it lies in."""
        return self._batch.values("queue_id")[self._index]

    @property
    def queue_offset(self) -> int:
        """The message's offset in that queue."""
        return self._batch.values("queue_offset")[self._index]

    @property
    def physical_offset(self) -> int:
        """The record's position in the broker's log."""
        return self._batch.values("physical_offset")[self._index]

    @property
    def born_timestamp_ms(self) -> int:
        """When it was sent, by the sender's clock."""
        return self._batch.values("born_timestamp")[self._index]

    @property
    def store_timestamp_ms(self) -> int:
        """When it was stored, by the broker's clock."""
        return self._batch.values("store_timestamp")[self._index]

    @property
    def reconsume_times(self) -> int:
        """How often a consumer gave it back."""
        return self._batch.values("reconsume_times")[self._index]

    @property
    def flag(self) -> int:
        """The sender's flag, opaque to brokers."""
        return self._batch.values("flag")[self._index]

    @property
    def sys_flag(self) -> int:
        """The system's flag bits (compression, address kinds, transactions)."""
        return self._batch.values("sys_flag")[self._index]

    @property
    def size(self) -> int:
        """Bytes of the whole record in the log."""
        return self._batch.values("size")[self._index]

    @property
    def body_crc(self) -> int:
        """CRC-32 of the stored body bytes, masked to 31 bits."""
        return self._batch.values("body_crc")[self._index]

    @property
    def born_host(self) -> str:
        """``ip:port`` of the sender."""
        return str(self._batch.born_host(self._index))

    @property
    def store_host(self) -> str:
        """``ip:port`` of the broker that stored it."""
        return str(self._batch.store_host(self._index))

    @property
    def offset_message_id(self) -> str:
        """Address of the broker and position in its log, as RocketMQ's offsetMsgId."""
        return make_offset_message_id(self._batch.store_host(self._index), self.physical_offset)

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it lies in, by name."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def record_bytes(self) -> bytes:
        """The whole record as it lies in the log."""
        return self._batch.record_bytes(self._index)

    def as_document(self) -> dict[str, Any]:
        """The message as one JSON object; the body as text where it is UTF-8, else as ``body_base64``.

        Of a body that cannot be decompressed ``body_error`` says why.
        """
        shown = (
            *("topic", "broker_name", "queue_id", "queue_offset", "physical_offset", "size", "message_id"),
            *("offset_message_id", "tag", "keys", "properties", "born_timestamp_ms", "store_timestamp_ms"),
            *("born_host", "store_host", "flag", "sys_flag", "reconsume_times", "body_crc"),
        )
        document = {name: getattr(self, name) for name in shown}
        try:
            body = self.body
        except PenstockError as error:
            return {**document, "body_error": str(error)}
        return document | body_fields(body)

    def __repr__(self) -> str:
        return (
            f"MessageView(topic={self.topic!r}, broker_name={self.broker_name!r}, queue_id={self.queue_id}, "
            f"queue_offset={self.queue_offset}, message_id={self.message_id!r}, body={len(self.body)} bytes)"
        )


class RetriedMessage(MessageView):
    """A received message that may lie in a group's retry topic: it tells the topic that it was sent to first."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        topic = super().topic
        return self.all_properties.get(names.RETRY_TOPIC, topic) if topic.startswith(RETRY_PREFIX) else topic

    @property
    def message_queue(self) -> MessageQueue:
        return MessageQueue(super().topic, self.broker_name, self.queue_id)


def kind_in(topic: str) -> type[MessageView]:
    """What makes a message of a record that lies in ``topic``."""
    return RetriedMessage if topic.startswith(RETRY_PREFIX) else MessageView
