"""A broker with halves: what a producer in transactions sends it, and what becomes of that."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from penstock.broker.features.transactions.transactions import Transactions
from penstock.formats.columns import Column
from penstock.formats.destination import Half
from penstock.formats.record.layout import Record
from penstock.formats.record.producer_mark import producer_mark
from penstock.formats.record.properties import encode_properties
from penstock.proto import frames, names
from penstock.proto.data_frames import Method
from penstock.proto.errors import PenstockError
from penstock.proto.wire.broker_pb2 import AppendHeader, AppendReceipt
from penstock.proto.wire.transactions_pb2 import (
    UNRESOLVED,
    EndRequest,
    HalfRange,
    JoinRequest,
    ProducerEvent,
)
from tests.support.broker.kit import Kit
from tests.support.broker.requests import BORN
from tests.support.broker.stores import read
from tests.support.clock import ManualClock
from tests.support.record.encoding import encode_messages

START = 1_700_000_000_000


SEQUENCES = itertools.count(1)


def half_batch(
    bodies: Sequence[bytes],
    topic: str = "orders",
    queue_id: int = 1,
    group: str = "payments",
    properties: dict[str, str] | None = None,
) -> bytes:
    """A framed append of halves, as a producer makes it."""
    destination, sequence = Half(topic, group), next(SEQUENCES)
    own = Column.of([encode_properties(properties or {})] * len(bodies))
    strings, queue_ids = destination.place(own, np.full(len(bodies), queue_id, np.int32))
    mark = producer_mark(99, 0, 0, sequence, len(bodies))
    records = encode_messages(
        names.HALF_TOPIC, bodies, list(strings), queue_ids, born_host=BORN, mark=mark, born_timestamp_ms=START
    )
    header = {"producer_id": 99, "sequence": sequence, "count": len(bodies)}
    return frames.pack(AppendHeader(topic=topic, **header, **destination.flags), records)


class Node(Kit):
    """A broker with a topic ``orders`` of four queues, and a clock that stands still."""

    manual: ManualClock

    def __init__(self, root: Path | None = None, *, manual: ManualClock | None = None, **settings: Any) -> None:
        self.manual = manual or ManualClock(START)
        super().__init__(root, clock=self.manual, **settings)
        self.asked: list[ProducerEvent.Check] = []

    @classmethod
    def after(cls, before: Node, **settings: Any) -> Node:
        """The broker that goes on with the other's log, and has nothing else of it."""
        return cls.restarted(before, manual=before.manual, **settings)  # type: ignore[return-value]

    @property
    def transactions(self) -> Transactions:
        return self[Transactions]

    async def halves(self, bodies: Sequence[bytes] = (b"one",), **settings: Any) -> AppendReceipt:
        receipt = await self.append_bytes(half_batch(bodies, **settings))
        self.settle()
        return receipt

    async def end(
        self, resolution: int, *ranges: tuple[int, int], group: str = "payments", epoch: int = 0
    ) -> list[tuple[int, int]]:
        halves = [HalfRange(offset=offset, count=count, epoch=epoch) for offset, count in ranges]
        request = EndRequest(group=group, halves=halves, resolution=resolution)  # type: ignore[arg-type]
        reply = await self.transactions.end(request)
        self.settle()
        return [(each.state, each.count) for each in reply.states]

    async def states(self, *ranges: tuple[int, int]) -> list[tuple[int, int]]:
        return await self.end(UNRESOLVED, *ranges)

    async def pass_s(self, seconds: float) -> None:
        self.manual.advance(seconds)
        await self.transactions.turn()
        self.settle()
        await self.transactions.turn()
        self.settle()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def settle(self) -> None:
        self.confirm()
        self.dispatch()

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        self.settle()
        return read(self.store, topic, queue_id)

    def join(self, *groups: str, client_id: str = "c", answers: bool = True) -> Member:
        """A producer that notes what it is asked."""
        return Member(self, groups or ("payments",), client_id, answers=answers)


class Member:
    """A client that has joined, in the place of its connection; ``has_room`` is cleared to leave what comes unread."""

    def __init__(self, node: Node, groups: Sequence[str], client_id: str, *, answers: bool = True) -> None:
        self.joined = 0
        self.error: PenstockError | None = None
        self.metadata: dict[str, str] = {}
        self.on_room: list[Callable[[], None]] = []
        self.has_room = True
        self.silent_s = 0.0
        self._node = node
        self._client_id = client_id
        self._answers = answers
        self._number = 0
        self._conversation = node.transactions.data_methods()[Method.JOIN](cast(Any, self))
        self.join(*groups)

    def join(self, *groups: str, client_id: str = "") -> None:
        """Be a member of these groups instead."""
        self._number += 1
        self.error = None
        request = JoinRequest(client_id=client_id or self._client_id, groups=groups, answers=self._answers)
        self._conversation.take(self._number, memoryview(request.SerializeToString()))

    def answer(self, number: int, method: Method, content: bytes) -> None:
        """See :class:`~penstock.runtime.data.port.Link`."""
        assert (number, method) == (self._number, Method.JOIN)
        event = ProducerEvent.FromString(content)
        if event.WhichOneof("event") == "joined":
            self.joined += 1
        else:
            self._node.asked.append(event.check)

    def refuse(self, number: int, method: Method, error: PenstockError) -> None:
        """See :class:`~penstock.runtime.data.port.Link`."""
        assert method == Method.JOIN
        if number == self._number:
            self.error = error

    def left(self) -> None:
        """Its connection goes."""
        self._conversation.left()


def opened(**settings: Any) -> Node:
    node = Node(**settings)
    node.add_topic()
    return node


GOLD_SIZES = {"segment_bytes": 1 << 16, "consume_queue_bytes": 800, "index_slots": 100, "index_entries": 400}


GOLD_AT = 1_796_000_000_000  # some time after it was written
