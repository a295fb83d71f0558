"""Watches: who is told what, and what a slow reader costs."""

from __future__ import annotations

import pytest

from penstock.nameserver.holders import TOPICS_AT_ONCE
from penstock.nameserver.routes import RouteTable
from penstock.nameserver.watches import Watches
from penstock.proto.errors import FlowControl, InvalidName
from penstock.proto.wire.common_pb2 import SLAVE
from penstock.proto.wire.nameserver_pb2 import BrokerReport
from tests.support.broker.registrations import registration, topic_config


def test_a_slow_reader_owes_one_route_for_each_topic_however_often_it_changes() -> None:
    table, watches = RouteTable(), Watches()
    watcher = watches.open()
    watches.add(watcher, ["T", "U"])
    watches.publish(table.register(1, registration(topics=("T",)), 0.0), table)
    for queues in range(1, 100):
        changes = BrokerReport.TopicChanges(updated=[topic_config("T", queues)])
        watches.publish(table.topics_changed(1, changes, 0.0), table)
    assert set(watcher.pending) == {"T", "U"}
    assert watcher.take(10) == ["T", "U"]
    assert not watcher.wake.is_set()


def test_pending_topics_are_taken_in_pieces_in_the_order_of_marking() -> None:
    watches = Watches()
    watcher = watches.open()
    watches.add(watcher, ["A", "B", "C"])
    watcher.mark("A")
    assert watcher.take(2) == ["A", "B"]
    assert watcher.wake.is_set()
    assert watcher.take(2) == ["C"]
    assert watcher.take(2) == []


def test_a_change_of_a_shard_marks_its_topics_and_those_that_do_not_exist() -> None:
    table, watches = RouteTable(), Watches()
    watches.publish(table.register(1, registration("broker-a", topics=("T", "unwatched")), 0.0), table)
    watches.publish(table.register(2, registration("broker-b", topics=("U",)), 0.0), table)
    watcher = watches.open()
    watches.add(watcher, ["T", "U", "absent"])
    watcher.take(10)
    watches.publish(table.register(3, registration("broker-a", 1, epoch=9), 0.0), table)
    assert set(watcher.pending) == {"T", "absent"}


def test_a_change_of_shards_marks_very_many_topics_in_parts_and_loses_none_that_comes_meanwhile() -> None:
    table, watches = RouteTable(), Watches()
    ours, absent = [f"T{number}" for number in range(1500)], [f"A{number}" for number in range(3 * TOPICS_AT_ONCE)]
    for session, group in enumerate(("broker-a", "broker-b", "broker-c"), 1):
        watches.publish(table.register(session, registration(group, topics=(group, *ours)), 0.0), table)
    watcher, late = watches.open(), watches.open()
    watches.add(watcher, [*ours, *absent, "broker-b", "broker-c"])
    watcher.take(len(watcher.topics))
    watches.publish(table.register(4, registration("broker-a", 1, role=SLAVE), 0.0), table)
    assert 0 < len(watcher.pending) <= TOPICS_AT_ONCE
    assert watches.is_behind
    sent = set(watcher.take(TOPICS_AT_ONCE))
    watches.remove(watcher, absent[-1:])
    watches.add(late, absent)
    late.take(len(late.topics))
    watches.publish(table.register(5, registration("broker-b", 1, role=SLAVE), 0.0), table)
    assert not watcher.pending, "in their turn"
    while watches.is_behind:
        before = len(watcher.pending)
        watches.step(table)
        assert len(watcher.pending) <= before + TOPICS_AT_ONCE
    assert sent <= {*ours, *absent}
    assert set(watcher.pending) == {*ours, *absent[:-1], "broker-b"}
    assert set(late.pending) == set(absent)


def test_a_removed_topic_and_a_closed_watcher_are_marked_no_more() -> None:
    table, watches = RouteTable(), Watches()
    left, closed = watches.open(), watches.open()
    for watcher in (left, closed):
        watches.add(watcher, ["T", "U"])
        watcher.take(10)
    watches.remove(left, ["T", "never"])
    watches.close(closed)
    watches.publish(table.register(1, registration(topics=("T",)), 0.0), table)
    assert set(left.pending) == {"U"}
    assert not closed.pending


def test_numbers_and_names_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.watches.TOPICS_PER_WATCHER_MAX", 2)
    monkeypatch.setattr("penstock.nameserver.watches.WATCHERS_MAX", 1)
    watches = Watches()
    watcher = watches.open()
    with pytest.raises(InvalidName):
        watches.add(watcher, ["T", "not legal"])
    with pytest.raises(FlowControl):
        watches.add(watcher, ["A", "B", "C"])
    assert not watcher.topics
    with pytest.raises(FlowControl):
        watches.open()
    watches.close(watcher)
    watches.open()


def test_topics_of_all_watchers_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.nameserver.watches.TOPICS_WATCHED_MAX", 3)
    watches = Watches()
    one, other = watches.open(), watches.open()
    watches.add(one, ["A", "B", "B"])
    with pytest.raises(FlowControl, match="2 topics to watch beside 2: at most 3 are allowed"):
        watches.add(other, ["A", "C"])
    assert not other.topics
    watches.add(one, ["A", "B"])
    watches.remove(one, ["A", "A", "never"])
    watches.add(other, ["A", "C"])
    watches.close(other)
    watches.add(one, ["D", "E"])
    with pytest.raises(FlowControl):
        watches.add(one, ["F"])
