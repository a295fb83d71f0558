"""``produce`` and ``send`` to one topic at a time: they share batches, and each learns what it waits for."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from penstock.client import Producer, SendStatus
from penstock.client.cluster.retry import NEVER
from penstock.client.produce.parts import Batch, Kind, Lane, Part, new_part
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import OutcomeUnknown
from penstock.proto.wire.broker_pb2 import FLUSH_DISK_TIMEOUT, SEND_OK, AppendReceipt
from tests.support.client.running_cluster import RunningBroker, RunningCluster
from tests.support.waiting import wait_until

TOPIC = "orders"
NOW = 1000.0


@pytest.mark.parametrize("keys", [0, 3])
def test_they_share_batches_and_receipts_point_at_their_own(
    one: RunningCluster, broker: RunningBroker, keys: int
) -> None:
    with Producer(one.namesrv) as producer:
        producer.prepare(TOPIC)
        sent = {}
        with broker.faults.holding("Append"):
            for number in range(200):
                key = f"key-{number % keys}" if keys else None
                producer.produce(TOPIC, b"produced %d" % number, sharding_key=key)
                sent[b"sent %d" % number] = producer.send_async(TOPIC, b"sent %d" % number, sharding_key=key)
        producer.flush()
        receipts = {body: future.result(0) for body, future in sent.items()}
    assert len(broker.faults.requests["Append"]) < 50
    lying = broker.records(TOPIC)
    assert len(lying) == 400
    assert all(body_of(lying[each.queue_id, each.queue_offset]) == body for body, each in receipts.items())


def test_a_sender_hears_in_time_and_what_was_produced_is_tried_on(one: RunningCluster, broker: RunningBroker) -> None:
    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        with broker.faults.holding("Append"):
            blocking = [producer.send_async(TOPIC, b"first", timeout_s=60) for _ in range(2)]
            producer.produce(TOPIC, b"produced", sharding_key="key")
            future = producer.send_async(TOPIC, b"sent", sharding_key="key", timeout_s=3.0)  # under way by then
            with pytest.raises(OutcomeUnknown, match="when the time was up"):
                future.result(60)
            assert producer.pending >= 2
        producer.flush()
        assert [each.result(0).status for each in blocking] == [SendStatus.SEND_OK] * 2
    assert sorted(broker.bodies(TOPIC)) == sorted([b"warm", b"first", b"first", b"produced", b"sent"])


def test_a_sender_learns_that_the_disk_was_too_slow_and_what_was_produced_is_tried_on(
    one: RunningCluster, broker: RunningBroker
) -> None:
    slow = [True]

    def change(receipt: AppendReceipt) -> AppendReceipt:
        receipt.status = FLUSH_DISK_TIMEOUT if slow[0] else SEND_OK
        return receipt

    with Producer(one.namesrv) as producer:
        producer.send(TOPIC, b"warm")
        with broker.faults.holding("Append"):
            producer.produce(TOPIC, b"produced", sharding_key="key")
            future = producer.send_async(TOPIC, b"sent", sharding_key="key")
            wait_until(lambda: len(broker.faults.requests["Append"]) == 2, what="the append")
            broker.faults.change_answers("Append", change)
        receipt = future.result(60)
        assert receipt.status is SendStatus.FLUSH_DISK_TIMEOUT
        assert producer.pending == 2
        slow[0] = False
        producer.flush()
    assert body_of(broker.records(TOPIC)[receipt.queue_id, receipt.queue_offset]) == b"sent"


def body_of(record: bytes) -> bytes:
    return decode_record(record).body


def part(kind: Kind, deadline: float) -> Part:
    made = new_part(kind, [b"x"], [None], deadline)
    made.futures = [] if kind is Kind.PRODUCE else [Future()]
    return made


def test_only_senders_that_share_a_batch_with_produced_ones_are_told_before_its_end() -> None:
    sent, later, produced = part(Kind.SEND, NOW + 1), part(Kind.SEND, NOW + 2), part(Kind.PRODUCE, NOW + 9)
    (first,), (second,) = sent.futures, later.futures
    queue_ids = np.zeros(3, np.int32)
    assert Batch(Lane("a", 0), [sent, later], 1, queue_ids[:2]).tells_at == NEVER
    batch = Batch(Lane("a", 0), [produced, sent, later], 1, queue_ids)
    assert batch.tells_at == NOW + 1
    assert batch.take_late(NOW + 1) == [first]
    assert batch.tells_at == NOW + 2
    assert batch.take_late(NOW + 3) == [second]
    assert (batch.tells_at, batch.take_late(NOW + 99)) == (NEVER, [])
    assert not sent.may_take(part(Kind.SEND, NOW + 9), 1 << 20, 100)


def test_a_callback_of_a_future_that_is_no_exception_costs_nobody_their_outcome(
    one: RunningCluster, broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise GeneratorExit

    with Producer(one.namesrv) as producer:
        for _ in range(2):
            with broker.faults.holding("Append"):  # a future that is done would raise it here
                first, second = producer.send_async(TOPIC, b"x"), producer.send_async(TOPIC, b"y")
                first.add_done_callback(fail)
            assert second.result(60).status is SendStatus.SEND_OK
        producer.flush()
    assert caplog.text.count("callback of a future failed") == 2
