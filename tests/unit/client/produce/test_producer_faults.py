"""Everything goes wrong at once: each message is stored exactly once, in order, or reported."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator

import pytest

from penstock.client import Producer
from penstock.proto.errors import FlowControl, NotEnoughReplicas, PenstockError
from penstock.proto.wire.broker_pb2 import AppendHeader
from tests.support.client.faults import Refusal
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

TOPIC = "orders"
KEYS = 7
COUNT = 4000


def refusing(randomness: random.Random) -> Refusal:
    def hook(header: AppendHeader, records: memoryview) -> PenstockError | None:
        chance = randomness.random()
        if chance < 0.1:
            return NotEnoughReplicas("too few")
        return FlowControl("busy") if chance < 0.15 else None

    return hook


@contextlib.contextmanager
def disturbed(cluster: RunningCluster, randomness: random.Random) -> Iterator[None]:
    """Refused batches, lost answers and deaths of the broker for the length of the block."""
    faults, stop = cluster.brokers["broker-a"].faults, threading.Event()

    def disturb() -> None:
        while not stop.wait(0.05):
            faults.heal()
            faults.refuse("Append", refusing(randomness))
            faults.drop_answers("Append", randomness.randrange(3))
            if randomness.random() < 0.3:
                cluster.kill("broker-a")
                stop.wait(randomness.random() * 0.1)
                cluster.revive("broker-a")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        yield
    finally:
        stop.set()
        disturber.join()


@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_refusals_and_restarts_neither_lose_nor_double_nor_reorder(seed: int) -> None:
    randomness = random.Random(seed)
    with RunningCluster(topics={TOPIC: 12}) as cluster:
        broker = cluster.brokers["broker-a"]
        with Producer(cluster.namesrv, batch_count_max=100, delivery_timeout_s=60, send_retries=100) as producer:
            producer.prepare(TOPIC)

            def produce(thread: int) -> None:
                for number in range(COUNT):
                    producer.produce(TOPIC, b"%d-%d" % (thread, number), sharding_key=f"key-{number % KEYS}")

            with disturbed(cluster, randomness):
                threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                loose = [b"loose-%d" % number for number in range(COUNT)]
                producer.produce_many(TOPIC, loose)
                receipts = [producer.send(TOPIC, b"sent-%d" % number, timeout_s=30) for number in range(30)]
            producer.flush(60)
        stored = broker.bodies(TOPIC)
        expected = [b"%d-%d" % (thread, number) for thread in range(2) for number in range(COUNT)]
        expected += [*loose, *(b"sent-%d" % number for number in range(30))]
        assert sorted(stored) == sorted(expected), f"seed {seed}"
        for thread in range(2):
            for key in range(KEYS):
                mine = [b"%d-%d" % (thread, number) for number in range(key, COUNT, KEYS)]
                wanted = set(mine)
                in_queues = [
                    [body for body in broker.bodies(TOPIC, queue_id) if body in wanted] for queue_id in range(12)
                ]
                assert [found for found in in_queues if found] == [mine], f"seed {seed} key {key}"
        for number, receipt in enumerate(receipts):
            assert broker.bodies(TOPIC, receipt.queue_id)[receipt.queue_offset] == b"sent-%d" % number


def test_what_a_frozen_master_has_not_answered_is_sent_again_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.produce.delivery.TRY_TIMEOUT_S", 3600)
    with RunningCluster(topics={"orders": 1}) as cluster, Producer(cluster.namesrv) as producer:
        producer.send("orders", b"before")
        faults, directory = cluster.brokers["broker-a"].faults, producer._calls.directory
        producer._deliveries._on_route(directory.topic("orders"))  # who is master now
        before = faults.calls["Append"]
        with faults.holding("Append"):
            answer = producer.send_async("orders", b"under way", timeout_s=3600)
            wait_until(
                lambda: len(faults.requests["Append"]) == 2, what="the batch at the broker, which does not answer"
            )
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(directory, "master", lambda name: "127.0.0.1:1")
                producer._deliveries._on_route(directory.topic("orders"))
            wait_until(lambda: faults.calls["Append"] > before, what="another stream, though nothing broke the first")
        assert answer.result(60).broker_name == "broker-a"
        assert cluster.brokers["broker-a"].bodies("orders", 0) == [b"before", b"under way"]


def test_a_batch_that_is_sent_again_says_so() -> None:
    told: list[bool] = []

    def listen(header: AppendHeader, records: memoryview) -> PenstockError | None:
        told.append(header.again)
        return None

    with RunningCluster(topics={TOPIC: 1}) as cluster:
        faults = cluster.brokers["broker-a"].faults
        with Producer(cluster.namesrv) as producer:
            producer.prepare(TOPIC)
            faults.refuse("Append", listen)
            faults.drop_answers("Append", 1)
            producer.send(TOPIC, b"once", timeout_s=30)
            producer.send(TOPIC, b"fresh", timeout_s=30)
        assert cluster.brokers["broker-a"].bodies(TOPIC) == [b"once", b"fresh"]
    assert told == [False, True, False]
