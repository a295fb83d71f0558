"""What a query is told while broker groups, or topics, are not there; without sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from penstock.client.cluster import again
from penstock.pipeline.topics.cluster import Cluster
from penstock.pipeline.topics.offsets import Queue, Slice, begin_of, epochs_of, queues_of, slices, stream_offset
from penstock.pipeline.topics.options import source_options
from penstock.pipeline.topics.read.source import TopicReader
from penstock.pipeline.topics.read.starting import ending_offsets, starting_offsets
from penstock.pipeline.topics.read.stream import TopicStreamReader
from penstock.proto.errors import (
    BrokerUnavailable,
    ConfigError,
    DataLoss,
    PenstockError,
    RouteNotFound,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import CommitOffsetsReply
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
        self.epochs: list[tuple[str, int]] = []
        self.directory = self
        self.groups_known: tuple[dict[str, Any], list[str]] = ({}, [])

    def route(self, topic: str) -> TopicRoute:
        return self.routes.pop(0) if len(self.routes) > 1 else self.routes[0]

    def topics(self) -> list[str]:
        return ["ordered"]

    def groups(self, timeout_s: float) -> list[str]:
        return ["etl2"]

    def everywhere(self, *_: Any, **__: Any) -> tuple[dict[str, Any], list[str]]:
        return self.groups_known

    def at_reader(self, broker: str, method: str, request: Any, timeout_s: float, **_: Any) -> Any:
        self.asked.append(broker)
        self.epochs.append((broker, request.epoch))
        if method == "CommitOffsets":
            return CommitOffsetsReply()
        if isinstance(self.answer, PenstockError) and not (self.routes[0].exists and len(self.routes) == 1):
            raise self.answer
        return FOUND if isinstance(self.answer, PenstockError) else self.answer


@pytest.fixture
def view() -> Iterator[Any]:
    made = Cluster("127.0.0.1:1")
    calls = made.calls
    yield made
    calls.close()


GIVEN = {"nameServer": "127.0.0.1:1", "driverRetryTimeoutMs": "1000"}
OPTIONS = source_options(GIVEN | {"subscribe": "orders"}, streaming=True)


def queues(*names: str) -> list[QueueData]:
    return [QueueData(broker_name=name, read_queues=1, perm=6) for name in names]


PART_DOWN = TopicRoute(
    topic="orders", exists=True, queues=queues("a"), shards=[ShardView(broker_name="a")], absent=queues("b")
)
ALL_DOWN = TopicRoute(topic="orders", exists=True, queues=queues("b"), absent=queues("b"))
WHOLE = TopicRoute(
    topic="orders", exists=True, queues=queues("a", "b"), shards=[ShardView(broker_name=name) for name in "ab"]
)


def places(view: Any, **given: str) -> set[tuple[str, str]]:
    """Where a query begins."""
    subscribed = {} if "assign" in given else {"subscribe": "orders"}
    options = source_options(GIVEN | subscribed | given, streaming=False)
    return {queue[:2] for queue in starting_offsets(view, options, timeout_s=1)[0]}


def test_a_topic_whose_holders_are_down_is_waited_for(view: Any) -> None:
    view.calls = Calls(NOWHERE, NOWHERE, HERE, answer=BrokerUnavailable("down"))
    found = again(lambda: view.positions(OPTIONS, held={("orders", "a")}), 20)
    assert [queue.broker for queue in found] == ["a"]
    view.calls = Calls(NOWHERE, answer=BrokerUnavailable("down"))
    with pytest.raises(RouteNotFound, match="topic orders: of its broker groups a none has a living member"):
        again(lambda: view.positions(OPTIONS, held={("orders", "a"), ("other", "c")}), 0)
    assert view.calls.asked == ["a"]


def test_a_topic_that_its_broker_has_no_more_is_not_waited_for(view: Any) -> None:
    view.calls = Calls(NOWHERE, answer=TopicNotFound("gone"))
    for held in ({("orders", "a")}, set()):
        with pytest.raises(TopicNotFound):
            again(lambda held=held: view.positions(OPTIONS, held=held), 20)


def test_a_group_that_no_broker_knows_is_refused_and_one_without_offsets_is_not(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    view.calls = Calls(HERE)
    given = {"nameServer": "127.0.0.1:1", "subscribe": "orders", "startingOffsets": "group", "group": "etl"}
    options = source_options(given, streaming=True)
    monkeypatch.setattr(view, "committed", lambda *_: {})
    with pytest.raises(ConfigError, match=r"no broker knows 'etl'.*etl2"):
        starting_offsets(view, options, timeout_s=1)
    view.calls.groups_known = {}, ["b"]
    with pytest.raises(BrokerUnavailable, match="group etl: unknown to those who answer, and b do not"):
        starting_offsets(view, options, timeout_s=1)
    view.calls.groups_known = {"a": object()}, []
    assert list(starting_offsets(view, options, timeout_s=1)[0].values()) == [0]


def test_a_batch_waits_for_a_broker_group_that_is_down(view: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    schema = StructType([StructField("body", BinaryType())])
    reader = TopicReader(source_options(GIVEN | {"subscribe": "orders"}, streaming=False), schema)
    view.calls = Calls(PART_DOWN, ALL_DOWN, WHOLE)
    wanted = [part for partition in reader.partitions() for part in partition.slices]
    assert {part.queue.broker for part in wanted} == {"a", "b"}
    view.calls = Calls(PART_DOWN)
    began = time.monotonic()
    with pytest.raises(RouteNotFound, match=r"topic orders: no member of b lives.*failOnDataLoss=false"):
        reader.partitions()
    assert time.monotonic() - began > 0.3


def test_what_a_pattern_finds_is_waited_for_too_where_all_of_it_is_down(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = {"orders": ALL_DOWN, "sales": WHOLE}
    monkeypatch.setattr(view, "topics", lambda _: sorted(routes))
    view.calls = Calls(WHOLE)
    monkeypatch.setattr(view.calls, "route", routes.__getitem__)
    given = GIVEN | {"subscribePattern": ".*"}
    with pytest.raises(RouteNotFound, match="topic orders: no member of b lives"):
        starting_offsets(view, source_options(given, streaming=True), timeout_s=1, tolerates_missing=True)
    tolerant = source_options(given | {"failOnDataLoss": "false"}, streaming=False)
    begin, positions = starting_offsets(view, tolerant, timeout_s=1)
    assert {queue[:2] for queue in begin} == {("sales", "a"), ("sales", "b")}
    assert positions.absent == {("orders", "b")}


def test_queues_that_are_assigned_need_no_others(view: Any) -> None:
    view.calls = Calls(PART_DOWN)
    assert places(view, assign='{"orders": {"a": [0]}}') == {("orders", "a")}
    both = '{"orders": {"a": [0], "b": [0]}}'
    with pytest.raises(RouteNotFound, match="no member of b lives"):
        places(view, assign=both)
    assert places(view, assign=both, failOnDataLoss="false") == {("orders", "a")}
    with pytest.raises(RouteNotFound, match="no member of b lives"):
        places(view, assign='{"orders": {"b": [0]}}', failOnDataLoss="false")
    with pytest.raises(ConfigError, match="queue orders/a/7 does not exist"):
        places(view, assign='{"orders": {"a": [7]}}')


def test_a_running_query_of_assigned_queues_goes_on_without_those_that_are_down(view: Any) -> None:
    view.calls = Calls(PART_DOWN)
    options = source_options(GIVEN | {"assign": '{"orders": {"a": [0], "b": [0]}}'}, streaming=True)
    found = view.positions(options, held={("orders", "a"), ("orders", "b")})
    assert [queue.broker for queue in found] == ["a"]
    assert found.absent == {("orders", "b")}


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_offsets_given_for_a_group_that_is_down_may_be_left_out(view: Any, option: str) -> None:
    view.calls = Calls(PART_DOWN)
    given = {option: '{"orders": {"a": {"0": 1}, "b": {"0": 1}}}'}
    with pytest.raises(RouteNotFound, match="no member of b lives"):
        places(view, **given)
    assert places(view, **given, failOnDataLoss="false") == {("orders", "a")}
    assert "b" not in view.calls.asked


def test_a_plan_whose_end_has_other_queues_than_its_begin_is_made_again(view: Any) -> None:
    view.calls = Calls(PART_DOWN)
    options = source_options(
        GIVEN | {"subscribe": "orders", "endingTimestamp": "1", "failOnDataLoss": "false"}, streaming=False
    )
    _, positions = starting_offsets(view, options, timeout_s=1)
    view.calls = Calls(WHOLE)
    with pytest.raises(RouteNotFound, match="queue orders/b/0 came or went") as raised:
        ending_offsets(view, options, positions, timeout_s=1)
    assert raised.value.retryable


def test_a_running_stream_does_not_ask_a_group_that_is_known_to_be_down(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    schema = StructType([StructField("body", BinaryType())])
    stream = TopicStreamReader(OPTIONS, schema)
    view.calls = Calls(PART_DOWN)
    start = stream_offset({Queue("orders", "a", 0): 3, Queue("orders", "b", 0): 4})
    assert queues_of(stream.latestOffset(start, ReadAllAvailable())) == {
        Queue("orders", "a", 0): 9,
        Queue("orders", "b", 0): 4,
    }
    assert set(view.calls.asked) == {"a"}


def test_a_time_for_some_queues_only_is_refused_as_an_offset_is(view: Any) -> None:
    view.calls = Calls(WHOLE)
    with pytest.raises(ConfigError, match="startingOffsetsByTimestamp: queue orders/b/0 is missing: name every queue"):
        places(view, startingOffsetsByTimestamp='{"orders": {"a": {"0": 1}}}')


def test_a_topic_that_is_not_there_is_told_with_the_nearest_one(view: Any) -> None:
    view.calls = Calls(NOWHERE)
    with pytest.raises(TopicNotFound, match=r"orders does not exist at any living broker \(did you mean 'ordered'"):
        places(view)


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        (QueuePosition(max_offset=20, cut_offset=7), 7),  # others have come in their place, and more
        (QueuePosition(max_offset=7, cut_offset=7), 7),
        (QueuePosition(max_offset=7), 7),
        (QueuePosition(min_offset=8, max_offset=20, cut_offset=7), 8),
    ],
)
def test_a_stream_goes_back_to_where_a_failover_has_cut_off_what_it_has_read(
    view: Any, monkeypatch: pytest.MonkeyPatch, now: QueuePosition, kept: int
) -> None:
    """What has come in the place of these messages by now would be passed over."""
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    monkeypatch.setattr("penstock.pipeline.topics.read.stream.SHRUNK_S", 0.0)
    view.calls = Calls(HERE, answer=TopicPositions(is_master=True, created_ms=5, epoch=3, queues=[now]))
    queue, place = Queue("orders", "a", 0), ("orders", "a")
    start = stream_offset({queue: 9}, created={place: 5}, epochs={place: 2})
    schema = StructType([StructField("body", BinaryType())])
    told = "queue orders/a/0: the query is at 9, and its log has lost what it had from .* failOnDataLoss=false goes on"
    with pytest.raises(DataLoss, match=told):
        TopicStreamReader(OPTIONS, schema).latestOffset(start, ReadAllAvailable())
    assert view.calls.epochs == [("a", 2)]
    tolerant = source_options(GIVEN | {"subscribe": "orders", "failOnDataLoss": "false"}, streaming=True)
    end = TopicStreamReader(tolerant, schema).latestOffset(start, ReadAllAvailable())
    begin = begin_of(start, end)
    assert begin == {queue: kept}
    assert slices(begin, queues_of(end)) == ([Slice(queue, kept, 20)] if now.max_offset == 20 else [])
    assert epochs_of(end) == {place: 3}


def test_a_stream_goes_on_where_a_failover_has_cut_off_nothing_that_it_has_read(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    now = QueuePosition(max_offset=20, cut_offset=9)
    view.calls = Calls(HERE, answer=TopicPositions(is_master=True, created_ms=5, epoch=3, queues=[now]))
    queue, place = Queue("orders", "a", 0), ("orders", "a")
    start = stream_offset({queue: 9}, created={place: 5}, epochs={place: 2})
    end = TopicStreamReader(OPTIONS, StructType()).latestOffset(start, ReadAllAvailable())
    assert slices(begin_of(start, end), queues_of(end)) == [Slice(queue, 9, 20)]


def test_a_stream_tells_of_queues_that_its_topic_got_rid_of_before_they_were_read(
    view: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.pipeline.topics.cluster.cluster", lambda *_: view)
    positions = [QueuePosition(queue_id=number, max_offset=9) for number in range(4)]
    fewer = TopicPositions(is_master=True, created_ms=5, queues=positions[:2], removed=positions[2:])
    view.calls = Calls(HERE, answer=fewer)
    begin = {Queue("orders", "a", number): 7 for number in range(3)} | {Queue("orders", "a", 3): 9}
    start = stream_offset(begin)  # of an older checkpoint, which does not say when the topic was created
    told = r"orders/a/2: nobody can read its messages 7\.\.9, .* give it 4 again .*; failOnDataLoss=false goes on"
    with pytest.raises(DataLoss, match=told):
        TopicStreamReader(OPTIONS, StructType()).latestOffset(start, ReadAllAvailable())
    assert view.calls.asked == ["a"]
    tolerant = source_options(GIVEN | {"subscribe": "orders", "failOnDataLoss": "false"}, streaming=True)
    stream = TopicStreamReader(tolerant, StructType())
    for _ in range(2):
        end = stream.latestOffset(start, ReadAllAvailable())
        assert queues_of(end) == begin | {Queue("orders", "a", number): 9 for number in range(2)}
    assert [record.getMessage() for record in caplog.records if "nobody can read" in record.getMessage()] == [
        "queue orders/a/2: nobody can read its messages 7..9, since the topic got fewer queues: give it 4 again "
        "(penstock topic update orders --read-queues 4) until they are read"
    ]
    view.calls = Calls(HERE, answer=TopicPositions(is_master=True, created_ms=5, queues=positions))
    end = stream.latestOffset(end, ReadAllAvailable())
    assert slices(begin_of(start, end), queues_of(end))[2] == Slice(Queue("orders", "a", 2), 7, 9)
    drained = stream_offset(dict.fromkeys(begin, 9), created={("orders", "a"): 5})
    view.calls = Calls(HERE, answer=fewer)
    assert TopicStreamReader(OPTIONS, StructType()).latestOffset(drained, ReadAllAvailable()) == drained


def test_offsets_are_committed_with_the_epoch_of_their_log(view: Any) -> None:
    view.calls = Calls(HERE)
    ends = {Queue("orders", "a", 0): 3, Queue("sales", "a", 0): 4, Queue("orders", "b", 0): 5}
    view.commit("etl", ends, 1.0, {("orders", "a"): 2, ("sales", "a"): 3})
    assert sorted(view.calls.epochs) == [("a", 2), ("a", 3), ("b", 0)]
