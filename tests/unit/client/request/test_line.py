"""The line on which replies come: one standing request, from the oldest position that anybody needs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.client.request.line import Line
from penstock.proto import frames
from penstock.proto.data_frames import Method
from penstock.proto.errors import BrokerUnavailable, Forbidden, NotMaster, PenstockError
from penstock.proto.wire.replies_pb2 import ListenEvent, ListenRequest
from tests.support.waiting import wait_until


class Standing:
    """One request that stands."""

    def __init__(self, address: str, content: bytes, take: Callable[[bytes], object]) -> None:
        self.address = address
        self.position = ListenRequest.FromString(content).position
        self.take = take
        self.future: Future[None] = Future()

    def push(self, records: bytes, push_time_ms: int = 7) -> None:
        self.take(frames.pack(ListenEvent(push_time_ms=push_time_ms), records))


class Cluster:
    """What a line asks: who is master, and a connection to it."""

    def __init__(self) -> None:
        self.master_address = "first:1"
        self.asked: list[Standing] = []
        self.oldest: int | None = None
        self.taken: list[tuple[str, bytes, int]] = []
        self.failed: list[PenstockError] = []
        self.listeners: list[Callable[[Any], None]] = []
        self.directory = self.connections = self

    def address(self, broker_name: str, timeout_s: float, *, fresh: bool = False) -> str:
        return self.master_address

    def master(self, broker_name: str) -> str:
        return self.master_address

    def add_listener(self, told: Callable[[Any], None]) -> None:
        self.listeners.append(told)

    def remove_listener(self, told: Callable[[Any], None]) -> None:
        with contextlib.suppress(ValueError):
            self.listeners.remove(told)

    def stand(
        self,
        address: str,
        method: Method,
        content: bytes,
        take: Callable[[bytes], object],
        is_attended: Callable[[], bool],
    ) -> Future[None]:
        assert method == Method.LISTEN
        self.asked.append(Standing(address, content, take))
        return self.asked[-1].future

    def need(self, line: Line, position: int) -> None:
        self.oldest = position if self.oldest is None else min(self.oldest, position)
        line.need(position)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def line(cluster: Cluster) -> Iterator[Line]:
    def take(broker_name: str, records: bytes, push_time_ms: int) -> None:
        cluster.taken.append((broker_name, records, push_time_ms))

    requests = SimpleNamespace(
        oldest=lambda _: cluster.oldest,
        take=take,
        fail=lambda _, error: cluster.failed.append(error),
        is_attended=lambda: True,
    )
    made = Line(cast(Any, cluster), "client", "broker-a", cast(Any, requests))
    yield made
    made.close()
    assert not made._thread.is_alive()


def standing(cluster: Cluster, count: int) -> Standing:
    wait_until(lambda: len(cluster.asked) == count, what="the request")
    return cluster.asked[-1]


def test_nothing_is_asked_before_somebody_needs_replies_and_one_request_serves_the_later_ones(
    cluster: Cluster, line: Line
) -> None:
    assert cluster.asked == []
    cluster.need(line, 100)
    first = standing(cluster, 1)
    cluster.need(line, 200)
    first.push(b"")
    first.push(b"records")
    assert (first.position, cluster.taken) == (100, [("broker-a", b"records", 7)])
    assert len(cluster.asked) == 1


def test_one_from_further_back_takes_the_place_of_the_first_and_the_line_stays(cluster: Cluster, line: Line) -> None:
    cluster.need(line, 100)
    first = standing(cluster, 1)
    cluster.need(line, 50)
    second = standing(cluster, 2)
    assert (second.position, second.address) == (50, first.address)
    assert isinstance(first.future.exception(30), BrokerUnavailable)
    second.push(b"records")
    assert cluster.taken == [("broker-a", b"records", 7)]
    second.future.set_exception(BrokerUnavailable("it broke"))
    assert standing(cluster, 3).position == 50


def test_a_refusal_for_the_moment_and_a_new_master_begin_it_again_at_the_oldest(cluster: Cluster, line: Line) -> None:
    cluster.need(line, 100)
    standing(cluster, 1).future.set_exception(NotMaster("not any more"))
    second = standing(cluster, 2)
    cluster.oldest, cluster.master_address = 150, "second:1"
    for told in list(cluster.listeners):
        told(None)
    assert isinstance(second.future.exception(30), BrokerUnavailable)
    third = standing(cluster, 3)
    assert (third.address, third.position) == ("second:1", 150)
    assert cluster.failed == []


def test_a_new_master_that_is_told_while_the_former_one_is_asked_is_not_missed(cluster: Cluster, line: Line) -> None:
    stand = cluster.stand

    def overtaken(*arguments: Any) -> Future[None]:
        standing = stand(*arguments)
        if len(cluster.asked) == 1:
            cluster.master_address = "second:1"
            for told in list(cluster.listeners):
                told(None)
        return standing

    cluster.stand = overtaken  # type: ignore[method-assign]
    cluster.need(line, 100)
    assert isinstance(standing(cluster, 1).future.exception(30), BrokerUnavailable)
    assert standing(cluster, 2).address == "second:1"


def test_a_refusal_for_good_is_told_and_nobody_is_asked_once_nobody_waits(cluster: Cluster, line: Line) -> None:
    cluster.need(line, 100)
    first = standing(cluster, 1)
    cluster.oldest = None
    first.future.set_exception(Forbidden("no user any more"))
    wait_until(lambda: cluster.failed, what="the refusal")
    assert len(cluster.asked) == 1
    cluster.need(line, 300)
    assert standing(cluster, 2).position == 300
