"""A broker with a group that pops: what a simple consumer asks it, and what becomes of that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from penstock.broker.core.tables.groups import Group
from penstock.broker.features.pop.pop import Pop
from penstock.formats.record.layout import Record, decode_record
from penstock.formats.record.properties import encode_properties
from penstock.proto import frames
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.broker_pb2 import Filter
from tests.support.broker.kit import Kit
from tests.support.broker.stores import batch, read, split
from tests.support.clock import ManualClock

START = 1_700_000_000_000
GROUP = "workers"
RETRY, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


class Received(NamedTuple):
    """One message, and what its receipt says."""

    record: Record
    topic: str
    redelivered: int
    check_point: int
    epoch: int
    visible_ms: int

    @property
    def receipts(self) -> wire.Receipts:
        return wire.Receipts(
            topic=self.topic,
            queue_id=self.record.queue_id,
            check_point=self.check_point,
            epoch=self.epoch,
            visible_ms=self.visible_ms,
            offsets=[self.record.queue_offset],
        )


class Pops(Kit):
    """What its consumers ask a broker, by a clock that stands still."""

    manual: ManualClock

    @property
    def pop(self) -> Pop:
        return self[Pop]

    def fill(self, count: int = 10, topic: str = "orders", queue_id: int = 0, tags: Sequence[str] = ("paid",)) -> None:
        if self.tables.topics.get(topic) is None:
            self.add_topic(topic)
        properties = [encode_properties({"TAGS": tags[number % len(tags)]}) for number in range(count)]
        bodies = [b"%d" % number for number in range(count)]
        self.store.append(topic, batch(topic, bodies, queue_id, properties=properties), queues=4)
        self.settle()

    def settle(self) -> None:
        self.confirm()
        self.dispatch()

    async def receive(self, count: int = 32, *topics: str, tags: str = "", **settings: Any) -> list[Received]:
        wanted = Filter(kind=Filter.TAG, expression=tags) if tags else Filter()
        header = {"group": GROUP, "invisible_ms": 30_000, "begin": wire.ReceiveHeader.FIRST} | settings
        subscriptions = [wire.ReceiveHeader.Subscription(topic=topic, filter=wanted) for topic in topics or ("orders",)]
        asked = wire.ReceiveHeader(subscriptions=subscriptions, max_messages=count, **header)
        pieces = await self.pop.receive(asked.SerializeToString())
        reply, body = frames.unpack(b"".join(pieces), wire.ReceiveReply)
        records = iter(split(bytes(body)))
        self.settle()
        return [
            Received(
                decode_record(next(records), check_crc=True),
                part.topic,
                part.redelivered[number] if part.redelivered else 0,
                *(reply.check_point, reply.epoch, reply.visible_ms),
            )
            for part in reply.results
            for number in range(part.count)
        ]

    async def acknowledge(self, *messages: Received) -> list[int]:
        request = wire.AcknowledgeRequest(group=GROUP, receipts=[message.receipts for message in messages])
        reply = await self.pop.acknowledge(request)
        self.settle()
        return list(reply.statuses)

    async def change(self, message: Received, invisible_ms: int, group: str = GROUP) -> Received:
        request = wire.ChangeInvisibleRequest(group=group, receipts=[message.receipts], invisible_ms=invisible_ms)
        reply = await self.pop.change_invisible(request)
        assert not reply.statuses, reply
        self.settle()
        return message._replace(check_point=reply.check_point, epoch=reply.epoch, visible_ms=reply.visible_ms)

    async def renew(self, message: Received, invisible_ms: int) -> list[int]:
        request = wire.ChangeInvisibleRequest(
            group=GROUP, receipts=[message.receipts], invisible_ms=invisible_ms, keeps_receipts=True
        )
        reply = await self.pop.change_invisible(request)
        self.settle()
        return list(reply.statuses)

    async def give_back(self, *messages: Received) -> list[int]:
        receipts = [message.receipts for message in messages]
        request = wire.ChangeInvisibleRequest(group=GROUP, receipts=receipts, is_given_back=True)
        reply = await self.pop.change_invisible(request)
        self.settle()
        return list(reply.statuses)

    async def pass_s(self, seconds: float) -> None:
        self.manual.advance(seconds)
        await self.pop.turn()
        self.settle()
        await asyncio.sleep(0)

    def put_orderly(self, **settings: Any) -> None:
        self.put_group(replace(Group(GROUP), orderly=True, **settings))

    def committed(self, topic: str = "orders", queue_id: int = 0) -> int:
        return self.tables.offsets.get(GROUP, topic, queue_id)

    def records(self, topic: str = RETRY) -> list[Record]:
        self.settle()
        return read(self.store, topic)


class Node(Pops):
    """A broker with a topic ``orders`` of four queues."""

    def __init__(self, *arguments: Any, manual: ManualClock | None = None, **settings: Any) -> None:
        self.manual = manual or ManualClock(START)
        super().__init__(*arguments, clock=self.manual, **settings)

    @classmethod
    def after(cls, before: Node, **settings: Any) -> Node:
        """The broker that goes on with the other's log, and has nothing else of it."""
        return cls.restarted(before, manual=before.manual, **settings)  # type: ignore[return-value]


def bodies(messages: Sequence[Received]) -> list[bytes]:
    return [message.record.body for message in messages]


def opened(**settings: Any) -> Node:
    node = Node(**settings)
    node.fill()
    return node
