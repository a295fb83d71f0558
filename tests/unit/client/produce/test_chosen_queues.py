"""Queues that senders choose, and sends that wait for the master alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from penstock.client import Message, MessageQueue, Producer, SendReceipt
from penstock.client.aio import AsyncProducer
from penstock.client.cluster.queues import WriteQueues
from penstock.client.produce.config import ProducerConfig
from penstock.client.produce.health import BrokerHealth
from penstock.client.produce.lanes import Lanes
from penstock.client.produce.parts import LANES, Kind, Part
from penstock.formats.record.properties import WAIT
from penstock.proto.errors import BrokerUnavailable, InvalidArgument, OutcomeUnknown
from tests.support.client import pull_consumers
from tests.support.client.running_cluster import RunningCluster

from .conftest import TOPIC

NOW = 1000.0
B2 = MessageQueue(TOPIC, "broker-b", 2)


def queued(cluster: RunningCluster) -> dict[tuple[str, int], list[bytes]]:
    """The bodies of every queue that has some."""
    found = {}
    for name, broker in cluster.brokers.items():
        for queue_id in range(4):
            bodies = broker.bodies(TOPIC, queue_id)
            if bodies:
                found[name, queue_id] = bodies
    return found


def test_every_kind_of_send_goes_to_the_chosen_queue(two: RunningCluster) -> None:
    with Producer(two.namesrv, send_timeout_s=30) as producer:
        assert producer.send(TOPIC, b"0", sharding_key="k", queue=B2).message_queue == B2
        assert producer.send_async(TOPIC, b"1", queue=B2).result(10).queue_offset == 1
        batch = [Message(TOPIC, b"2", sharding_key="k"), Message(TOPIC, b"3", properties={"a": "b"})]
        assert [each.message_queue for each in producer.send_batch(batch, queue=B2)] == [B2, B2]
        producer.produce(TOPIC, b"4", sharding_key="k", queue=B2)
        producer.produce_many(TOPIC, [b"5", b"6"], sharding_keys=["k", "l"], queue=B2)
        producer.send_oneway(TOPIC, b"7", queue=B2)
        producer.flush()
    assert queued(two) == {("broker-b", 2): [b"%d" % number for number in range(8)]}


def test_a_selector_sees_the_queues_and_the_message(two: RunningCluster) -> None:
    seen: list[tuple[Sequence[MessageQueue], Message]] = []

    def last(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        seen.append((queues, message))
        return queues[-1]

    async def awaited() -> SendReceipt:
        async with AsyncProducer(two.namesrv, send_timeout_s=30) as twin:
            return await twin.send(TOPIC, b"3", selector=last)

    with Producer(two.namesrv, send_timeout_s=30) as producer:
        receipt = producer.send(TOPIC, b"1", "paid", ["k"], {"a": "b"}, selector=last)
        producer.produce(TOPIC, b"2", selector=last)
        producer.flush()
    queues, message = seen[0]
    assert list(queues) == [
        MessageQueue(TOPIC, name, number) for name in ("broker-a", "broker-b") for number in range(4)
    ]
    assert message == Message(TOPIC, b"1", "paid", ["k"], {"a": "b"})
    assert receipt.message_queue == queues[-1]
    assert asyncio.run(awaited()).message_queue == queues[-1]
    assert queued(two) == {("broker-b", 3): [b"1", b"2", b"3"]}


@pytest.mark.parametrize(
    "wrong",
    [MessageQueue(TOPIC, "broker-a", 8), MessageQueue(TOPIC, "broker-z", 0), MessageQueue("other", "broker-a", 0), 3],
)
def test_what_is_no_queue_of_the_topic_is_refused_by_name(one: RunningCluster, wrong: Any) -> None:
    with Producer(one.namesrv, send_timeout_s=30) as producer:
        for options in ({"queue": wrong}, {"selector": lambda queues, message: wrong}):
            for send in (producer.send, producer.send_async, producer.produce):
                with pytest.raises(InvalidArgument, match="no queue of topic orders") as refused:
                    send(TOPIC, b"x", **options)  # type: ignore[operator]
                assert repr(wrong)[:200] in str(refused.value)
        for many in (
            producer.produce_many,
            lambda topic, bodies, queue: producer.send_batch([Message(topic, b"x")], queue=queue),
        ):
            with pytest.raises(InvalidArgument, match="no queue of topic orders"):
                many(TOPIC, [b"x"], queue=wrong)  # type: ignore[operator]
        with pytest.raises(InvalidArgument, match="selector chose None"):
            producer.send(TOPIC, b"x", selector=lambda queues, message: None)  # type: ignore[arg-type,return-value]
        with pytest.raises(InvalidArgument, match="both"):
            producer.send(TOPIC, b"x", queue=B2, selector=lambda queues, message: queues[0])
        with pytest.raises(InvalidArgument, match="selector must be callable, not 5"):
            producer.send(TOPIC, b"x", selector=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="its own"):
            producer.send(TOPIC, b"x", selector=lambda queues, message: (_ for _ in ()).throw(TypeError("its own")))
        with pytest.raises(ZeroDivisionError):
            producer.send(TOPIC, b"x", selector=lambda queues, message: queues[1 // 0])
    assert not any(one.brokers["broker-a"].bodies(TOPIC, number) for number in range(8))


def test_a_chosen_queue_waits_for_its_group_and_goes_to_no_other(two: RunningCluster) -> None:
    with Producer(two.namesrv, retry_another_shard_on_unknown=True, send_timeout_s=30) as producer:
        producer.prepare(TOPIC)
        two.kill("broker-b")
        with pytest.raises(BrokerUnavailable, match="broker-b"):
            producer.send(TOPIC, b"late", queue=B2, timeout_s=0.2)
        future = producer.send_async(TOPIC, b"kept", queue=B2)
        producer.produce_many(TOPIC, [b"1", b"2"], queue=B2)
        counted = producer.send_async(TOPIC, b"counted", selector=lambda queues, message: queues[6])
        assert producer.send(TOPIC, b"free").broker_name == "broker-a"
        two.revive("broker-b")
        assert future.result(30).message_queue == counted.result(30).message_queue == B2
        producer.flush()
    assert queued(two)["broker-b", 2] == [b"kept", b"1", b"2", b"counted"]


def placed(*bodies: bytes, kind: Kind = Kind.SEND) -> Part:
    part = Part(kind, list(bodies), None, cost=200 * len(bodies), deadline=NOW + 30, hashes=np.array([7], np.int32))
    part.bind(("b", 9))
    return part


def test_an_unknown_batch_stays_with_the_chosen_group_and_is_the_same_batch() -> None:
    settings = ProducerConfig(retry_another_shard_on_unknown=True)
    topic = Lanes("orders", settings, BrokerHealth(), WriteQueues([("a", 4), ("b", 16)]))
    topic.add([placed(b"x")])
    (batch,) = topic.start(NOW, LANES, lambda name: True)
    assert (batch.lane.broker_name, batch.queue_ids.tolist()) == ("b", [9])
    assert topic.on_error(batch, OutcomeUnknown("broken"), NOW) == []
    topic.adopt(WriteQueues([("a", 4)]), NOW)
    assert topic.start(NOW + 20, LANES, lambda name: name == "a") == []
    assert topic.start(NOW + 21, LANES, lambda name: True) == [batch]


def test_a_chosen_queue_keeps_the_order_of_its_lane_when_a_try_is_not_stored() -> None:
    topic = Lanes("orders", ProducerConfig(batch_count_max=1), BrokerHealth(), WriteQueues([("a", 4), ("b", 16)]))
    topic.add([placed(b"1"), placed(b"2")])
    (batch,) = topic.start(NOW, LANES, lambda name: True)
    assert topic.on_error(batch, BrokerUnavailable("away"), NOW) == []
    (again,) = topic.start(NOW + 5, LANES, lambda name: True)
    assert (again.lane.broker_name, again.queue_ids.tolist(), again.parts[0].bodies) == ("b", [9], [b"1"])


def test_sends_that_do_not_wait_say_so_and_share_no_batch_with_those_that_do(one: RunningCluster) -> None:
    faults = one.brokers["broker-a"].faults
    with Producer(one.namesrv, send_timeout_s=30) as producer:
        producer.prepare(TOPIC)
        faults.refuse("Append", lambda header, records: None)
        producer.send(TOPIC, b"waits")
        producer.send(TOPIC, b"does not", wait=False)
        producer.send(TOPIC, b"does not", properties={WAIT: "false"})
        producer.send(TOPIC, b"waits", properties={WAIT: "true"})
        producer.send_batch([Message(TOPIC, b"does not"), Message(TOPIC, b"either")], wait=False)
        asked = [header.no_wait for header in faults.requests["Append"]]
        assert asked == [False, True, True, False, True]
    with pull_consumers.consumer(one) as puller:
        puller.subscribe(TOPIC)
        found = pull_consumers.poll_all(puller, 6)
    wishes = [(each.body, each.all_properties.get(WAIT)) for each in found]
    assert sorted(wishes, key=str) == sorted(
        [
            *[(b"waits", None), (b"waits", "true"), (b"either", "false")],
            *[(b"does not", "false")] * 3,
        ],
        key=str,
    )
    assert not any(WAIT in each.properties for each in found)


def test_waiting_and_other_messages_are_not_joined() -> None:
    topic = Lanes("orders", ProducerConfig(), BrokerHealth(), WriteQueues([("a", 1)]))
    parts = [Part(Kind.SEND, [b"x"], [None], cost=200, deadline=NOW + 30, no_wait=no_wait) for no_wait in (False, True)]
    assert [topic.join(part) for part in parts] == [None, None]
    (batch,) = topic.start(NOW, LANES, lambda name: True)
    assert batch.parts == parts[:1]
