"""Pull consumers that share queues, and what happens to one while it has them: members, streams and brokers go."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from penstock.client import Admin
from penstock.client.cluster import readable_queues, topic_offsets
from penstock.client.consume.group.membership import Membership
from penstock.client.consume.local_queue import Standing
from penstock.client.consume.send_backs import SendBacks
from penstock.client.message import MessageQueue
from penstock.proto.errors import BrokerUnavailable, CommitRefused, InvalidArgument, OutcomeUnknown
from penstock.proto.wire.broker_pb2 import CommitOffsetsRequest, TopicName
from tests.support.client.pull_consumers import Q0, Q1, begun, consumer, numbered, poll_all
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_two_members_share_the_queues_and_no_message_is_seen_twice(cluster: RunningCluster) -> None:
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


def test_the_rest_goes_to_the_other_member_from_the_commit_when_one_disappears(cluster: RunningCluster) -> None:
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
        got = []
        wait_until(lambda: got.extend(survivor.poll(0.1)) or len(got) >= 16, what="everything that is left")
        assert sorted(int(each.body) for each in got) == [*range(4, 10), *range(100, 110)]
        victim.close(1)


def test_a_commit_for_a_queue_of_another_member_is_refused(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        with pytest.raises(InvalidArgument, match="not assigned"):
            puller.commit({MessageQueue("orders", "broker-z", 0): 4})
        cluster.put("orders", [b"x"], 0)
        wait_until(lambda: cluster.committed("g", "orders", 0) == 0, what="the first commit")

        def by_another(request: CommitOffsetsRequest, _: memoryview) -> None:
            request.session_id += 1

        cluster.brokers["broker-a"].faults.refuse("CommitOffsets", by_another)
        with pytest.raises(CommitRefused):
            puller.commit({Q0: 0 + 1})


def test_a_broken_session_goes_on_without_repeating_or_losing(cluster: RunningCluster) -> None:
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
                cluster.brokers["broker-a"].faults.cut("ConsumerSession")
    assert cluster.committed("g", "orders", 0) == seen


def test_a_position_that_was_set_back_outlives_a_broken_session(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster, auto_commit=False) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        puller.commit()
        puller.seek(Q0, 3)
        local = puller._core.buffers.queues[Q0]
        lease = local.lease
        cluster.brokers["broker-a"].faults.cut("ConsumerSession")
        wait_until(lambda: local.standing is Standing.OWNED and local.lease is not lease, what="the queue again")
        assert [each.body for each in poll_all(puller, 7)] == numbered(7, 3)


def test_an_administrators_reset_moves_the_consumer(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        with Admin(cluster.namesrv) as admin:
            admin.reset_offset("g", "orders", offset=5, queues=[("broker-a", 0)])
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)


def test_a_commit_that_was_on_its_way_when_the_group_was_reset_does_not_undo_that(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster, auto_commit=False) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        puller.commit()
        with Admin(cluster.namesrv) as admin:
            admin.reset_offset("g", "orders", offset=5, queues=[("broker-a", 0)])
        owner = puller._core.owner
        assert isinstance(owner, Membership)
        session_id, offsets = owner._shards["broker-a"].session_id, topic_offsets({Q0: 10})
        late = CommitOffsetsRequest(group="g", client_id=puller.client_id, session_id=session_id, offsets=offsets)
        cluster.brokers["broker-a"].call("CommitOffsets", late)
        assert [each.body for each in wait_until(lambda: puller.poll(0.1, 1), what="a message")] == [b"5"]
        puller.commit()
        assert cluster.committed("g", "orders", 0) == 6


def test_a_reset_that_comes_while_a_members_session_is_down_moves_it_all_the_same(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        puller.commit()
        faults.refuse("ConsumerSession", BrokerUnavailable("not now"))
        faults.cut("ConsumerSession")
        wait_until(lambda: cluster.brokers["broker-a"].members("g") == [], what="the end of the session")
        with Admin(cluster.namesrv) as admin:
            admin.reset_offset("g", "orders", offset=5, queues=[("broker-a", 0)])
        faults.heal()
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)


def test_a_broker_group_that_its_topics_have_left_is_left() -> None:
    with RunningCluster(2, topics={"orders": 1}) as cluster:
        cluster.put("orders", [b"x"], 0)
        with consumer(cluster) as puller:
            puller.subscribe("orders")
            begun(puller, Q0, MessageQueue("orders", "broker-b", 0))
            SendBacks(puller._core.calls, "g", None).send(Q0, [0], 10, delay_level=0)
            directory, retries = puller._core.directory, MessageQueue("%RETRY%g", "broker-a", 0)
            wait_until(lambda: retries in readable_queues(directory.known("%RETRY%g")), what="its retry topic there")
            cluster.brokers["broker-b"].call("DeleteTopic", TopicName(topic="orders"))
            wait_until(lambda: cluster.brokers["broker-b"].members("g") == [], what="the end of the session there")
            assert Q0 in puller.assignment()


def test_a_broker_that_restarts_is_found_again(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert len(poll_all(puller, 5)) == 5
        cluster.kill("broker-a")
        cluster.revive("broker-a")
        cluster.put("orders", numbered(5, 5), 0)
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)


@pytest.mark.parametrize("is_manual", [False, True])
def test_nobody_begins_at_a_slave_that_may_lack_commits(is_manual: bool) -> None:
    """It has the messages and not the commit: who begins at its end passes over what nobody has read."""
    with RunningCluster(2, topics={"orders": 1}) as cluster, Admin(cluster.namesrv) as admin:
        slave = cluster.add_slave()
        cluster.put("orders", numbered(10), 0)
        cluster.wait_level()
        cluster.kill("broker-a-1")
        with consumer(cluster) as first:
            first.subscribe("orders")
            begun(first, Q0, MessageQueue("orders", "broker-b", 0))  # of the other, what is committed is a lag
            wait_until(lambda: first.poll(1, max_messages=4), what="the first messages")
            first.commit()
        committed = cluster.committed("g", "orders", 0)
        assert 0 < committed < 10
        cluster.kill("broker-a")
        cluster.revive("broker-a-1")
        lag = admin.group_lag("g")
        assert lag.unreachable == ["broker-a"]
        assert {queue.broker_name for queue in lag.queues} == {"broker-b"}
        with consumer(cluster, consume_from="last") as second:
            if is_manual:
                second.assign([Q0])
            else:
                second.subscribe("orders")
            asked = "QueryOffsets" if is_manual else "ConsumerSession"
            wait_until(lambda: slave.faults.calls[asked] > 1, what="the slave asked, and asked again")
            assert second.poll(0.05) == []
            cluster.revive("broker-a")
            assert [each.body for each in poll_all(second, 10 - committed)] == numbered(10 - committed, committed)


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("by_hand", [True, False])
def test_a_broker_group_that_is_away_keeps_no_other_from_being_told_what_is_finished(
    shares: bool, by_hand: bool
) -> None:
    with RunningCluster(2, topics={"orders": 1}) as both, consumer(both, auto_commit=not by_hand) as made:
        for name in ("broker-a", "broker-b"):
            both.put("orders", numbered(5), broker_name=name)
        if shares:
            made.subscribe("orders")
        else:
            made.assign(made.queues("orders"))
        assert len(poll_all(made, 10)) == 10
        both.kill("broker-a")
        if by_hand:
            with contextlib.suppress(BrokerUnavailable, OutcomeUnknown):  # or its queues are known to be away
                made.commit()
        made.poll(0)
        wait_until(lambda: both.committed("g", "orders", 0, "broker-b") == 5, what="the commit")
