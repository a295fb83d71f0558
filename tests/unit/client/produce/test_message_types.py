"""Topics that take messages of one type: what clients and brokers refuse, and what is stored all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.client import Admin, Message, Producer, TransactionProducer, TransactionState
from penstock.client.aio import AsyncAdmin, AsyncProducer
from penstock.client.cluster.directory import Directory
from penstock.formats.destination import Ordinary
from penstock.proto.errors import DeliveryFailed, InvalidArgument, MessageTypeConflict
from penstock.proto.wire.nameserver_pb2 import TopicRoute
from tests.support.client.running_cluster import RunningCluster

SENDS: dict[str, Callable[[TransactionProducer, str], Any]] = {
    "NORMAL": lambda producer, topic: producer.send(topic, b"x"),
    "FIFO": lambda producer, topic: producer.send(topic, b"x", sharding_key="k"),
    "DELAY": lambda producer, topic: producer.send(topic, b"x", delay_s=0),
    "DELAY by level": lambda producer, topic: producer.send(topic, b"x", sharding_key="k", delay_level=1),
    "TRANSACTION": lambda producer, topic: producer.send_in_transaction(
        topic, b"x", sharding_key="k", execute=lambda _: TransactionState.COMMIT
    ),
}
TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")


def test_a_topic_takes_messages_of_its_type_alone(two: RunningCluster) -> None:
    commit = TransactionState.COMMIT
    with Admin(two.namesrv) as admin, TransactionProducer(two.namesrv, group="g", check=lambda _: commit) as made:
        admin.create_topic("any", queues=2)
        for demanded in TYPES:
            topic = demanded.lower()
            assert admin.create_topic(topic, queues=2, type=demanded).message_type == demanded  # type: ignore[arg-type]
            for found, send in SENDS.items():
                send(made, "any")
                if demanded in (found.split()[0], "MIXED"):
                    send(made, topic)
                    continue
                with pytest.raises(MessageTypeConflict, match=f"topic {topic}: it takes {demanded} messages .* is "):
                    send(made, topic)


def test_the_broker_refuses_what_the_client_cannot_tell_and_stores_the_rest(two: RunningCluster) -> None:
    with Admin(two.namesrv) as admin, Producer(two.namesrv, linger_ms=50) as producer:
        for topic, demanded, other in (("fifo", "FIFO", None), ("normal", "NORMAL", "k")):
            admin.create_topic(topic, queues=2, type=demanded)  # type: ignore[arg-type]
            good = "k" if other is None else None
            for number in range(20):
                producer.produce(topic, b"%d" % number, sharding_key=other if number % 5 == 3 else good)
            with pytest.raises(DeliveryFailed) as failed:
                producer.flush()
            assert sum(each.count for each in failed.value.refused) == 4
            assert all(isinstance(each.error, MessageTypeConflict) for each in failed.value.refused)
            stored = [int(body) for broker in two.brokers.values() for body in broker.bodies(topic, 0, 1)]
            assert sorted(stored) == [number for number in range(20) if number % 5 != 3]


def test_a_batch_of_nothing_but_others_is_refused_at_once(one: RunningCluster) -> None:
    with Admin(one.namesrv) as admin, Producer(one.namesrv, linger_ms=50) as producer:
        admin.create_topic("delayed", queues=2, type="DELAY")
        admin.create_topic("fifo", queues=2, type="FIFO")
        for topic in ("delayed", "fifo"):
            for _ in range(50):
                producer.produce(topic, b"x")
        with pytest.raises(DeliveryFailed):
            producer.flush()
        assert producer.statistics().failed_tries <= 4
        with pytest.raises(MessageTypeConflict, match="this one is NORMAL: give it a sharding_key"):
            producer.produce_many("fifo", [b"x"])
        with pytest.raises(MessageTypeConflict):
            producer.send_batch([Message("fifo", b"1", sharding_key="k"), Message("fifo", b"2")])


def test_a_type_can_be_changed_and_other_attributes_stay(one: RunningCluster) -> None:
    with Admin(one.namesrv) as admin, Producer(one.namesrv) as producer:
        admin.create_topic("orders2", queues=2, type="FIFO", attributes={"retention.ms": "60000"})
        info = admin.update_topic("orders2", type="MIXED")
        assert info.attributes == {"message.type": "MIXED", "retention.ms": "60000"}
        assert producer.send("orders2", b"x").queue_offset == 0
        assert admin.update_topic("orders2", queues=4).message_type == "MIXED"
        for wrong in ("fifo", "UNSPECIFIED", "LITE"):
            with pytest.raises(InvalidArgument, match="NORMAL, FIFO, DELAY, TRANSACTION, MIXED are allowed"):
                admin.update_topic("orders2", type=wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument, match="allowed: NORMAL, FIFO, DELAY, TRANSACTION, MIXED"):
                admin.create_topic("orders3", attributes={"message.type": wrong})


def test_a_change_is_answered_when_the_nameserver_tells_it(
    one: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(one.namesrv) as admin:
        admin.create_topic("orders4", queues=2, type="FIFO")
        route, late = Directory.route, [admin._directory.route("orders4")] * 2

        def told_late(self: Directory, topic: str, timeout_s: float = 10.0) -> TopicRoute:
            return late.pop() if late else route(self, topic, timeout_s)

        monkeypatch.setattr(Directory, "route", told_late)
        assert admin.update_topic("orders4", type="MIXED").message_type == "MIXED"


def test_the_twins_refuse_alike(one: RunningCluster) -> None:
    async def check() -> None:
        async with AsyncAdmin(one.namesrv) as admin, AsyncProducer(one.namesrv) as producer:
            await admin.create_topic("fifo", queues=2, type="FIFO")
            assert (await producer.send("fifo", b"x", sharding_key="k")).queue_offset == 0
            with pytest.raises(MessageTypeConflict):
                await producer.send("fifo", b"x")

    asyncio.run(check())


def test_an_attribute_that_no_topic_has_is_refused(one: RunningCluster) -> None:
    with Admin(one.namesrv) as admin:
        for make in (admin.create_topic, admin.update_topic):
            with pytest.raises(InvalidArgument, match=r"'retention.sm': is not known; topics have .*retention"):
                make("orders", attributes={"retention.sm": "1000"})


def test_compacted_topics_are_refused_with_what_to_do(one: RunningCluster) -> None:
    with Admin(one.namesrv) as admin:
        for make in (admin.create_topic, admin.update_topic):
            with pytest.raises(
                InvalidArgument, match=r"topic orders: attribute cleanup.policy 'COMPACTION'.*retention"
            ):
                make("orders", attributes={"cleanup.policy": "COMPACTION"})
        assert admin.create_topic("deleted", attributes={"cleanup.policy": "DELETE"}).attributes


def test_a_change_that_is_told_while_a_topic_is_looked_up_is_not_forgotten(
    one: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Admin(one.namesrv) as admin, Producer(one.namesrv) as producer:
        admin.create_topic("changing", queues=2, type="FIFO")
        deliveries, known = producer._deliveries, Directory.known
        changed = admin.update_topic("changing", queues=4, type="MIXED")
        newer = admin._directory.route("changing")
        older = TopicRoute.FromString(newer.SerializeToString())
        older.queues[0].write_queues = 2
        older.attributes["message.type"] = "FIFO"
        telling = threading.Thread(target=deliveries._on_route, args=(newer,))

        def known_before(self: Directory, topic: str) -> TopicRoute | None:
            if telling.ident is None and topic == "changing" and self is producer._calls.directory:
                telling.start()  # the route has changed since this look
                if not deliveries._lock.locked():
                    telling.join()
                return older
            return known(self, topic)

        assert changed.message_type == "MIXED"
        monkeypatch.setattr(Directory, "known", known_before)
        producer.prepare("changing")
        telling.join()
        delivery = deliveries.known[Ordinary("changing")]
        producer.send("changing", b"x")  # which a FIFO topic would not take
        assert delivery._lanes.queues.total == 4
