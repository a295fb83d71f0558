"""Push consumers that share queues: members and masters come and go, queues move."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import pytest

from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.consume.group.mismatches import Mismatches
from penstock.client.consume.group.rebalance import average
from penstock.client.message import MessageQueue
from tests.support.client.push_consumers import Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


@contextlib.contextmanager
def work(cluster: RunningCluster) -> Iterator[None]:
    """Numbered messages for both queues for the length of the block."""
    stop = threading.Event()

    def produce() -> None:
        number = 0
        while not stop.is_set():
            cluster.put("orders", [b"%d" % number], number % 2)
            number += 1
            stop.wait(0.001)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield
    finally:
        stop.set()
        producer.join()


def test_two_members_never_get_one_message_both_while_sharing_changes(cluster: RunningCluster) -> None:
    first_seen, second_seen = Seen(), Seen()
    with consumer(cluster, first_seen) as first:
        wait_until(lambda: len(first.assignment()) == 2, what="both queues")
        with work(cluster):
            wait_until(lambda: len(first_seen) > 50, 30, "work")
            with consumer(cluster, second_seen) as second:
                wait_until(lambda: len(second.assignment()) == 1, what="the second one's share")
                assert len(first.assignment()) == 1
                wait_until(lambda: len(second_seen) > 50, 30, "work of the second one")
            wait_until(lambda: len(first.assignment()) == 2, what="both queues again")
            after = len(first_seen)
            wait_until(lambda: len(first_seen) > after + 50, 30, "work after it left")
        total = len(cluster.brokers["broker-a"].bodies("orders"))
        wait_until(lambda: len(first_seen) + len(second_seen) >= total, what="everything")
    everything = first_seen.bodies() + second_seen.bodies()
    assert sorted(everything) == sorted(numbered(total))


def test_when_a_member_dies_the_other_begins_at_its_commits(cluster: RunningCluster) -> None:
    victim_seen, survivor_seen = Seen(), Seen()
    victim = consumer(cluster, victim_seen, client_id="a")
    with consumer(cluster, survivor_seen, client_id="b") as survivor, victim:
        wait_until(lambda: len(survivor.assignment()) == len(victim.assignment()) == 1, what="sharing")
        cluster.put("orders", numbered(20), 0)
        cluster.put("orders", numbered(20, 100), 1)
        wait_until(lambda: len(victim_seen) + len(survivor_seen) == 40, what="the first messages")
        wait_until(lambda: cluster.committed("g", "orders", victim.assignment()[0].queue_id) == 20, what="commit")
        # Killed: nothing is said, the connections just end.
        victim._core.directory.close()
        victim._core.connections.close()
        wait_until(lambda: len(survivor.assignment()) == 2, what="take-over")
        cluster.put("orders", numbered(5, 20), 0)
        cluster.put("orders", numbered(5, 120), 1)
        wait_until(lambda: len(survivor_seen) == 30, what="the rest")
    assert sorted(victim_seen.bodies() + survivor_seen.bodies()) == sorted([*numbered(25), *numbered(25, 100)])


def test_a_revoked_queue_is_released_when_its_running_work_has_ended(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    cluster.put("orders", numbered(3, 100), 1)
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(20) and None), Seen()
    with consumer(cluster, first_seen, client_id="b") as first:
        wait_until(lambda: len(first_seen) == 4, what="four listeners at work")
        with consumer(cluster, second_seen, client_id="a") as second:
            wait_until(lambda: len(first.assignment()) == 1, what="revocation")
            requests = cluster.brokers["broker-a"].faults.requests["ConsumerSession"]
            wait_until(lambda: [0] in [each.claim.queue_ids for each in requests], what="the new holder's claim")
            assert cluster.brokers["broker-a"].claimed("g") == {"a": [], "b": [0, 1]}
            assert len(second_seen) == 0, "the work on the queue has not ended"
            gate.set()
            wait_until(lambda: cluster.brokers["broker-a"].claimed("g") == {"a": [0], "b": [1]}, what="the grant")
            wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="everything of queue 0")
            wait_until(lambda: len(second.assignment()) == 1, what="the queue at its new holder")
    everything = first_seen.bodies() + second_seen.bodies()
    assert sorted(everything) == sorted([*numbered(3), *numbered(3, 100)])


def test_work_that_does_not_end_holds_a_revoked_queue_only_so_long(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(1), 0)
    gate = threading.Event()
    impatient = ConsumerConfig(commit_interval_ms=30, revoke_timeout_ms=300)
    second_seen = Seen()
    with consumer(cluster, lambda message: gate.wait(20), client_id="b", config=impatient) as first:
        wait_until(lambda: len(first.assignment()) == 2, what="both queues")
        with consumer(cluster, second_seen, client_id="a"):
            wait_until(lambda: len(second_seen) == 1, what="the message at the other member")
        gate.set()


def test_a_strategy_that_raises_is_asked_again_and_holds_up_no_commit(cluster: RunningCluster) -> None:
    is_broken = threading.Event()
    asked: list[Sequence[str]] = []

    def own(client_id: str, among: Sequence[MessageQueue], members: Sequence[str], /) -> list[MessageQueue]:
        asked.append(members)
        if is_broken.is_set():
            raise ConnectionError("whoever knows the rooms did not answer")
        return average(client_id, among, members)

    is_broken.set()
    with consumer(cluster, Seen(), client_id="a", strategy=own) as first:
        wait_until(lambda: len(asked) > 1, what="another try")
        is_broken.clear()
        wait_until(lambda: len(first.assignment()) == 2, what="both queues")
        is_broken.set()
        with consumer(cluster, Seen(), client_id="b") as second:
            wait_until(lambda: ["a", "b"] in asked, what="a try with both members")
            cluster.put("orders", numbered(3), 1)
            wait_until(lambda: cluster.committed("g", "orders", 1) == 3, what="a commit in the former share")
            assert (len(first.assignment()), len(second.assignment())) == (2, 0)
            is_broken.clear()
            wait_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, what="sharing")


def test_a_masters_death_repeats_and_loses_nothing(cluster: RunningCluster) -> None:
    cluster.add_slave()
    lazy = ConsumerConfig(commit_interval_ms=60_000, settle_ms=200)  # no commit in time: only own positions help
    seen = Seen()
    with consumer(cluster, seen, config=lazy, consume_threads=1) as made:
        cluster.put("orders", numbered(100), 0)
        wait_until(lambda: len(seen) == 100, what="the first messages")
        with cluster.brokers["broker-a"].faults.holding("Fetch", answers=True):
            cluster.put("orders", [b"from the slave"], 0)
            cluster.wait_level()
            cluster.kill("broker-a")
        wait_until(lambda: len(seen) == 101, what="messages by the slave")
        wait_until(lambda: cluster.brokers["broker-a-1"].members("g") == [made.client_id], what="the slave's session")
        cluster.revive("broker-a")
        wait_until(lambda: cluster.brokers["broker-a"].members("g") == [made.client_id], what="the master's session")
        cluster.put("orders", [b"from the master"], 0)
        wait_until(lambda: len(seen) == 102, what="messages by the master")
        wait_until(lambda: cluster.brokers["broker-a"].claimed("g") == {made.client_id: [0, 1]}, what="claims")
    assert seen.bodies() == [*numbered(100), b"from the slave", b"from the master"]
    assert cluster.committed("g", "orders", 0) == 102


def test_members_keep_their_queues_when_all_of_them_move(cluster: RunningCluster) -> None:
    cluster.add_slave()
    lazy = ConsumerConfig(commit_interval_ms=60_000, settle_ms=500)
    first_seen, second_seen = Seen(), Seen()
    with (
        consumer(cluster, first_seen, config=lazy, client_id="a", consume_threads=1) as first,
        consumer(cluster, second_seen, config=lazy, client_id="b", consume_threads=1) as second,
    ):
        wait_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, what="sharing")
        cluster.put("orders", numbered(50), 0)
        cluster.put("orders", numbered(50, 100), 1)
        wait_until(lambda: len(first_seen) == len(second_seen) == 50, what="the first messages")
        with cluster.brokers["broker-a"].faults.holding("Fetch", answers=True):
            for queue_id in (0, 1):
                cluster.put("orders", [b"more"], queue_id)
            cluster.wait_level()
            cluster.kill("broker-a")
        wait_until(lambda: cluster.brokers["broker-a-1"].members("g") == ["a", "b"], what="sessions at the slave")
        wait_until(lambda: cluster.brokers["broker-a-1"].claimed("g") == {"a": [0], "b": [1]}, what="the same shares")
        wait_until(lambda: len(first_seen) == len(second_seen) == 51, what="work at the slave")
    assert first_seen.bodies() == [*numbered(50), b"more"]
    assert second_seen.bodies() == [*numbered(50, 100), b"more"]


def test_members_that_subscribe_differently_learn_it_each_once(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings(client_id: str) -> list[str]:
        lines = [
            record.getMessage()
            for record in caplog.records
            if record.name == "penstock.client.consume.group.mismatches"
        ]
        return [line for line in lines if f" client={client_id} " in line]

    with consumer(cluster, Seen(), client_id="a"), consumer(cluster, Seen(), client_id="b") as second:
        second.subscribe("orders", "paid")
        wait_until(lambda: bool(warnings("a") and warnings("b")), what="both warnings")
        assert "topic=orders client=a expression='*' other_client=b other_expression='paid'" in warnings("a")[0]
        assert "topic=orders client=b expression='paid' other_client=a other_expression='*'" in warnings("b")[0]
    assert len(warnings("a")) == len(warnings("b")) == 1


def test_a_mismatch_is_told_again_when_it_is_another_one(caplog: pytest.LogCaptureFixture) -> None:
    mismatches = Mismatches("g", "a")
    for theirs in ("paid", "paid", "refunded", None, None):
        mismatches.tell("orders", "*", "b", theirs)
    assert len(caplog.records) == 3
    mismatches.forget()
    mismatches.tell("orders", "*", "b", None)
    assert len(caplog.records) == 4
