"""The producer's buffer: what it holds, who waits for room in it, and what is told in vain waits."""

from __future__ import annotations

import contextlib

import pytest

from penstock.client import Message, Producer
from penstock.client.produce.parts import WAITING_COST
from penstock.proto.errors import BufferFull, DeliveryFailed, DiskFull
from tests.support.client.running_cluster import RunningBroker, RunningCluster, stored

TOPIC = "orders"


def test_a_full_buffer_blocks_and_then_refuses_without_accepting(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv, buffer_bytes=64 * 1024, batch_bytes_max=4096) as producer:
        producer.prepare(TOPIC)
        accepted = 0
        with broker.faults.holding("Append"):
            with pytest.raises(BufferFull, match="of 65536 bytes"):  # noqa: PT012  which call is refused is the question
                for _ in range(10_000):
                    producer.produce(TOPIC, b"x" * 500, timeout_s=0.05)
                    accepted += 1
            for _ in range(3000):  # nor afterwards, whoever seals what is open
                with contextlib.suppress(BufferFull):
                    producer.produce(TOPIC, b"x" * 500, timeout_s=0)
                    accepted += 1
            assert accepted * 500 < 64 * 1024 + 2 * 4096
            with pytest.raises(BufferFull) as caught:
                producer.produce_many(TOPIC, [b"y" * 500] * 1000, timeout_s=0.05)
        accepted += caught.value.details["accepted"]
        producer.flush()
        assert len(stored(one)) == accepted


def test_a_buffer_that_is_smaller_than_a_batch_holds_no_more_than_it_says(
    one: RunningCluster, broker: RunningBroker
) -> None:
    with Producer(one.namesrv, buffer_bytes=64 * 1024, linger_ms=10_000) as producer:
        producer.prepare(TOPIC)
        accepted = 0
        with broker.faults.holding("Append"):
            with pytest.raises(BufferFull):  # noqa: PT012  which call is refused is the question
                for _ in range(10_000):
                    producer.produce(TOPIC, b"x" * 500, timeout_s=0)
                    accepted += 1
            assert 0 < accepted * 500 <= 64 * 1024
        producer.flush()
        assert len(stored(one)) == accepted


def test_who_waits_in_vain_for_room_or_for_all_is_told_what_brokers_say(
    one: RunningCluster, broker: RunningBroker
) -> None:
    with Producer(one.namesrv, buffer_bytes=64 * 1024) as producer:
        producer.prepare(TOPIC)
        broker.faults.refuse("Append", DiskFull("disk 96 % full"))
        with pytest.raises(BufferFull, match="look at the brokers; the last try ended with: disk 96 % full"):  # noqa: PT012
            while True:
                producer.produce(TOPIC, b"x" * 500, timeout_s=0.5)
        with pytest.raises(DeliveryFailed, match="delivery goes on; the last try ended with: disk 96 % full"):
            producer.flush(timeout_s=0.1)
        broker.faults.heal()
        producer.flush()


def test_messages_with_futures_fill_the_buffer_sooner_and_leave_nothing_counted(
    one: RunningCluster, broker: RunningBroker
) -> None:
    room = 100 * WAITING_COST
    with Producer(one.namesrv, buffer_bytes=room, batch_count_max=7, send_timeout_s=60) as producer:
        producer.prepare(TOPIC)
        with broker.faults.holding("Append"):
            messages = [Message(TOPIC, b"%d" % number, sharding_key=f"k{number % 5}") for number in range(60)]
            futures = producer.send_batch_async(messages)
            with pytest.raises(BufferFull, match=f"of {room} bytes"):
                producer.send_batch_async(messages, timeout_s=0.05)
            assert 60 * WAITING_COST < producer.statistics().pending_bytes < room
        assert all(future.result(60).message_id for future in futures)
        producer.flush()
        assert producer.statistics().pending_bytes == 0
    assert len(stored(one)) == 60
