"""Quick pull consumers for tests against a broker of their own."""

from __future__ import annotations

import time

from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.pull_consumer import PullConsumer
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

QUICK = ConsumerConfig(commit_interval_ms=50, settle_ms=100)
Q0 = MessageQueue("orders", "broker-a", 0)
Q1 = MessageQueue("orders", "broker-a", 1)


def consumer(cluster: RunningCluster, **options: object) -> PullConsumer:
    defaults = {"group": "g", "consume_from": "first", "config": QUICK}
    return PullConsumer(cluster.namesrv, **(defaults | options))  # type: ignore[arg-type]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def poll_all(puller: PullConsumer, count: int, timeout_s: float = 10) -> list[MessageView]:
    got: list[MessageView] = []
    deadline = time.monotonic() + timeout_s
    while len(got) < count and time.monotonic() < deadline:
        got += puller.poll(0.2)
    assert len(got) == count, [each.body for each in got]
    return got


def settle(puller: PullConsumer, queues: int) -> None:
    wait_until(lambda: len(puller.assignment()) == queues, what=f"{queues} queues")


def a_commit_interval_passes(cluster: RunningCluster) -> None:
    """Returns when a consumer that begins now has committed: the others have had their turn."""
    with consumer(cluster, group="another") as another:
        another.subscribe("orders")
        wait_until(lambda: cluster.committed("another", "orders", 0) == 0, what="its first commit")


def begun(puller: PullConsumer, *queues: MessageQueue) -> None:
    wait_until(lambda: set(queues) <= set(puller.assignment()), what="assignment")
    wait_until(lambda: all(puller.position(each) is not None for each in queues), what="positions")
