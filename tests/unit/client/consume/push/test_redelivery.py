"""What becomes of a message that its listener could not take: the policy decides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker.core.tables.producers import ProducerTable, Receipt
from penstock.client import ConsumeResult, MessageView
from penstock.client.consume.push.push_queue import Item
from penstock.client.consume.push.redelivery import Again, Done, InPlace, Local, Redelivery
from penstock.client.consume.send_backs import SendBacks
from penstock.client.message import MessageQueue
from penstock.proto.errors import BrokerUnavailable, LaneForgotten
from penstock.proto.wire.retry_pb2 import SendBackReply, SendBackRequest
from tests.support.client.push_consumers import Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 1}) as made:
        yield made


class Once(Redelivery):
    """Tries each message once more and then leaves it to somebody else."""

    def __init__(self) -> None:
        self.left: list[tuple[bytes, int]] = []

    def on_failure(self, item: Item, attempts: int) -> Again | Done:
        if attempts < 2:
            return Again(0.001)
        assert isinstance(item, MessageView)
        self.left.append((item.body, attempts))
        return Done()


def test_the_last_delay_repeats() -> None:
    local = Local((1000, 2000))
    item: Item = []
    assert [local.on_failure(item, attempts) for attempts in (1, 2, 3, 9)] == [Again(1), Again(2), Again(2), Again(2)]


class SlowBroker:
    """Stores what is sent back, by the table that a broker has for that, and answers repeated calls alone."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []  # queue, offset
        self.asked: list[tuple[int, bool]] = []
        self.is_forgetful = False
        self._table = ProducerTable()

    connections: Any = property(lambda self: self)

    def on(self, broker_name: str, call: Callable[[str, float], SendBackReply], timeout_s: float) -> SendBackReply:
        return call("127.0.0.1:1", timeout_s)

    def call(self, address: str, method: str, request: SendBackRequest, *more: Any, **settings: Any) -> SendBackReply:
        self.asked.append((request.sequence, request.again))
        if self.is_forgetful and request.again:
            raise LaneForgotten("nobody knows")
        number = request.producer_id, 0, "%DLQ%g", 0
        if self._table.find_duplicate(*number, request.sequence) is not None:
            return SendBackReply(dead=1)
        self._table.remember(*number, Receipt(request.sequence, 0, 1, 0, [0], [0]))
        self.stored += [(request.queue_id, offset) for offset in request.offsets]
        raise BrokerUnavailable("no answer in time")


def test_dead_letters_of_many_queues_are_stored_once_though_no_first_call_is_answered() -> None:
    broker = SlowBroker()
    policy = InPlace([1], 0, SendBacks(broker, "g", 0))  # type: ignore[arg-type]
    items: Any = [
        [SimpleNamespace(message_queue=MessageQueue("orders", "broker-a", queue_id), queue_offset=7, reconsume_times=0)]
        for queue_id in range(8)
    ]
    assert [policy.on_failure(item, 1) for item in items] == [Again(0.001)] * 8
    assert [policy.on_failure(item, 2) for item in items] == [Done()] * 8
    assert broker.stored == [(queue_id, 7) for queue_id in range(8)]


def test_a_dead_letter_of_which_the_broker_forgot_whether_it_is_stored_goes_by_another_call_after_another_try() -> None:
    broker = SlowBroker()
    policy = InPlace([1], 0, SendBacks(broker, "g", 0))  # type: ignore[arg-type]
    item: Any = [
        SimpleNamespace(message_queue=MessageQueue("orders", "broker-a", 0), queue_offset=7, reconsume_times=0)
    ]
    assert policy.on_failure(item, 1) == Again(0.001)
    broker.is_forgetful = True
    assert policy.on_failure(item, 2) == Again(0.001)
    assert broker.asked == [(1, False), (1, True)]
    assert policy.on_failure(item, 3) == Again(0.001)
    assert policy.on_failure(item, 4) == Again(0.001)
    assert broker.asked[2:] == [(2, False), (2, True)]


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_that_somebody_else_keeps_is_passed_by_the_commit(cluster: RunningCluster, orderly: bool) -> None:
    cluster.put("orders", numbered(5), 0)
    policy = Once()
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if message.body == b"2" else None)
    made = consumer(cluster, seen, orderly=orderly)
    made._workers._redelivery = policy
    with made:
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="the commit behind all messages")
    assert policy.left == [(b"2", 2)]
    assert sorted(seen.bodies()) == [b"0", b"1", b"2", b"2", b"3", b"4"]
