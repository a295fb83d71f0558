"""Send a reminder that consumers get two seconds later; the brokers keep it until then, also over a failover."""

import os
import time
from datetime import UTC, datetime, timedelta

from penstock.client import Producer, PullConsumer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")

with Producer(nameservers, group="calendar") as producer:
    producer.send("example-reminders", b"tea is ready", deliver_at=datetime.now(UTC) + timedelta(seconds=2))
sent = time.monotonic()

with PullConsumer(nameservers, group="kitchen", consume_from="first") as consumer:
    consumer.subscribe("example-reminders")
    while not (found := consumer.poll(timeout_s=1)):
        print("nothing yet")
    print(f"{found[0].body.decode()}, {time.monotonic() - sent:.1f} s later")
