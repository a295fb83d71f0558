"""What a query is told while broker groups, or topics, are not there; without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from penstock.pipeline.topics.cluster import AdminCalls, Cluster, riding_through
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.starting import starting_offsets
from penstock.proto.errors import BrokerUnavailable, ConfigError, PenstockError, RouteNotFound, TopicNotFound
from penstock.proto.wire.nameserver_pb2 import QueueData, ShardView, TopicRoute
from penstock.proto.wire.pipeline_pb2 import QueuePosition, TopicPositions

HERE = TopicRoute(topic="orders", exists=True, queues=[QueueData(broker_name="a", read_queues=1, perm=6)])
NOWHERE = TopicRoute(topic="orders", shards=[ShardView(broker_name="b")])
FOUND = TopicPositions(is_master=True, created_ms=5, queues=[QueuePosition(queue_id=0, max_offset=9)])


class Calls:
    """``routes``: one after the other, the last one stays. ``answer``: of every group."""

    def __init__(self, *routes: TopicRoute, answer: TopicPositions | PenstockError = FOUND) -> None:
        self.routes = list(routes)
        self.answer = answer
        self.asked: list[str] = []

    def route(self, topic: str) -> TopicRoute:
        return self.routes.pop(0) if len(self.routes) > 1 else self.routes[0]

    def positions(self, broker: str, topic: str, timeout_s: float, **_: Any) -> TopicPositions:
        self.asked.append(broker)
        if isinstance(self.answer, PenstockError) and not (self.routes[0].exists and len(self.routes) == 1):
            raise self.answer
        return FOUND if isinstance(self.answer, PenstockError) else self.answer


@pytest.fixture
def view() -> Iterator[Any]:
    made = Cluster("127.0.0.1:1")
    yield made
    made.connections.close()


OPTIONS = source_options({"nameServer": "127.0.0.1:1", "subscribe": "orders"}, streaming=True)


def test_a_topic_whose_holders_are_down_is_waited_for(view: Any) -> None:
    view.calls = Calls(NOWHERE, NOWHERE, HERE, answer=BrokerUnavailable("down"))
    found = riding_through(lambda: view.positions(OPTIONS, held={("orders", "a")}), 20)
    assert [queue.broker for queue in found] == ["a"]
    view.calls = Calls(NOWHERE, answer=BrokerUnavailable("down"))
    with pytest.raises(RouteNotFound, match="topic orders: of its broker groups a none has a living member"):
        riding_through(lambda: view.positions(OPTIONS, held={("orders", "a"), ("other", "c")}), 0)
    assert view.calls.asked == ["a"]


def test_a_topic_that_its_broker_has_no_more_is_not_waited_for(view: Any) -> None:
    view.calls = Calls(NOWHERE, answer=TopicNotFound("gone"))
    for held in ({("orders", "a")}, set()):
        with pytest.raises(TopicNotFound):
            riding_through(lambda held=held: view.positions(OPTIONS, held=held), 20)


def test_a_group_that_no_broker_knows_is_refused_and_one_without_offsets_is_not(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.calls = Calls(HERE)
    given = {"nameServer": "127.0.0.1:1", "subscribe": "orders", "startingOffsets": "group", "group": "etl"}
    options = source_options(given, streaming=True)
    monkeypatch.setattr(view, "committed", lambda *_: {})
    monkeypatch.setattr(AdminCalls, "groups", lambda *_: ["etl2"])
    monkeypatch.setattr(AdminCalls, "everywhere", lambda *_, **__: ({}, []))
    with pytest.raises(ConfigError, match=r"no broker knows 'etl'.*etl2"):
        starting_offsets(view, options, timeout_s=1)
    monkeypatch.setattr(AdminCalls, "everywhere", lambda *_, **__: ({}, ["b"]))
    with pytest.raises(BrokerUnavailable, match="group etl: unknown to those who answer, and b do not"):
        starting_offsets(view, options, timeout_s=1)
    monkeypatch.setattr(AdminCalls, "everywhere", lambda *_, **__: ({"a": object()}, []))
    assert list(starting_offsets(view, options, timeout_s=1)[0].values()) == [0]
