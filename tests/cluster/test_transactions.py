"""Transactions with real processes: masters are killed at every step, and each transaction ends as it was decided."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.client import Admin, MessageView, PullConsumer, TransactionProducer, TransactionState
from penstock.deploy import LocalCluster
from tests.support.cluster.failover import TOPIC, create_topic, kill_master, local_cluster
from tests.support.waiting import wait_until

LOOKS = itertools.count()
STEPS = ("halves sent", "halves stored", "end sent", "end answered")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(
        tmp_path_factory.mktemp("transactions"),
        replicas_within_s=30,
        shards=1,
        replicas=3,
        nameservers=1,
        mode="durable",
        settings={"transactionTimeOut": "1000", "transactionCheckInterval": "1000"},
    ) as made:
        create_topic(made.plan.nameserver_addresses)
        yield made


def seen(nameservers: str) -> Counter[bytes]:
    group = f"look-{next(LOOKS)}"  # one that has committed nothing
    with Admin(nameservers) as admin, PullConsumer(nameservers, group=group, consume_from="first") as puller:
        end = sum(queue.max_offset for queue in admin.topic_stats(TOPIC).queues)
        puller.assign(puller.queues(TOPIC))
        found: Counter[bytes] = Counter()
        while found.total() < end:
            found.update(message.body for message in puller.poll(1))
    return found


def test_each_transaction_ends_as_it_was_decided_though_masters_are_killed_at_every_step(shard: LocalCluster) -> None:
    nameservers = shard.plan.nameserver_addresses
    expected: Counter[bytes] = Counter()

    def check(message: MessageView) -> TransactionState:
        return TransactionState.COMMIT if message.body.startswith(b"asked") else TransactionState.ROLLBACK

    with TransactionProducer(nameservers, group="payments", check=check, delivery_timeout_s=60) as producer:
        for number, step in enumerate(STEPS):
            tx, rolled, left = producer.transaction(), producer.transaction(), producer.transaction()
            bodies = [b"commit %d %d" % (number, each) for each in range(200)]
            tx.produce_many(TOPIC, bodies)
            rolled.produce_many(TOPIC, [b"never"] * 50)
            left.send(TOPIC, b"asked %d" % number, timeout_s=60)
            left.leave()
            expected.update([*bodies, b"asked %d" % number])
            killing = threading.Thread(target=kill_master, args=(shard,))
            if step == "halves sent":
                killing.start()
            elif step == "halves stored":
                wait_until(lambda tx=tx: tx._pending == 0, 60, "the halves")  # type: ignore[misc]
                killing.start()
                killing.join()
            elif step == "end sent":
                wait_until(lambda tx=tx: tx._pending == 0, 60, "the halves")  # type: ignore[misc]
                killing.start()
            tx.commit(timeout_s=90)
            if step == "end answered":
                killing.start()
            rolled.rollback(timeout_s=90)
            killing.join()
            tx.commit(timeout_s=90)
        wait_until(lambda: seen(nameservers) >= expected, 90, "everything that is committed, or asked about")
    assert seen(nameservers) == expected
