"""The asyncio twins: same consumers, awaited."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.client.aio.consumers import AsyncPullConsumer, AsyncPushConsumer
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.push_consumer import ConsumeResult
from penstock.proto.errors import ConfigError, GroupNotFound, InvalidArgument
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import eventually, wait_until

QUICK = ConsumerConfig(commit_interval_ms=30, retry_delays_ms=(20,))
Q0 = MessageQueue("orders", "broker-a", 0)


def with_cluster(**settings: object) -> Callable[[Callable[[RunningCluster], Awaitable[None]]], Callable[[], None]]:
    def decorated(test: Callable[[RunningCluster], Awaitable[None]]) -> Callable[[], None]:
        def run() -> None:
            with RunningCluster(topics={"orders": 2}, **settings) as cluster:
                asyncio.run(asyncio.wait_for(test(cluster), 30))  # type: ignore[arg-type]

        run.__name__ = test.__name__
        return run

    return decorated


def puller(cluster: RunningCluster, **options: Any) -> AsyncPullConsumer:
    return AsyncPullConsumer(cluster.namesrv, **({"group": "g", "consume_from": "first", "config": QUICK} | options))


def _workers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock-consume")]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@with_cluster()
async def test_poll_commit_and_positions_work_as_in_the_other_consumer(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    async with puller(cluster, auto_commit=False) as made:
        await made.subscribe("orders")
        got = await made.poll(5, max_messages=4)
        assert [each.body for each in got] == numbered(4)
        await made.commit()
        assert await made.committed(Q0) == 4
        made.seek(Q0, 8)
        assert (await made.poll_batch(5)).bodies() == numbered(2, 8)
        await made.seek_to_begin([Q0])
        assert made.position(Q0) == 0
        made.pause()
        assert await made.poll(0.1) == []
        made.resume()
        assert len(await made.poll(5)) == 10
        assert await made.queues("orders") == made.assignment()
        assert await made.offset_for_time(Q0, 0) == 0


@with_cluster()
async def test_the_loop_runs_on_while_a_poll_waits_and_the_message_wakes_it(cluster: RunningCluster) -> None:
    async with puller(cluster) as made:
        await made.subscribe("orders")
        await eventually(lambda: len(made.assignment()) == 2)
        poll = asyncio.create_task(made.poll(60))
        await eventually(lambda: cluster.brokers["broker-a"].faults.requests["Fetch"], what="a fetch")
        assert not poll.done()
        await asyncio.to_thread(cluster.put, "orders", [b"x"], 1)
        assert [each.body for each in await asyncio.wait_for(poll, 20)] == [b"x"]


@with_cluster()
async def test_a_cancelled_poll_takes_nothing_with_it(cluster: RunningCluster) -> None:
    async with puller(cluster) as made:
        await made.subscribe("orders")
        await eventually(lambda: len(made.assignment()) == 2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(made.poll(20), 0.1)
        await asyncio.to_thread(cluster.put, "orders", numbered(5), 0)
        assert [each.body for each in await made.poll(5)] == numbered(5)


@with_cluster()
async def test_iterating_ends_with_close(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    got = []
    async with puller(cluster) as made:
        await made.subscribe("orders")
        async for message in made:
            got.append(message.body)
            if len(got) == 5:
                await made.close()
    assert got == numbered(5)
    assert cluster.committed("g", "orders", 0) == 5


@with_cluster()
async def test_an_async_listener_runs_in_the_loop_many_at_a_time(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(8), 0)
    loop = asyncio.get_running_loop()
    running, most, tries = 0, 0, 0
    together = asyncio.Event()

    async def listener(message: MessageView) -> ConsumeResult:
        nonlocal running, most, tries
        assert asyncio.get_running_loop() is loop
        running += 1
        most = max(most, running)
        if running == 8:
            together.set()
        await together.wait()
        running -= 1
        if message.body == b"3" and message.reconsume_times == 0:
            tries += 1
            return ConsumeResult.RETRY_LATER
        return ConsumeResult.SUCCESS

    made = AsyncPushConsumer(
        cluster.namesrv, group="g", consume_from="first", config=QUICK, listener=listener, consume_threads=8
    )
    made.subscribe("orders")
    async with made:
        await eventually(lambda: cluster.committed("g", "orders", 0) == 8)
        assert MessageQueue("orders", "broker-a", 1) in made.assignment()
    assert (most, tries) == (8, 1)


@with_cluster()
async def test_an_exit_in_an_async_listener_or_callback_is_its_failure_and_the_program_goes_on(
    cluster: RunningCluster,
) -> None:
    await asyncio.to_thread(cluster.retry_soon)
    cluster.put("orders", numbered(2), 0)
    tries: list[tuple[bytes, int]] = []

    async def listener(message: MessageView) -> None:
        tries.append((message.body, message.reconsume_times))
        if message.body == b"0" and not message.reconsume_times:
            raise SystemExit(3)

    async def on_assigned(queues: list[MessageQueue]) -> None:
        raise SystemExit(4)

    made = AsyncPushConsumer(
        cluster.namesrv, group="g", consume_from="first", config=QUICK, listener=listener, on_assigned=on_assigned
    )
    made.subscribe("orders")
    async with made:
        await eventually(lambda: len(tries) == 3)
    assert sorted(tries) == [(b"0", 0), (b"0", 1), (b"1", 0)]


@with_cluster()
async def test_a_plain_listener_and_a_signal(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    got: list[bytes] = []
    made = AsyncPushConsumer(
        cluster.namesrv, group="g", consume_from="first", config=QUICK, listener=lambda m: got.append(m.body)
    )
    made.subscribe("orders")
    async with made:
        assert await made.wait(0.05) is False
        await eventually(lambda: len(got) == 5)
        asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGTERM)
        assert await made.wait(10) is True


def test_closing_while_listeners_run_says_so_without_a_trace(caplog: pytest.LogCaptureFixture) -> None:
    async def run(cluster: RunningCluster) -> None:
        began = asyncio.Event()

        async def listener(message: MessageView) -> None:
            began.set()
            await asyncio.sleep(60)

        made = AsyncPushConsumer(cluster.namesrv, group="g", consume_from="first", listener=listener, config=QUICK)
        made.subscribe("orders")
        await made.start()
        await began.wait()
        await made.close(timeout_s=0.3)

    with RunningCluster(topics={"orders": 1}) as cluster:
        cluster.put("orders", numbered(3), 0)
        asyncio.run(run(cluster))  # ends by cancelling what still runs in the loop
        wait_until(lambda: not _workers(), what="the workers' end")
    assert "did not return in time" in caplog.text
    assert "listener failed" not in caplog.text
    own = [each for each in caplog.records if "PollerCompletionQueue" not in each.getMessage()]  # gRPC's own noise
    assert not any(each.exc_info for each in own)


@with_cluster()
async def test_a_listener_that_closes_its_consumer_is_not_waited_for(cluster: RunningCluster) -> None:
    await _closed_by_its_listener(cluster, lambda closing: closing)


@with_cluster()
async def test_nor_is_one_that_has_a_task_of_its_own_close_it(cluster: RunningCluster) -> None:
    await _closed_by_its_listener(cluster, asyncio.create_task)  # so does `asyncio.wait_for` before Python 3.12


async def _closed_by_its_listener(cluster: RunningCluster, how: Callable[[Any], Awaitable[None]]) -> None:
    cluster.put("orders", numbered(5), 0)
    others = asyncio.Event()

    async def listener(message: MessageView) -> None:
        if message.body == b"2":
            await others.wait()
            await how(made.close(timeout_s=3600))
        elif message.body == b"4":
            others.set()

    made = AsyncPushConsumer(cluster.namesrv, group="g", consume_from="first", config=QUICK, listener=listener)
    made.subscribe("orders")
    async with made:
        assert await made.wait(20)
        await eventually(lambda: not _workers(), what="the workers' end")
    assert cluster.committed("g", "orders", 0) == 2


@with_cluster()
async def test_a_negative_time_out_is_refused(cluster: RunningCluster) -> None:
    async with puller(cluster) as made:
        await made.subscribe("orders")
        for call in (made.poll, made.poll_batch, made.close):
            with pytest.raises(InvalidArgument, match="timeout_s=-1"):
                await call(timeout_s=-1)


@with_cluster(autoCreateSubscriptionGroup="false")
async def test_wait_raises_what_broke_the_consumer(cluster: RunningCluster) -> None:
    made = AsyncPushConsumer(cluster.namesrv, group="g", listener=print, config=QUICK)
    made.subscribe("orders")
    async with made:
        with pytest.raises(GroupNotFound):
            await made.wait(10)


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="callable"):
        AsyncPushConsumer("127.0.0.1:1", group="g", listener=None)  # type: ignore[arg-type]
