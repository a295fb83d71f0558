"""Calls that begin as their request comes, in the round of the loop that reads it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from penstock.gateway.http2.call import Call
from penstock.gateway.http2.frames import Code, Status, rst_stream
from penstock.gateway.http2.method import Method
from penstock.runtime import turns
from tests.support.http2 import WAIT_S, Peer, Running, with_peer
from tests.support.waiting import eventually

TURN_S = turns.TURN_S


@pytest.fixture(autouse=True)
def _no_turn_ends_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", 60.0)


def test_a_call_that_begins_at_once_has_a_task_only_where_it_waits() -> None:
    has_task: list[bool] = []
    waited_for: list[asyncio.Future[str]] = []

    async def asked(call: Call) -> None:
        has_task.append(asyncio.current_task() is not None)
        if call.request == b"fails":
            raise ValueError("it fails")
        if call.request == b"waits":
            waited_for.append(asyncio.get_running_loop().create_future())
            with contextlib.suppress(ValueError):
                await waited_for[0]
            has_task.append(asyncio.current_task() is not None)
            await asyncio.sleep(0)
        call.finish(call.request)

    async def body(_: Running, peer: Peer) -> None:
        assert (await peer.ask(1, b"now", "/test/Asked").answer(1)).messages == [b"now"]
        assert has_task == [False]
        assert (await peer.ask(3, b"fails", "/test/Asked").answer(3)).status == Status.INTERNAL
        peer.ask(5, b"waits", "/test/Asked")
        await eventually(lambda: waited_for, WAIT_S, "it waits")
        waited_for[0].set_exception(ValueError("of what is waited for"))
        assert (await peer.answer(5)).messages == [b"waits"]
        assert has_task == [False, False, False, True]

    with_peer(body, methods={"/test/Asked": Method(asked, begins_at_once=True)})


def test_many_calls_that_begin_at_once_leave_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_S", TURN_S)
    numbers: list[int] = []

    async def slow(call: Call) -> None:
        numbers.append(call._connection.turns.number)
        ends_s = time.perf_counter() + TURN_S / 4
        while time.perf_counter() < ends_s:
            pass
        call.finish(b"")

    async def body(_: Running, peer: Peer) -> None:
        for stream in range(1, 61, 2):
            peer.ask(stream, b"", "/test/Slow")
        await eventually(lambda: len(numbers) == 30, WAIT_S, "all are answered")
        assert max(map(numbers.count, numbers)) <= 5  # as many as a turn has time for, and one that began in it

    with_peer(body, methods={"/test/Slow": Method(slow, begins_at_once=True)})


def test_whoever_breaks_off_calls_in_the_read_that_begins_them_ends_each_of_them() -> None:
    lock = asyncio.Lock()
    cancelled: list[int] = []

    async def waiting(call: Call) -> None:
        try:
            async with lock:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(call.number)
            raise

    async def body(_: Running, peer: Peer) -> None:
        for stream in range(1, 13, 2):
            peer.ask(stream, b"", "/test/Waiting").send(rst_stream(stream, Code.CANCEL))
        await eventually(lambda: len(cancelled) == 6, WAIT_S, "all are cancelled")
        assert not lock.locked()

    with_peer(body, methods={"/test/Waiting": Method(waiting, begins_at_once=True)})


def test_a_first_step_that_is_cancelled_by_what_it_waits_for_ends_its_own_call() -> None:
    async def cancelled(call: Call) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async def body(_: Running, peer: Peer) -> None:
        answer = await peer.ask(1, b"", "/test/Cancelled").answer(1)
        assert answer.fields == {"rst": str(int(Code.CANCEL))}
        assert (await peer.ask(3, b"other").answer(3)).messages == [b"other"]

    with_peer(body, methods={"/test/Cancelled": Method(cancelled, begins_at_once=True)})
