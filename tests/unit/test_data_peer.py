"""A broker's connection to another's data port: frames in order and not copied, holds, TLS, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.proto.data_frames import FRAME_BYTES_MAX, HEAD, Kind, Method
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, LimitReached, to_bytes
from penstock.runtime.data.peer import DataPeer, connect
from penstock.runtime.data.port import DataPort, Link
from penstock.runtime.data.receiving import BUFFER_BYTES, KEPT_BYTES
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import Security
from tests.support.cluster.certificates import Authority
from tests.support.data import Peer
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually

ADDRESS = "127.0.0.1:10911"
SIZES = [1, 0, BUFFER_BYTES, 3 << 20, 7, KEPT_BYTES, 5]


class Sender:
    """Answers a request by a frame of each size, of its number."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def take(self, number: int, content: memoryview) -> None:
        for size in SIZES:
            self._link.answer(number, Method.REPLICATE, bytes([size % 251]) * size)

    def left(self) -> None:
        """Nothing was begun."""


@contextlib.asynccontextmanager
async def sending(tls: ServerTls | None = None) -> AsyncIterator[DataPort]:
    port = DataPort()
    port.methods[Method.REPLICATE] = Sender
    await port.open("127.0.0.1", 0, "test", tls)
    await port.start()
    try:
        yield port
    finally:
        port.close()


@contextlib.contextmanager
def by_hand() -> Iterator[Peer]:
    """A broker's end that says what the test lets it say."""
    there = Peer()
    try:
        yield there
    finally:
        there.close()


@contextlib.asynccontextmanager
async def greeted(there: Peer) -> AsyncIterator[DataPeer]:
    peer = await connect(ADDRESS, there.port)
    try:
        await asyncio.to_thread(there.greet)
        yield peer
    finally:
        peer.close()


async def take_all(peer: DataPeer) -> None:
    for size in SIZES:
        frame = await peer.receive()
        assert (frame.number, frame.method) == (7, Method.REPLICATE)
        assert bytes(frame.content) == bytes([size % 251]) * size


@in_own_loop
async def test_frames_of_all_sizes_come_in_order_and_a_large_ones_room_is_given_back() -> None:
    async with sending() as port:
        peer = await connect(ADDRESS, port.number)
        for _ in range(3):
            await peer.send(7, Method.REPLICATE)
            await peer.send(0, Method.PING)
        for _ in range(3):
            await take_all(peer)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await peer.receive()  # the pings' answers are nobody's
        assert len(peer.get_buffer(-1)) <= KEPT_BYTES
        peer.close()


@in_own_loop
async def test_frames_come_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    async with sending(ServerTls(cert_file=pair.cert, key_file=pair.key)) as port:
        peer = await connect(ADDRESS, port.number, Security(tls=authority.tls()))
        await peer.send(7, Method.REPLICATE)
        await take_all(peer)
        peer.close()
        with pytest.raises(BrokerUnavailable, match="failed to connect"):
            await connect(ADDRESS, port.number, Security(tls=Authority(tmp_path / "another").tls()))


@in_own_loop
async def test_contents_are_views_of_one_buffer() -> None:
    with by_hand() as there:
        async with greeted(there) as peer:
            there.answer(1, Method.REPLICATE, b"first")
            there.answer(1, Method.REPLICATE, b"second")
            first = (await peer.receive()).content
            second = (await peer.receive()).content
            assert bytes(first) == b"first"
            assert bytes(second) == b"second"
            assert first.obj is second.obj


@in_own_loop
async def test_what_nobody_takes_stays_with_its_sender() -> None:
    """Else a slave whose disk is slow would hold in memory whatever its master has."""
    with by_hand() as there:
        async with greeted(there) as peer:
            content = b"x" * 1000
            sent = HEAD.pack(len(content), 1, Method.REPLICATE, Kind.ANSWER) + content
            count = (64 << 20) // len(sent)
            saying = asyncio.create_task(asyncio.to_thread(there.say, sent * count))
            await eventually(lambda: not len(peer.get_buffer(-1)), what="the buffer is full")
            assert not saying.done()
            for _ in range(count):
                assert len((await peer.receive()).content) == len(content)
            await saying


@in_own_loop
async def test_what_came_before_the_end_is_handed_over_first() -> None:
    with by_hand() as there:
        async with greeted(there) as peer:
            there.answer(1, Method.REPLICATE, b"last words")
            there.leave()
            await eventually(lambda: peer._error is not None, what="the end came")
            assert bytes((await peer.receive()).content) == b"last words"
            for _ in range(2):
                with pytest.raises(BrokerUnavailable, match="it ended the connection"):
                    await peer.receive()
            with pytest.raises(BrokerUnavailable):
                await peer.send(1, Method.REPLICATE, b"report")


@in_own_loop
async def test_an_end_and_noise_reach_who_waits() -> None:
    for said, error in (
        (b"", BrokerUnavailable),
        (HEAD.pack(FRAME_BYTES_MAX + 1, 1, Method.REPLICATE, Kind.ANSWER), InvalidArgument),
        (HEAD.pack(0, 1, Method.REPLICATE, Kind.REQUEST), InvalidArgument),
    ):
        with by_hand() as there:
            async with greeted(there) as peer:
                waiting = asyncio.create_task(peer.receive())
                await asyncio.sleep(0)
                there.say(said)
                if not said:
                    there.leave()
                with pytest.raises(error):
                    await waiting


@in_own_loop
async def test_a_refusal_is_received_as_it_is() -> None:
    with by_hand() as there:
        async with greeted(there) as peer:
            there.answer(0, Method.HELLO, to_bytes(LimitReached("10000 connections are open")), Kind.ERROR)
            with pytest.raises(LimitReached, match="10000 connections are open"):
                await peer.receive()


@in_own_loop
async def test_nobody_there_is_told_as_such() -> None:
    with by_hand() as there:
        number = there.port
    with pytest.raises(BrokerUnavailable, match=f"data port {number}"):
        await connect(ADDRESS, number)
