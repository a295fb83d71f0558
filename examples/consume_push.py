"""Work through a topic with a listener, in four threads, until Ctrl-C. One order fails first and comes again."""

import os

from penstock.client import ConsumeResult, MessageView, Producer, PushConsumer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
failed_once = False


def on_message(message: MessageView) -> ConsumeResult:
    """Say how it went; an exception counts as RETRY_LATER."""
    global failed_once
    if message.body == b"parcel 7" and not failed_once:
        failed_once = True
        print("parcel 7 does not fit, again in ten seconds")
        return ConsumeResult.RETRY_LATER
    print(f"shipped {message.body.decode()} (queue {message.queue_id}, offset {message.queue_offset})", flush=True)
    return ConsumeResult.SUCCESS


with Producer(nameservers, group="shop") as producer:
    for number in range(10):
        producer.send("example-parcels", b"parcel %d" % number, tag="ready")

consumer = PushConsumer(nameservers, group="shipping", listener=on_message, consume_threads=4, consume_from="first")
consumer.subscribe("example-parcels", "ready || urgent")
with consumer:
    consumer.wait()  # until SIGINT or SIGTERM; leaving the block commits and releases the queues
