"""A producer and a consumer in one event loop: every class has a twin in ``penstock.client.aio``."""

import asyncio
import os

from penstock.client.aio import AsyncAdmin, AsyncProducer, AsyncPullConsumer

nameservers = os.environ.get("PENSTOCK_NAMESRV", "127.0.0.1:9876")
COUNT = 100


async def produce() -> None:
    """A hundred sends at once: they share batches."""
    async with AsyncProducer(nameservers, group="bells") as producer:
        await asyncio.gather(*(producer.send("example-chimes", b"chime %d" % number) for number in range(COUNT)))


async def consume() -> int:
    """Iterate over messages until all have come."""
    heard = 0
    async with AsyncPullConsumer(nameservers, group="listeners", consume_from="first") as consumer:
        await consumer.subscribe("example-chimes")
        async for _ in consumer:
            heard += 1
            if heard == COUNT:
                break
    return heard


async def main() -> None:
    """A topic, then both at the same time."""
    async with AsyncAdmin(nameservers) as admin:
        await admin.create_topic("example-chimes")
    _, heard = await asyncio.gather(produce(), consume())
    print(f"heard {heard} chimes")


asyncio.run(main())
