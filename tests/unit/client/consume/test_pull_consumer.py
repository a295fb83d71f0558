"""PullConsumer against a real broker: positions, commits, sharing, faults."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator

import pytest

from penstock.client.cluster.connections import Connections
from penstock.client.consume import owner
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.pull_consumer import PullConsumer
from penstock.proto.errors import (
    ClientClosed,
    CommitRefused,
    ConfigError,
    GroupNotFound,
    InvalidArgument,
    InvalidName,
)
from penstock.proto.wire.broker_pb2 import ConsumerEvent
from tests.support.client.pull_consumers import Q0, Q1, a_commit_interval_passes, begun, consumer, numbered, poll_all
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_poll_returns_everything_of_all_queues_in_each_queues_order(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(30), 0)
    cluster.put("orders", numbered(20), 1)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        got = poll_all(puller, 50)
        for queue_id, count in ((0, 30), (1, 20)):
            assert [each.body for each in got if each.queue_id == queue_id] == numbered(count)
        assert got[0].topic == "orders"
        assert got[0].broker_name == "broker-a"


def test_a_message_that_arrives_ends_a_waiting_poll_at_once(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        threading.Timer(0.2, lambda: cluster.put("orders", [b"late"], 1)).start()
        (message,) = puller.poll(3600)
        assert message.body == b"late"


def test_poll_returns_at_most_what_was_asked_for_and_nothing_in_time(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert [each.body for each in puller.poll(5, max_messages=3)] == numbered(3)
        assert [each.body for each in puller.poll(5, max_messages=100)] == numbered(7, 3)
        assert puller.poll(0.1) == []
        with pytest.raises(ConfigError, match="max_messages"):
            puller.poll(0, max_messages=0)


def test_auto_commit_commits_what_the_poll_before_returned(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert len(puller.poll(5, max_messages=4)) == 4
        a_commit_interval_passes(cluster)
        assert cluster.committed("g", "orders", 0) == 0, "what was only returned"
        assert len(puller.poll(5, max_messages=3)) == 3
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="the first poll's commit")
    assert cluster.committed("g", "orders", 0) == 7, "close commits what the last poll returned"


def test_an_error_in_the_callers_code_commits_nothing_of_the_last_poll(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)

    def work() -> None:
        with consumer(cluster) as puller:
            puller.subscribe("orders")
            assert len(puller.poll(5, max_messages=4)) == 4
            assert len(puller.poll(5, max_messages=4)) == 4
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        work()
    assert cluster.committed("g", "orders", 0) == 4


def test_commit_by_hand_commits_what_was_returned_and_nothing_else(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster, auto_commit=False) as puller:
        puller.subscribe("orders")
        assert len(puller.poll(5, max_messages=4)) == 4
        puller.commit()
        assert puller.committed(Q0) == 4
        assert len(puller.poll(5, max_messages=4)) == 4
    assert cluster.committed("g", "orders", 0) == 4


def test_without_auto_commit_nothing_is_committed_that_nobody_committed(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    for subscribing in (True, False):
        with consumer(cluster, auto_commit=False) as puller:
            puller.subscribe("orders") if subscribing else puller.assign([Q0])
            poll_all(puller, 10)
            puller.seek(Q0, 3)
            poll_all(puller, 7)
            a_commit_interval_passes(cluster)
        assert cluster.committed("g", "orders", 0) == -1


def test_commit_of_chosen_offsets_stays(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster, auto_commit=False) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        puller.commit({Q0: 6})
        assert puller.committed(Q0) == 6
        puller.commit({Q0: 2})
        assert puller.committed(Q0) == 2, "going back by hand is allowed"
    assert cluster.committed("g", "orders", 0) == 2


def test_the_next_consumer_goes_on_where_the_last_one_committed(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert len(puller.poll(5, max_messages=4)) == 4
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        assert [each.body for each in poll_all(puller, 6)] == numbered(6, 4)


def test_a_new_group_begins_at_the_end_by_default_and_at_a_time_if_asked(cluster: RunningCluster) -> None:
    middle_ms = cluster.put("orders", numbered(5), 0).store_timestamp_ms + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > middle_ms, what="a later time")
    cluster.put("orders", numbered(5, 5), 0)
    with consumer(cluster, group="late", consume_from="last") as puller:
        puller.subscribe("orders")
        begun(puller, Q0)
        assert puller.position(Q0) == 10
        wait_until(lambda: cluster.committed("late", "orders", 0) == 10, what="commit of the beginning")
    with consumer(cluster, group="timed", consume_from=middle_ms) as puller:
        puller.subscribe("orders")
        assert [each.body for each in poll_all(puller, 5)] == numbered(5, 5)
        assert puller.offset_for_time(Q0, middle_ms) == 5


def test_a_seek_while_the_beginning_is_looked_for_is_not_undone(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("orders", numbered(10), 0)
    search = owner.search_offset

    def seeking(connections: Connections, address: str, queue: MessageQueue, timestamp_ms: int) -> int:
        found = search(connections, address, queue, timestamp_ms)
        if queue == Q0:
            puller.seek(Q0, 8)
        return found

    monkeypatch.setattr(owner, "search_offset", seeking)
    with consumer(cluster, consume_from=1) as puller:
        puller.subscribe("orders")
        assert [each.body for each in poll_all(puller, 2)] == numbered(2, 8)


def test_a_committed_offset_outside_of_the_queue_is_moved_to_its_nearer_end(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)

    def beyond(event: ConsumerEvent) -> ConsumerEvent:  # as of a broker that has lost the end of its log
        if event.HasField("granted"):
            event.granted.committed_offset = 99
        return event

    cluster.brokers["broker-a"].faults.change_answers("ConsumerSession", beyond)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0)
        wait_until(lambda: puller.position(Q0) == 5, what="the queue's end")


def test_a_topic_younger_than_the_subscription_is_read_from_its_first_message(cluster: RunningCluster) -> None:
    with consumer(cluster, consume_from="last") as puller:
        puller.subscribe("unborn")
        cluster.create_topic("unborn", 1)
        cluster.put("unborn", numbered(3), 0)
        assert [each.body for each in poll_all(puller, 3)] == numbered(3)


def test_a_queue_younger_than_the_subscription_is_read_from_its_first_message(cluster: RunningCluster) -> None:
    cluster.put("orders", [b"old"], 0)
    with consumer(cluster, consume_from="last") as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        with cluster.brokers["broker-a"].faults.holding("ConsumerSession"):
            cluster.create_topic("orders", 3)
            cluster.put("orders", numbered(3), 2)
        assert [each.body for each in poll_all(puller, 3)] == numbered(3)


def test_seek_goes_anywhere_and_the_next_commit_follows(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        poll_all(puller, 10)
        puller.poll(0)
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="commit")
        puller.seek(Q0, 7)
        assert puller.position(Q0) == 7
        assert [each.body for each in poll_all(puller, 3)] == numbered(3, 7)
        puller.seek_to_begin([Q0])
        wait_until(lambda: cluster.committed("g", "orders", 0) == 0, what="commit of the lower position")
        assert puller.poll(5, max_messages=1)[0].body == b"0"
        puller.seek_to_end()
        assert puller.position(Q0) == 10
        puller.seek(Q0, 1000)
        wait_until(lambda: puller.position(Q0) == 10, what="a position above the end moves to it")
        cluster.put("orders", [b"new"], 0)
        assert poll_all(puller, 1)[0].body == b"new"


@pytest.mark.parametrize("is_manual", [False, True])
def test_a_seek_back_while_a_commit_is_under_way_is_committed_too(cluster: RunningCluster, is_manual: bool) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        if is_manual:
            puller.assign([Q0])
        else:
            puller.subscribe("orders")
        poll_all(puller, 10)
        puller.poll(0)
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="commit")
        with cluster.brokers["broker-a"].faults.holding("CommitOffsets", answers=True):
            puller.seek(Q0, 7)
            wait_until(lambda: cluster.committed("g", "orders", 0) == 7, what="commit of the lower position")
            puller.seek(Q0, 3)
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="commit of the lowest position")
        assert puller.position(Q0) == 3


def test_whatever_is_sought_and_read_is_committed_in_the_end(cluster: RunningCluster) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    chance = random.Random(seed)
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster, config=ConsumerConfig(commit_interval_ms=5, settle_ms=100)) as puller:
        puller.subscribe("orders")
        begun(puller, Q0)
        for _ in range(20):
            for _ in range(chance.randrange(1, 6)):
                match chance.randrange(4):
                    case 0 | 1:
                        puller.seek(Q0, chance.randrange(11))
                    case 2:
                        puller.poll(0.01, max_messages=3)
                    case _:
                        with contextlib.suppress(CommitRefused):
                            puller.commit()
            position = puller.position(Q0)
            puller.pause([Q0])
            puller.poll(0)
            wait_until(lambda end=position: cluster.committed("g", "orders", 0) == end, what=f"commit of {position}")
            assert puller.position(Q0) == position
            puller.resume([Q0])


def test_seek_says_what_is_wrong_with_it(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0)
        with pytest.raises(InvalidArgument, match="offset=-1: must be a whole number, 0"):
            puller.seek(Q0, -1)
        with pytest.raises(InvalidArgument, match="not assigned"):
            puller.seek(MessageQueue("orders", "broker-z", 0), 1)


def test_a_paused_queue_returns_nothing_and_loses_nothing(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        begun(puller, Q0, Q1)
        assert len(puller.poll(5, max_messages=4)) == 4
        puller.pause([Q0])
        cluster.put("orders", [b"other"], 1)
        assert [each.body for each in poll_all(puller, 1)] == [b"other"]
        assert puller.poll(0.2) == []
        assert set(puller.assignment()) == {Q0, Q1}
        puller.resume()
        assert [each.body for each in poll_all(puller, 6)] == numbered(6, 4)


def test_a_poll_before_anything_is_subscribed_says_so(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        for call in (puller.poll, puller.poll_batch, lambda: next(iter(puller)), puller.commit):
            with pytest.raises(InvalidArgument, match="group g: nothing is subscribed or assigned"):
                call()
        puller.assign([])
        assert puller.poll(0) == []


def test_poll_batch_gives_columns_of_one_queue(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.subscribe("orders")
        batch = puller.poll_batch(5, max_messages=4)
        assert (batch.topic, batch.broker_name, batch.queue_id, len(batch)) == ("orders", "broker-a", 0, 4)
        assert batch.queue_offsets.tolist() == [0, 1, 2, 3]
        assert batch.bodies() == numbered(4)
        rest = puller.poll_batch(5)
        assert rest.queue_offsets.tolist() == [4, 5, 6, 7, 8, 9]
        assert rest.bodies() == numbered(6, 4)
        assert [each.body for each in rest] == numbered(6, 4)
        nothing = puller.poll_batch(0.05)
        assert not nothing
        assert (nothing.bodies(), nothing.queue_offsets.tolist(), nothing.messages()) == ([], [], [])
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="commit")


def test_poll_batch_of_tags_leaves_the_others_out(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(4), 0, tags=["a", "b", "a", "b"])
    with consumer(cluster) as puller:
        puller.subscribe("orders", "b")
        batch = puller.poll_batch(5)
        assert batch.queue_offsets.tolist() == [1, 3]
        assert batch.bodies() == [b"1", b"3"]


def test_assigned_queues_are_read_beside_a_group_with_its_offsets(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    cluster.put("orders", numbered(10), 1)
    cluster.brokers["broker-a"].commit("g", "orders", {1: 6})
    with consumer(cluster) as puller:
        assert puller.queues("orders") == [Q0, Q1]
        puller.assign([Q1])
        assert [each.body for each in poll_all(puller, 4)] == numbered(4, 6)
        assert puller.assignment() == [Q1]
        assert cluster.brokers["broker-a"].members("g") == []
        puller.assign([Q0])
        assert [each.body for each in poll_all(puller, 10)] == numbered(10)
    assert cluster.committed("g", "orders", 1) == 10
    assert cluster.committed("g", "orders", 0) == 10


def test_an_assignment_survives_routes_that_change_meanwhile(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with consumer(cluster) as puller:
        for turn in range(20):
            puller.assign([Q0] if turn % 2 else [Q1])
            cluster.create_topic(f"other-{turn}")
            puller.assign([MessageQueue(f"other-{turn}", "broker-a", 0)])
        puller.assign([Q0])
        wait_until(lambda: puller.assignment() == [Q0], what="the last assignment alone")
        cluster.create_topic("one-more")
        cluster.put("orders", numbered(3), 0)
        assert [each.body for each in poll_all(puller, 3)] == numbered(3)
        assert puller.assignment() == [Q0]
    assert "consumer decision failed" not in caplog.text


def test_a_position_set_before_the_first_poll_of_an_assignment_counts(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    with consumer(cluster) as puller:
        puller.assign([Q0])
        puller.seek(Q0, 8)
        assert [each.body for each in poll_all(puller, 2)] == numbered(2, 8)


def test_subscribing_and_assigning_exclude_each_other(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        puller.assign([Q0])
        with pytest.raises(InvalidArgument, match="not both"):
            puller.subscribe("orders")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": "no group"}, InvalidName),
        ({"group": ""}, InvalidName),
        ({"consume_from": "middle"}, ConfigError),
        ({"consume_from": -5}, ConfigError),
        ({"strategy": "ROUND"}, ConfigError),
    ],
)
def test_wrong_arguments_are_refused_by_name(options: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        PullConsumer("127.0.0.1:1", **({"group": "g"} | options))  # type: ignore[arg-type]


def test_wrong_subscriptions_are_refused_by_name(cluster: RunningCluster) -> None:
    with consumer(cluster) as puller:
        with pytest.raises(InvalidName):
            puller.subscribe("no topic")
        with pytest.raises(InvalidArgument, match="names no tag"):
            puller.subscribe("orders", " || ")
        with pytest.raises(InvalidArgument, match="nothing is subscribed"):
            puller.commit()


def test_a_refused_group_is_raised_by_poll() -> None:
    refusing = {"autoCreateSubscriptionGroup": "false"}
    with RunningCluster(topics={"orders": 2}, **refusing) as cluster, consumer(cluster) as puller:
        puller.subscribe("orders")
        with pytest.raises(GroupNotFound):
            puller.poll(10)


def test_close_ends_a_poll_in_another_thread(cluster: RunningCluster) -> None:
    puller = consumer(cluster)
    puller.subscribe("orders")
    begun(puller, Q0, Q1)
    results: list[list[MessageView]] = []
    thread = threading.Thread(target=lambda: results.append(puller.poll(3600)))
    thread.start()
    puller.close()
    thread.join()
    assert results == [[]]
    with pytest.raises(ClientClosed):
        puller.poll(0)
    puller.close()
