"""Waits that look before they sleep: when they do, and that nothing else changes."""

from __future__ import annotations

import asyncio
import itertools
import os
import selectors
import socket
import threading
from pathlib import Path

import pytest

from penstock.proto.data_frames import Method
from penstock.runtime import busy_poll
from penstock.runtime.busy_poll import SHORT_WINDOWS, SKIPPED_MAX, BusyPoll, PollingLoop, _PollingSelector
from penstock.runtime.data.link import DataLink, Frame
from penstock.runtime.security.certificates import ServerTls
from penstock.runtime.security.credentials import PLAIN, Security
from tests.support.cluster.certificates import Authority
from tests.support.data import poll_always
from tests.support.echo import echoing

WINDOW_S = 1.0


class Waits:
    """Waits by a clock that looks move on; ``looks`` of each wait, which ends at the look of that number, or sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits = BusyPoll(WINDOW_S, lambda: self.now_s)

    def wait(self, *, sleeps_s: float, comes_at: int = 1000) -> int:
        looks = 0

        def look() -> str | None:
            nonlocal looks
            looks += 1
            self.now_s += WINDOW_S / 8
            return "found" if looks == comes_at else None

        def sleep() -> str:
            self.now_s += sleeps_s
            return "slept"

        assert self.waits.wait(look, sleep) == ("found" if looks == comes_at else "slept")
        return looks


class ManualTime:
    """A clock that each look at it moves on by a quarter of a window."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s += WINDOW_S / 4
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    return Waits()


def test_it_looks_when_the_wait_before_was_short(waits: Waits) -> None:
    assert waits.wait(sleeps_s=SHORT_WINDOWS * WINDOW_S / 2) == 0
    assert waits.wait(sleeps_s=60, comes_at=3) == 3
    assert waits.wait(sleeps_s=60, comes_at=8) == 8


def test_it_sleeps_at_once_when_the_wait_before_was_long(waits: Waits) -> None:
    for _ in range(3):
        assert waits.wait(sleeps_s=SHORT_WINDOWS * WINDOW_S, comes_at=1) == 0


def test_fewer_and_fewer_waits_look_in_vain(waits: Waits) -> None:
    waits.wait(sleeps_s=0)
    tried = [number for number in range(2000) if waits.wait(sleeps_s=WINDOW_S / 2)]
    between = [later - number - 1 for number, later in itertools.pairwise(tried)]
    assert between == [1, 3, 7, 15, 31, *[SKIPPED_MAX] * (len(between) - 5)]
    while not waits.wait(sleeps_s=0, comes_at=1):
        pass
    for _ in range(SKIPPED_MAX.bit_length()):
        assert waits.wait(sleeps_s=0, comes_at=1)
    assert waits.wait(sleeps_s=0) == 8  # in vain
    assert [waits.wait(sleeps_s=0, comes_at=1) for _ in range(2)] == [0, 1]


def test_where_others_keep_the_processor_for_a_window_the_look_was_in_vain(
    waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits.wait(sleeps_s=0)

    def others_run() -> None:
        waits.now_s += WINDOW_S

    monkeypatch.setattr(os, "sched_yield", others_run)
    assert [waits.wait(sleeps_s=0, comes_at=2) for _ in range(12)] == [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0]


def test_a_sleep_that_fails_was_no_short_wait(waits: Waits) -> None:
    waits.wait(sleeps_s=0)

    def sleep() -> str:
        raise BlockingIOError

    for _ in range(2):
        with pytest.raises(BlockingIOError):
            waits.waits.wait(lambda: None if waits.now_s > 10 else setattr(waits, "now_s", 20.0), sleep)
    assert waits.wait(sleeps_s=0, comes_at=1) == 0


def test_nobody_looks_on_the_only_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    waits = Waits()
    assert [waits.wait(sleeps_s=0, comes_at=1) for _ in range(3)] == [0, 0, 0]


def test_a_loop_that_expects_something_has_timers_callbacks_and_what_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = poll_always(monkeypatch)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop)
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        with there:
            for number in range(100):
                loop.expect(0.01)
                there.send(bytes([number]))
                assert await reader.readexactly(1) == bytes([number])
                if number % 10 == 0:
                    loop.expect(0.001)
                    await asyncio.sleep(number * 2e-5)  # less than a window, or more
                loop.expect(0.01)
                assert await asyncio.to_thread(abs, number) == number
            writer.close()

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
    assert sum(looks.values()) > 100


def test_what_is_for_an_idle_loop_is_called_once_behind_all_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_always(monkeypatch)
    order: list[str] = []
    reported: list[object] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop)
        loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
        here, there = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=here)
        with there:
            for is_expecting in (False, True):
                if is_expecting:
                    loop.expect(0.01)
                there.send(b"x")
                loop.when_idle(lambda: order.append("idle"))
                loop.call_soon(loop.call_soon, order.append, "soon")
                assert await reader.readexactly(1) == b"x"
                order.append("read")
                await asyncio.wait_for(_idle(loop), 60)
                assert order in (["soon", "read", "idle"], ["read", "soon", "idle"])
                order.clear()
            loop.when_idle(lambda: 1 // 0)
            await asyncio.wait_for(_idle(loop), 60)
            assert [type(error) for error in reported] == [ZeroDivisionError]
            writer.close()

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(scenario())


def test_what_comes_while_an_idle_loop_works_is_taken_before_the_next_such_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    poll_always(monkeypatch)
    order: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop)
        here, there = socket.socketpair()

        def work() -> None:
            order.append("work")
            there.send(b"2")

        with here, there:
            here.setblocking(False)
            loop.add_reader(here, lambda: order.append(here.recv(1).decode()))
            there.send(b"1")  # is there when nothing else is to be done
            loop.when_idle(work)
            loop.when_idle(lambda: order.append("more work"))
            await asyncio.wait_for(_idle(loop), 60)
            loop.remove_reader(here)
        assert order == ["1", "work", "2", "more work"]

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(scenario())


def test_callbacks_that_follow_each_other_leave_a_loop_no_idle_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_always(monkeypatch)
    order: list[int | str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PollingLoop)
        loop.when_idle(lambda: order.append("idle"))
        for number in range(5):
            await asyncio.sleep(0)
            order.append(number)
        await asyncio.wait_for(_idle(loop), 60)
        assert order == [*range(5), "idle"]

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(scenario())


async def _idle(loop: PollingLoop) -> None:
    """Return when the loop had nothing to do, and has called what was for then."""
    is_idle = loop.create_future()
    loop.when_idle(lambda: is_idle.set_result(None))
    await is_idle


def test_a_timer_waits_no_longer_because_of_the_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    poll_always(monkeypatch)
    selector = _PollingSelector()
    asked: list[float | None] = []
    monkeypatch.setattr(selectors.DefaultSelector, "select", lambda _, timeout=None: asked.append(timeout) or [])
    monkeypatch.setattr(busy_poll, "time", clock := ManualTime())
    selector.waits = BusyPoll(WINDOW_S, clock.perf_counter)
    for timeout, slept in [(5.0, 5.0 - 5 * WINDOW_S / 4), (None, None), (0.5, 0.5)]:
        selector.waits.wait(lambda: None, lambda: None)
        selector.is_expecting = True
        asked.clear()
        selector.select(timeout)
        assert asked[-1] == slept
        assert asked[:-1] == [0] * (len(asked) - 1)
        assert not selector.is_expecting


@pytest.mark.parametrize("busy_poll_s", [0.0, 0.005])
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_link_and_a_port_that_look_exchange_the_same_frames(
    tmp_path: Path, has_tls: bool, busy_poll_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = poll_always(monkeypatch)
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    server = ServerTls(cert_file=pair.cert, key_file=pair.key) if has_tls else None
    client = Security(tls=authority.tls()) if has_tls else PLAIN

    def exchange(number_of_port: int) -> None:
        link = DataLink("localhost:1", number_of_port, client)
        link.begin_to_receive(10.0)
        for number in range(1, 300):
            content = bytes([number % 256]) * (number * 97)
            link.send(number, Method.FETCH, content)
            frames: list[Frame] = []
            while not frames:
                frames = link.receive(polls=True)
            assert [(frame.number, frame.content) for frame in frames] == [(number, content)]
        link.leave()

    async def scenario() -> None:
        async with echoing(server) as port:
            port.busy_poll_s = busy_poll_s
            await asyncio.to_thread(exchange, port.number)

    with asyncio.Runner(loop_factory=PollingLoop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))
    of_loop = looks.pop(threading.current_thread().name, 0)
    assert bool(of_loop) == bool(busy_poll_s)
    assert sum(looks.values()) >= 300
