"""A producer that is closed while other threads use it: every message has an outcome, or its call says closed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

from penstock.client import Message, Producer
from penstock.client.produce.parts import Batch, Part
from penstock.formats.destination import Ordinary
from penstock.proto.errors import ClientClosed, DeliveryFailed
from tests.support.client.running_cluster import RunningCluster, stored

TOPIC = "orders"


def close_elsewhere(producer: Producer) -> None:
    closer = threading.Thread(target=producer.close)
    closer.start()
    closer.join(20)
    assert not closer.is_alive()


def test_a_message_appended_before_the_close_is_sent_by_it(one: RunningCluster) -> None:
    producer = Producer(one.namesrv, linger_ms=10_000)
    producer.prepare(TOPIC)
    accumulator = producer._open[TOPIC]
    append = accumulator.append

    def append_and_be_overtaken(body: bytes) -> None:
        append(body)
        close_elsewhere(producer)

    accumulator.append = append_and_be_overtaken  # type: ignore[assignment,method-assign]
    producer.produce(TOPIC, b"in time")
    assert stored(one) == [b"in time"]


def test_a_message_appended_after_the_close_raises_and_is_not_sent(one: RunningCluster) -> None:
    producer = Producer(one.namesrv, linger_ms=10_000)
    producer.prepare(TOPIC)
    accumulator = producer._open[TOPIC]
    producer.close()
    producer._open[TOPIC] = accumulator  # a thread that had looked it up before the close
    with pytest.raises(ClientClosed):
        producer.produce(TOPIC, b"too late", tag="paid")
    assert stored(one) == []
    assert len(accumulator) == 0


@pytest.mark.parametrize("call", ["send", "send_async", "send_oneway", "send_batch", "produce_many"])
def test_every_way_to_send_says_closed_when_it_comes_after_the_last_look(one: RunningCluster, call: str) -> None:
    producer = Producer(one.namesrv)
    producer.prepare(TOPIC)
    delivery = producer._deliveries.known[Ordinary(TOPIC)]
    producer.close()
    producer._deliveries.is_closed = False  # as the thread saw it that had passed the check before the close
    arguments: dict[str, tuple[Any, ...]] = {
        "send_batch": ([Message(TOPIC, b"x")],),
        "produce_many": (TOPIC, [b"x", b"y"]),
    }
    with pytest.raises(ClientClosed):
        getattr(producer, call)(*arguments.get(call, (TOPIC, b"x")))
    assert len(delivery.open) == 0
    assert producer.pending == 0
    assert stored(one) == []


def test_what_was_given_up_before_it_left_is_not_sent_any_more(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer:
        producer.prepare(TOPIC)
        delivery = producer._deliveries.known[Ordinary(TOPIC)]
        start, calls = delivery.start_now, []

        def start_and_be_overtaken(part: Part) -> Batch | None:
            batch = start(part)
            delivery.give_up(ClientClosed("closed by another thread"))
            calls.append(batch)
            return batch

        delivery.start_now = start_and_be_overtaken  # type: ignore[method-assign]
        with pytest.raises(ClientClosed):
            producer.send(TOPIC, b"not to be stored")
        assert calls[0] is not None
        assert stored(one) == []


def test_close_lists_what_it_gave_up_and_nothing_twice(one: RunningCluster) -> None:
    producer = Producer(one.namesrv)
    producer.prepare(TOPIC)
    one.kill("broker-a")
    for number in range(5):
        producer.produce(TOPIC, b"%d" % number)
    with pytest.raises(DeliveryFailed) as raised:
        producer.close(timeout_s=0.1)
    assert sum(each.count for each in [*raised.value.refused, *raised.value.unknown]) == 5


def test_closing_under_load_loses_nothing_silently(one: RunningCluster) -> None:
    for _ in range(5):
        producer = Producer(one.namesrv, linger_ms=1, batch_count_max=50)
        producer.prepare(TOPIC)
        before = len(stored(one))
        accepted = [0] * 3
        begun = threading.Barrier(4)

        def produce(thread: int, producer: Producer, begun: threading.Barrier, accepted: list[int]) -> None:
            begun.wait()
            with contextlib.suppress(ClientClosed):
                while True:
                    producer.produce(TOPIC, b"x")
                    accepted[thread] += 1

        threads = [threading.Thread(target=produce, args=(n, producer, begun, accepted)) for n in range(3)]
        for thread in threads:
            thread.start()
        begun.wait()
        failed = 0
        try:
            producer.close()
        except DeliveryFailed as error:
            assert not error.unknown
            failed = sum(each.count for each in error.refused)
        for thread in threads:
            thread.join(20)
        assert len(stored(one)) - before + failed == sum(accepted)
