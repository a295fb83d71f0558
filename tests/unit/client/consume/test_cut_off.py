"""Consumers that have read what a failover has cut off since: nobody passes over what came in its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import BrokerUnavailable, CommitRefused
from tests.support.client import push_consumers
from tests.support.client.pull_consumers import Q0, Q1, begun, consumer, poll_all
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

OLD, NEW = [b"a", b"b", b"lost"], [b"c", b"d", b"e"]


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    """Queue 0 has :data:`OLD`."""
    with RunningCluster(topics={"orders": 2}) as made:
        for body in OLD:
            made.put("orders", [body], 0)
        yield made


def cut_off(cluster: RunningCluster) -> None:
    """The loss of power takes the last message and what lies behind it, and :data:`NEW` come in its place."""
    last = max(cluster.brokers["broker-a"].records("orders").items())[1]
    cluster.cut_off("broker-a", decode_record(last).physical_offset)
    cluster.put("orders", NEW, 0)


def test_a_broadcasting_member_that_was_away_finds_its_offset_cut_off(cluster: RunningCluster, tmp_path: Path) -> None:
    config = ConsumerConfig(commit_interval_ms=30, offsets_directory=tmp_path)
    seen, again = push_consumers.Seen(), push_consumers.Seen()
    with push_consumers.consumer(cluster, seen, model="broadcasting", client_id="x", config=config):
        wait_until(lambda: seen.bodies() == OLD, what="the messages")
    cut_off(cluster)
    with push_consumers.consumer(cluster, again, model="broadcasting", client_id="x", config=config):
        wait_until(lambda: again.bodies()[-1:] == [b"e"], what="the last one")
    assert again.bodies() == NEW


def test_a_consumer_of_assigned_queues_does_not_commit_what_was_cut_off(cluster: RunningCluster) -> None:
    with consumer(cluster, auto_commit=False) as puller:
        puller.assign([Q0])
        assert [each.body for each in poll_all(puller, 3)] == OLD
        puller.pause([Q0])
        cut_off(cluster)
        with pytest.raises(CommitRefused, match="a failover has cut off"):
            puller.commit({Q0: 3})
        puller.resume([Q0])
        assert [each.body for each in poll_all(puller, 3)] == NEW


def test_a_queue_whose_first_fetch_waits_for_messages_knows_its_epoch(cluster: RunningCluster) -> None:
    config = ConsumerConfig(commit_interval_ms=50, settle_ms=100, fetch_wait_ms=60_000)
    with consumer(cluster, auto_commit=False, config=config) as puller:
        puller.assign([Q0])
        begun(puller, Q0)
        puller.seek(Q0, 3)
        wait_until(lambda: puller._core.buffers.queues[Q0].log_epoch, what="the epoch of the position")
        cut_off(cluster)
        assert [each.body for each in poll_all(puller, 3)] == NEW


def test_what_a_member_had_finished_when_its_broker_went_away_may_be_cut_off(cluster: RunningCluster) -> None:
    cluster.brokers["broker-a"].faults.refuse("CommitOffsets", BrokerUnavailable("not now"))
    with consumer(cluster, client_id="b") as member:
        member.subscribe("orders")
        begun(member, Q0, Q1)
        assert [each.body for each in poll_all(member, 3)] == OLD
        with consumer(cluster, client_id="a", auto_commit=False) as other:
            other.pause()
            other.subscribe("orders")
            wait_until(lambda: member.poll(0.02) == [] and member.assignment() == [Q1], what="the other's share")
        cluster.brokers["broker-a"].faults.heal()
        cut_off(cluster)
        assert [each.body for each in poll_all(member, 3)] == NEW
