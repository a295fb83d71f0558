"""Outcomes on their way from the client's threads into an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from unittest import mock

import pytest

from penstock.client.aio.outcomes import Outcomes


def in_a_thread(*steps: object) -> None:
    """Call each of ``steps`` in one other thread, and wait for it: an event loop of this one stands still."""
    thread = threading.Thread(target=lambda: [step() for step in steps])  # type: ignore[operator]
    thread.start()
    thread.join()


def test_outcomes_that_come_together_wake_the_loop_once() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        outcomes = Outcomes(loop)
        sends: list[Future[int]] = [Future() for _ in range(100)]
        followed = [outcomes.follow(send) for send in sends]
        with mock.patch.object(loop, "call_soon_threadsafe", wraps=loop.call_soon_threadsafe) as wake:
            in_a_thread(*(lambda at=at, send=send: send.set_result(at) for at, send in enumerate(sends)))
            assert wake.call_count == 1
            assert await asyncio.gather(*followed) == list(range(100))
            late: Future[int] = Future()
            mine = outcomes.follow(late)
            in_a_thread(lambda: late.set_result(1))
            assert await mine == 1
            assert wake.call_count == 2

    asyncio.run(run())


def test_what_has_ended_before_it_is_followed_is_told_too() -> None:
    async def run() -> None:
        send: Future[str] = Future()
        send.set_result("there")
        assert await Outcomes(asyncio.get_running_loop()).follow(send) == "there"

    asyncio.run(run())


def test_errors_and_cancellations_reach_who_waits_and_nobody_else() -> None:
    async def run() -> None:
        outcomes = Outcomes(asyncio.get_running_loop())
        failed, cancelled, left, good = (Future[int]() for _ in range(4))
        waits = [outcomes.follow(each) for each in (failed, cancelled, left, good)]
        waits[2].cancel()
        in_a_thread(
            lambda: failed.set_exception(ValueError("no")),
            cancelled.cancel,
            lambda: left.set_result(1),
            lambda: good.set_result(2),
        )
        assert await waits[3] == 2
        with pytest.raises(ValueError, match="no"):
            await waits[0]
        assert waits[1].cancelled()
        assert waits[2].cancelled()
        assert left.result() == 1  # it was sent all the same

    asyncio.run(run())


def test_an_error_that_a_whole_batch_shares_keeps_its_traceback_short() -> None:
    async def run() -> None:
        outcomes = Outcomes(asyncio.get_running_loop())
        sends: list[Future[int]] = [Future() for _ in range(50)]
        waits = [outcomes.follow(send) for send in sends]
        error = ValueError("no")
        in_a_thread(*(lambda send=send: send.set_exception(error) for send in sends))
        await asyncio.wait(waits)
        assert error.__traceback__ is None
        assert {wait.exception() for wait in waits} == {error}

    asyncio.run(run())


def test_a_loop_that_is_closed_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    send: Future[int] = Future()
    waits = Outcomes(loop).follow(send)
    loop.close()
    send.set_result(1)
    assert not waits.done()
    assert not caplog.records
