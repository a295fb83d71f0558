"""What producers and consumers count."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.client import Latency, Producer
from penstock.client.aio import AsyncProducer
from penstock.client.push_consumer import ConsumeResult
from penstock.client.statistics import BUCKETS, Stopwatch, latency_of
from penstock.proto.errors import NotEnoughReplicas, Refused, Retryable
from tests.support.client import push_consumers
from tests.support.client.pull_consumers import Q0, Q1, begun, consumer, numbered, poll_all
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_a_latency_has_the_mean_the_longest_and_quantiles_within_a_fifth() -> None:
    first, second = Stopwatch(), Stopwatch()
    assert latency_of([first, second]) == latency_of([]) == Latency()
    first.add(0.010, 98)
    second.add(1.0)
    second.add(0.0)
    found = latency_of([first, second])
    assert (found.count, found.max_ms) == (100, 1000.0)
    assert found.mean_ms == pytest.approx(19.8)
    assert 10 <= found.p50_ms <= 12
    assert 10 <= found.p99_ms <= 12
    second.add(1e9)
    assert latency_of([second]).p99_ms <= latency_of([second]).max_ms == 1e12
    assert len(second.counts) == BUCKETS


def test_a_producer_counts_outcomes_and_tries(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults
    with Producer(cluster.namesrv, send_timeout_s=30) as producer:
        assert producer.statistics().append == Latency()
        producer.send("orders", b"1")
        producer.produce_many("orders", numbered(10))
        producer.flush()
        faults.refuse("Append", NotEnoughReplicas("too few"), times=1)
        producer.send("orders", b"2", timeout_s=20)
        faults.refuse("Append", NotEnoughReplicas("too few"))
        with pytest.raises((Refused, Retryable)):
            producer.send("orders", b"3", timeout_s=0.1)
        faults.heal()
        found = producer.statistics()
        assert (found.acknowledged, found.refused, found.unknown, found.pending) == (12, 1, 0, 0)
        assert found.pending_bytes == 0
        assert found.batches == found.append.count
        assert found.failed_tries >= 2
        assert 0 < found.append.p50_ms <= found.append.p99_ms <= found.append.max_ms


def test_a_pull_consumer_counts_what_came_and_what_was_returned(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        wait_until(lambda: puller.statistics().received == 10, what="every message")
        before = puller.statistics()
        assert (before.queues, before.handed_out, before.listener) == (2, 0, Latency())
        assert before.buffered_bytes == before.received_bytes > 0
        poll_all(puller, 10)
        after = puller.statistics()
        assert (after.handed_out, after.buffered_bytes, after.received) == (10, 0, 10)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_push_consumer_counts_its_listeners_calls(cluster: RunningCluster, orderly: bool) -> None:
    cluster.put("orders", numbered(10), 0)
    tries: list[bytes] = []

    def listener(message: object) -> object:
        body = message.body  # type: ignore[attr-defined]
        tries.append(body)
        return ConsumeResult.RETRY_LATER if tries.count(b"3") == 1 and body == b"3" else None

    cluster.retry_soon()
    with push_consumers.consumer(cluster, listener, orderly=orderly) as made:
        wait_until(lambda: made.statistics().listener.count == 11, what="every call")
        found = made.statistics()
    assert found.failed == 1
    assert found.handed_out == found.received == (10 if orderly else 11)
    assert len(tries) == 11


def test_the_asyncio_twins_tell_the_same(cluster: RunningCluster) -> None:
    async def main() -> None:
        async with AsyncProducer(cluster.namesrv, send_timeout_s=30) as producer:
            await producer.send("orders", b"1")
            assert producer.statistics().acknowledged == 1

    asyncio.run(main())
