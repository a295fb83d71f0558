"""Receiving from one broker group, and what is received."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Final

from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.names import DLQ_PREFIX
from penstock.proto.receipts import Receipt
from penstock.proto.wire import pop_pb2 as wire

from ...cluster import Calls, Subscription
from ...message import RetriedMessage
from .receipts import Lot

if TYPE_CHECKING:
    from penstock.formats.record.reading import RecordBatch

TRY_S_MIN: Final = 3.0
"""Beyond the wait, so long one call may take."""
SUBSCRIPTIONS_MAX: Final = 64
MESSAGES_MAX: Final = 1024


class ReceivedMessage(RetriedMessage):
    """A message for a time; its :attr:`receipt` is what it is acknowledged by."""

    __slots__ = ("_redelivered", "lot", "offset")

    def __init__(self, batch: RecordBatch, index: int, offset: int, lot: Lot, redelivered: int) -> None:
        """``offset``: of the record at ``index``. One call for each message: the base's is not called besides."""
        self._batch, self._index, self._properties = batch, index, None
        self.broker_name = lot.broker_name
        self.lot, self.offset = lot, offset
        self._redelivered = redelivered

    @property
    def parsed(self) -> Receipt:
        """What the receipt says."""
        return self.lot.receipt(self.offset)

    @property
    def receipt(self) -> str:
        """What :meth:`~penstock.client.SimpleConsumer.ack` takes in place of the message; opaque text."""
        return self.parsed.text()

    @property
    def visible_at_ms(self) -> int:
        """When it comes again unless it is acknowledged, by the broker's clock."""
        return self.lot.visible_ms

    @property
    def reconsume_times(self) -> int:
        """How often it was given out before; a dead letter begins anew."""
        return self._redelivered + (0 if self.lot.topic.startswith(DLQ_PREFIX) else super().reconsume_times)

    def renew(self, receipt: Receipt) -> None:
        """Have another receipt from now on."""
        self.lot = Lot.of(receipt)


class Receiving:
    """Receives of one consumer. Thread-safe."""

    def __init__(self, calls: Calls, group: str, client_id: str) -> None:
        self._calls = calls
        self._group = group
        self._client_id = client_id
        # By broker group and where queues begin: the last one, and of what.
        self._headers: dict[tuple[str, bool], tuple[tuple[Any, ...], bytes]] = {}

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
        content = self._header(
            (broker_name, begins_first), subscriptions, max_messages, invisible_ms, round(wait_s * 1000)
        )
        call_s = wait_s + TRY_S_MIN

        def call(address: str, left_s: float) -> bytes:
            return self._calls.connections.ask(
                address, Method.RECEIVE, content, bytes, call_s, is_awaited=True
            ).result()

        answer = self._calls.on(broker_name, call, max(timeout_s, 0.2))
        reply, body = frames.unpack(answer, wire.ReceiveReply, frames.ANSWER_FIELDS_MAX)
        return self._views(broker_name, reply, answer, len(answer) - len(body), subscriptions)

    def _header(self, place: tuple[str, bool], subscriptions: Sequence[Subscription], *said: int) -> bytes:
        """That of a receive, made anew where it is another than the last one there."""
        known, content = self._headers.get(place, ((), b""))
        if not known or known[0] is not subscriptions or known[1] != said:
            max_messages, invisible_ms, max_wait_ms = said
            content = wire.ReceiveHeader(
                group=self._group,
                client_id=self._client_id,
                subscriptions=[
                    wire.ReceiveHeader.Subscription(topic=each.topic, filter=each.filter) for each in subscriptions
                ],
                max_messages=max_messages,
                invisible_ms=invisible_ms,
                max_wait_ms=max_wait_ms,
                begin=wire.ReceiveHeader.FIRST if place[1] else wire.ReceiveHeader.LAST,
            ).SerializeToString()
            self._headers[place] = (subscriptions, said), content
        return content

    def _views(
        self,
        broker_name: str,
        reply: wire.ReceiveReply,
        answer: bytes,
        start: int,
        subscriptions: Sequence[Subscription],
    ) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        found: list[ReceivedMessage] = []
        unwanted: list[ReceivedMessage] = []
        if not reply.results:
            return found, unwanted
        from penstock.formats.record.reading import RecordBatch  # here: importing the kernels costs half a second

        batch = RecordBatch(answer, start, check_crc=True)
        offsets, first = batch.values("queue_offset"), 0
        said = reply.check_point, reply.epoch, reply.visible_ms, self._group, broker_name
        tagged = {each.topic: each for each in subscriptions if each.tags}
        for part in reply.results:
            topic, last = part.topic, first + part.count
            lot, subscription = Lot(topic, part.queue_id, *said), tagged.get(topic)
            times = chain(part.redelivered, repeat(0)) if part.redelivered else repeat(0)
            messages = [
                ReceivedMessage(batch, index, offset, lot, redelivered)
                for index, offset, redelivered in zip(range(first, last), offsets[first:last], times, strict=False)
            ]
            if subscription is not None:
                wanted = [subscription.wants(batch.properties_bytes(index)) for index in range(first, last)]
                unwanted += [each for each, is_wanted in zip(messages, wanted, strict=True) if not is_wanted]
                messages = [each for each, is_wanted in zip(messages, wanted, strict=True) if is_wanted]
            found += messages
            first = last
        return found, unwanted
