"""Messages for later with real processes: they come at their times, once, also when the master is killed before."""

from __future__ import annotations

import asyncio
import datetime as dt
import time

import pytest

from penstock.client import Message, Producer, SendReceipt
from penstock.client.aio import AsyncProducer
from penstock.deploy import LocalCluster
from penstock.proto.errors import InvalidArgument
from tests.support.cluster.failover import TOPIC, read_all, wait_master


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_messages_come_at_their_times_once_though_the_master_is_killed(shard: LocalCluster) -> None:
    nameservers, count, first_ms = shard.plan.nameserver_addresses, 400, now_ms() + 1000
    old, _ = wait_master(shard)
    due = {f"later-{number}": first_ms + 20 * number for number in range(count)}  # 8 s, while the master changes
    with Producer(nameservers) as producer:
        messages = [
            Message(TOPIC, body.encode(), tag="t", properties={"own": "yes"}, sharding_key=body, deliver_at=at)
            for body, at in due.items()
        ]
        receipts = producer.send_batch(messages)
        at_once = producer.send(TOPIC, b"at once")
        shard.kill(old.name)
        found = read_all(nameservers, count + 1, timeout_s=60)
        shard.restart(old.name)
        wait_master(shard)
    assert at_once.queue_offset >= 0
    assert all(receipt.queue_offset == -1 and receipt.topic == TOPIC for receipt in receipts)
    bodies = [message.body.decode() for message in found]
    assert sorted(bodies) == sorted([*due, "at once"])
    ids = {receipt.message_id: receipt.queue_id for receipt in receipts}
    for message in found:
        body = message.body.decode()
        if body in due:
            assert message.store_timestamp_ms >= due[body]
            assert message.queue_id == ids[message.message_id]
            assert (message.tag, message.properties["own"], message.sharding_key) == ("t", "yes", body)
    last = read_all(nameservers, count + 1)
    assert len(last) == count + 1


def test_every_way_to_send_one_takes_a_time(shard: LocalCluster) -> None:
    nameservers = shard.plan.nameserver_addresses
    before = len(read_all(nameservers, 0))
    in_a_second = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=1)

    async def send() -> SendReceipt:
        async with AsyncProducer(nameservers) as producer:
            return await producer.send(TOPIC, b"awaited", deliver_at=in_a_second)

    with Producer(nameservers) as producer:
        assert producer.send(TOPIC, b"overdue", deliver_at=1).queue_offset == -1
        assert producer.send_async(TOPIC, b"future", deliver_at=now_ms() + 500).result().queue_offset == -1
        assert producer.send(TOPIC, b"after a level", delay_level=1).queue_offset == -1
        assert producer.send(TOPIC, b"after a delay", properties={"TIMER_DELAY_MS": "700"}).queue_offset == -1
        with pytest.raises(InvalidArgument, match="more than 31622400 s"):
            producer.send(TOPIC, b"too late", deliver_at=now_ms() + 367 * 86_400_000)
        with pytest.raises(InvalidArgument, match="delay level"):
            producer.send(TOPIC, b"no such level", delay_level=19)
        with pytest.raises(InvalidArgument, match="no time zone"):
            producer.send(TOPIC, b"naive", deliver_at=dt.datetime(2030, 1, 1))
    asyncio.run(send())
    found = read_all(nameservers, before + 5)
    came = {message.body: message for message in found}
    assert {b"overdue", b"future", b"awaited", b"after a level", b"after a delay"} <= came.keys()
    assert came[b"after a level"].store_timestamp_ms - came[b"after a level"].born_timestamp_ms >= 1000
    assert came[b"after a level"].properties == {}
    assert next(each for each in found if each.body == b"awaited").store_timestamp_ms >= in_a_second.timestamp() * 1000


def test_what_is_recalled_and_what_has_a_level_survives_the_master(shard: LocalCluster) -> None:
    nameservers = shard.plan.nameserver_addresses
    before = len(read_all(nameservers, 0))
    old, _ = wait_master(shard)
    with Producer(nameservers) as producer:
        kept, recalled = (producer.send(TOPIC, body, delay_s=12) for body in (b"kept", b"recalled"))
        levels = [producer.send(TOPIC, b"level %d" % number, delay_level=3) for number in range(5)]
        assert [receipt.recall_handle for receipt in levels] == [""] * 5
        assert producer.recall(TOPIC, recalled.recall_handle)
        shard.kill(old.name)
        assert producer.recall(TOPIC, recalled.recall_handle, timeout_s=30)  # again, at whoever is master now
        found = read_all(nameservers, before + 6, timeout_s=60)
        assert not producer.recall(TOPIC, kept.recall_handle)
        with pytest.raises(InvalidArgument, match="the handle is of topic"):
            producer.recall("other", kept.recall_handle)
    shard.restart(old.name)
    wait_master(shard)
    expected = sorted([b"kept", *(b"level %d" % number for number in range(5))])
    for came in (found, read_all(nameservers, before + 6)):
        assert sorted(m.body for m in came if m.body in {*expected, b"recalled"}) == expected
