"""A consumer's session: claims that cross releases, moves, silence."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from penstock.client import Admin
from penstock.client.cluster import Subscription
from penstock.client.cluster.connections import Connections
from penstock.client.consume.group.consumer_session import Claims, ConsumerSession
from penstock.client.consume.local_queue import Lease
from penstock.client.message import MessageQueue
from penstock.proto.errors import GroupNotFound, PenstockError
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

Q = [MessageQueue("T", "broker-a", index) for index in range(4)]


def test_a_grant_that_crossed_the_release_is_not_taken_for_the_new_claim() -> None:
    claims = Claims()
    assert claims.claim([Q[0]]) == [Q[0]]
    assert claims.release([Q[0]], heartbeat=1) == [Q[0]]
    assert claims.claim([Q[0]]) == [], "held back until the broker has handled the release"
    assert not claims.is_granted(Q[0]), "this grant was sent before the release arrived"
    assert claims.on_heartbeat(1) == [Q[0]]
    assert claims.is_granted(Q[0])


def test_a_claim_that_was_taken_back_while_held_back_is_never_sent() -> None:
    claims = Claims()
    claims.claim([Q[0]])
    claims.release([Q[0]], heartbeat=1)
    claims.claim([Q[0]])
    assert claims.release([Q[0]], heartbeat=2) == []
    assert claims.on_heartbeat(2) == []


def test_an_older_heartbeat_confirms_nothing_newer() -> None:
    claims = Claims()
    claims.claim(Q[:2])
    claims.release([Q[0]], heartbeat=3)
    claims.claim([Q[0]])
    assert claims.on_heartbeat(2) == []
    assert claims.on_heartbeat(3) == [Q[0]]


def test_claiming_and_releasing_twice_is_sent_once() -> None:
    claims = Claims()
    assert claims.claim([Q[0], Q[0]]) == [Q[0]]
    assert claims.claim([Q[0]]) == []
    assert claims.release([Q[0]], heartbeat=1) == [Q[0]]
    assert claims.release([Q[0], Q[1]], heartbeat=2) == []


class Heard:
    """A session listener that writes down what it hears."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.joined: list[int] = []
        self.members: list[list[str]] = []
        self.granted: list[tuple[MessageQueue, int, int, int]] = []
        self.resets: list[tuple[MessageQueue, int]] = []
        self.lost: list[PenstockError] = []

    def on_joined(self, session: ConsumerSession, session_id: int, address: str, lease: Lease) -> None:
        self.joined.append(session_id)

    def on_members(self, session: ConsumerSession, client_ids: list[str]) -> None:
        self.members.append(client_ids)

    def on_granted(self, session: ConsumerSession, queue: MessageQueue, committed: int, low: int, high: int) -> None:
        self.granted.append((queue, committed, low, high))

    def on_reset(self, session: ConsumerSession, queue: MessageQueue, offset: int) -> None:
        self.resets.append((queue, offset))

    def on_mismatch(self, topic: str, mine: str | None, other_client_id: str, theirs: str | None) -> None: ...

    def on_lost(self, session: ConsumerSession, error: PenstockError) -> None:
        self.lost.append(error)


class OneSession:
    """A session with the first broker of a cluster."""

    def __init__(self, cluster: RunningCluster, client_id: str = "me") -> None:
        self.connections = Connections(cluster.namesrv)
        self.heard = Heard()
        self.host: str | None = cluster.brokers["broker-a"].address
        self.session = self.made(client_id, lambda: self.host)

    def made(self, client_id: str, host: Callable[[], str | None]) -> ConsumerSession:
        core = SimpleNamespace(
            connections=self.connections,
            directory=SimpleNamespace(read_address=lambda _: host()),
            group="g",
            client_id=client_id,
            is_concurrent=False,
            is_broadcasting=False,
        )
        wanted = {"T": Subscription.of_all("T")}
        return ConsumerSession(cast(Any, core), "broker-a", wanted, cast(Any, self.heard), lambda call: call())

    def __enter__(self) -> OneSession:
        self.session.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.session.close()
        self.connections.close()


def test_a_session_joins_claims_and_is_granted() -> None:
    with RunningCluster(topics={"T": 4}) as cluster:
        cluster.put("T", [b"x"] * 5, 1)
        cluster.brokers["broker-a"].commit("g", "T", {1: 3})
        with OneSession(cluster) as one:
            wait_until(lambda: one.heard.joined, what="join")
            one.session.claim(Q[:2])
            wait_until(lambda: len(one.heard.granted) == 2, what="both grants")
            assert one.heard.granted == [(Q[0], -1, 0, 0), (Q[1], 3, 0, 5)]
            assert one.heard.members == [["me"]]


def test_a_master_that_is_told_of_while_a_stream_is_begun_at_a_slave_is_not_missed() -> None:
    with RunningCluster(2, topics={"T": 4}) as cluster, OneSession(cluster) as one:
        slave, master = (broker.address for broker in cluster.brokers.values())

        def host() -> str:
            if one.host != slave:
                return master
            one.host = master  # the route changes behind this look at it
            change = threading.Thread(target=one.session.on_routes)
            change.start()
            change.join(0.1)
            changes.append(change)
            return slave

        changes: list[threading.Thread] = []
        one.session.close()
        one.host = slave
        one.session = one.made("late", host)
        one.session.start()
        wait_until(lambda: one.session.address == master and one.heard.joined, what="the session at the master")
        for change in changes:
            change.join()


def test_a_released_queue_can_be_claimed_again_at_once() -> None:
    with RunningCluster(topics={"T": 4}) as cluster, OneSession(cluster) as one:
        wait_until(lambda: one.heard.joined, what="join")
        for turn in range(1, 6):
            one.session.claim([Q[0]])
            wait_until(lambda turn=turn: len(one.heard.granted) == turn, what=f"grant {turn}")  # type: ignore[misc]
            one.session.release([Q[0]])


def test_a_broken_stream_is_told_and_opened_again() -> None:
    with RunningCluster(topics={"T": 4}) as cluster, OneSession(cluster) as one:
        wait_until(lambda: one.heard.joined, what="join")
        cluster.brokers["broker-a"].faults.cut("ConsumerSession")
        wait_until(lambda: len(one.heard.joined) == 2, what="second join")
        assert len(one.heard.lost) == 1
        assert one.heard.joined[0] != one.heard.joined[1]


def test_a_session_moves_when_another_broker_should_serve_it() -> None:
    with RunningCluster(2, topics={"T": 4}) as cluster, OneSession(cluster) as one:
        wait_until(lambda: one.heard.joined, what="join")
        one.host = cluster.brokers["broker-b"].address
        one.session.on_routes()
        wait_until(lambda: len(one.heard.joined) == 2, what="join at the other broker")
        assert one.session.address == one.host
        wait_until(lambda: not cluster.brokers["broker-a"].members("g"), what="leaving the first one")
        assert cluster.brokers["broker-b"].members("g") == ["me"]


def test_a_refusal_is_told_by_its_name() -> None:
    with RunningCluster(topics={"T": 4}, autoCreateSubscriptionGroup="false") as cluster, OneSession(cluster) as one:
        wait_until(lambda: one.heard.lost, what="the refusal")
        assert isinstance(one.heard.lost[0], GroupNotFound)


def test_the_holder_hears_of_a_reset() -> None:
    with RunningCluster(topics={"T": 4}) as cluster, OneSession(cluster) as one, Admin(cluster.namesrv) as admin:
        cluster.put("T", [b"x"] * 9, 2)
        wait_until(lambda: one.heard.joined, what="join")
        one.session.claim([Q[2]])
        wait_until(lambda: one.heard.granted, what="grant")
        admin.reset_offset("g", "T", offset=9, queues=[("broker-a", np.int64(2))])
        wait_until(lambda: one.heard.resets == [(Q[2], 9)], what="reset")


def test_close_ends_the_session_at_the_broker() -> None:
    with RunningCluster(topics={"T": 4}) as cluster:
        with OneSession(cluster) as one:
            wait_until(lambda: one.heard.joined, what="join")
        wait_until(lambda: not cluster.brokers["broker-a"].members("g"), what="leaving")
