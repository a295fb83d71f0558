"""Pull consumers that share queues, and what happens to one while it has them: members, streams and brokers go."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from penstock.client.message import MessageQueue
from penstock.proto.errors import CommitRefused, InvalidArgument
from tests.support.client.fake_sessions import GroupCluster
from tests.support.client.pull_consumers import Q0, Q1, begun, consumer, numbered, poll_all
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    with GroupCluster(topics={"orders": 2}) as made:
        yield made


def test_two_members_share_the_queues_and_no_message_is_seen_twice(cluster: GroupCluster) -> None:
    with consumer(cluster) as first, consumer(cluster) as second:
        first.subscribe("orders")
        begun(first, Q0, Q1)
        second.subscribe("orders")
        deadline = time.monotonic() + 10
        while len(second.assignment()) != 1 and time.monotonic() < deadline:
            first.poll(0.02)
        assert len(first.assignment()) == len(second.assignment()) == 1
        cluster.put("orders", numbered(20), 0)
        cluster.put("orders", numbered(20, 100), 1)
        got = poll_all(first, 20) + poll_all(second, 20)
        assert sorted(int(each.body) for each in got) == [*range(20), *range(100, 120)]


def test_the_rest_goes_to_the_other_member_from_the_commit_when_one_disappears(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    cluster.put("orders", numbered(10, 100), 1)
    survivor = consumer(cluster, client_id="b")
    victim = consumer(cluster, client_id="a")
    with survivor:
        survivor.subscribe("orders")
        begun(survivor, Q0, Q1)
        survivor.pause()
        victim.subscribe("orders")
        deadline = time.monotonic() + 10
        while victim.assignment() != [Q0] and time.monotonic() < deadline:
            survivor.poll(0.02)
        begun(victim, Q0)
        assert len(victim.poll(5, max_messages=4)) == 4
        assert len(victim.poll(5, max_messages=4)) == 4
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="the victim's commit")
        # The victim dies: its stream breaks and it never comes back.
        victim._core.directory.close()
        victim._core.connections.close()
        survivor.resume()
        started = time.monotonic()
        got = []
        while len(got) < 16 and time.monotonic() < started + 10:
            got += survivor.poll(0.1)
        assert sorted(int(each.body) for each in got) == [*range(4, 10), *range(100, 110)]
        victim.close(1)


def test_a_commit_for_a_queue_of_another_member_is_refused(cluster: GroupCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        with pytest.raises(InvalidArgument, match="not assigned"):
            puller.commit({MessageQueue("orders", "broker-z", 0): 4})
        groups = cluster.groups["broker-a"]
        wait_until(lambda: cluster.committed("g", "orders", 0) == 0, what="the first commit")
        groups.call(groups.sessions._groups.release, next(iter(groups.sessions._sessions)), "orders", [0])
        with pytest.raises(CommitRefused):
            puller.commit({Q0: 0 + 1})


def test_a_broken_session_goes_on_without_repeating_or_losing(cluster: GroupCluster) -> None:
    with consumer(cluster, client_id="a") as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        seen = 0
        for turn in range(3):
            cluster.put("orders", numbered(10, seen), 0)
            got = [each.body for each in poll_all(puller, 10)]
            assert got == numbered(10, seen)
            seen += 10
            if turn == 0:
                cluster.groups["broker-a"].break_stream("a")
    assert cluster.committed("g", "orders", 0) == seen


def test_an_administrators_reset_moves_the_consumer(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        groups = cluster.groups["broker-a"]
        cluster.brokers["broker-a"].committed["g", "orders", 0] = 5
        groups.call(groups.sessions.notify_reset, "g", "orders", 0, 5)
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)


def test_a_broker_that_restarts_is_found_again(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert len(poll_all(puller, 5)) == 5
        cluster.groups["broker-a"].restart()
        cluster.kill("broker-a")
        cluster.revive("broker-a")
        cluster.put("orders", numbered(5, 5), 0)
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)
