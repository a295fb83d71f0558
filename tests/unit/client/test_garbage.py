"""What passes through clients and broker is given back as soon as it is done with, not when Python's collector comes.

Else each answer is received into fresh memory, which costs more than all else that a consumer does with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from types import FrameType

import pytest

from penstock.client import Producer
from penstock.client.aio import AsyncProducer, AsyncPullConsumer
from penstock.client.simple_consumer import SimpleConsumer
from tests.support.client.pull_consumers import QUICK, consumer
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

COUNT, AT_ONCE, BODY_BYTES = 40, 5, 8_000
LARGE_BYTES = 5_000


def _poll(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        with nothing_large_left():
            left = COUNT
            while left:
                left -= len(puller.poll(5, max_messages=7))


def _poll_batch(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        with nothing_large_left():
            left = COUNT
            while left:
                left -= len(puller.poll_batch(5, max_messages=7))


def _close(cluster: RunningCluster) -> None:
    with nothing_large_left():
        puller = consumer(cluster)
        puller.subscribe("orders")
        assert puller.poll(5, max_messages=1)
        queues = puller._core.buffers.queues
        wait_until(lambda: sum(each.held_messages for each in queues.values()) >= COUNT - 1, what="the rest")
        puller.close()
        del puller


def _receive(cluster: RunningCluster) -> None:
    with SimpleConsumer(cluster.namesrv, group="popped", consume_from="first") as receiver:
        receiver.subscribe("orders")
        with nothing_large_left():
            left = COUNT
            while left:
                received = receiver.receive(7, 5)
                receiver.ack(received)
                left -= len(received)


def _poll_in_a_loop(cluster: RunningCluster) -> None:
    async def work() -> None:
        async with AsyncPullConsumer(cluster.namesrv, group="g", consume_from="first", config=QUICK) as puller:
            await puller.subscribe("orders")
            with nothing_large_left():
                left = COUNT
                while left:
                    left -= len(await puller.poll(5, max_messages=7))

    asyncio.run(work())


def _send(cluster: RunningCluster) -> None:
    with Producer(cluster.namesrv) as producer, nothing_large_left():
        for _ in range(COUNT):
            producer.produce("orders", bytes(BODY_BYTES))
        producer.flush()
        producer.send("orders", bytes(BODY_BYTES))


def _send_in_a_loop(cluster: RunningCluster) -> None:
    async def work() -> None:
        async with AsyncProducer(cluster.namesrv) as producer:
            with nothing_large_left():
                await asyncio.gather(*(producer.send("orders", bytes(BODY_BYTES)) for _ in range(COUNT)))

    asyncio.run(work())


@pytest.mark.parametrize("use", [_poll, _poll_batch, _close, _receive, _poll_in_a_loop, _send, _send_in_a_loop])
def test_what_is_done_with_is_not_left_to_pythons_collector(use: Callable[[RunningCluster], None]) -> None:
    with RunningCluster(topics={"orders": 2}) as cluster:
        for number in range(COUNT // AT_ONCE):
            cluster.put("orders", [bytes(BODY_BYTES)] * AT_ONCE, number % 2)
        use(cluster)


@contextlib.contextmanager
def nothing_large_left() -> Iterator[None]:
    """Fails if what becomes garbage in the ``with`` block holds anything large."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        held = [
            f"{type(garbage).__name__} holds {len(each)} bytes"
            for garbage in gc.garbage
            for each in gc.get_referents(garbage)
            if isinstance(each, bytes) and len(each) > LARGE_BYTES  # the buffers of connections are no bytes
            if not (isinstance(garbage, FrameType) and garbage.f_globals["__name__"].startswith("tests."))
        ]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not held, f"left to the collector: {held[:5]}"
