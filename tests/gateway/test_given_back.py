"""What a receiver does not take, as it leaves meanwhile, comes again at once, and is not counted."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

import pytest

from penstock.client import BrokerUnavailable
from penstock.formats.record.layout import QueueOffset, Record, encode_record
from penstock.gateway.http2.frames import ACK, Type, frame, rst_stream
from penstock.gateway.http2.frames import Code as HttpCode
from penstock.gateway.http2.method import Method as HttpMethod
from penstock.gateway.v2.callers import Caller
from penstock.gateway.v2.clients import Clients
from penstock.gateway.v2.consume.finishing import Finishing
from penstock.gateway.v2.consume.receiving import Receiving
from penstock.gateway.v2.consume.renewal import Renewal
from penstock.gateway.v2.service import SERVICE, Service
from penstock.gateway.v2.wire.service_pb2 import ReceiveMessageRequest, ReceiveMessageResponse
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.wire.pop_pb2 import ChangeInvisibleReply, ChangeInvisibleRequest, ReceiveReply
from tests.support.gateway import OneBroker, wish
from tests.support.http2 import serving
from tests.support.waiting import eventually

RECEIVE: Final = f"/{SERVICE.full_name}/ReceiveMessage"
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


@pytest.mark.parametrize("how", ["taken", "lost with its connection", "broken off", "not renewed"])
def test_an_answer_that_is_renewed_is_given_back_unless_its_client_has_got_it(how: str) -> None:
    """It was written whole, and the client lives on at another connection."""

    async def scenario() -> None:
        world: Any = World("")
        renewal = Renewal(world, lambda _: True)
        receiving = Receiving(world, Clients(), Finishing(world, renewal), renewal)
        method = Service(None)._streaming(
            "ReceiveMessage", receiving.receive, ReceiveMessageRequest, ReceiveMessageResponse
        )
        request = wish("g", "topic", wait_s=60, auto_renew=how != "not renewed").SerializeToString()
        async with serving({RECEIVE: HttpMethod(method)}) as it:
            async with it.peer() as peer:
                answer = await peer.ask(1, request, RECEIVE).answer(1)
                assert len(answer.messages) == 4
                if how == "not renewed":
                    await peer.ping()
                    assert [each for each in peer.others if each.kind == Type.PING and not each.flags] == []
                else:
                    asked = await peer.until(Type.PING)
                    assert renewal.holds_any
                if how == "taken":
                    peer.send(frame(Type.PING, ACK, 0, asked.content))
                elif how == "broken off":
                    peer.send(rst_stream(1, HttpCode.CANCEL))
                    await eventually(lambda: world.changed, what="it is given back")
                await peer.ping()
            await eventually(lambda: not it.server.connections, what="the connection is over")
            if how in ("taken", "not renewed"):
                assert renewal.holds_any == (how == "taken")
                assert world.changed == []
            else:
                await eventually(lambda: world.changed, what="it is given back")
                assert not renewal.holds_any
                assert world.changed == [(True, [7, 8])]

    asyncio.run(scenario())


@pytest.mark.parametrize("again", ["its attempt", "another"])
def test_an_answer_is_given_back_when_its_attempt_is_made_again(again: str) -> None:
    """Its client failed behind its connection, and lives on."""

    async def scenario() -> None:
        world: Any = World("")
        renewal = Renewal(world, lambda _: True)
        receiving = Receiving(world, Clients(), Finishing(world, renewal), renewal)
        for attempt in ("one", "one" if again == "its attempt" else "two"):
            assert world.changed == []
            request = wish("g", "topic", wait_s=60, auto_renew=True, attempt_id=attempt)
            assert len([each async for each in receiving.receive(CALLER, request)]) == 4
        assert world.changed == ([(True, [7, 8])] if again == "its attempt" else [])
        assert renewal.holds_any

    asyncio.run(scenario())


def test_a_broker_that_does_not_take_what_is_given_back_leaves_time_for_the_attempt() -> None:
    class Silent(World):
        async def at_data_port(self, _: str, method: Method, content: bytes, *rest: Any, late: Any = None) -> Any:
            _, timeout_s = rest
            if method != Method.RECEIVE:
                await asyncio.sleep(timeout_s)
                raise BrokerUnavailable("no answer")
            left.append(timeout_s)
            return self.answer

    left: list[float] = []

    async def scenario() -> None:
        world: Any = Silent("")
        renewal = Renewal(world, lambda _: True)
        receiving = Receiving(world, Clients(), Finishing(world, renewal), renewal)
        request = wish("g", "topic", wait_s=0, auto_renew=True, attempt_id="one")
        for _ in range(2):
            assert len([each async for each in receiving.receive(replace(CALLER, deadline_s=1.0), request)]) == 4
        assert left[1] > 0.2

    asyncio.run(scenario())
