"""A load on Kafka by librdkafka's Python client: ``python kafka_load.py ADDRESS KIND SIZE SECONDS COUNT``.

It runs in the environment of that client, so it imports nothing of ours. It prints one JSON document: for ``produce``
messages per second that the broker has, for ``consume`` those that were received as objects and whose values were read,
with default and with tuned settings, for ``send`` p50 and p99 in ms of sends that wait. ``replicated`` is ``produce``
to two replicas that both have what is acknowledged.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

TOPIC, QUEUES = "bench", 8
WAIT_S = 120.0
SLICE = 256
AT_ONCE = 10_000
TUNED = {
    "fetch.min.bytes": 100_000,
    "fetch.wait.max.ms": 10,
    "fetch.message.max.bytes": 4 << 20,
    "queued.min.messages": 1_000_000,
}
"""Settings of consumers for throughput."""


@functools.cache
def client(name: str = "confluent_kafka") -> Any:
    """The module of that client, which only its environment has."""
    return importlib.import_module(name)


def main() -> None:
    address, kind = sys.argv[1:3]
    size, seconds, count = int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
    admin = client("confluent_kafka.admin")
    maker = admin.AdminClient({"bootstrap.servers": address})  # kept: its futures end with it
    topic = admin.NewTopic(TOPIC, QUEUES, 1)
    if kind == "replicated":
        topic = admin.NewTopic(TOPIC, QUEUES, 2, config={"min.insync.replicas": "2"})
        while len(maker.list_topics(timeout=WAIT_S).brokers) < 2:
            time.sleep(0.05)
    made = maker.create_topics([topic], operation_timeout=WAIT_S, request_timeout=WAIT_S)
    made[TOPIC].result(WAIT_S)
    print(json.dumps(KINDS[kind](address, bytes(size), seconds, count)))


def producer_of(address: str, **settings: object) -> Any:
    """A producer whose broker acknowledges what it has in its page cache."""
    return client().Producer({"bootstrap.servers": address, "acks": "1", **settings})


def produce(address: str, body: bytes, seconds: float, _: int, acks: str = "1") -> dict[str, float]:
    """Warm up for as long as is measured."""
    producer = producer_of(address, acks=acks, **{"queue.buffering.max.messages": 1_000_000})
    for _ in range(2):
        before, began = stored(address), time.monotonic()
        fill(producer, body, seconds=seconds)
        took = time.monotonic() - began
    return {"rate": (stored(address) - before) / took}


def fill(producer: Any, body: bytes, seconds: float = 1e9, count: int = 1 << 60) -> None:
    """Produce for so long, or so many, until all are acknowledged."""
    ends_at, sent = time.monotonic() + seconds, 0
    while time.monotonic() < ends_at and sent < count:
        for _ in range(SLICE):
            while True:
                try:
                    producer.produce(TOPIC, body)
                    break
                except BufferError:
                    producer.poll(0.01)
        sent += SLICE
        producer.poll(0)
    if left := producer.flush(WAIT_S):
        sys.exit(f"{left} messages were not acknowledged")


def stored(address: str) -> int:
    """How many messages the broker has: what was refused is not counted."""
    looker = consumer_of(address, "bench-look")
    count = sum(end_of(looker, queue) for queue in range(QUEUES))
    looker.close()
    return count


def end_of(looker: Any, queue: int) -> int:
    """Where a queue ends. One that was just made may have no leader yet: asked again until then."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return int(looker.get_watermark_offsets(client().TopicPartition(TOPIC, queue), WAIT_S)[1])
        except client().KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def consumer_of(address: str, group: str, **settings: object) -> Any:
    """A member of a group that reads from the first message on."""
    told = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    return client().Consumer({**told, **settings})


def consume(address: str, body: bytes, _: float, count: int) -> dict[str, float]:
    """A first consumer warms the broker up."""
    fill(producer_of(address, **{"queue.buffering.max.messages": 1_000_000}), body, count=count)
    receive(address, "bench-warm", count // 10, {})
    return {
        "default": receive(address, "bench-default", count, {}),
        "tuned": receive(address, "bench-tuned", count, TUNED),
    }


def receive(address: str, group: str, count: int, settings: dict[str, int]) -> float:
    """Messages per second from the first ones to the last."""
    consumer = consumer_of(address, group, **settings)
    consumer.subscribe([TOPIC])
    received, first, first_at, last_at = 0, 0, 0.0, 0.0
    ends_at = time.monotonic() + WAIT_S
    while received < count and time.monotonic() < ends_at:
        bodies = [message.value() for message in consumer.consume(AT_ONCE, 0.2) if not message.error()]
        if not bodies:
            continue
        last_at = time.monotonic()
        first, first_at = first or len(bodies), first_at or last_at
        received += len(bodies)
    consumer.close()
    if received < count:
        sys.exit(f"{received} of {count} messages were received")
    return (received - first) / (last_at - first_at)


def send(address: str, body: bytes, seconds: float, _: int) -> dict[str, float]:
    """One after the other, each acknowledged before the next; warmed up for as long as is measured."""
    producer = producer_of(address, **{"linger.ms": 0})
    done: list[object] = []

    def settle(error: object, _: object) -> None:
        if error is not None:
            sys.exit(f"a message was refused: {error}")
        done.append(None)

    for _ in range(2):
        took_ms: list[float] = []
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            done.clear()
            began = time.perf_counter()
            producer.produce(TOPIC, body, on_delivery=settle)
            while not done:
                producer.poll(1.0)
            took_ms.append((time.perf_counter() - began) * 1000)
    took_ms.sort()
    return {f"p{share}": took_ms[len(took_ms) * share // 100] for share in (50, 99)}


KINDS: dict[str, Callable[[str, bytes, float, int], dict[str, float]]] = {
    "produce": produce,
    "replicated": functools.partial(produce, acks="all"),
    "consume": consume,
    "send": send,
}

if __name__ == "__main__":
    main()
