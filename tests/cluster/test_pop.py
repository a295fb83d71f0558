"""POP with real processes, masters killed: nobody is given what another has, and what was acknowledged stays."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter

from penstock.client import Admin, InvalidReceipt, Producer, ReceiptExpired, SimpleConsumer
from penstock.deploy import LocalCluster
from penstock.proto.errors import PenstockError
from tests.support.cluster.failover import TOPIC, kill_master
from tests.support.waiting import wait_until

COUNT = 400
INVISIBLE_S = 60.0


class Worker:
    """Receives, and acknowledges all but every tenth message the first time, which it gives back."""

    def __init__(self, nameservers: str) -> None:
        self.received: Counter[tuple[bytes, int]] = Counter()
        self.acknowledged: Counter[bytes] = Counter()
        self.errors: list[PenstockError] = []
        self.is_done = threading.Event()
        self._nameservers = nameservers
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def stop(self) -> None:
        self.is_done.set()
        self._thread.join()

    def _work(self) -> None:
        with SimpleConsumer(
            self._nameservers, group="workers", invisible_s=INVISIBLE_S, consume_from="first"
        ) as consumer:
            consumer.subscribe(TOPIC)
            while not self.is_done.is_set():
                try:
                    self._turn(consumer)
                except PenstockError as error:
                    self.errors.append(error)
                self.is_done.wait(0.02)

    def _turn(self, consumer: SimpleConsumer) -> None:
        messages = consumer.receive(16, timeout_s=1)
        self.received.update((message.body, message.reconsume_times) for message in messages)
        for message in messages:
            if message.reconsume_times == 0 and int(message.body) % 10 == 0:
                with contextlib.suppress(ReceiptExpired):  # asked again, when what a dead master did is done already
                    consumer.change_invisible(message, 0, timeout_s=60)
            else:
                consumer.ack(message, timeout_s=60)
                self.acknowledged[message.body] += 1


def test_acknowledged_stays_and_nothing_is_given_to_two_though_masters_are_killed(
    shard: LocalCluster,
) -> None:
    nameservers = shard.plan.nameserver_addresses
    workers = [Worker(nameservers) for _ in range(2)]
    began_s = time.monotonic()
    try:
        with Producer(nameservers) as producer:
            for start in range(0, COUNT, 50):
                for number in range(start, start + 50):
                    producer.produce(TOPIC, b"%d" % number)
                producer.flush()
                if start in (100, 250):
                    kill_master(shard)

        def is_all_done() -> bool:
            return len(set().union(*(worker.acknowledged for worker in workers))) == COUNT

        wait_until(is_all_done, 180, "everything acknowledged")
        with Admin(nameservers) as admin:
            wait_until(lambda: admin.group_lag("workers").lag == 0, 60, "all committed")
    finally:
        for worker in workers:
            worker.stop()
    took_s = time.monotonic() - began_s
    assert not [error for worker in workers for error in worker.errors if isinstance(error, InvalidReceipt)]
    received = sum((worker.received for worker in workers), Counter[tuple[bytes, int]]())
    acknowledged = sum((worker.acknowledged for worker in workers), Counter[bytes]())
    assert len(acknowledged) == COUNT
    twice = {body for body, count in acknowledged.items() if count > 1}
    assert not twice, f"acknowledged, and given out again: {sorted(twice)[:10]}"
    if took_s < INVISIBLE_S:  # nothing's time was over, so nobody may have been given what another had
        assert {key: count for key, count in received.items() if count > 1} == {}
