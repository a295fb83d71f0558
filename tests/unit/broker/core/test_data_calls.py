"""Calls over the data port: each has its answer, errors are answers too, and a connection has a bounded number."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from penstock.broker.core.data_calls import DataCalls
from penstock.broker.core.wire import REQUEST_BYTES_MAX
from penstock.proto.data_frames import Kind, Method
from penstock.proto.errors import InvalidArgument, MessageTooLarge, NotMaster, PenstockError
from penstock.proto.wire.transactions_pb2 import EndReply, EndRequest
from penstock.runtime.data.port import DataPort
from tests.support.data import DataConnection, connected
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually

QUICK, CANCELLED = "quick", "cancelled"


class Server:
    """Answers what it is told to, and waits where it is held."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.allowed = asyncio.Event()
        self.error: Exception | None = None
        self.cancelled = 0

    async def answer(self, request: EndRequest) -> EndReply:
        self.asked.append(request.group)
        if request.group == QUICK:
            return EndReply(states=[EndReply.States(count=99)])
        if request.group == CANCELLED:
            gone: asyncio.Future[EndReply] = asyncio.get_running_loop().create_future()
            gone.cancel()
            return await gone
        try:
            await self.allowed.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return EndReply(states=[EndReply.States(count=len(request.group))])


@contextlib.asynccontextmanager
async def serving(server: Server, **settings: Any) -> AsyncIterator[tuple[DataConnection, DataCalls[EndRequest]]]:
    port = DataPort()
    calls = DataCalls(Method.END, EndRequest, server.answer, **settings)
    port.methods[Method.END] = calls
    await port.open("127.0.0.1", 0, "dataPort")
    await port.start()
    try:
        async with connected("127.0.0.1", port.number) as connection:
            yield connection, calls
    finally:
        port.close()
        await eventually(lambda: not port.connections, what="the connections' end")


def request(group: str) -> bytes:
    return EndRequest(group=group).SerializeToString()


def counts(content: bytes) -> list[int]:
    return [each.count for each in EndReply.FromString(content).states]


@in_own_loop
async def test_the_bytes_of_an_end_are_those_of_the_protocols_page() -> None:
    """Golden: a client in another language sends and takes just these."""
    server = Server()
    server.allowed.set()
    async with serving(server) as (connection, _):
        connection.writer.write(bytes.fromhex("0000000b 00000009 0004 0000  0a0170 1204 08071001 1801"))
        wanted = bytes.fromhex("00000004 00000009 0004 0001  0a02 1001")
        assert await connection.reader.readexactly(len(wanted)) == wanted
    assert server.asked == ["p"]


@in_own_loop
async def test_calls_are_answered_as_they_are_done_and_those_that_wait_for_nothing_need_no_task() -> None:
    server = Server()
    async with serving(server) as (connection, _):
        for number, group in enumerate(("a", QUICK, "bb"), start=1):
            connection.send(number, Method.END, request(group))
        assert counts((await connection.receive())[2]) == [99]
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "data call END"]
        assert len(tasks) == 2
        server.allowed.set()
        found = [await connection.receive() for _ in range(2)]
        assert sorted((number, counts(content)) for number, _, content in found) == [(1, [1]), (3, [2])]


@in_own_loop
async def test_a_call_that_ends_with_what_it_waits_for_ends_no_other() -> None:
    server = Server()
    async with serving(server) as (connection, _):
        connection.send(1, Method.END, request(CANCELLED))
        assert counts(await connection.ask(Method.END, request(QUICK))) == [99]


@in_own_loop
@pytest.mark.parametrize(
    ("error", "told", "kind"),
    [
        (NotMaster("not here", epoch=3), "not here", NotMaster),
        (ZeroDivisionError(), "END: internal error, see the server's log", PenstockError),
    ],
)
async def test_an_error_is_the_answer_and_the_connection_goes_on(error: Exception, told: str, kind: Any) -> None:
    server = Server()
    server.allowed.set()
    async with serving(server) as (connection, _):
        server.error = error
        with pytest.raises(kind, match=told):
            await connection.ask(Method.END, request("a"))
        server.error = None
        assert counts(await connection.ask(Method.END, request("a"))) == [1]


@in_own_loop
async def test_what_is_no_request_or_too_long_is_refused_unread() -> None:
    server = Server()
    async with serving(server) as (connection, _):
        with pytest.raises(InvalidArgument, match=r"no penstock\.v1\.EndRequest"):
            await connection.ask(Method.END, b"\xff")
        with pytest.raises(MessageTooLarge, match="at most"):
            await connection.ask(Method.END, bytes(REQUEST_BYTES_MAX + 1))
    assert server.asked == []


@in_own_loop
async def test_a_connection_is_not_read_further_than_so_many_calls() -> None:
    server = Server()
    async with serving(server, under_way_max=4) as (connection, _):
        for number in range(1, 21):
            connection.send(number, Method.END, request("a"))
        await eventually(lambda: len(server.asked) == 4, what="those that may be under way")
        await asyncio.sleep(0.02)
        assert len(server.asked) == 4
        server.allowed.set()
        assert sorted([(await connection.receive())[0] for _ in range(20)]) == list(range(1, 21))


@in_own_loop
async def test_calls_of_a_client_that_is_gone_are_given_up_and_others_are_waited_for() -> None:
    server = Server()
    async with serving(server) as (connection, calls):
        connection.send(1, Method.END, request("a"))
        await eventually(lambda: len(server.asked) == 1, what="the call")
        closing = asyncio.create_task(calls.close())
        await asyncio.sleep(0)
        assert not closing.done()
        connection.writer.transport.abort()
        await asyncio.wait_for(closing, 10)
    assert server.cancelled == 1


@in_own_loop
async def test_a_request_of_nothing_ends_the_one_of_its_number_and_no_other() -> None:
    server = Server()
    async with serving(server, may_end=True) as (connection, _):
        for number in (1, 2):
            connection.send(number, Method.END, request("a"))
        await eventually(lambda: len(server.asked) == 2, what="both calls")
        connection.send(7, Method.END)
        connection.send(1, Method.END)
        assert await connection.receive() == (1, Kind.ANSWER, b"")
        await eventually(lambda: server.cancelled == 1, what="the end of the first")
        server.allowed.set()
        assert (await connection.receive())[0] == 2
        assert counts(await connection.ask(Method.END, request("bb"), 1)) == [2]


@in_own_loop
async def test_a_number_that_is_under_way_is_refused_and_its_call_goes_on() -> None:
    server = Server()
    async with serving(server) as (connection, _):
        connection.send(1, Method.END, request("a"))
        with pytest.raises(InvalidArgument, match="END 1 is under way"):
            await connection.ask(Method.END, request("b"), 1)
        server.allowed.set()
        assert await connection.receive() == (
            1,
            Kind.ANSWER,
            EndReply(states=[EndReply.States(count=1)]).SerializeToString(),
        )
    assert server.asked == ["a"]
