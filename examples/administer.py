"""Make a topic, see how far a group is behind, move it back, and find a message by its key."""

import os

from penstock.client import Admin, Producer, PullConsumer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
TOPIC, GROUP = "example-invoices", "bookkeeping"

with Admin(nameservers) as admin:
    print("cluster:", ", ".join(broker.broker_name for broker in admin.cluster().brokers))
    print("queues:", admin.create_topic(TOPIC, queues=4).queues)

    with Producer(nameservers, group="billing") as producer:
        receipts = [producer.send(TOPIC, b"invoice %d" % number, keys=[f"i-{number}"]) for number in range(20)]

    with PullConsumer(nameservers, group=GROUP, consume_from="first") as consumer:
        consumer.subscribe(TOPIC)
        read = 0
        while read < len(receipts):
            read += len(consumer.poll(timeout_s=1))
    print("lag when all is read:", admin.group_lag(GROUP).lag)

    admin.reset_offset(GROUP, TOPIC, to="first")
    print("lag after going back:", admin.group_lag(GROUP).lag)

    (found,) = admin.query_messages(TOPIC, "i-7")
    print("i-7 is", found.body.decode(), "in queue", found.queue_id)

    admin.delete_topic(TOPIC)
    admin.delete_group(GROUP)
