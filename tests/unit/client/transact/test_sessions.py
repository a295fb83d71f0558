"""Sessions of a client that sends for many groups: at all masters, with the groups that it has now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.client.cluster import Calls
from penstock.client.transact import sessions as module
from penstock.client.transact.sessions import ProducerSessions
from penstock.proto.errors import LimitReached
from penstock.proto.names import PRODUCER_GROUPS_MAX
from penstock.proto.wire.transactions_pb2 import ProducerGroupName
from penstock.proto.wire.transactions_pb2_grpc import TransactionsStub
from penstock.runtime.channel import open_channel
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@contextlib.contextmanager
def opened(cluster: RunningCluster) -> Iterator[ProducerSessions]:
    calls = Calls.to(cluster.namesrv)
    sessions = ProducerSessions(calls, "client", lambda *_: None)
    try:
        yield sessions
    finally:
        sessions.close()
        calls.close()


def members(cluster: RunningCluster, group: str, name: str = "broker-a") -> list[str]:
    with open_channel(cluster.brokers[name].address) as channel:
        stub = TransactionsStub(channel)  # type: ignore[no-untyped-call]
        return [each.client_id for each in stub.ListProducers(ProducerGroupName(group=group), timeout=10).members]


def wait_members(cluster: RunningCluster, group: str, expected: list[str], name: str = "broker-a") -> None:
    wait_until(lambda: members(cluster, group, name) == expected, what=f"{expected} in group {group} at {name}")


def test_groups_come_and_go_over_one_session_at_each_master() -> None:
    with RunningCluster(shards=2) as cluster, opened(cluster) as sessions:
        groups = [f"group-{number}" for number in range(200)]
        for group in (*groups, *groups):
            sessions.join(group)
        for name in cluster.brokers:
            wait_members(cluster, groups[-1], ["client"], name)
            wait_members(cluster, groups[0], ["client"], name)
        sessions.leave(groups[0])
        sessions.leave(groups[0])
        sessions.join("another")
        for name in cluster.brokers:
            wait_members(cluster, "another", ["client"], name)
            assert (members(cluster, groups[0], name), members(cluster, groups[1], name)) == ([], ["client"])
        for broker in cluster.brokers.values():
            assert broker.faults.calls["Join"] == 1, "one connection"
        for group in (*groups, "another"):
            sessions.leave(group)
        wait_members(cluster, groups[1], [])


def test_the_groups_of_a_client_have_a_bound() -> None:
    with RunningCluster() as cluster, opened(cluster) as sessions:
        for number in range(PRODUCER_GROUPS_MAX):
            sessions.join(f"group-{number}")
        with pytest.raises(LimitReached, match="10000 groups already"):
            sessions.join("another")
        wait_members(cluster, f"group-{PRODUCER_GROUPS_MAX - 1}", ["client"])
        sessions.leave("group-0")
        sessions.join("another")
        wait_members(cluster, "another", ["client"])


def test_what_is_refused_is_asked_again() -> None:
    with RunningCluster() as cluster:
        cluster.brokers["broker-a"].faults.refuse("Join", LimitReached("so many"), times=3)
        with opened(cluster) as sessions:
            sessions.join("group")
            wait_members(cluster, "group", ["client"])


def test_a_broker_that_comes_later_or_comes_back_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    with RunningCluster(shards=2) as cluster:
        cluster.kill("broker-b")
        with opened(cluster) as sessions:
            sessions.join("group")
            wait_members(cluster, "group", ["client"])
            cluster.revive("broker-b")
            wait_members(cluster, "group", ["client"], "broker-b")
            cluster.kill("broker-a")
            sessions.join("another")
            wait_members(cluster, "another", ["client"], "broker-b")
            cluster.revive("broker-a")
            wait_members(cluster, "another", ["client"])
            wait_members(cluster, "group", ["client"])


def test_a_client_that_closes_is_gone_while_its_connection_stays() -> None:
    with RunningCluster() as cluster:
        calls = Calls.to(cluster.namesrv)
        sessions = ProducerSessions(calls, "client", lambda *_: None)
        sessions.join("group")
        wait_members(cluster, "group", ["client"])
        sessions.close()
        wait_members(cluster, "group", [])
        calls.close()
        sessions.close()
