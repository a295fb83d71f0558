"""What brokers ask: halves that nobody has decided."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.formats.record.properties import REAL_QUEUE_ID, REAL_TOPIC, TRANSACTION_CHECK_TIMES, TRANSACTION_ID
from penstock.formats.record.reading import RecordBatch
from penstock.proto.wire.transactions_pb2 import ProducerEvent

from ..message import MessageQueue, MessageView


class HalfMessage(MessageView):
    """A message that is stored and not decided about, as ``check`` gets it."""

    __slots__ = ()

    @property
    def topic(self) -> str:
        """The topic it is for."""
        return self.all_properties.get(REAL_TOPIC, super().topic)

    @property
    def queue_id(self) -> int:
        """The queue it is for."""
        told = self.all_properties.get(REAL_QUEUE_ID, "")
        return int(told) if told.isascii() and told.isdecimal() else 0

    @property
    def message_queue(self) -> MessageQueue:
        """The queue it is for, by name."""
        return MessageQueue(self.topic, self.broker_name, self.queue_id)

    @property
    def transaction_id(self) -> str:
        """The transaction's id; the message's where another client has sent it."""
        return self.all_properties.get(TRANSACTION_ID) or self.message_id

    @property
    def check_times(self) -> int:
        """How often somebody was asked before."""
        told = self.all_properties.get(TRANSACTION_CHECK_TIMES, "")
        return int(told) if told.isascii() and told.isdecimal() else 0


def halves_of(check: ProducerEvent.Check, broker_name: str) -> Iterator[tuple[int, HalfMessage]]:
    """The halves that a question is about, and the offsets by which they are decided."""
    batch = RecordBatch(check.records)
    for index, offset in enumerate(check.offsets):
        yield offset, HalfMessage(batch, index, broker_name)
