"""What a producer is asked for and told to be: arguments, time-outs, settings, compression."""

from __future__ import annotations

import asyncio
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from penstock.client import Admin, Message, Producer, PullConsumer, TransactionProducer
from penstock.client.aio import AsyncProducer
from penstock.formats.record.reading import RecordBatch
from penstock.proto.errors import (
    ConfigError,
    DeliveryFailed,
    Forbidden,
    InvalidArgument,
    InvalidName,
    MessageTooLarge,
    NotEnoughReplicas,
)
from tests.support.client.running_cluster import RunningBroker, RunningCluster
from tests.unit.client.produce.test_producer import TOPIC, numbered, stored


def test_oneway_sends_once_and_tells_nothing(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        producer.send_oneway(TOPIC, b"1")
        producer.flush()
        broker.faults.refuse("Append", NotEnoughReplicas("too few"), times=1)
        producer.send_oneway(TOPIC, b"2")
        producer.flush()
    assert stored(one) == [b"1"]
    assert broker.faults.requests["Append"][0].no_wait


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"linger_ms": None}, "linger_ms=None: must be a number, 0 or more and at most 30000 ms"),
        ({"send_timeout_s": "3"}, "send_timeout_s='3': must be a number, above 0"),
        ({"delivery_timeout_s": nan}, "delivery_timeout_s=nan: must be a number, above 0"),
        ({"send_retries": True}, "send_retries=True: must be a whole number, 0.."),
        ({"send_retries": inf}, "send_retries=inf: must be a whole number, 0.."),
        ({"batch_count_max": 1.5}, "batch_count_max=1.5: must be a whole number, 1..65536"),
        ({"auto_create_topics": None}, "auto_create_topics=None: must be True or False"),
        ({"retry_another_shard_on_unknown": "no"}, "retry_another_shard_on_unknown='no': must be True or False"),
        ({"config": {"linger_ms": 1}}, "config must be a ProducerConfig"),
        ({"config": {}}, "config must be a ProducerConfig"),
        ({"on_delivery": 5}, "on_delivery must be callable, not '5'"),
    ],
)
def test_settings_of_a_wrong_type_are_refused_by_name(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Producer("127.0.0.1:1", **settings)
    assert told.replace("'", "") in str(refused.value).replace("'", "").replace('"', "")


def test_numbers_and_flags_of_numpy_are_such(one: RunningCluster, broker: RunningBroker) -> None:
    settings: dict[str, Any] = {
        "linger_ms": np.int64(1),
        "send_timeout_s": np.float32(9),
        "delivery_timeout_s": np.int8(9),
    }
    with Producer(one.namesrv, auto_create_topics=np.False_, **settings) as producer:
        producer.send(TOPIC, b"x", wait=np.False_)  # type: ignore[arg-type]
        producer.produce(TOPIC, b"y")
    assert sorted(stored(one)) == [b"x", b"y"]  # the queues are read in their order
    assert broker.faults.requests["Append"][0].no_wait


def test_bad_arguments_are_refused_before_anything_is_sent(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv, body_bytes_max=1000) as producer:
        with pytest.raises(InvalidName):
            producer.send("no spaces", b"x")
        with pytest.raises(Forbidden):
            producer.send("rmq_sys_PENSTOCK_STATE", b"x")
        for send in (producer.send, producer.produce, producer.send_async, producer.send_oneway):
            with pytest.raises(InvalidArgument, match="empty"):
                send(TOPIC, b"")
            with pytest.raises(InvalidArgument, match="must be bytes"):
                send(TOPIC, "text")  # type: ignore[arg-type]
            with pytest.raises(MessageTooLarge, match="1001"):
                send(TOPIC, b"x" * 1001)
            with pytest.raises(InvalidArgument, match="0x01"):
                send(TOPIC, b"x", tag="a\x01b")
        with pytest.raises(InvalidArgument, match="body 1 is empty"):
            producer.produce_many(TOPIC, [b"x", b""])
        with pytest.raises(MessageTooLarge, match="body 1 of 1001"):
            producer.produce_many(TOPIC, [b"x", b"y" * 1001])
        with pytest.raises(InvalidArgument, match="1 sharding keys for 2"):
            producer.produce_many(TOPIC, [b"x", b"y"], sharding_keys=["a"])
        with pytest.raises(InvalidArgument, match="at least one"):
            producer.send_batch([])
        for value in (None, Message(TOPIC, b"x")):
            with pytest.raises(InvalidArgument, match=r"messages=.*: must be a list of Message"):
                producer.send_batch(value)  # type: ignore[arg-type]
    assert not broker.faults.requests["Append"]


NOT_TO_SEND: list[dict[str, Any]] = [
    *({"topic": ["orders"]}, {"topic": {}}, {"wait": None}, {"wait": 0}, {"wait": "no"}, {"timeout_s": True}),
    *({"keys": 0}, {"properties": 0}, {"properties": []}, {"message_id": 0}, {"message_id": []}),
]


@pytest.mark.parametrize("options", NOT_TO_SEND)
def test_what_is_no_value_of_an_argument_is_refused_by_name_however_it_is_sent(
    one: RunningCluster, options: dict[str, Any]
) -> None:
    message = {"topic": TOPIC, "body": b"x", **options}
    (name,) = options
    fields = {key: value for key, value in message.items() if key not in ("wait", "timeout_s")}
    others = {key: value for key, value in options.items() if key in ("wait", "timeout_s")}
    with Producer(one.namesrv) as producer:
        calls = [
            lambda send=send: send(**message) for send in (producer.send, producer.send_async, producer.send_oneway)
        ]
        calls.append(lambda: producer.send_batch([Message(**fields)], **others))
        if name not in ("wait", "message_id"):
            calls.append(lambda: producer.produce(**message))
        if name in ("topic", "properties"):
            calls.append(lambda: producer.request(**message))
        for call in calls:
            with pytest.raises((InvalidArgument, InvalidName)) as refused:
                call()
            assert name.replace("_", " ") in refused.value.message.replace("_", " ")
            assert "must be" in refused.value.message or "1-127" in refused.value.message
    assert stored(one) == []


def test_a_topic_that_cannot_be_one_is_refused_by_twins_too(one: RunningCluster) -> None:
    async def work() -> None:
        async with AsyncProducer(one.namesrv) as producer:
            for send in (producer.send, producer.produce):
                with pytest.raises(InvalidName):
                    await send([], b"x")  # type: ignore[arg-type]

    asyncio.run(work())


def test_a_message_keeps_its_own_id_when_nobody_waits_for_it(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer, Admin(one.namesrv) as admin:
        producer.send_oneway(TOPIC, b"x", message_id="mine")
        producer.flush()
        assert admin.message_by_id("mine", TOPIC).body == b"x"


def test_a_send_to_a_topic_that_is_closed_everywhere_ends_before_its_time_is_up(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer, Admin(one.namesrv) as admin:
        producer.send(TOPIC, b"1")
        admin.update_topic(TOPIC, perm=4)
        with pytest.raises(Forbidden, match=f"topic {TOPIC} may not be written"):
            producer.send(TOPIC, b"2", timeout_s=86_400.0)
        producer.produce(TOPIC, b"3", sharding_key="k")
        with pytest.raises(DeliveryFailed, match="closed to writers at every broker group"):
            producer.flush(timeout_s=86_400.0)
    assert stored(one) == [b"1"]


@pytest.mark.parametrize("timeout_s", [-1, float("nan")])
def test_a_time_out_that_is_none_is_refused(one: RunningCluster, timeout_s: float) -> None:
    with Producer(one.namesrv) as producer:
        for call in (producer.send, producer.send_async, producer.send_oneway, producer.produce):
            with pytest.raises(InvalidArgument, match="timeout_s"):
                call(TOPIC, b"x", timeout_s=timeout_s)
        with pytest.raises(InvalidArgument, match="timeout_s"):
            producer.flush(timeout_s)
        with pytest.raises(InvalidArgument, match="timeout_s"):
            producer.close(timeout_s)
        producer.send(TOPIC, b"still open")


def test_a_time_out_may_be_infinite(one: RunningCluster) -> None:
    with Producer(one.namesrv, send_timeout_s=inf, delivery_timeout_s=inf) as producer:  # of a topic not looked up yet
        producer.send(TOPIC, b"x")
        producer.produce(TOPIC, b"x")
        producer.flush()
    producer = Producer(one.namesrv)
    producer.produce(TOPIC, b"x", timeout_s=inf)
    producer.produce_many(TOPIC, [b"x"], timeout_s=inf)
    assert len(producer.send_batch([Message(TOPIC, b"x")], timeout_s=inf)) == 1
    producer.flush(inf)
    producer.produce(TOPIC, b"x")
    producer.close(inf)
    with TransactionProducer(one.namesrv, group="decide") as transactional:
        with transactional.transaction(timeout_s=inf) as transaction:
            transaction.send(TOPIC, b"x")
            transaction.produce(TOPIC, b"x")
        transactional.flush(inf)
        transactional.close(inf)
    consumer = PullConsumer(one.namesrv, group="read", consume_from="first")
    consumer.subscribe(TOPIC)
    assert consumer.poll(inf)
    consumer.commit(timeout_s=inf)
    consumer.close(inf)
    assert not one.brokers["broker-a"].members("read")
    assert stored(one) == [b"x"] * 8


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean 'linger_ms'"):
        Producer("127.0.0.1:1", linger=5)
    with pytest.raises(ConfigError, match="compression"):
        Producer("127.0.0.1:1", compression="gzip")
    with pytest.raises(ConfigError, match="host:port"):
        Producer("nowhere")


@pytest.mark.parametrize("algorithm", ["zlib", "lz4", "zstd"])
def test_large_bodies_are_compressed_and_read_as_sent(
    one: RunningCluster, broker: RunningBroker, algorithm: str
) -> None:
    large, small = b"penstock " * 1000, b"small"
    with Producer(one.namesrv, compression=algorithm) as producer:
        producer.send(TOPIC, large)
        producer.produce(TOPIC, small)
        producer.produce(TOPIC, large)
        producer.produce_many(TOPIC, [small, large, large, small])
    records = RecordBatch(b"".join(broker.records(TOPIC).values()))
    assert sorted(records.bodies()) == sorted([large] * 4 + [small] * 3)
    assert max(records.values("body_size")) < 1000


def test_ten_thousand_queues_get_their_batches_in_turn() -> None:
    with RunningCluster(topics={TOPIC: 10_000}, mappedFileSizeConsumeQueue=400) as cluster:
        with Producer(cluster.namesrv, batch_count_max=10) as producer:
            producer.produce_many(TOPIC, numbered(2000))
            producer.produce_many(TOPIC, numbered(2000), sharding_keys=[str(number) for number in range(2000)])
        assert len(stored(cluster)) == 4000
