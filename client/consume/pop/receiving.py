"""Receiving from one broker group, and what is received."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.names import RETRY_PREFIX
from penstock.proto.receipts import Receipt
from penstock.proto.wire import pop_pb2 as wire

from ...cluster import Calls, Subscription
from ...message import RetriedMessage

if TYPE_CHECKING:
    from penstock.formats.record.batch import RecordBatch

TRY_S_MIN: Final = 3.0
"""Beyond the wait, so long one call may take."""
SUBSCRIPTIONS_MAX: Final = 64
MESSAGES_MAX: Final = 1024


class ReceivedMessage(RetriedMessage):
    """A message for a time; its :attr:`receipt` is what it is acknowledged by."""

    __slots__ = ("_redelivered", "parsed")

    def __init__(self, batch: RecordBatch, index: int, receipt: Receipt, redelivered: int) -> None:
        super().__init__(batch, index, receipt.broker_name)
        self.parsed = receipt
        self._redelivered = redelivered

    @property
    def receipt(self) -> str:
        """What :meth:`~penstock.client.SimpleConsumer.ack` takes in place of the message; opaque text."""
        return self.parsed.text()

    @property
    def visible_at_ms(self) -> int:
        """When it comes again unless it is acknowledged, by the broker's clock."""
        return self.parsed.visible_ms

    @property
    def reconsume_times(self) -> int:
        """How often it was given out before."""
        return super().reconsume_times + self._redelivered

    def renew(self, receipt: Receipt) -> None:
        """Have another receipt from now on."""
        self.parsed = receipt


class Receiving:
    """Receives of one consumer. Thread-safe."""

    def __init__(self, calls: Calls, group: str, client_id: str) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id

    def receive(
        self,
        broker_name: str,
        subscriptions: Sequence[Subscription],
        max_messages: int,
        invisible_ms: int,
        wait_s: float,
        timeout_s: float,
        *,
        begins_first: bool,
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """What the master has, and of that what nobody wants: its tag has the hash of another one.

        ``begins_first``: where queues begin of which the group has nothing yet.

        Raises:
            PenstockError: the last one within ``timeout_s``, or the time of one call if that is longer.
        """
        header = wire.ReceiveHeader(
            group=self._group,
            client_id=self._client_id,
            subscriptions=[
                wire.ReceiveHeader.Subscription(topic=each.topic, filter=each.filter) for each in subscriptions
            ],
            max_messages=min(max_messages, MESSAGES_MAX),
            invisible_ms=invisible_ms,
            max_wait_ms=round(wait_s * 1000),
            begin=wire.ReceiveHeader.FIRST if begins_first else wire.ReceiveHeader.LAST,
        )
        content, call_s = header.SerializeToString(), wait_s + TRY_S_MIN

        def call(address: str, left_s: float) -> bytes:
            return self._calls.connections.ask(
                address, Method.RECEIVE, content, bytes, call_s, is_awaited=True
            ).result()

        answer = self._calls.on(broker_name, call, max(timeout_s, 0.2))
        reply, body = frames.unpack(answer, wire.ReceiveReply, frames.ANSWER_FIELDS_MAX)
        by_topic = {each.topic: each for each in subscriptions}
        return self._views(broker_name, reply, body, by_topic)

    def _views(
        self, broker_name: str, reply: wire.ReceiveReply, body: memoryview, wanted: dict[str, Subscription]
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        from penstock.formats.record.batch import RecordBatch  # here: importing the kernels costs half a second

        found: list[ReceivedMessage] = []
        unwanted: list[ReceivedMessage] = []
        if not reply.results:
            return found, unwanted
        batch = RecordBatch(body, check_crc=True)
        offsets, first = batch.values("queue_offset"), 0
        for part in reply.results:
            place = self._group, part.topic, broker_name, part.queue_id
            said = reply.check_point, reply.epoch, reply.visible_ms
            subscription = wanted.get(part.topic)
            tags = bool(subscription and subscription.tags and not part.topic.startswith(RETRY_PREFIX))
            times = itertools.chain(part.redelivered, itertools.repeat(0))
            for index, redelivered in zip(range(first, first + part.count), times, strict=False):
                message = ReceivedMessage(batch, index, Receipt(*place, offsets[index], *said), redelivered)
                is_wanted = not tags or (subscription and subscription.wants(batch.properties_bytes(index)))
                (found if is_wanted else unwanted).append(message)
            first += part.count
        return found, unwanted
