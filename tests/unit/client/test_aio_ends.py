"""What ends something is carried out in a thread, also if who waits for it is cancelled before a thread is free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest

from penstock.client import TransactionState
from penstock.client.aio import AsyncProducer, AsyncSimpleConsumer, AsyncTransactionProducer
from penstock.client.aio.turns import to_the_end
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import eventually


async def cancelled_meanwhile(begin: Callable[[Callable[[], None]], Awaitable[object]]) -> None:
    """Await ``begin(busy)``, cancelled as soon as it waits after ``busy()``, which occupies the only thread."""
    loop, may_go_on, is_busy = asyncio.get_running_loop(), threading.Event(), asyncio.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def busy() -> None:
        loop.run_in_executor(None, may_go_on.wait, 60)
        is_busy.set()

    task = asyncio.ensure_future(begin(busy))
    await is_busy.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_go_on.set()


def test_a_transaction_that_was_executed_is_decided() -> None:
    async def run(cluster: RunningCluster) -> None:
        async with AsyncTransactionProducer(cluster.namesrv, group="payments") as made:

            def begin(busy: Callable[[], None]) -> Awaitable[object]:
                def execute(_: object) -> TransactionState:
                    busy()
                    return TransactionState.COMMIT

                return made.send_in_transaction("orders", b"one", execute=execute)

            await cancelled_meanwhile(begin)
            await eventually(lambda: len(cluster.brokers["broker-a"].records("orders")) == 1)

    with RunningCluster(topics={"orders": 1}) as cluster:
        asyncio.run(run(cluster))


@pytest.mark.parametrize("by_hand", [True, False], ids=["close", "async with"])
@pytest.mark.parametrize("kind", [AsyncProducer, AsyncSimpleConsumer])
def test_what_is_to_be_closed_is_closed(kind: type[AsyncProducer | AsyncSimpleConsumer], by_hand: bool) -> None:
    async def run(cluster: RunningCluster) -> None:
        made = kind(cluster.namesrv, group="workers")
        with mock.patch.object(made._sync, "close", wraps=made._sync.close) as close:

            def begin(busy: Callable[[], None]) -> Awaitable[object]:
                busy()
                return made.close() if by_hand else made.__aexit__(None, None, None)

            await cancelled_meanwhile(begin)
            await eventually(lambda: close.call_count == 1)

    with RunningCluster(topics={"orders": 1}) as cluster:
        asyncio.run(run(cluster))


def test_it_is_carried_out_also_as_the_program_ends() -> None:
    may_go_on, done = threading.Event(), list[bool]()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        loop.run_in_executor(None, may_go_on.wait, 60)
        ending = asyncio.ensure_future(to_the_end(done.append, True))
        await asyncio.sleep(0)
        assert not ending.done()
        threading.Timer(0.1, may_go_on.set).start()

    asyncio.run(run())
    assert done == [True]
