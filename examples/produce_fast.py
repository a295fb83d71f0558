"""Send 100,000 messages through the buffer: 50,000 in a loop, 50,000 in one call. ``flush`` says what failed."""

import os
import time

from penstock.client import Delivery, DeliveryFailed, Producer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
COUNT = 50_000
stored = 0


def on_delivery(delivery: Delivery) -> None:
    """Called in threads of the client, a batch at a time; must not wait for the producer."""
    global stored
    if delivery.error is None:
        stored += len(delivery.bodies)


with Producer(nameservers, group="sensors", on_delivery=on_delivery) as producer:
    begin = time.perf_counter()
    for number in range(COUNT):
        producer.produce("example-readings", b"reading %d" % number, tag="warm")
    producer.produce_many("example-readings", [b"cold %d" % number for number in range(COUNT)], tags="cold")
    try:
        producer.flush(timeout_s=60)
    except DeliveryFailed as failed:
        print(f"not delivered: {failed}")
    seconds = time.perf_counter() - begin

print(f"{stored:,} messages are acknowledged, {stored / seconds:,.0f} a second")
