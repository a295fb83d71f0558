"""What a receiver does not take, as it leaves meanwhile, comes again at once, and is not counted."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from penstock.formats.record.layout import QueueOffset, Record, encode_record
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.clients import Clients
from penstock.gateway.v2.consume.finishing import Finishing
from penstock.gateway.v2.consume.receiving import Receiving
from penstock.gateway.v2.consume.renewal import Renewal
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.wire.pop_pb2 import ChangeInvisibleReply, ChangeInvisibleRequest, ReceiveReply
from tests.support.gateway import OneBroker, wish
from tests.support.waiting import eventually

CALLER: Final = Caller("client", "JAVA", "", "127.0.0.1:1", 5.0)
RECORDS: Final = b"".join(
    encode_record(Record(topic="topic", body=b"x", queue_offset=QueueOffset(each))) for each in (7, 8)
)


class World(OneBroker):
    """A broker group that has two messages at once, or, with ``when``, late; ``changed``: what is to come again,
    and True if it is given back."""

    def __init__(self, when: str) -> None:
        reply = ReceiveReply(check_point=7, epoch=1, visible_ms=1)
        reply.results.add(topic="topic", queue_id=0, bytes=len(RECORDS), count=2)
        self.answer = frames.pack(reply, RECORDS)
        self.is_late = when == "behind its call"
        self.is_asked = asyncio.Event()
        self.changed: list[tuple[bool, list[int]]] = []

    async def at_data_port(self, _: str, method: Method, content: bytes, *__: object, late: Any = None) -> Any:
        if method == Method.RECEIVE:
            try:
                self.is_asked.set()
                if self.is_late:
                    await asyncio.Event().wait()
                return self.answer
            finally:
                if self.is_late:
                    late(self.answer)
        request = ChangeInvisibleRequest.FromString(content)
        self.changed += [(request.is_given_back, list(each.offsets)) for each in request.receipts]
        return ChangeInvisibleReply(statuses=[0, 0])

    async def have(self) -> None:
        """A turn that never comes."""
        await asyncio.Event().wait()


@pytest.mark.parametrize("when", ["while its messages are made", "behind its call"])
def test_it_is_given_back(when: str) -> None:
    async def scenario() -> None:
        world: Any = World(when)
        renewal = Renewal(world, lambda _: True)
        receiving = Receiving(world, Clients(), Finishing(world, renewal), renewal)
        receiving._turns = world

        async def receive() -> None:
            async for _ in receiving.receive(CALLER, wish("g", "topic", wait_s=60)):
                pytest.fail("nobody takes it")

        task = asyncio.create_task(receive())
        await world.is_asked.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: world.changed, what="it is given back")
        assert world.changed == [(True, [7, 8])]

    asyncio.run(scenario())
