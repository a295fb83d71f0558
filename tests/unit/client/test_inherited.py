"""Clients in a process that was forked: each call says whose they are, and their own process goes on."""

from __future__ import annotations

import asyncio
import os
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, Producer, PullConsumer, SimpleConsumer
from penstock.client.aio import AsyncProducer
from penstock.proto.errors import ClientClosed
from tests.support.client.running_cluster import RunningCluster

TOPIC = "orders"


def in_child(work: Callable[[], object]) -> Any:
    """What ``work`` returns in a forked child, or the error that it raises."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are what this is about
        child = os.fork()
    if not child:
        try:
            told = work()
        except BaseException as error:
            told = error
        os.write(writing, pickle.dumps(told))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return told


CALLS: dict[str, Callable[[Producer], object]] = {
    "send": lambda producer: producer.send(TOPIC, b"x"),
    "send_async": lambda producer: producer.send_async(TOPIC, b"x"),
    "produce": lambda producer: producer.produce(TOPIC, b"x"),
    "flush": lambda producer: producer.flush(),
    "with": lambda producer: producer.__enter__(),
}


def test_a_producer_in_a_child_refuses_and_its_parent_sends_on() -> None:
    with RunningCluster(topics={TOPIC: 2}) as cluster, Producer(cluster.namesrv) as producer:
        producer.send(TOPIC, b"before")
        for name, call in CALLS.items():
            error = in_child(lambda call=call: call(producer))  # type: ignore[misc]
            assert isinstance(error, ClientClosed), name
            assert "the Producer was made in process" in str(error), name
        assert in_child(lambda: producer.close()) is None
        assert isinstance(in_child(producer.close), ClientClosed), "a method that was kept, as for atexit"
        assert in_child(lambda: producer.group) == "DEFAULT_PRODUCER"
        producer.send(TOPIC, b"after")
        assert sorted(cluster.brokers["broker-a"].bodies(TOPIC)) == [b"after", b"before"]


def test_an_admin_in_a_child_refuses() -> None:
    with RunningCluster(topics={TOPIC: 2}) as cluster, Admin(cluster.namesrv) as admin:
        assert isinstance(in_child(lambda: admin.list_topics()), ClientClosed)
        assert TOPIC in admin.list_topics()


@pytest.mark.parametrize("kind", [PullConsumer, SimpleConsumer])
def test_a_consumer_in_a_child_refuses_and_its_parent_consumes_on(kind: type[PullConsumer | SimpleConsumer]) -> None:
    with RunningCluster(topics={TOPIC: 2}) as cluster, kind(cluster.namesrv, group="billing") as consumer:
        consumer.subscribe(TOPIC)
        error = in_child(lambda: consumer.subscribe("other"))
        assert isinstance(error, ClientClosed)
        assert f"the {kind.__name__} was made in process" in str(error)
        assert in_child(lambda: consumer.close()) is None
        consumer.unsubscribe(TOPIC)


def test_an_asyncio_producer_in_a_child_refuses() -> None:
    with RunningCluster(topics={TOPIC: 2}) as cluster:
        producer = AsyncProducer(cluster.namesrv)
        error = in_child(lambda: asyncio.run(producer.send(TOPIC, b"x")))
        assert isinstance(error, ClientClosed)
        asyncio.run(producer.close())
