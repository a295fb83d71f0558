"""Orderly members: work on a queue that has begun ends before another member's begins, whatever breaks."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.client import Admin
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.consume.local_queue import Lease
from penstock.client.message import MessageQueue
from penstock.client.push_consumer import PushConsumer
from tests.support.client.push_consumers import QUICK, Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

QUEUE = MessageQueue("orders", "broker-a", 0)


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 1}) as made:
        yield made


def cut_off(victim: PushConsumer) -> None:
    """Nothing is said; its connections end, its listeners go on."""
    victim._core.directory.close()
    victim._core.connections.close()


def heartbeats(cluster: RunningCluster, broker: str = "broker-a") -> int:
    return sum(
        each.WhichOneof("request") == "heartbeat" for each in cluster.brokers[broker].faults.requests["ConsumerSession"]
    )


def await_two_heartbeats(cluster: RunningCluster) -> None:
    """What was asked for before is done by then."""
    before = heartbeats(cluster)
    wait_until(lambda: heartbeats(cluster) >= before + 2, what="heartbeats")


def test_a_member_that_was_cut_off_in_its_work_keeps_the_queue_from_others_for_its_time(
    cluster: RunningCluster,
) -> None:
    cluster.put("orders", numbered(3))
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(30) and None), Seen()
    short = ConsumerConfig(commit_interval_ms=30, settle_ms=100, revoke_timeout_ms=500)
    first = consumer(cluster, first_seen, client_id="b", orderly=True, config=short)
    with first, consumer(cluster, second_seen, client_id="c", orderly=True, config=short):
        wait_until(lambda: len(first_seen) == 1, what="work of the first member")
        cut_off(first)
        wait_until(lambda: cluster.brokers["broker-a"].members("g") == ["c"], what="the end of its session")
        await_two_heartbeats(cluster)
        assert cluster.brokers["broker-a"].claimed("g") == {"c": []}
        assert not second_seen.bodies(), "the first member may still be at work"
        wait_until(lambda: len(second_seen) == 3, what="the messages at the second member, when that time is over")
        gate.set()


def test_a_session_that_broke_comes_back_to_its_queue_in_the_middle_of_work(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3))
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(30) and None), Seen()
    with (
        consumer(cluster, first_seen, client_id="b", orderly=True),
        consumer(cluster, second_seen, client_id="c", orderly=True),
    ):
        wait_until(lambda: len(first_seen) == 1, what="work of the first member")
        cluster.brokers["broker-a"].faults.cut("ConsumerSession")
        wait_until(lambda: cluster.brokers["broker-a"].claimed("g") == {"b": [0], "c": []}, what="the queue again")
        gate.set()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="everything")
    assert (first_seen.bodies(), second_seen.bodies()) == (numbered(3), [])


@pytest.mark.parametrize("on_revoked", [None, lambda queues: None])
def test_who_closes_in_the_middle_of_work_keeps_its_lock(
    cluster: RunningCluster, on_revoked: Callable[[list[MessageQueue]], None] | None
) -> None:
    cluster.put("orders", numbered(1))
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(30) and None), Seen()
    first = consumer(cluster, first_seen, client_id="b", orderly=True, on_revoked=on_revoked)
    with first, consumer(cluster, second_seen, client_id="c", orderly=True):
        wait_until(lambda: len(first_seen) == 1, what="work of the first member")
        first.close(timeout_s=0.5)
        wait_until(lambda: cluster.brokers["broker-a"].members("g") == ["c"], what="the end of its session")
        await_two_heartbeats(cluster)
        assert not second_seen.bodies()
        gate.set()


def test_who_closes_idle_leaves_its_queue_at_once(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(1))
    first_seen, second_seen = Seen(), Seen()
    first = consumer(cluster, first_seen, client_id="b", orderly=True)
    with first, consumer(cluster, second_seen, client_id="c", orderly=True):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 1, what="work of the first member")
        first.close()
        cluster.put("orders", numbered(1, 1))
        wait_until(lambda: second_seen.bodies() == [b"1"], 10, "work of the second member: no lock is in its way")


def test_nothing_begins_when_the_lease_of_the_session_is_over(cluster: RunningCluster) -> None:
    seen = Seen()
    with consumer(cluster, seen, orderly=True) as made:
        wait_until(lambda: made.assignment() == [QUEUE], what="the queue")
        local = made._core.buffers.queues[QUEUE]
        wait_until(lambda: local.may_begin(), what="the lease")
        local.lease = Lease(-math.inf)
        cluster.put("orders", numbered(3))
        wait_until(lambda: any(run.pending for run in local.runs), what="the messages, which wait")  # type: ignore[attr-defined]
        assert not seen.bodies()
        local.lease = Lease(math.inf)
        wait_until(lambda: seen.bodies() == numbered(3), what="the messages")


def test_after_a_reset_the_next_work_begins_when_the_one_before_has_ended(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3))
    gate, lock = threading.Event(), threading.Lock()
    at_work: list[int] = []
    most = 0

    def work(message: object) -> None:
        nonlocal most
        with lock:
            at_work.append(1)
            most = max(most, len(at_work))
        gate.wait(30)
        with lock:
            at_work.pop()

    seen = Seen(work)
    with consumer(cluster, seen, orderly=True, consume_threads=4) as made, Admin(cluster.namesrv) as admin:
        wait_until(lambda: len(seen) == 1, what="work")
        local = made._core.buffers.queues[QUEUE]
        epoch = local.epoch
        admin.reset_offset("g", "orders", "first")
        wait_until(lambda: local.epoch > epoch and local.chunks, what="the messages again")
        assert local.is_busy(), "a handover would wait for the listener too"
        gate.set()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="everything")
    assert most == 1


def test_a_masters_death_leaves_a_queue_to_who_works_on_it(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3))
    cluster.add_slave()
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(60) and None), Seen()
    with consumer(cluster, first_seen, client_id="b", orderly=True, config=QUICK):
        wait_until(lambda: len(first_seen) == 1, what="work of the first member")
        cluster.wait_level()
        cluster.kill("broker-a")
        with consumer(cluster, second_seen, client_id="a", orderly=True, config=QUICK):
            slave = cluster.brokers["broker-a-1"]
            wait_until(lambda: slave.members("g") == ["a", "b"], what="both members at the slave")
            cluster.revive("broker-a")
            master = cluster.brokers["broker-a"]
            wait_until(lambda: master.members("g") == ["a", "b"], 30, "both members at the master")
            await_two_heartbeats(cluster)
            await_two_heartbeats(cluster)
            assert slave.claimed("g") in ({}, {"a": [], "b": []}), "a slave locks nothing"
            assert master.claimed("g") == {"a": [], "b": [0]}
            assert not second_seen.bodies()
            gate.set()
            wait_until(lambda: master.claimed("g") == {"a": [0], "b": []}, 30, "the handover")
            wait_until(lambda: cluster.committed("g", "orders", 0) == 3, 30, "everything")
    bodies = first_seen.bodies() + second_seen.bodies()
    assert sorted(bodies) == numbered(3)
