"""The gateway's view of the cluster: lookups of topics that it does not know, and calls that nobody waits for."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client import TopicNotFound
from penstock.gateway.v2.brokers import Brokers
from penstock.proto.data_frames import Method
from penstock.proto.wire.nameserver_pb2 import ShardView, TopicRoute
from tests.support.broker.kit import in_loop
from tests.support.waiting import eventually


class Directory:
    """Knows nothing by itself; its nameserver answers when it may."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = threading.Semaphore(0)

    def known(self, topic: str) -> None:
        return None

    def route(self, topic: str, timeout_s: float) -> TopicRoute:
        self.asked.append(topic)
        self.answers.acquire()
        return TopicRoute(topic=topic, shards=[ShardView(broker_name="broker-a")], exists=topic == "made")

    def topic(self, topic: str, timeout_s: float) -> TopicRoute:
        return TopicRoute(topic=topic, exists=True)


@in_loop
async def test_many_who_ask_for_one_topic_are_one_lookup_that_began_after_they_asked() -> None:
    directory = Directory()
    with ThreadPoolExecutor(1) as threads:
        brokers = Brokers(cast(Any, SimpleNamespace(directory=directory)), threads)
        first = asyncio.create_task(brokers.route("made up"))
        await eventually(lambda: directory.asked == ["made up"])
        crowd = [asyncio.create_task(brokers.route("made up")) for _ in range(1000)]
        other = asyncio.create_task(brokers.route("made"))
        crowd[0].cancel()
        await asyncio.sleep(0)
        directory.answers.release(3)
        assert (await other).exists
        found = await asyncio.gather(first, *crowd, return_exceptions=True)
    assert directory.asked == ["made up", "made up", "made"]
    assert [type(each) for each in found].count(TopicNotFound) == 1000
    assert isinstance(found[1], asyncio.CancelledError)
    with pytest.raises(TopicNotFound, match="create it"):
        raise found[0]  # type: ignore[misc]


class Knowing:
    """Knows every master."""

    def master(self, broker_name: str) -> str:
        return "127.0.0.1:1"


@in_loop
async def test_what_came_as_its_caller_left_is_told() -> None:
    answer: Future[bytes] = Future()
    late: list[bytes] = []
    connections = SimpleNamespace(ask=lambda *_, **__: answer)
    with ThreadPoolExecutor(1) as threads:
        brokers = Brokers(cast(Any, SimpleNamespace(directory=Knowing(), connections=connections)), threads)
        asking = asyncio.create_task(
            brokers.at_data_port("broker-a", Method.RECEIVE, b"", bytes, 10.0, late=late.append)
        )
        await asyncio.sleep(0)
        threads.submit(answer.set_result, b"messages").result()  # the loop has not looked when it is cancelled
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert late == [b"messages"]
