"""A load by RocketMQ 5's Python client: ``python sdk_load.py ADDRESS KIND SIZE SECONDS``.

It runs in the environment of that client, so it imports nothing of ours. It prints one JSON document: messages per
second of ``async`` sends, some of which are under way at a time, or of ``sync`` ones, each sent when the one before is
acknowledged.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
import threading
import time
from typing import Any

TOPIC = "bench"
AT_ONCE = 64


@functools.cache
def client() -> Any:
    """The module of that client, which only its environment has."""
    return importlib.import_module("rocketmq")


def main() -> None:
    address, kind = sys.argv[1:3]
    body, seconds = bytes(int(sys.argv[3])), float(sys.argv[4])
    producer = started(address)
    send = {"async": send_async, "sync": send_sync}[kind]
    send(producer, body, seconds)  # warms up
    print(json.dumps({"rate": send(producer, body, seconds)}), flush=True)
    os._exit(0)


def started(address: str) -> Any:
    """A producer that has stored a message; a server's broker is known to it a while after its port has opened."""
    settings = client().ClientConfiguration(address, client().Credentials(), request_timeout=10)
    for tries_left in reversed(range(120)):
        producer = client().Producer(settings, (TOPIC,))
        try:
            producer.startup()
            producer.send(message_of(b"first"))
        except Exception:  # this client knows no other
            if not tries_left:
                raise
            time.sleep(0.5)
        else:
            break
    return producer


def message_of(body: bytes) -> Any:
    """A message, which a send changes."""
    made = client().Message()
    made.topic, made.body = TOPIC, body
    return made


def send_sync(producer: Any, body: bytes, seconds: float) -> float:
    """Messages per second of one thread that waits for each."""
    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        producer.send(message_of(body))
        count += 1
    return count / (time.monotonic() - began)


def send_async(producer: Any, body: bytes, seconds: float) -> float:
    """Messages per second of one thread that waits while :data:`AT_ONCE` are under way."""
    free = threading.Semaphore(AT_ONCE)

    def settle(future: Any) -> None:
        if future.exception() is not None:
            print(f"a message was refused: {future.exception()}", file=sys.stderr, flush=True)
            os._exit(1)
        free.release()

    count, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        free.acquire()
        producer.send_async(message_of(body)).add_done_callback(settle)
        count += 1
    for _ in range(AT_ONCE):
        free.acquire()
    return count / (time.monotonic() - began)


if __name__ == "__main__":
    main()
