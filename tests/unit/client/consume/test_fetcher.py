"""Fetching: what is asked for, how many requests wait, and what happens when answers are bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.cluster.connections import Connections
from penstock.client.cluster.directory import Directory
from penstock.client.cluster.subscription import Subscription, parse_subscription
from penstock.client.consume import fetcher
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.consume.fetcher import Fetcher
from penstock.client.consume.local_queue import Buffers, LocalQueue, Standing
from penstock.client.message import MessageQueue
from penstock.proto import frames
from penstock.proto.errors import InvalidArgument, PenstockError
from penstock.proto.wire.broker_pb2 import FetchHeader, FetchReply
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"T": 8}) as made:
        yield made


class Rig:
    """A fetcher with the queues of topic ``T``, and every request that its broker got."""

    def __init__(
        self, cluster: RunningCluster, wanted: Callable[[str], Subscription] = Subscription.of_all, **limits: Any
    ) -> None:
        self.config = ConsumerConfig(**limits)
        self.connections = Connections(cluster.namesrv)
        self.routes = Directory(self.connections)
        self.routes.topic("T")
        self.buffers = Buffers(self.config)
        self.refusals: list[PenstockError] = []
        requests = cluster.brokers["broker-a"].faults.requests
        self.headers: list[FetchHeader] = []
        requests["Fetch"] = self.headers
        core = SimpleNamespace(
            is_broadcasting=False,
            connections=self.connections,
            directory=self.routes,
            buffers=self.buffers,
            config=self.config,
            group="g",
            client_id="c",
            subscription_of=wanted,
            fail=self.refusals.append,
        )
        self.fetcher = Fetcher(core)  # type: ignore[arg-type]

    def add(self, *queue_ids: int, offset: int = 0, end: int = 0, is_new: bool = True) -> list[LocalQueue]:
        made = []
        with self.buffers.lock:
            for queue_id in queue_ids:
                local = LocalQueue(MessageQueue("T", "broker-a", queue_id))
                self.buffers.queues[local.queue] = local
                self.buffers.start(local, offset, end=end)
                local.is_new = is_new
                local.standing = Standing.OWNED
                made.append(local)
        self.fetcher.wake()
        return made

    def asked(self) -> list[list[int]]:
        return [[queue_id for topic in header.topics for queue_id in topic.queue_ids] for header in self.headers]

    def __enter__(self) -> Rig:
        self.fetcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.fetcher.close()
        self.routes.close()
        self.connections.close()


def messages(local: LocalQueue) -> list[bytes]:
    return [chunk.batch.body(index) for chunk in list(local.chunks) for index in chunk.indexes]


def test_idle_queues_wait_together_in_one_request(cluster: RunningCluster) -> None:
    with Rig(cluster, fetches_in_flight=4) as rig:
        locals_ = rig.add(0, 1, 2, 3)
        for number in range(6):
            cluster.put("T", [b"%d" % number], number % 4)
            wait_until(lambda number=number: sum(map(len, map(messages, locals_))) == number + 1, what="arrival")  # type: ignore[misc]
        assert messages(locals_[1]) == [b"1", b"5"]
        assert all(sorted(asked) == [0, 1, 2, 3] for asked in rig.asked())


def test_a_new_queue_is_fetched_while_a_request_waits(cluster: RunningCluster) -> None:
    cluster.put("T", [b"x"], 1)
    with Rig(cluster, fetches_in_flight=1, fetch_wait_ms=60_000) as rig:  # longer than it is waited for
        rig.add(0)
        wait_until(lambda: rig.headers, what="the first request")
        (second,) = rig.add(1)
        wait_until(lambda: messages(second) == [b"x"], what="the second queue's message")
        wait_until(lambda: sorted(rig.asked()[-1]) == [0, 1], what="both in one request")


def test_a_moved_position_is_fetched_at_once_and_old_answers_are_dropped(cluster: RunningCluster) -> None:
    cluster.put("T", [b"%d" % number for number in range(10)], 0)
    with Rig(cluster) as rig:
        (local,) = rig.add(0, offset=10)
        wait_until(lambda: not local.is_behind, what="the wait at the end")
        with rig.buffers.lock:
            rig.buffers.start(local, 7)
        rig.fetcher.wake()
        wait_until(lambda: messages(local) == [b"7", b"8", b"9"], what="messages from the new position")
        cluster.put("T", [b"10"], 0)
        wait_until(lambda: messages(local) == [b"7", b"8", b"9", b"10"], what="each message once")


def test_nothing_is_asked_for_when_all_queues_moved_after_they_were_chosen(cluster: RunningCluster) -> None:
    cluster.put("T", [b"%d" % number for number in range(10)], 0)
    rig, targets = Rig(cluster), [3]
    (local,) = rig.add(0)
    readable = rig.routes.readable

    def moving(name: str, suggested_id: int | None) -> tuple[int, str] | None:
        if targets:
            with rig.buffers.lock:
                rig.buffers.start(local, targets.pop())
        return readable(name, suggested_id)

    rig.routes.readable = moving  # type: ignore[method-assign]
    with rig:
        wait_until(lambda: messages(local) == [b"%d" % number for number in range(3, 10)], what="the new position's")
    assert rig.refusals == []
    assert all(rig.asked()), "a request without queues is refused, and would end the consumer"


def test_queues_that_are_behind_are_fetched_by_several_requests(cluster: RunningCluster) -> None:
    for queue_id in range(8):
        cluster.put("T", [bytes(500)] * 100, queue_id)
    with Rig(cluster, fetches_in_flight=4, fetch_bytes=20_000, fetch_queue_bytes=10_000) as rig:
        locals_ = rig.add(*range(8), end=100)
        wait_until(lambda: all(len(messages(local)) == 100 for local in locals_), what="everything")
        assert max(map(len, rig.asked()[:4])) <= 2, "eight queues over four requests"
        assert all(header.max_bytes == 20_000 and header.max_bytes_per_queue == 10_000 for header in rig.headers)


def test_a_new_queue_is_fetched_while_all_requests_wait_for_a_tag_that_no_message_has(cluster: RunningCluster) -> None:
    for queue_id in range(3):
        cluster.put("T", [b"untagged"], queue_id)
    paid = partial(parse_subscription, expression="paid")
    with Rig(cluster, paid, fetches_in_flight=3, fetch_wait_ms=60_000) as rig:  # longer than it is waited for
        rig.add(0, 1, 2, end=1, is_new=False)
        wait_until(lambda: len(rig.headers) == 3, what="three requests")
        rig.add(3)
        wait_until(lambda: any(3 in asked for asked in rig.asked()), what="a request for the new queue")


def test_a_full_queue_is_left_out_and_comes_back_when_there_is_room(cluster: RunningCluster) -> None:
    cluster.put("T", [bytes(500)] * 100, 0)
    with Rig(cluster, fetch_bytes=10_000, queue_bytes=20_000) as rig:
        full, other = rig.add(0, 1)
        wait_until(lambda: full.is_left_out, what="a full buffer")
        held = full.held_messages
        cluster.put("T", [b"x"], 1)
        wait_until(lambda: messages(other) == [b"x"], what="the other queue's message")
        assert full.held_messages == held
        with rig.buffers.lock:
            while full.chunks:
                chunk = full.chunks.popleft()
                taken = chunk.take(1000)
                rig.buffers.finish(full, taken.record_bytes, len(taken.indexes))
        wait_until(lambda: full.held_messages >= held, what="more of it")


def test_retention_that_overtook_the_position_moves_it_up() -> None:
    hours = ";".join(f"{hour:02}" for hour in range(24))
    expiring = {"mappedFileSizeCommitLog": 128 << 10, "maxMessageSize": 2000, "fileReservedTime": 0}
    with RunningCluster(topics={"T": 1}, **expiring, deleteWhen=hours, cleanResourceInterval=100) as cluster:
        bodies = [b"%4d" % number * 200 for number in range(300)]
        for body in bodies:
            cluster.put("T", [body], 0)
        broker = cluster.brokers["broker-a"]
        lowest = wait_until(lambda: next(iter(broker.records("T")))[1], what="files that are gone")
        with Rig(cluster) as rig:
            (local,) = rig.add(0)
            wait_until(lambda: messages(local)[-1:] == bodies[-1:], what="the last message")
            assert 0 < lowest <= len(bodies) - len(messages(local))
            assert messages(local) == bodies[-len(messages(local)) :]


def test_a_position_above_the_end_moves_to_it_at_a_master(cluster: RunningCluster) -> None:
    cluster.put("T", [b"a"], 0)
    with Rig(cluster) as rig:
        (local,) = rig.add(0, offset=50)
        wait_until(lambda: local.next_fetch == 1, what="the queue's end")


def test_a_slave_that_is_behind_does_not_move_a_position_back(cluster: RunningCluster) -> None:
    cluster.put("T", [b"a"], 0)
    slave = cluster.add_slave()
    cluster.kill("broker-a")
    overflow = FetchReply.Result(status=FetchReply.OFFSET_OVERFLOW, next_offset=1, max_offset=1)
    slave.faults.change_answers("Fetch", lambda _: frames.pack(FetchReply(results=[overflow])))  # it would wait
    with Rig(cluster, fetch_wait_ms=50) as rig:
        (local,) = rig.add(0, offset=50)
        wait_until(lambda: local.retry_at_s, what="the slave's answer")
        assert local.next_fetch == 50


def test_bad_records_are_refused_and_asked_for_again(cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "RETRY_DAMAGED_S", 0.1)
    cluster.put("T", [b"a", b"b"], 0)
    broker = cluster.brokers["broker-a"]
    first = broker.records("T")[0, 0]
    broker.flip(first, 0)  # in its size
    with Rig(cluster) as rig:
        (local,) = rig.add(0)
        wait_until(lambda: local.retry_at_s, what="the refusal")
        assert messages(local) == []
        assert local.next_fetch == 0
        broker.flip(first, 0)
        wait_until(lambda: messages(local) == [b"a", b"b"], what="the repaired records")


def test_a_refused_request_is_told_and_a_broken_one_tried_again(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults
    cluster.put("T", [b"a"], 0)
    with Rig(cluster) as rig:
        faults.refuse("Fetch", PenstockError("broke"))
        (local,) = rig.add(0)
        wait_until(lambda: len(rig.headers) > 2, what="further tries")
        assert not rig.refusals
        faults.heal()
        wait_until(lambda: messages(local) == [b"a"], what="the message after all")
    faults.refuse("Fetch", InvalidArgument("SQL92 filters are off at this broker"))
    with Rig(cluster) as rig:
        rig.add(0)
        wait_until(lambda: rig.refusals, what="the refusal")
        assert isinstance(rig.refusals[0], InvalidArgument)


def test_fetches_move_to_the_broker_that_lives(cluster: RunningCluster) -> None:
    cluster.add_slave()
    with Rig(cluster) as rig:
        rig.routes.add_listener(lambda route: rig.fetcher.on_routes())
        (local,) = rig.add(0)
        cluster.put("T", [b"1"], 0)
        wait_until(lambda: messages(local) == [b"1"], what="a message by the master")
        with cluster.brokers["broker-a"].faults.holding("Fetch", answers=True):
            cluster.put("T", [b"2"], 0)
            cluster.wait_level()
            cluster.kill("broker-a")
        wait_until(lambda: messages(local) == [b"1", b"2"], what="a message by the slave")
        cluster.revive("broker-a")
        cluster.put("T", [b"3"], 0)
        wait_until(lambda: messages(local) == [b"1", b"2", b"3"], what="a message by the master again")


def test_a_consumer_that_has_read_what_was_cut_off_since_misses_nothing_that_came_in_its_place(
    cluster: RunningCluster,
) -> None:
    for body in (b"a", b"b", b"lost"):
        cluster.put("T", [body], 0)
    broker = cluster.brokers["broker-a"]
    with Rig(cluster, fetch_wait_ms=50) as rig:
        (local,) = rig.add(0)
        wait_until(lambda: messages(local) == [b"a", b"b", b"lost"] and local.log_epoch, what="the messages")
        with rig.buffers.lock:
            local.chunks.clear()  # they are done
        last = max(broker.records("T").items())[1]
        cluster.kill("broker-a")
        broker.flip(last, 0)
        (broker.config.store.root / "abort").touch()  # as after the loss of power, which has taken that record
        cluster.revive("broker-a")
        cluster.put("T", [b"c", b"d", b"e"], 0)
        wait_until(lambda: messages(local)[-1:] == [b"e"], what="the last one")
        assert messages(local) == [b"c", b"d", b"e"]
