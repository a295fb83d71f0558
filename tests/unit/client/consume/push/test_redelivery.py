"""What becomes of a message that its listener could not take: the policy decides."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.client import ConsumeResult, MessageView
from penstock.client.consume.push.push_queue import Item
from penstock.client.consume.push.redelivery import Again, Done, Local, Redelivery
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
