"""Let the broker pick messages by a condition on their properties, so that the others never cross the network."""

import os

from penstock.client import Producer, PullConsumer, Sql

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")

with Producer(nameservers, group="shop") as producer:
    for amount in (5, 50, 500):
        for region in ("eu", "us"):
            body = f"{amount} in {region}".encode()
            producer.send("example-sales", body, properties={"amount": str(amount), "region": region})

with PullConsumer(nameservers, group="auditors", consume_from="first") as consumer:
    consumer.subscribe("example-sales", Sql("amount > 10 AND region = 'eu'"))
    found: set[str] = set()
    while len(found) < 2:
        found.update(message.body.decode() for message in consumer.poll(timeout_s=1))
print("large European sales:", ", ".join(sorted(found)))
