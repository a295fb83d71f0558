"""POP over a real data port: its bytes, a connection that goes, one that reads nothing, and forged receipts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.proto import frames
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import FlowControl, InvalidArgument, InvalidName, from_bytes
from penstock.proto.wire import pop_pb2 as wire
from penstock.proto.wire.pop_pb2 import RECEIPT_EXPIRED, RECEIPT_OK, RECEIPT_UNKNOWN
from penstock.runtime.data import sending as data_sending
from penstock.runtime.data.port import DataPort
from tests.support.broker.kit import SYNC, in_loop
from tests.support.broker.popping import GROUP, Node, bodies, opened
from tests.support.broker.stores import batch
from tests.support.data import DataConnection, connected
from tests.support.waiting import eventually

KIB = 1024


@contextlib.asynccontextmanager
async def serving(node: Node) -> AsyncIterator[DataPort]:
    port = DataPort()
    port.methods.update(node.pop.data_methods())
    await port.open("127.0.0.1", 0, "dataPort")
    await port.start()
    node.pop.start()
    try:
        yield port
    finally:
        port.close()
        await eventually(lambda: not port.connections, what="the connections' end")


def asks(count: int = 32, **settings: Any) -> bytes:
    header = {"group": GROUP, "invisible_ms": 30_000, "begin": wire.ReceiveHeader.FIRST} | settings
    subscription = wire.ReceiveHeader.Subscription(topic="orders")
    return wire.ReceiveHeader(subscriptions=[subscription], max_messages=count, **header).SerializeToString()


async def received(connection: DataConnection, count: int = 32, **settings: Any) -> tuple[wire.ReceiveReply, bytes]:
    reply, records = frames.unpack(await connection.ask(Method.RECEIVE, asks(count, **settings)), wire.ReceiveReply)
    return reply, bytes(records)


def receipts(reply: wire.ReceiveReply, offsets: list[int], **changes: Any) -> wire.Receipts:
    said = {
        "topic": "orders",
        "check_point": reply.check_point,
        "epoch": reply.epoch,
        "visible_ms": reply.visible_ms,
        "offsets": offsets,
    }
    return wire.Receipts(**said | changes)


async def acknowledged(connection: DataConnection, *parts: wire.Receipts) -> list[int]:
    request = wire.AcknowledgeRequest(group=GROUP, receipts=parts)
    answer = await connection.ask(Method.ACKNOWLEDGE, request.SerializeToString())
    return list(wire.AcknowledgeReply.FromString(answer).statuses)


@in_loop
async def test_the_bytes_are_those_of_the_protocols_page() -> None:
    """Golden: a client in another language sends and takes just these."""
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        connection.writer.write(bytes.fromhex("0000000b 00000009 0007 0000  0a0170 1206 0a0174 320107"))
        wanted = bytes.fromhex("00000003 00000009 0007 0001  0a0102")
        assert (await connection.reader.readexactly(len(wanted))).hex() == wanted.hex()


@in_loop
async def test_a_receive_its_change_and_its_acknowledgement() -> None:
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        reply, records = await received(connection, 3)
        assert [(part.queue_id, part.count, part.bytes) for part in reply.results] == [(0, 3, len(records))]
        change = wire.ChangeInvisibleRequest(group=GROUP, receipts=[receipts(reply, [0])], invisible_ms=60_000)
        answer = await connection.ask(Method.CHANGE_INVISIBLE, change.SerializeToString())
        changed = wire.ChangeInvisibleReply.FromString(answer)
        assert await acknowledged(connection, receipts(reply, [0, 1])) == [RECEIPT_EXPIRED, RECEIPT_OK]
        renewed = {"check_point": changed.check_point, "visible_ms": changed.visible_ms}
        assert await acknowledged(connection, receipts(reply, [0], **renewed), receipts(reply, [1, 2])) == []
        assert not node.pop.state.in_flight


@in_loop
async def test_forged_receipts_are_told_and_harm_nobody() -> None:
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        reply, _ = await received(connection, 3)
        for forged in (
            receipts(reply, [0], check_point=1 << 40),
            receipts(reply, [0], epoch=1 << 40),
            receipts(reply, [5]),
            receipts(reply, [(1 << 63) - 1]),
            receipts(reply, [0], queue_id=1 << 30),
            receipts(reply, [0], topic="others"),
        ):
            assert await acknowledged(connection, forged) == [RECEIPT_UNKNOWN]
        for refused in (
            receipts(reply, []),
            receipts(reply, [1, 0]),
            receipts(reply, [-1]),
            receipts(reply, [0], queue_id=-1),
            receipts(reply, list(range(8193))),
        ):
            with pytest.raises(InvalidArgument, match=f"receipts of group {GROUP}"):
                await acknowledged(connection, refused)
        with pytest.raises(InvalidName):
            await acknowledged(connection, receipts(reply, [0], topic="no topic"))
        with pytest.raises(InvalidArgument, match="1025 parts"):
            await acknowledged(connection, *[receipts(reply, [0])] * 1025)
        assert node.pop.state.in_flight == 3


@in_loop
async def test_what_was_given_and_is_not_safe_yet_comes_again_when_the_connection_is_lost() -> None:
    node = opened(**SYNC, syncFlushTimeout=60_000)
    node.flushes = False
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        connection.send(1, Method.RECEIVE, asks(3))
        await eventually(lambda: node.pop.state.in_flight == 3, what="messages given")
        connection.writer.transport.abort()
        await eventually(lambda: not port.connections, what="the connection's end")
        await came_again(node)


@in_loop
async def test_what_was_given_and_is_not_safe_yet_comes_again_when_the_receive_is_ended() -> None:
    node = opened(**SYNC, syncFlushTimeout=60_000)
    node.flushes = False
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        connection.send(1, Method.RECEIVE, asks(3))
        await eventually(lambda: node.pop.state.in_flight == 3, what="messages given")
        connection.send(1, Method.RECEIVE)
        assert await connection.receive() == (1, Kind.ANSWER, b"")
        await came_again(node)


async def came_again(node: Node) -> None:
    node.flushes = True
    await node.pass_s(0)
    assert bodies(await node.receive(3)) == [b"0", b"1", b"2"]


@in_loop
async def test_a_receive_that_waits_is_given_nothing_once_it_is_ended_or_its_connection_lost() -> None:
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as staying:
        assert len((await received(staying))[1]) > 0
        async with connected("127.0.0.1", port.number) as leaving:
            leaving.send(1, Method.RECEIVE, asks(max_wait_ms=60_000))
            staying.send(2, Method.RECEIVE, asks(max_wait_ms=60_000))
            await eventually(lambda: node.pop.waiters.count == 2, what="both wait")
        staying.send(2, Method.RECEIVE)
        assert await staying.receive() == (2, Kind.ANSWER, b"")
        await eventually(lambda: not node.pop.waiters, what="nobody waits")
        node.fill(4)
        assert node.pop.state.in_flight == 10
        reply, _ = await received(staying)
        assert sum(part.count for part in reply.results) == 4


@in_loop
async def test_acknowledgements_pass_receives_that_wait() -> None:
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        reply, _ = await received(connection)
        for number in range(2, 1302):
            connection.send(number, Method.RECEIVE, asks(max_wait_ms=60_000))
        assert await acknowledged(connection, receipts(reply, [0, 1])) == []
        await eventually(lambda: node.pop.waiters.count == 1300, what="all wait")


@in_loop
async def test_a_client_that_reads_nothing_is_given_little_more() -> None:
    """What it does not take is neither copied for it nor taken away from the others."""
    node = opened()
    for _ in range(128):
        node.store.append("orders", batch("orders", [bytes(60 * KIB)] * 4, 0), queues=4)
    node.settle()
    async with serving(node) as port, connected("127.0.0.1", port.number) as reader:
        slow = socket.create_connection(("127.0.0.1", port.number))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * KIB)
        slow.setblocking(False)
        lazy = DataConnection(*await asyncio.open_connection(sock=slow, limit=16 * KIB))
        await lazy.ask(Method.HELLO, b"\x08\x01", 0)
        lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]  # asyncio has no public way
        numbers = itertools.count(1)

        def full() -> list[Any]:
            """Asks on: the system may take all later that it did not take at once, and what was refused stays so."""
            found = [each for each in port.connections if not each.has_room]
            if not found:
                lazy.send(next(numbers), Method.RECEIVE, asks(8, max_wait_ms=60_000))
            return found

        (connection,) = await eventually(full, what="answers not taken")
        assert connection._sending.unsent_bytes <= data_sending.UNSENT_BYTES_MAX + 8 * 61 * KIB
        given = node.pop.state.in_flight
        assert given < 480
        reply, _ = await received(reader, 8)
        assert sum(part.count for part in reply.results) > 0
        lazy.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await lazy.writer.wait_closed()


@in_loop
async def test_a_wait_on_a_connection_that_is_full_is_refused_for_the_moment() -> None:
    node = opened()
    async with serving(node) as port, connected("127.0.0.1", port.number) as connection:
        assert len((await received(connection))[1]) > 0
        connection.send(1, Method.RECEIVE, asks(max_wait_ms=60_000))
        await eventually(lambda: bool(node.pop.waiters), what="it waits")
        there = next(iter(port.connections))
        there._on_full(True)
        node.fill(2)
        number, kind, content = await connection.receive()
        there._on_full(False)
        assert (number, kind) == (1, Kind.ERROR)
        with pytest.raises(FlowControl, match="answers over this connection are not taken"):
            raise from_bytes(content)
        assert node.pop.state.in_flight == 10
