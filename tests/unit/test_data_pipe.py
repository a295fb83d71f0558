"""Clients that the broker's own loop reads for are served without a socket, and notice no other difference."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from penstock.client.cluster.data_streams import DataStreams
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, Unauthorized
from penstock.runtime.data import pipe as data_pipe
from penstock.runtime.data.link import DataLink
from penstock.runtime.data.port import DataPort
from penstock.runtime.security.access import Access
from penstock.runtime.security.credentials import Credentials
from tests.support.echo import Echo, echoing, made
from tests.support.loops import RunningLoop, running_loop
from tests.support.waiting import eventually

__all__ = ["running_loop"]

HERE = "broker-a:1"
TIMEOUT_S = 60.0
SEED = 7


class Asking:
    """Asks at :data:`HERE`."""

    def __init__(self) -> None:
        self.streams = DataStreams(lambda _: self.open_link())
        self.streams.work_in(asyncio.get_running_loop())
        self.opened: list[DataLink] = []

    def open_link(self) -> DataLink:
        pipe = data_pipe.connect(HERE, self.streams.loop)
        if pipe is None:
            raise BrokerUnavailable("it is not here", status="UNAVAILABLE")
        self.opened.append(DataLink(HERE, 0, pipe=pipe))
        return self.opened[-1]

    def start(self, content: bytes, method: Method = Method.APPEND) -> Future[bytes]:
        return self.streams.ask(HERE, method, content, bytes, TIMEOUT_S)

    async def ask(self, content: bytes) -> bytes:
        return await asyncio.wrap_future(self.start(content))

    async def held(self) -> Echo:
        """The server's end, which has answered once and reads nothing any more."""
        assert await self.ask(b"first") == b"first"
        (echo,) = made
        echo.link.hold(True)
        return echo


def with_port(body: Callable[[DataPort, Asking], Awaitable[None]], **options: Any) -> None:
    """Run ``body`` with an echoing port and a client of it, in one loop."""

    async def scenario() -> None:
        async with echoing(address=HERE, **options) as port:
            asking = Asking()
            try:
                await asyncio.wait_for(body(port, asking), TIMEOUT_S)
            finally:
                asking.streams.close()

    asyncio.run(scenario())


def test_requests_of_all_sizes_are_answered_in_their_order() -> None:
    chosen = random.Random(SEED)

    async def body(port: DataPort, asking: Asking) -> None:
        contents = [chosen.randbytes(chosen.choice((0, 1, 1000, 70_000, 3 << 20))) for _ in range(40)]
        futures = [asking.start(each) for each in contents]
        assert [await asyncio.wrap_future(each) for each in futures] == contents
        (echo,) = made
        assert echo.sizes == [len(each) for each in contents]
        assert len(asking.opened) == len(port.connections) == 1

    with_port(body)


def test_other_threads_ask_too() -> None:
    async def body(_: DataPort, asking: Asking) -> None:
        def ask(number: int) -> bytes:
            return asking.start(b"%d" % number).result(TIMEOUT_S)

        found = await asyncio.gather(*(asyncio.to_thread(ask, number) for number in range(200)))
        assert found == [b"%d" % number for number in range(200)]

    with_port(body)


def test_a_server_that_reads_nothing_gets_nothing_until_it_goes_on() -> None:
    async def body(_: DataPort, asking: Asking) -> None:
        echo = await asking.held()
        later = [asking.start(b"%d" % number) for number in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(echo.sizes) == 1
        echo.link.hold(False)
        assert [await asyncio.wrap_future(each) for each in later] == [b"0", b"1", b"2"]

    with_port(body)


def test_when_the_port_closes_what_is_under_way_breaks_and_nobody_is_served_by_it_any_more() -> None:
    async def body(port: DataPort, asking: Asking) -> None:
        echo = await asking.held()
        under_way = asking.start(b"lost")
        port.close()
        with pytest.raises(BrokerUnavailable, match="it ended the stream"):
            await asyncio.wrap_future(under_way)
        assert echo.is_left
        assert not port.connections
        with pytest.raises(BrokerUnavailable, match="it is not here"):
            await asking.ask(b"again")

    with_port(body)


def test_an_end_right_behind_an_answer_is_heard_of() -> None:
    async def body(_: DataPort, asking: Asking) -> None:
        echo = await asking.held()
        under_way = asking.start(b"lost")
        echo.link.answer(999, Method.APPEND, b"something")
        echo.link.abort()
        with pytest.raises(BrokerUnavailable, match="it ended the stream"):
            await asyncio.wrap_future(under_way)
        assert await asking.ask(b"again") == b"again"

    with_port(body)


def test_who_answers_nothing_at_the_end_of_a_large_answer_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    large = bytes(100_000)

    def take(echo: Echo, number: int, _: memoryview) -> None:
        echo.link.answer(number, echo.method, large, b"")

    async def body(_: DataPort, asking: Asking) -> None:
        monkeypatch.setattr(Echo, "take", take)
        assert [await asking.ask(b"large") for _ in range(3)] == [large] * 3
        assert len(asking.opened) == 1

    with_port(body)


def test_answers_that_the_client_has_not_read_hold_up_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    large, count = bytes(1 << 20), 50
    unread: list[int] = []
    had_room: list[bool] = []
    write = data_pipe.Pipe.put

    def take(echo: Echo, number: int, _: memoryview) -> None:
        echo.link.answer(number, echo.method, large)
        had_room.append(echo.link.has_room)

    def put(pipe: data_pipe.Pipe, content: bytes | memoryview) -> None:
        write(pipe, content)
        unread.append(sum(map(len, pipe._came)))

    async def body(_: DataPort, asking: Asking) -> None:
        assert await asking.ask(b"first") == b"first"
        monkeypatch.setattr(Echo, "take", take)
        monkeypatch.setattr(data_pipe.Pipe, "put", put)
        futures = [asking.start(b"large") for _ in range(count)]
        assert [await asyncio.wrap_future(each) for each in futures] == [large] * count
        assert max(unread) < data_pipe.UNREAD_BYTES_MAX + len(large)
        assert False in had_room
        assert len(asking.opened) == 1

    with_port(body)


def test_a_connection_that_was_on_its_way_when_the_port_closed_is_ended() -> None:
    async def body(port: DataPort, asking: Asking) -> None:
        pipe = data_pipe.connect(HERE, asking.streams.loop)
        assert pipe is not None
        port.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert pipe.is_ended
        assert not port.connections

    with_port(body)


def test_a_client_that_leaves_is_gone_for_the_server() -> None:
    async def body(port: DataPort, asking: Asking) -> None:
        assert await asking.ask(b"first") == b"first"
        asking.streams.leave(HERE)
        await eventually(lambda: not port.connections, what="the connection's end")
        assert made[0].is_left
        assert await asking.ask(b"again") == b"again"
        assert len(asking.opened) == 2

    with_port(body)


def test_a_request_at_which_the_server_fails_ends_the_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(port: DataPort, asking: Asking) -> None:
        assert await asking.ask(b"first") == b"first"
        with monkeypatch.context() as patch:
            patch.setattr(Echo, "take", lambda *_: 1 // 0)
            with caplog.at_level(logging.ERROR), pytest.raises(BrokerUnavailable):
                await asking.ask(b"fails")
        assert "connection failed" in caplog.text
        assert made[0].is_left
        assert not port.connections
        assert await asking.ask(b"again") == b"again"

    with_port(body)


def test_a_pipe_is_no_way_around_the_users(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("someone = secret-of-someone\n")
    users.chmod(0o600)

    async def body(_: DataPort, asking: Asking) -> None:
        with pytest.raises(Unauthorized):
            await asking.ask(b"nobody")
        assert not made

    with_port(body, access=Access(users, Credentials("inner", "secret-of-inner")))


def test_only_what_its_loop_reads_for_is_served_by_a_pipe(running_loop: RunningLoop) -> None:
    async def body(_: DataPort, asking: Asking) -> None:
        assert data_pipe.connect(HERE, None) is None
        assert data_pipe.connect(HERE, running_loop.loop) is None
        assert data_pipe.connect("broker-b:1", asking.streams.loop) is None

    with_port(body)


def test_another_port_that_serves_the_address_stays() -> None:
    async def body(port: DataPort, asking: Asking) -> None:
        other = DataPort()
        await other.open("127.0.0.1", 0, "dataPort")
        await other.start(HERE)
        port.close()
        pipe = data_pipe.connect(HERE, asking.streams.loop)
        assert pipe is not None
        await eventually(lambda: bool(other.connections), what="a connection")
        pipe.end()
        await eventually(lambda: not other.connections, what="its end")
        other.close()

    with_port(body)
