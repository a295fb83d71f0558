"""Answers that are to be confirmed: what counts as a sign that their client has got them, and what does not."""

from __future__ import annotations

import asyncio

import pytest

from penstock.gateway.http2 import unconfirmed
from penstock.gateway.http2.call import Call
from penstock.gateway.http2.frames import ACK, Code, Type, frame, rst_stream
from penstock.gateway.http2.method import Method
from tests.support.http2 import WAIT_S, Peer, Running, serving, with_peer
from tests.support.waiting import eventually


class _Confirmed:
    """A method whose answers are to be confirmed; ``lost``: the requests of those that were not."""

    def __init__(self) -> None:
        self.lost: list[bytes] = []

    @property
    def methods(self) -> dict[str, Method]:
        return {"/test/Confirmed": Method(self.answer)}

    async def answer(self, call: Call) -> None:
        request = call.request
        await call.write(request)
        call.end_confirmed(lambda: self.lost.append(request))

    @staticmethod
    async def answered(peer: Peer, *streams: int) -> None:
        """Call, and have whole answers."""
        for stream in streams:
            assert (await peer.ask(stream, b"%d" % stream, "/test/Confirmed").answer(stream)).messages


def acknowledgement(ping: bytes) -> bytes:
    return frame(Type.PING, ACK, 0, ping)


def test_an_answer_is_confirmed_by_the_ping_behind_it_and_by_nothing_else() -> None:
    it = _Confirmed()

    async def scenario() -> None:
        async with serving(it.methods) as server:
            async with server.peer() as peer:
                await it.answered(peer, 1)
                ping = (await peer.until(Type.PING)).content
                peer.send(acknowledgement(b"penstock"))
                await it.answered(peer, 3, 5)
                peer.send(acknowledgement(ping))  # behind the first one; the others have the next ping
                assert (await peer.until(Type.PING)).content == ping
                await it.answered(peer, 7)
                await peer.ping()
            await eventually(lambda: not server.server.connections, WAIT_S, "the connection is over")
            assert it.lost == [b"3", b"5", b"7"]

    asyncio.run(scenario())


def test_an_answer_is_lost_whose_stream_is_broken_off_before_it_is_confirmed() -> None:
    it = _Confirmed()

    async def scenario() -> None:
        async with serving(it.methods) as server:
            async with server.peer() as peer:
                await it.answered(peer, 1)
                ping = (await peer.until(Type.PING)).content
                await it.answered(peer, 3, 5, 7, 9)
                for stream, code in ((1, Code.CANCEL), (3, Code.CANCEL), (5, Code.NO_ERROR)):
                    peer.send(rst_stream(stream, code))
                await peer.ping()
                assert it.lost == [b"1", b"3"]
                await it.answered(peer, 11)
                assert not [each for each in peer.others if each.content == ping], "one ping is under way"
                for _ in range(2):
                    peer.send(acknowledgement(ping))
                    await peer.ping()
                peer.send(acknowledgement(ping)).send(rst_stream(7, Code.CANCEL))  # it came too late
                await peer.ping()
            await eventually(lambda: not server.server.connections, WAIT_S, "the connection is over")
            assert it.lost == [b"1", b"3"]

    asyncio.run(scenario())


@pytest.mark.parametrize("answers", [True, False])
def test_a_server_that_stops_waits_for_what_confirms_its_answers_and_takes_none_back(answers: bool) -> None:
    it = _Confirmed()

    async def scenario() -> None:
        async with serving(it.methods) as server, server.peer() as peer:
            await it.answered(peer, 1)
            ping = (await peer.until(Type.PING)).content
            stopping = asyncio.ensure_future(server.server.stop(WAIT_S if answers else 0.1))
            await peer.until(Type.GOAWAY)
            if answers:
                assert not stopping.done()
                peer.send(acknowledgement(ping))
            await stopping
            assert it.lost == []

    asyncio.run(scenario())


def test_a_client_that_confirms_nothing_for_very_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unconfirmed, "UNCONFIRMED_MAX", 2)
    it = _Confirmed()

    async def body(_: Running, peer: Peer) -> None:
        await it.answered(peer, 1, 3)
        peer.ask(5, b"5", "/test/Confirmed")
        await eventually(lambda: sorted(it.lost) == [b"1", b"3", b"5"], WAIT_S, "all are lost")

    with_peer(body, methods=it.methods)
