"""The producer against brokers that lose answers, refuse, freeze and die."""

from __future__ import annotations

import asyncio
import re
import threading

import numpy as np
import pytest

from penstock.client import Delivery, Message, Producer
from penstock.client.message import SendStatus
from penstock.formats.record.layout import decode_record, parse_offset_message_id
from penstock.formats.record.properties import decode_properties
from penstock.formats.record.reading import RecordBatch
from penstock.proto.errors import (
    BrokerUnavailable,
    ClientClosed,
    CorruptBatch,
    DeliveryFailed,
    NameserverUnavailable,
    NotEnoughReplicas,
    OutcomeUnknown,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import AppendHeader
from tests.support.client.running_cluster import RunningBroker, RunningCluster, stored
from tests.support.waiting import wait_until

TOPIC = "orders"


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_receipt_says_where_the_message_lies(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        receipt = producer.send(
            TOPIC, b"hello", tag="paid", keys=["k1", "k2"], properties={"region": "eu"}, sharding_key="c"
        )
    record = decode_record(broker.records(TOPIC)[receipt.queue_id, receipt.queue_offset])
    properties = decode_properties(record.properties)
    assert record.body == b"hello"
    assert properties.pop("__PSEQ").endswith(":1")
    assert properties == {
        "TAGS": "paid",
        "KEYS": "k1 k2",
        "UNIQ_KEY": receipt.message_id,
        "__SHARDINGKEY": "c",
        "region": "eu",
    }
    assert (receipt.topic, receipt.broker_name, receipt.status) == (TOPIC, "broker-a", SendStatus.SEND_OK)
    host, position = parse_offset_message_id(receipt.offset_message_id)
    assert str(host) == broker.address
    assert broker.record_at(position) == broker.records(TOPIC)[receipt.queue_id, receipt.queue_offset]


def test_only_what_is_still_to_come_has_a_recall_handle(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer:
        assert producer.send(TOPIC, b"later", delay_s=3600).recall_handle
        assert not producer.send(TOPIC, b"due", deliver_at=1).recall_handle
        assert not producer.send(TOPIC, b"now").recall_handle


def test_receipts_of_a_batch_are_in_order_and_point_at_their_messages(two: RunningCluster) -> None:
    messages = [Message(TOPIC, b"%d" % n, sharding_key=None if n % 3 else f"c{n}") for n in range(50)]
    with Producer(two.namesrv) as producer:
        receipts = producer.send_batch(messages)
    assert len({receipt.message_id for receipt in receipts}) == 50
    for message, receipt in zip(messages, receipts, strict=True):
        broker = two.brokers[receipt.broker_name]
        record = broker.records(TOPIC)[receipt.queue_id, receipt.queue_offset]
        assert decode_record(record).body == message.body
        assert broker.record_at(parse_offset_message_id(receipt.offset_message_id)[1]) == record


def test_a_batch_that_nobody_waits_for_has_a_future_for_each_message_and_the_ids_it_is_given(
    two: RunningCluster,
) -> None:
    messages = [Message(TOPIC, b"%d" % n, message_id=f"id-{n}" if n % 2 else None) for n in range(20)]
    with Producer(two.namesrv) as producer:
        receipts = [future.result(30) for future in producer.send_batch_async(messages)]
    assert [each.message_id for each in receipts][1::2] == [f"id-{n}" for n in range(1, 20, 2)]
    assert len({each.message_id for each in receipts}) == 20
    assert len({each.message_queue for each in receipts}) == 1
    assert [each.queue_offset for each in receipts] == list(range(20))


def test_produced_messages_are_stored_once_and_in_order_per_queue(two: RunningCluster) -> None:
    with Producer(two.namesrv, batch_count_max=100) as producer:
        for number in range(5000):
            producer.produce(TOPIC, b"%d" % number, tag="t" if number % 2 else None)
        producer.flush()
        assert producer.pending == 0
    assert sorted(map(int, stored(two))) == list(range(5000))
    for broker in two.brokers.values():
        for queue_id in range(4):
            in_queue = [int(body) for body in broker.bodies(TOPIC, queue_id)]
            assert in_queue == sorted(in_queue)
            assert in_queue


def test_messages_with_one_sharding_key_share_a_queue_however_they_are_sent(two: RunningCluster) -> None:
    keys = [f"customer-{number % 5}" for number in range(300)]
    with Producer(two.namesrv) as producer:
        for number in range(0, 100):
            producer.produce(TOPIC, b"%d" % number, sharding_key=keys[number])
        producer.produce_many(TOPIC, numbered(300)[100:200], sharding_keys=keys[100:200])
        futures = [producer.send_async(TOPIC, b"%d" % number, sharding_key=keys[number]) for number in range(200, 300)]
        places = [future.result(10) for future in futures]
    assert len({(place.broker_name, place.queue_id) for place in places}) <= 5
    for key in range(5):
        mine = {b"%d" % number for number in range(300) if number % 5 == key}
        queues = [
            [body for body in broker.bodies(TOPIC, queue_id) if body in mine]
            for broker in two.brokers.values()
            for queue_id in range(4)
        ]
        (in_order,) = [bodies for bodies in queues if bodies]
        assert [int(body) for body in in_order] == sorted(int(body) for body in mine)


def test_eight_threads_that_produce_lose_and_double_nothing(two: RunningCluster) -> None:
    with Producer(two.namesrv, batch_count_max=200) as producer:

        def produce(thread: int) -> None:
            for number in range(2000):
                producer.produce(TOPIC, b"%d-%d" % (thread, number))

        threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = stored(two)
    assert len(found) == 16_000
    assert set(found) == {b"%d-%d" % (thread, number) for thread in range(8) for number in range(2000)}


@pytest.mark.parametrize("many", [True, False])
def test_produce_many_takes_lists_and_arrays(one: RunningCluster, broker: RunningBroker, many: bool) -> None:
    with Producer(one.namesrv) as producer:
        producer.produce_many(TOPIC, [b"list-1", b"list-2"], tags="t", keys=["k1", "k2"])
        producer.produce_many(TOPIC, np.array([b"array-1", b"array-22"]), tags=["a", None] if many else None)
        producer.produce_many(TOPIC, np.frombuffer(b"rowArowB", dtype=np.uint8).reshape(2, 4))
        producer.produce_many(TOPIC, [])
    assert sorted(stored(one)) == [b"array-1", b"array-22", b"list-1", b"list-2", b"rowA", b"rowB"]
    records = map(decode_record, broker.records(TOPIC).values())
    found = {record.body: decode_properties(record.properties) for record in records}
    assert found[b"list-2"]["KEYS"] == "k2"
    assert found[b"list-2"]["TAGS"] == "t"
    assert "UNIQ_KEY" not in found[b"list-2"]


def test_a_batch_whose_answer_was_lost_is_stored_once(one: RunningCluster, broker: RunningBroker) -> None:
    broker.faults.drop_answers("Append", 3)
    with Producer(one.namesrv) as producer:
        receipt = producer.send(TOPIC, b"once")
        assert receipt.duplicate
        broker.faults.drop_answers("Append", 3)
        for body in numbered(1000):
            producer.produce(TOPIC, body)
        producer.flush()
    assert sorted(stored(one)) == sorted([b"once", *numbered(1000)])


def test_a_retried_batch_keeps_lane_and_sequence(one: RunningCluster, broker: RunningBroker) -> None:
    broker.faults.drop_answers("Append", 2)
    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"x")
        producer.send(TOPIC, b"y", sharding_key="a")
        producer.send(TOPIC, b"z", sharding_key="a")
    headers = [(header.producer_id, header.lane, header.sequence) for header in broker.faults.requests["Append"]]
    assert headers[0] == headers[1] == headers[2]
    assert len(set(headers)) == 3
    assert headers[-1][1:] == (headers[-2][1], headers[-2][2] + 1)


def test_a_refusal_moves_the_message_to_another_broker_group(two: RunningCluster) -> None:
    for name in two.brokers:
        two.brokers[name].faults.refuse("Append", NotEnoughReplicas("too few"))
        with Producer(two.namesrv) as producer:
            assert producer.send(TOPIC, b"x").broker_name != name
        two.brokers[name].faults.heal()
    assert len(stored(two)) == 2


def test_a_lost_broker_group_costs_nothing_that_was_not_acknowledged(two: RunningCluster) -> None:
    with Producer(two.namesrv, batch_count_max=50, retry_another_shard_on_unknown=True) as producer:
        for number in range(2000):
            producer.produce(TOPIC, b"%d" % number)
            if number == 1000:
                two.kill("broker-a")
        producer.flush()
    two.revive("broker-a")
    assert set(stored(two)) == set(numbered(2000))


def test_sends_go_to_the_living_group_at_once(two: RunningCluster) -> None:
    with Producer(two.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        two.kill("broker-b")
        receipts = [producer.send(TOPIC, b"%d" % number) for number in range(10)]
    assert {receipt.broker_name for receipt in receipts} == {"broker-a"}


def test_an_unknown_outcome_is_settled_when_the_broker_returns(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        with broker.faults.holding("Append"):
            future = producer.send_async(TOPIC, b"late", timeout_s=20)
            wait_until(lambda: len(broker.faults.requests["Append"]) == 2, what="the append")
            one.kill("broker-a")
            one.revive("broker-a")
        receipt = future.result(20)
    assert stored(one).count(b"late") == 1
    assert receipt.queue_offset >= 0


def test_a_broker_that_never_answers_leaves_the_outcome_unknown(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        with broker.faults.holding("Append"), pytest.raises(OutcomeUnknown, match=r"no answer"):
            producer.send(TOPIC, b"x", timeout_s=0.3)


def test_a_cluster_without_a_master_refuses_in_time_and_says_not_stored(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        one.kill("broker-a")

        def is_refused() -> bool:
            with pytest.raises(PenstockError) as caught:
                producer.send(TOPIC, b"x", timeout_s=0.3)
            if isinstance(caught.value, OutcomeUnknown):
                return False  # it went into the connection before its end was seen
            assert isinstance(caught.value, BrokerUnavailable)
            assert re.search(r"no living master|failed to connect", caught.value.message)
            return True

        wait_until(is_refused, what="a refusal")


def test_flush_tells_what_was_refused_and_what_is_unknown(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv, delivery_timeout_s=0.5) as producer:
        broker.faults.refuse("Append", TopicNotFound("topic orders was deleted"))
        producer.produce_many(TOPIC, numbered(20))
        with pytest.raises(DeliveryFailed, match="20 messages not stored, first: topic orders was deleted") as caught:
            producer.flush()
        (failed,) = caught.value.refused
        assert (failed.topic, failed.count, failed.bodies) == (TOPIC, 20, tuple(numbered(10)))
        assert isinstance(failed.error, TopicNotFound)
        broker.faults.heal()
        broker.faults.drop_answers("Append")
        producer.produce(TOPIC, b"x")
        with pytest.raises(DeliveryFailed, match="1 messages unknown") as caught:
            producer.flush()
        assert isinstance(caught.value.unknown[0].error, OutcomeUnknown)
        broker.faults.heal()
        producer.flush()


def refuse_bad_bodies(broker: RunningBroker) -> None:
    def refusal(header: AppendHeader, records: memoryview) -> PenstockError | None:
        return CorruptBatch("record 0: refused") if b"bad" in RecordBatch(records).bodies() else None

    broker.faults.refuse("Append", refusal)


def test_only_the_message_that_a_broker_refuses_fails(one: RunningCluster, broker: RunningBroker) -> None:
    refuse_bad_bodies(broker)
    with Producer(one.namesrv) as producer:
        for number in range(40):
            producer.produce(TOPIC, b"bad" if number == 17 else b"%d" % number)
        with pytest.raises(DeliveryFailed) as caught:
            producer.flush()
    assert [(failed.count, failed.bodies) for failed in caught.value.refused] == [(1, (b"bad",))]
    assert len(stored(one)) == 39


def test_on_delivery_learns_each_outcome_before_flush_returns(two: RunningCluster) -> None:
    for each in two.brokers.values():
        refuse_bad_bodies(each)
    reports: list[Delivery] = []
    long = b"long " * 1000
    with Producer(two.namesrv, compression="zlib", on_delivery=reports.append) as producer:
        for number in range(40):
            producer.produce(TOPIC, b"bad" if number == 17 else b"%d" % number, sharding_key=f"c{number % 7}")
        producer.produce_many(TOPIC, [long, b"short", b"in between"])
        producer.send(TOPIC, b"has a receipt of its own")
        with pytest.raises(DeliveryFailed):
            producer.flush()
        told = list(reports)
    failed = [report for report in told if report.error is not None]
    assert [(report.bodies, report.broker_name, type(report.error)) for report in failed] == [
        ((b"bad",), "", CorruptBatch)
    ]
    good = [(report.broker_name, body) for report in told if report.error is None for body in report.bodies]
    wanted = [b"%d" % number for number in range(40) if number != 17] + [long, b"short", b"in between"]
    assert sorted(body for _, body in good) == sorted(wanted)
    assert all(body in two.brokers[name].bodies(TOPIC) for name, body in good if body != long)
    assert reports == told


def test_an_on_delivery_that_fails_costs_nobody_their_outcome(
    one: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(delivery: Delivery) -> None:
        raise asyncio.CancelledError

    with Producer(one.namesrv, on_delivery=fail) as producer:
        for body in (b"x", b"y"):
            producer.produce(TOPIC, body)
            producer.flush()
    assert sorted(stored(one)) == [b"x", b"y"]
    assert caplog.text.count("on_delivery failed") == 2


def test_close_sends_what_is_left_and_ends(one: RunningCluster) -> None:
    producer = Producer(one.namesrv, linger_ms=10_000)
    producer.produce(TOPIC, b"last")
    producer.close()
    producer.close()
    assert stored(one) == [b"last"]
    for call in (producer.send, producer.produce, producer.send_async):
        with pytest.raises(ClientClosed):
            call(TOPIC, b"x")


def test_close_gives_up_what_cannot_be_sent_and_says_so(one: RunningCluster) -> None:
    producer = Producer(one.namesrv)
    producer.prepare(TOPIC)
    one.kill("broker-a")
    producer.produce(TOPIC, b"x")
    future = producer.send_async(TOPIC, b"y", timeout_s=30)
    with pytest.raises(DeliveryFailed):
        producer.close(timeout_s=0.2)
    with pytest.raises((ClientClosed, OutcomeUnknown)):  # the latter while a connection is being tried
        future.result(30)


def test_linger_sends_without_a_flush(one: RunningCluster) -> None:
    with Producer(one.namesrv) as producer:
        producer.produce(TOPIC, b"1")
        wait_until(lambda: len(stored(one)) == 1, what="the first message")
        wait_until(lambda: producer._sender.is_sleeping, what="sleep")
        producer.produce(TOPIC, b"2")
        wait_until(lambda: len(stored(one)) == 2, what="the message after the sleep")


def test_waiting_senders_share_batches(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        producer.prepare(TOPIC)
        with broker.faults.holding("Append"):
            futures = [producer.send_async(TOPIC, b"%d" % number) for number in range(200)]
        assert len({future.result(10).message_id for future in futures}) == 200
    assert len(broker.faults.requests["Append"]) < 50


def test_an_unknown_topic_is_created_at_every_master(two: RunningCluster) -> None:
    with Producer(two.namesrv, topic_queues=3) as producer:
        producer.send("fresh", b"x")
    assert [broker.topics()["fresh"].write_queues for broker in two.brokers.values()] == [3, 3]


def test_a_topic_made_by_its_use_that_is_like_another_is_a_warning(
    one: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(one.namesrv) as producer, caplog.at_level("INFO", "penstock.client.cluster.calls"):
        producer.send("ordrs", b"x")
        producer.send("something-else", b"x")
    told = {record.args[0]: (record.levelname, record.args[2]) for record in caplog.records if record.args}
    assert told["ordrs"] == ("WARNING", f" (did you mean {TOPIC!r}?)")
    assert told["something-else"] == ("INFO", "")


def test_a_topic_that_may_not_be_created_is_not_found() -> None:
    with RunningCluster(autoCreateTopicEnable="false") as cluster:
        with Producer(cluster.namesrv) as producer, pytest.raises(TopicNotFound, match="autoCreateTopicEnable"):
            producer.produce("fresh", b"x")
        with Producer(cluster.namesrv, auto_create_topics=False) as producer, pytest.raises(TopicNotFound):
            producer.send("fresh", b"x")


def test_without_a_nameserver_a_send_ends_in_time() -> None:
    with Producer("127.0.0.1:1") as producer, pytest.raises(NameserverUnavailable):
        producer.send(TOPIC, b"x", timeout_s=0.3)
