"""A record that its broker cannot read is a named error for its consumers, who can step over it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from penstock.client import ConsumeResult, MessageQueue, PullConsumer, PushConsumer
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageView
from penstock.proto.errors import DamagedRecord
from tests.support.client.running_cluster import BODY_AT, RunningBroker, RunningCluster
from tests.support.waiting import wait_until

QUICK = ConsumerConfig(commit_interval_ms=50, settle_ms=100)
Q0 = MessageQueue("orders", "broker-a", 0)
OTHERS = [b"0", b"1", b"3", b"4"]


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def _damage(cluster: RunningCluster, bodies: list[bytes], offset: int) -> RunningBroker:
    """Put the bodies into queue 0 and change one of them, which nobody but its checksum tells."""
    cluster.put("orders", bodies, 0)
    broker = cluster.brokers["broker-a"]
    broker.flip(broker.records("orders")[0, offset], BODY_AT)
    return broker


def _consumer(cluster: RunningCluster, config: ConsumerConfig = QUICK) -> PullConsumer:
    return PullConsumer(cluster.namesrv, group="g", consume_from="first", config=config)


def _poll(puller: PullConsumer, count: int) -> list[bytes]:
    got: list[MessageView] = []
    wait_until(lambda: len(got) == count or got.extend(puller.poll(0.1)), what="messages")
    return [bytes(each.body) for each in got]


def test_poll_names_the_record_and_a_seek_steps_over_it(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker = _damage(cluster, [b"0", b"1", b"2", b"3", b"4"], 2)
    with caplog.at_level(logging.ERROR), _consumer(cluster) as puller:
        puller.assign([Q0])
        assert _poll(puller, 2) == OTHERS[:2]
        for _ in range(2):
            with pytest.raises(
                DamagedRecord, match=r"the record at \d+ is damaged \(orders queue 0 offset 2\)"
            ) as caught:
                puller.poll(10)
            assert caught.value.details == {
                "topic": "orders",
                "broker_name": "broker-a",
                "queue_id": 0,
                "offset": 2,
                "next_offset": 3,
            }
        assert puller.position(Q0) == 2
        puller.seek(Q0, caught.value.details["next_offset"])
        assert _poll(puller, 2) == OTHERS[2:]
        puller.commit()
        assert puller.committed(Q0) == 5
    assert any(header.verify for header in broker.faults.requests["Fetch"])
    assert caplog.text.count("damaged record holds up") == 1


def test_other_queues_go_on_beside_it(cluster: RunningCluster) -> None:
    _damage(cluster, [b"bad"], 0)
    cluster.put("orders", [b"a", b"b"], 1)
    with _consumer(cluster) as puller:
        puller.subscribe("orders")
        got: list[bytes] = []
        told = 0
        while len(got) < 2 or not told:
            try:
                got += [bytes(each.body) for each in puller.poll(5)]
            except DamagedRecord:
                told += 1
        assert got == [b"a", b"b"]
        cluster.put("orders", [b"c"], 1)
        while len(got) < 3:
            try:
                got += [bytes(each.body) for each in puller.poll(5)]
            except DamagedRecord:
                continue
        assert got == [b"a", b"b", b"c"]


def test_consumers_that_are_told_to_step_over_it_by_themselves(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    _damage(cluster, [b"0", b"1", b"2", b"3", b"4"], 2)
    config = ConsumerConfig(commit_interval_ms=50, settle_ms=100, skip_damaged=True)
    got: list[bytes] = []
    done = threading.Event()

    def on_message(message: MessageView) -> ConsumeResult:
        got.append(bytes(message.body))
        if len(got) == len(OTHERS):
            done.set()
        return ConsumeResult.SUCCESS

    consumer = PushConsumer(
        cluster.namesrv, group="g", listener=on_message, consume_threads=1, consume_from="first", config=config
    )
    consumer.subscribe("orders")
    with caplog.at_level(logging.ERROR), consumer:
        assert done.wait(20)
    assert got == OTHERS
    assert "damaged record skipped queue=" in caplog.text
    with _consumer(cluster, config) as puller:
        puller.assign([Q0])
        puller.seek(Q0, 0)
        assert _poll(puller, 4) == OTHERS
