"""Halves of many groups by one asyncio producer, which an event loop sends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.client import InvalidArgument, PenstockError, TopicNotFound
from penstock.client.aio import AsyncProducer
from penstock.formats.record.layout import Record, decode_record
from penstock.formats.record.properties import (
    CHECK_IMMUNITY_SECONDS,
    PRODUCER_GROUP,
    REAL_TOPIC,
    TRANSACTION_ID,
    decode_properties,
)
from penstock.proto import names
from penstock.proto.wire.broker_pb2 import QueryMessagesRequest
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


class Owner:
    def __init__(self) -> None:
        self.places: list[tuple[str, int, int]] = []
        self.errors: list[PenstockError] = []

    def on_stored(self, broker_name: str, first: int, count: int, epoch: int) -> None:
        self.places.append((broker_name, first, count))

    def on_given_up(self, count: int, error: PenstockError) -> None:
        self.errors.append(error)


def half(cluster: RunningCluster, key: str) -> Record:
    """The one with that key."""
    wanted = QueryMessagesRequest(topic=names.HALF_TOPIC, key=key, max_count=2, end_timestamp_ms=1 << 62)
    broker = cluster.brokers["broker-a"]
    (record,) = wait_until(lambda: broker.call("QueryMessages", wanted).records, what=f"the half {key}")
    return decode_record(record)


def test_halves_of_many_groups_share_lanes_with_other_messages_and_each_owner_learns_its_place() -> None:
    async def run(cluster: RunningCluster) -> list[Owner]:
        async with AsyncProducer(cluster.namesrv, auto_create_topics=False) as producer:
            producer.work_in_loop()

            def start(owner: Owner, number: int, **options: Any) -> Any:
                group, topic = f"group-{number % 3}", ("orders", "bills")[number % 2]
                return producer.send_half(
                    group, owner, topic, b"%d" % number, "tag", message_id=f"id-{number}", **options
                )

            owners = [Owner() for _ in range(60)]
            receipts = await asyncio.gather(*(start(owner, number) for number, owner in enumerate(owners)))
            again = Owner()
            assert (await start(again, 60, check_after_s=7.4)).queue_offset == -1
            assert [each.message_id for each in receipts] == [f"id-{number}" for number in range(60)]
            with pytest.raises(InvalidArgument, match="at most"):
                start(again, 61, timeout_s=1.0, sharding_key="k" * 40_000)
            with pytest.raises(TopicNotFound):
                await producer.send_half("group", again, "missing", b"x", message_id="id")
            return [*owners, again]

    with RunningCluster(topics={"orders": 2, "bills": 2}) as cluster:
        owners = asyncio.run(run(cluster))
        records = [half(cluster, f"id-{number}") for number in range(len(owners))]
    for number, owner in enumerate(owners):
        ((broker_name, offset, count),) = owner.places
        record = records[number]
        assert (broker_name, count) == ("broker-a", 1)
        assert (record.queue_offset, record.body) == (offset, b"%d" % number)
        found = decode_properties(record.properties)
        assert found[PRODUCER_GROUP] == f"group-{number % 3}"
        assert found[REAL_TOPIC] == ("orders", "bills")[number % 2]
        assert found[TRANSACTION_ID] == found["UNIQ_KEY"] == f"id-{number}"
        assert found.get(CHECK_IMMUNITY_SECONDS) == ("7" if number == 60 else None)
