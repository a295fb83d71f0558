"""Simple consumers at real brokers: what each gets, and what its receipts are good for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.client import (
    Admin,
    BrokerUnavailable,
    ClientClosed,
    ConfigError,
    Forbidden,
    InvalidArgument,
    InvalidReceipt,
    PushConsumer,
    ReceiptExpired,
    ReceivedMessage,
    SimpleConsumer,
    TopicNotFound,
)
from penstock.client.aio import AsyncSimpleConsumer
from penstock.proto import names
from penstock.proto.receipts import Receipt
from penstock.proto.wire.broker_pb2 import CreateTopicRequest
from penstock.proto.wire.common_pb2 import TopicConfig
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

TOPIC, GROUP = "orders", "workers"


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(2, topics={TOPIC: 4}) as made:
        yield made


LONG_S = 30.0
"""For what is answered at once, however busy the machine is."""


def simple(cluster: RunningCluster, expression: str = "*", **settings: Any) -> SimpleConsumer:
    """A consumer that knows where the topic is: its receives are short."""
    made = SimpleConsumer(cluster.namesrv, group=GROUP, **{"consume_from": "first"} | settings)
    made.subscribe(TOPIC, expression)
    made._calls.directory.topic(TOPIC, LONG_S)
    return made


def received(consumer: SimpleConsumer, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []

    def is_all() -> bool:
        found.extend(consumer.receive(count - len(found), timeout_s=1))
        return len(found) == count

    wait_until(is_all, 30, f"{count} messages")
    return found


def test_messages_of_all_brokers_go_to_one_of_the_consumers_each(cluster: RunningCluster) -> None:
    for name in ("broker-a", "broker-b"):
        cluster.put(TOPIC, [b"%s %d" % (name.encode(), number) for number in range(10)], broker_name=name)
    with simple(cluster) as one, simple(cluster) as other:
        messages = [*received(one, 7), *received(other, 7), *received(one, 6)]
        with Admin(cluster.namesrv) as admin:
            info = admin.group(GROUP)
            assert (info.pops, info.in_flight) == (True, 20)
        assert len({message.body for message in messages}) == 20
        assert one.receive(timeout_s=0) == []
        one.ack(messages[:10])
        other.ack([message.receipt for message in messages[10:]])
        one.ack(messages[0])
    with Admin(cluster.namesrv) as admin:
        wait_until(lambda: admin.group_lag(GROUP).lag == 0, what="all committed")


def test_topics_may_come_and_go_between_receives(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"1"], broker_name="broker-a")
    with Admin(cluster.namesrv) as admin, simple(cluster) as consumer:
        assert [message.body for message in received(consumer, 1)] == [b"1"]
        admin.create_topic("returns")
        cluster.put("returns", [b"2"], broker_name="broker-b")
        consumer.subscribe("returns")
        assert [message.body for message in received(consumer, 1)] == [b"2"]
        consumer.unsubscribe(TOPIC)
        cluster.put(TOPIC, [b"3"], broker_name="broker-a")
        cluster.put("returns", [b"4"], broker_name="broker-a")
        assert [message.body for message in received(consumer, 1)] == [b"4"]
        assert consumer.receive(timeout_s=0) == []


def test_a_message_that_is_made_visible_comes_again_and_is_counted(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one"])
    with simple(cluster) as consumer:
        (message,) = received(consumer, 1)
        assert (message.reconsume_times, message.topic) == (0, TOPIC)
        assert consumer.change_invisible(message, 0) is message
        (again,) = received(consumer, 1)
        assert (again.body, again.reconsume_times, again.topic) == (b"one", 1, TOPIC)
        with pytest.raises(ReceiptExpired, match="comes again") as refused:
            consumer.ack(message)
        assert refused.value.details["receipts"] == [message.receipt]
        consumer.ack(again)
        consumer.ack(again)
        consumer.forward_to_dead_letters(again)
        with pytest.raises(ReceiptExpired, match="acknowledged before, or a change whose answer") as refused:
            consumer.change_invisible(again, 60)
        assert refused.value.details["receipts"] == [again.receipt]


def test_receipts_that_are_none_are_refused_by_name(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one", b"two"])
    with simple(cluster) as consumer, SimpleConsumer(cluster.namesrv, group="others") as other:
        message, second = received(consumer, 2)
        receipt = message.receipt
        assert Receipt.parse(receipt) == message.parsed
        for text in ("", "x", receipt[:-6] + "AAAAAA", receipt[4:], receipt + "é"):
            with pytest.raises(InvalidReceipt, match="is none"):
                consumer.ack(text)
        with pytest.raises(InvalidReceipt, match="of group workers"):
            other.ack(receipt)
        forged = message.parsed._replace(check_point=1 << 40).text()
        with pytest.raises(InvalidReceipt, match="no such receipt"):
            consumer.ack([forged, second])
        assert consumer.receive(timeout_s=0) == []
        consumer.ack(second)
        changed = consumer.change_invisible(message, 60)
        with pytest.raises(ReceiptExpired):
            consumer.ack(receipt)
        consumer.ack(changed)


def test_what_is_no_receipt_keeps_no_other_from_being_acknowledged(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"%d" % number for number in range(6)])
    with simple(cluster) as consumer, SimpleConsumer(cluster.namesrv, group="others", consume_from="first") as other:
        other.subscribe(TOPIC)
        foreign = received(other, 1)[0].receipt
        messages = received(consumer, 6)
        for settle, void, first, second in zip(
            (consumer.ack, consumer.forward_to_dead_letters, consumer.ack),
            ("junk", None, foreign),
            messages[::2],
            messages[1::2],
            strict=True,
        ):
            with pytest.raises(InvalidReceipt) as refused:
                settle([first, void, second])  # type: ignore[list-item]
            assert refused.value.details["receipts"] == [void]
            for message in (first, second):
                with pytest.raises(ReceiptExpired, match="acknowledged before"):
                    consumer.change_invisible(message, 60)


def test_what_is_no_message_is_refused_by_name(cluster: RunningCluster) -> None:
    with simple(cluster) as consumer:
        for call in (consumer.ack, consumer.give_back, consumer.forward_to_dead_letters):
            for value in (None, 5):
                with pytest.raises(InvalidArgument, match=f"messages={value}: must be a message"):
                    call(value)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="message=None: must be a message"):
            consumer.change_invisible(None, 60)  # type: ignore[arg-type]
    with pytest.raises(ClientClosed):
        consumer.subscribe(TOPIC)


def test_dead_letters_on_demand_are_messages_like_others_to_who_subscribes_them(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"bad", b"good"])
    with simple(cluster) as consumer:
        bad, good = received(consumer, 2)
        consumer.forward_to_dead_letters(bad)
        consumer.ack(good)
    dead = f"%DLQ%{GROUP}"
    assert len(cluster.brokers["broker-a"].records(dead)) == 1
    with SimpleConsumer(cluster.namesrv, group="readers", consume_from="first") as reader:
        reader.subscribe(dead)
        for times in range(3):
            (found,) = received(reader, 1)
            assert (found.body, found.topic, found.reconsume_times) == (b"bad", dead, times)
            reader.change_invisible(found, 0)


def test_tags_choose_by_their_text(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"1", b"2", b"3"], tags=["Aa", "BB", "other"])  # the first two have one hash
    with simple(cluster, "Aa") as consumer:
        (message,) = received(consumer, 1)
        assert message.body == b"1"
        consumer.ack(message)
        assert consumer.receive(timeout_s=0) == []
        wait_until(lambda: cluster.committed(GROUP, TOPIC, 0) == 3, what="all committed")


def test_a_group_pops_or_claims(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one"])
    with simple(cluster) as consumer:
        received(consumer, 1)
        late = PushConsumer(cluster.namesrv, group=GROUP, listener=print)
        late.subscribe(TOPIC)
        late.start()
        with pytest.raises(Forbidden, match="simple consumers"):
            late.wait(30)
        late.close()
    push = PushConsumer(cluster.namesrv, group="pushers", listener=lambda message: None)
    push.subscribe(TOPIC)
    with push:
        wait_until(lambda: bool(cluster.brokers["broker-a"].members("pushers")), 30, "a member")
        with SimpleConsumer(cluster.namesrv, group="pushers") as other:
            other.subscribe(TOPIC)
            with pytest.raises(Forbidden, match="claim queues"):
                other.receive(timeout_s=LONG_S)


def test_receipts_outlive_the_death_of_their_broker(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"%d" % number for number in range(4)])
    with simple(cluster) as consumer:
        messages = received(consumer, 4)
        consumer.ack(messages[:2])
        cluster.kill("broker-a")
        cluster.revive("broker-a")
        consumer.ack(messages[:3])
        assert consumer.receive(timeout_s=1) == []
        consumer.change_invisible(messages[3], 0)
        (again,) = received(consumer, 1)
        assert again.body == messages[3].body


def test_a_new_group_begins_behind_what_is_there(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"old"])
    with simple(cluster, consume_from="last") as consumer:
        assert consumer.receive(timeout_s=1) == []  # each broker is asked
        cluster.put(TOPIC, [b"new"])
        (message,) = received(consumer, 1)
        assert message.body == b"new"


def test_what_a_broker_group_stores_that_gets_the_topic_later_is_received_from_its_first_message(
    cluster: RunningCluster,
) -> None:
    cluster.create_topic("half", 1, brokers=["broker-a"])
    cluster.put("half", [b"old"])
    with SimpleConsumer(cluster.namesrv, group=GROUP) as consumer:
        consumer.subscribe("half")
        assert consumer.receive(timeout_s=1) == []
        cluster.create_topic("half", 1, brokers=["broker-b"])
        cluster.put("half", [b"new"], broker_name="broker-b")
        (message,) = received(consumer, 1)
        assert message.body == b"new"


def test_an_old_topic_begins_behind_what_is_there_also_beside_a_younger_one(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"old"])
    with simple(cluster, consume_from="last") as consumer:
        consumer.subscribe("younger")
        assert consumer.receive(timeout_s=0) == []  # it is looked up
        cluster.create_topic("younger", 1)
        cluster.put("younger", [b"new"])
        wait_until(lambda: (route := consumer._calls.directory.known("younger")) is not None and route.exists)
        assert [message.body for message in received(consumer, 1)] == [b"new"]
        assert consumer.receive(timeout_s=1) == []


def test_a_topic_that_does_not_exist_keeps_nothing_of_the_others_back(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"there"])
    with simple(cluster) as consumer, Admin(cluster.namesrv) as admin:
        consumer.subscribe("missing")
        assert [message.body for message in received(consumer, 1)] == [b"there"]
        admin.delete_topic(TOPIC)
        wait_until(lambda: (route := consumer._calls.directory.known(TOPIC)) is not None and not route.exists)
        with pytest.raises(TopicNotFound):
            consumer.receive(timeout_s=0)


def test_a_topic_that_nobody_may_read_brings_nothing_until_somebody_may(cluster: RunningCluster) -> None:
    def permit(perm: int) -> None:
        config = TopicConfig(topic=TOPIC, read_queues=4, write_queues=4, perm=perm)
        for broker in cluster.brokers.values():
            broker.call("CreateTopic", CreateTopicRequest(config=config, update=True))
        wait_until(lambda: {each.perm for each in cluster.route(TOPIC).queues} == {perm}, 30, "the permission")

    async def receive() -> list[ReceivedMessage]:
        async with AsyncSimpleConsumer(cluster.namesrv, group=GROUP) as consumer:
            consumer.subscribe(TOPIC)
            return await asyncio.wait_for(consumer.receive(timeout_s=0), LONG_S)

    cluster.put(TOPIC, [b"one"])
    permit(names.PERM_WRITE)
    assert asyncio.run(receive()) == []
    with ThreadPoolExecutor(1) as pool, simple(cluster) as consumer:
        assert consumer.receive(timeout_s=0) == []
        waiting = pool.submit(consumer.receive, timeout_s=LONG_S)
        permit(names.PERM_READ_WRITE)
        assert [message.body for message in waiting.result()] == [b"one"]


def test_a_broker_group_without_a_master_does_not_hold_up_what_others_have(cluster: RunningCluster) -> None:
    cluster.add_slave("broker-a")
    with ThreadPoolExecutor(1) as pool, simple(cluster) as consumer:
        cluster.kill("broker-a")
        for body in (b"1", b"2"):  # each of the two is asked first once
            cluster.put(TOPIC, [body], broker_name="broker-b")
            (message,) = pool.submit(consumer.receive, timeout_s=3600).result(LONG_S)
            assert message.body == body


def test_what_makes_no_sense_is_refused(cluster: RunningCluster) -> None:
    with SimpleConsumer(cluster.namesrv, group=GROUP) as consumer:
        with pytest.raises(InvalidArgument, match="subscribe to a topic first"):
            consumer.receive(timeout_s=0)
        consumer.subscribe("nowhere")
        with pytest.raises(TopicNotFound):
            consumer.receive(timeout_s=LONG_S)
        consumer.unsubscribe("nowhere")
        consumer.subscribe(TOPIC)
        with pytest.raises(InvalidArgument, match="too small"):
            consumer.receive(timeout_s=LONG_S, invisible_s=1)
        for count in (0, 1025):
            with pytest.raises(InvalidArgument, match=rf"max_messages={count}: must be .*1\.\.1024"):
                consumer.receive(count)
    with pytest.raises(ClientClosed):
        consumer.receive(timeout_s=0)
    with pytest.raises(ConfigError):
        SimpleConsumer(cluster.namesrv, group=GROUP, consume_from="yesterday")


def test_a_message_that_is_given_back_comes_again_and_is_not_counted(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one"])
    with simple(cluster) as consumer:
        for _ in range(20):  # more than its tries
            (message,) = received(consumer, 1)
            assert (message.body, message.reconsume_times, message.topic) == (b"one", 0, TOPIC)
            consumer.give_back(message)
        with pytest.raises(ReceiptExpired):
            consumer.ack(message)


def test_the_asyncio_twin(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one", b"two"])

    async def consume() -> list[bytes]:
        async with AsyncSimpleConsumer(cluster.namesrv, group=GROUP, consume_from="first") as consumer:
            consumer.subscribe(TOPIC)
            found: list[ReceivedMessage] = []
            while len(found) < 2:
                found += await consumer.receive(timeout_s=5)
            await consumer.change_invisible(found[0], invisible_s=60)
            await consumer.ack(found)
            return sorted(message.body for message in found)

    assert asyncio.run(consume()) == [b"one", b"two"]


@pytest.mark.parametrize("when", ["before it comes", "when it is there"])
def test_what_a_cancelled_receive_is_given_comes_again_at_once(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    was_received = threading.Event()
    receive = SimpleConsumer.receive

    def told(consumer: SimpleConsumer, *arguments: Any, **options: Any) -> list[ReceivedMessage]:
        found = receive(consumer, *arguments, **options)
        was_received.set()
        return found

    async def leave() -> None:
        async with AsyncSimpleConsumer(
            cluster.namesrv, group=GROUP, consume_from="first", invisible_s=3600
        ) as consumer:
            consumer.subscribe(TOPIC)
            receiving = asyncio.create_task(consumer.receive(timeout_s=LONG_S))
            await asyncio.sleep(0)  # a thread begins
            if when == "when it is there":
                cluster.put(TOPIC, [b"one"])
                was_received.wait(LONG_S)  # the loop has not looked
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            if when == "before it comes":
                cluster.put(TOPIC, [b"one"])
            with simple(cluster) as other:
                (again,) = received(other, 1)
                assert (again.body, again.reconsume_times) == (b"one", 0)

    with monkeypatch.context() as patch:
        patch.setattr(SimpleConsumer, "receive", told)
        asyncio.run(leave())


def test_receives_that_wait_keep_no_thread_from_others(cluster: RunningCluster) -> None:
    cluster.put(TOPIC, [b"one"])

    async def consume() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))  # one receive would be too many
        async with AsyncSimpleConsumer(cluster.namesrv, group=GROUP, consume_from="first") as consumer:
            consumer.subscribe(TOPIC)
            (message,) = await consumer.receive(timeout_s=LONG_S)
            idle = [asyncio.create_task(consumer.receive(timeout_s=LONG_S)) for _ in range(10)]
            await asyncio.sleep(0)  # they begin
            await consumer.ack(message)
            assert not any(each.done() for each in idle)
        for ended in await asyncio.gather(*idle, return_exceptions=True):
            assert isinstance(ended, (ClientClosed, BrokerUnavailable)), ended
        with pytest.raises(ClientClosed):
            await consumer.receive()

    asyncio.run(consume())
