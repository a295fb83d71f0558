"""Send orders one by one, and act on each of the three outcomes a send can have."""

import os

from penstock.client import OutcomeUnknown, Producer, Refused, Retryable

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")

with Producer(nameservers, group="shop") as producer:
    for number in range(1, 4):
        body = f"order {number}".encode()
        try:
            receipt = producer.send(
                "example-orders",
                body,
                tag="paid",
                keys=[f"order-{number}"],
                properties={"region": "eu"},
                sharding_key=f"customer-{number % 2}",  # orders of one customer stay in order
            )
        except (Refused, Retryable) as error:  # not stored; the text says what to do
            print(f"order {number} is not stored: {error}")
        except OutcomeUnknown as error:  # repeated until the time was up, without an answer: look for its key
            print(f"order {number} may be stored: {error}")
        else:
            print(f"order {number}: {receipt.status} at {receipt.broker_name}, queue {receipt.queue_id}")
