"""``on_assigned`` and ``on_revoked``: when they are called, with what, and what their failures cost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client.admin import Admin
from penstock.client.aio import AsyncPullConsumer
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.push_consumer import PushConsumer
from penstock.proto.errors import BrokerUnavailable, ConfigError
from tests.support.client import push_consumers
from tests.support.client.pull_consumers import Q0, Q1, begun, consumer, numbered, poll_all
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

AWAY = BrokerUnavailable("away")


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


class Told:
    """Callbacks that write down what they were called with, in order, and how many ran at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[MessageQueue]]] = []
        self.running = self.most = 0

    def _note(self, name: str, queues: list[MessageQueue]) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.calls.append((name, queues))
        self.running -= 1

    def on_assigned(self, queues: list[MessageQueue]) -> None:
        self._note("+", queues)

    def on_revoked(self, queues: list[MessageQueue]) -> None:
        self._note("-", queues)

    def held(self) -> set[MessageQueue]:
        """The queues that have come and not gone; each came and went in turn."""
        held: set[MessageQueue] = set()
        for name, queues in list(self.calls):
            assert queues == sorted(queues)
            for each in queues:
                assert (each in held) == (name == "-"), (name, each, self.calls)
                (held.add if name == "+" else held.discard)(each)
        return held


def test_queues_are_told_before_their_first_message_and_when_they_go(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    told, seen = Told(), push_consumers.Seen()
    at_first: list[set[MessageQueue]] = []

    def listener(message: MessageView) -> None:
        at_first.append(told.held())
        seen(message)

    options = {"on_assigned": told.on_assigned, "on_revoked": told.on_revoked}
    with push_consumers.consumer(cluster, listener, **options) as first:
        wait_until(lambda: len(seen) == 10, what="every message")
        assert all(Q0 in held for held in at_first)
        wait_until(lambda: told.held() == {Q0, Q1}, what="both queues told")
        other = Told()
        others = {"on_assigned": other.on_assigned, "on_revoked": other.on_revoked, "client_id": "zz"}
        with push_consumers.consumer(cluster, seen, **others) as second:
            wait_until(lambda: len(second.assignment()) == 1, what="the share of the second")
            assert other.held() == set(second.assignment())
            assert not told.held() & other.held(), "the first was told before the second got it"
        assert other.held() == set()
        wait_until(lambda: len(first.assignment()) == 2, what="both queues again")
        assert told.held() == {Q0, Q1}
    assert told.held() == set()
    assert told.most == other.most == 1


def test_on_revoked_comes_after_the_last_work_and_before_the_claim_goes(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(1), 0)
    working, may_end, in_callback, may_return = (threading.Event() for _ in range(4))
    ended: list[str] = []

    def listener(message: MessageView) -> None:
        working.set()
        assert may_end.wait(20)
        ended.append("work")

    def on_revoked(queues: list[MessageQueue]) -> None:
        if queues == [Q0]:
            ended.append("callback")
            in_callback.set()
            assert may_return.wait(20)

    with push_consumers.consumer(cluster, listener, on_revoked=on_revoked, client_id="z"):
        assert working.wait(10)
        other = push_consumers.Seen()
        with push_consumers.consumer(cluster, other, client_id="a") as second:
            wait_until(lambda: cluster.brokers["broker-a"].members("g") == ["a", "z"], what="two members")
            assert not in_callback.is_set()
            may_end.set()
            assert in_callback.wait(10)
            assert ended == ["work", "callback"]
            assert Q0 not in second.assignment()
            may_return.set()
            wait_until(lambda: second.assignment() == [Q0], what="the queue at the other member")
            assert not other.bodies(), "the commit came before the release"


def test_a_pull_consumer_seeks_when_queues_come_and_commits_when_they_go(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    kept = {Q0: 6}

    def on_assigned(queues: list[MessageQueue]) -> None:
        for each in queues:
            puller.seek(each, kept.get(each, 0))

    def on_revoked(queues: list[MessageQueue]) -> None:
        puller.commit({Q0: 8})

    puller = consumer(cluster, auto_commit=False, on_assigned=on_assigned, on_revoked=on_revoked)
    with puller:
        puller.subscribe("orders")
        assert [each.body for each in poll_all(puller, 4)] == numbered(4, 6)
    assert cluster.committed("g", "orders", 0) == 8


def held_up(cluster: RunningCluster) -> tuple[threading.Event, threading.Event, dict[str, Any]]:
    """Set by ``on_assigned`` when it is called; set to have it return; options of a consumer that has it."""
    cluster.put("orders", numbered(10), 0)
    is_called, may_return = threading.Event(), threading.Event()

    def on_assigned(queues: list[MessageQueue]) -> None:
        is_called.set()
        assert may_return.wait(60)

    return is_called, may_return, {"auto_commit": False, "on_assigned": on_assigned}


def test_a_queue_that_others_had_before_it_began_goes_on_behind_what_they_have_committed(
    cluster: RunningCluster,
) -> None:
    is_called, may_return, options = held_up(cluster)
    broker, is_away = cluster.brokers["broker-a"], threading.Event()
    broker.faults.refuse("ConsumerSession", lambda *_: AWAY if is_away.is_set() else None)
    with consumer(cluster, **options) as puller:
        puller.subscribe("orders")
        assert is_called.wait(30)
        is_away.set()
        broker.faults.cut("ConsumerSession")
        wait_until(lambda: not broker.claimed("g"), what="the session's end")
        broker.commit("g", "orders", {0: 5})
        is_away.clear()
        wait_until(lambda: any(0 in claimed for claimed in broker.claimed("g").values()), what="the queue again")
        may_return.set()
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)


def test_a_reset_while_a_queue_is_told_counts(cluster: RunningCluster) -> None:
    is_called, may_return, options = held_up(cluster)
    broker = cluster.brokers["broker-a"]
    broker.commit("g", "orders", {0: 8})
    with consumer(cluster, **options) as puller, Admin(cluster.namesrv) as admin:
        puller.subscribe("orders")
        assert is_called.wait(30)
        for offset in (6, 3):
            admin.reset_offset("g", "orders", offset=offset, queues=[("broker-a", 0)])
            wait_until(lambda offset=offset: broker.committed("g", "orders")[0] == offset, what="the reset")  # type: ignore[misc]
        may_return.set()
        assert [each.body for each in poll_all(puller, 7)] == numbered(7, 3)


def test_callbacks_that_raise_change_nothing_and_are_logged(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("orders", numbered(3), 0)

    def fails(queues: list[MessageQueue]) -> None:
        raise SystemExit(f"not {len(queues)}")

    with consumer(cluster, on_assigned=fails, on_revoked=fails) as puller:
        puller.subscribe("orders")
        poll_all(puller, 3)
    assert cluster.committed("g", "orders", 0) == 3
    assert {record.args[0] for record in caplog.records if "callback failed" in record.message} == {
        "on_assigned",
        "on_revoked",
    }


def test_a_callback_that_hangs_keeps_neither_its_queue_from_others_nor_the_close(cluster: RunningCluster) -> None:
    hangs = threading.Event()
    quick = ConsumerConfig(commit_interval_ms=50, settle_ms=100, revoke_timeout_ms=100, close_timeout_ms=400)
    try:
        with consumer(cluster, on_revoked=lambda queues: hangs.wait(60), config=quick) as puller:
            puller.subscribe("orders")
            begun(puller, Q0, Q1)
            with consumer(cluster, client_id="a") as other:
                other.subscribe("orders")
                begun(other, Q0)
    finally:
        hangs.set()


def test_a_broken_session_is_told_of_only_where_others_went_on_meanwhile(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    told, faults = Told(), cluster.brokers["broker-a"].faults
    with consumer(cluster, client_id="z", on_assigned=told.on_assigned, on_revoked=told.on_revoked) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        poll_all(puller, 10)
        assert puller.poll(0) == []
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="the commit")
        told.calls = [("+", sorted(told.held()))]
        faults.refuse("ConsumerSession", lambda request, _: AWAY if request.join.client_id == "z" else None)
        faults.cut("ConsumerSession")
        with consumer(cluster, client_id="a") as other:
            other.subscribe("orders")
            begun(other, Q0, Q1)
            cluster.put("orders", numbered(5, 10), 0)
            poll_all(other, 5)
        faults.heal()
        wait_until(lambda: len(told.calls) == 3, what="both calls")
        assert told.calls[1:] == [("-", [Q0]), ("+", [Q0])], "of the other queue nothing was missed"
        cluster.put("orders", numbered(1, 15), 0)
        assert [each.body for each in poll_all(puller, 1)] == [b"15"]


def test_only_callables_are_taken_and_only_where_queues_are_shared() -> None:
    async def later(queues: list[MessageQueue]) -> None: ...

    for wrong, what in ((3, "must be callable"), (later, "asyncio consumer")):
        with pytest.raises(ConfigError, match=what):
            PushConsumer("127.0.0.1:1", group="g", listener=print, on_assigned=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clustering"):
        PushConsumer("127.0.0.1:1", group="g", listener=print, on_revoked=print, model="broadcasting")


def test_a_loop_over_a_consumer_ends_with_it_and_loses_nothing_when_it_is_left(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        got = []
        for message in puller:
            got.append(message.body)
            if len(got) == 4:
                break
    assert cluster.committed("g", "orders", 0) == 4, "not what was fetched beside them"
    with consumer(cluster, auto_commit=False) as puller:
        puller.subscribe("orders")
        for message in puller:
            got.append(message.body)
            puller.commit()
            assert puller.committed(Q0) == message.queue_offset + 1
            if len(got) == 10:
                threading.Thread(target=puller.close).start()
    assert got == numbered(10)


def test_the_asyncio_twin_iterates_and_runs_callbacks_in_its_loop(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    calls: list[tuple[str, list[MessageQueue], bool]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def on_assigned(queues: list[MessageQueue]) -> None:
            calls.append(("+", queues, asyncio.get_running_loop() is loop))

        async def on_revoked(queues: list[MessageQueue]) -> None:
            calls.append(("-", queues, asyncio.get_running_loop() is loop))

        twin = AsyncPullConsumer(
            cluster.namesrv, group="g", consume_from="first", on_assigned=on_assigned, on_revoked=on_revoked
        )
        async with twin:
            await twin.subscribe("orders")
            got = []
            async for message in twin:
                got.append(message.body)
                if len(got) == 3:
                    break
            assert got == numbered(3)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert all(is_in_loop for _, _, is_in_loop in calls)
    assert sorted(each for name, queues, _ in calls if name == "+" for each in queues) == [Q0, Q1]
    assert sorted(each for name, queues, _ in calls if name == "-" for each in queues) == [Q0, Q1]
    assert cluster.committed("g", "orders", 0) == 3
