"""Calls at whoever is to be asked, found again while the cluster changes, and the one rule for another try."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.client.cluster import Calls, again
from penstock.proto.errors import (
    BrokerUnavailable,
    GroupNotFound,
    InvalidArgument,
    NotMaster,
    PenstockError,
    TopicNotFound,
)
from penstock.proto.wire.broker_pb2 import FetchHeader, GroupName
from penstock.proto.wire.common_pb2 import Empty, TopicQueues
from penstock.proto.wire.nameserver_pb2 import RouteQuery
from tests.support.client.running_cluster import RunningCluster

REQUEST = TopicQueues(topic="orders", queue_ids=[0])


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(shards=2, topics={"orders": 2}) as cluster:
        yield cluster


@pytest.fixture
def calls(cluster: RunningCluster) -> Iterator[Calls]:
    with contextlib.closing(Calls.to(cluster.namesrv)) as calls:
        yield calls


def failing(*errors: PenstockError) -> Iterator[str]:
    yield from errors  # type: ignore[misc]
    while True:
        yield "done"


def outcome(steps: Iterator[object]) -> object:
    step = next(steps)
    if isinstance(step, PenstockError):
        raise step
    return step


def test_what_passes_is_ridden_through_and_what_stays_is_not() -> None:
    steps = failing(NotMaster("between two"), BrokerUnavailable("gone"))
    assert again(lambda: outcome(steps), 10.0) == "done"
    steps = failing(NotMaster("between two"), InvalidArgument("never"), NotMaster("not asked any more"))
    with pytest.raises(InvalidArgument, match="never"):
        again(lambda: outcome(steps), 10.0)
    assert isinstance(next(steps), NotMaster)


def test_the_last_error_is_raised_when_the_time_is_up() -> None:
    steps = failing(*(NotMaster(str(number)) for number in range(100)))
    with pytest.raises(NotMaster, match="0"):
        again(lambda: outcome(steps), 0.0)


def test_a_broker_group_is_found_again_where_it_is_now(cluster: RunningCluster, calls: Calls) -> None:
    assert calls.at_master("broker-a", "QueryQueueRanges", REQUEST, 5.0).ranges
    asked = []

    def ask(address: str, left_s: float) -> str:
        asked.append(address)
        if len(asked) == 1:
            cluster.kill("broker-a")
            cluster.revive("broker-a")
            raise NotMaster("not any more")
        return "answer"

    assert calls.on("broker-a", ask, 10.0) == "answer"
    assert asked[-1] == cluster.brokers["broker-a"].address
    with pytest.raises(BrokerUnavailable, match="broker group broker-x has no living master"):
        calls.at_master("broker-x", "QueryQueueRanges", REQUEST, 0.0)
    with pytest.raises(TopicNotFound):
        calls.at_reader("broker-a", "QueryQueueRanges", TopicQueues(topic="missing"), 5.0)


def test_records_are_fetched_from_whoever_may_be_read(cluster: RunningCluster, calls: Calls) -> None:
    header = FetchHeader(client_id="test", max_bytes=1000)
    header.topics.add(topic="orders", queue_ids=[0], offsets=[0])
    reply, records = calls.fetch("broker-b", header, 5.0)
    assert not records
    assert [result.bytes for result in reply.results] in ([], [0])


def test_those_that_answer_and_those_that_do_not_are_told_apart(cluster: RunningCluster, calls: Calls) -> None:
    view = calls.directory.cluster()
    cluster._loop.run(cluster.brokers["broker-b"].die())
    answers, silent = calls.at_each(view.shards, "QueryQueueRanges", lambda _: REQUEST, 2.0)
    assert (list(answers), silent) == (["broker-a"], ["broker-b"])
    skipped, _ = calls.at_each(
        view.shards, "DescribeGroup", lambda _: GroupName(group="nobody"), 2.0, skip=GroupNotFound
    )
    assert skipped == {"broker-a": None}


def test_every_nameserver_is_asked_and_the_silent_ones_are_named(cluster: RunningCluster) -> None:
    with contextlib.closing(Calls.to(f"127.0.0.1:1;{cluster.namesrv}")) as calls:
        answers, errors = calls.at_nameservers("QueryCluster", Empty(), 2.0)
        assert list(answers) == [cluster.namesrv]
        assert list(errors) == ["127.0.0.1:1"]
        answers, _ = calls.at_nameservers("QueryRoute", RouteQuery(topics=["orders"]), 2.0)
        assert answers[cluster.namesrv].routes[0].exists
