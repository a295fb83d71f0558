"""Read messages as columns: no Python object per message. Offsets are committed by hand, after the work."""

import os

import numpy as np

from penstock.client import Producer, PullConsumer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
COUNT = 20_000

with Producer(nameservers, group="sensors") as producer:
    producer.produce_many("example-columns", [b"%08d" % number for number in range(COUNT)])
    producer.flush(timeout_s=60)

with PullConsumer(nameservers, group="statistics", consume_from="first", auto_commit=False) as consumer:
    consumer.subscribe("example-columns")
    seen, total = 0, 0
    while seen < COUNT:
        batch = consumer.poll_batch(timeout_s=1)  # of one queue; empty if nothing came
        if batch:
            numbers = np.array(batch.bodies(), "S8").astype(np.int64)
            seen, total = seen + len(batch), total + int(numbers.sum())
            consumer.commit()
print(f"{seen:,} numbers, sum {total:,}")
