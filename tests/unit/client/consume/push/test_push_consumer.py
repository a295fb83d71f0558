"""PushConsumer against a real broker: listeners, failures, order, limits."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client.admin import Admin
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.push_consumer import ConsumeResult, PushConsumer
from penstock.proto.errors import ConfigError, InvalidArgument
from tests.support.client.push_consumers import Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def test_every_message_reaches_the_listener_once_and_is_committed(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(500), 0)
    cluster.put("orders", numbered(500, 500), 1)
    seen = Seen()
    with consumer(cluster, seen):
        wait_until(lambda: len(seen) == 1000, what="all messages")
        cluster.put("orders", [b"one more"], 0)
        wait_until(lambda: len(seen) == 1001, what="the late message")
    assert sorted(seen.bodies()) == sorted([*numbered(1000), b"one more"])
    assert cluster.committed("g", "orders", 0) == 501
    assert cluster.committed("g", "orders", 1) == 500


def test_commits_happen_while_consuming(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    with consumer(cluster, Seen(), consume_threads=1):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="commit")


def test_a_list_listener_gets_lists_of_one_queue(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(25), 0)
    cluster.put("orders", numbered(25), 1)
    lists: list[list[MessageView]] = []
    with consumer(cluster, lists.append, consume_batch_max=10):
        wait_until(lambda: sum(map(len, lists)) == 50, what="all messages")
    assert all(1 <= len(each) <= 10 for each in lists)
    assert all(len({message.queue_id for message in each}) == 1 for each in lists)
    assert cluster.committed("g", "orders", 0) == 25


@pytest.mark.parametrize("outcome", ["raise", "retry"])
def test_a_failed_message_comes_again_and_says_how_often(cluster: RunningCluster, outcome: str) -> None:
    cluster.put("orders", numbered(5), 0)
    tries: list[int] = []

    def fail_twice(message: MessageView) -> ConsumeResult | None:
        if message.body != b"2":
            return None
        tries.append(message.reconsume_times)
        if len(tries) < 3:
            if outcome == "raise":
                raise ValueError("not yet")
            return ConsumeResult.RETRY_LATER
        return ConsumeResult.SUCCESS

    cluster.retry_soon()
    seen = Seen(fail_twice)
    with consumer(cluster, seen):
        wait_until(lambda: len(tries) == 3, what="three tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="the commit behind it")
    assert tries == [0, 1, 2]
    assert sorted(seen.bodies()) == sorted([*numbered(5), b"2", b"2"])


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("answer", [True, "success", 0])
def test_an_answer_that_means_nothing_is_an_error_that_names_it(
    cluster: RunningCluster, answer: object, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.put("orders", numbered(3), 0)
    cluster.retry_soon()
    answers = [answer, answer, ConsumeResult.SUCCESS]
    seen = Seen(lambda message: answers.pop(0) if message.body == b"1" else None)
    with consumer(cluster, seen, consume_threads=1, orderly=orderly):
        wait_until(lambda: seen.bodies().count(b"1") == 3, what="three tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="the commit behind it")
    assert f"the listener returned {answer!r}" in caplog.text


def test_a_failed_list_comes_again_message_by_message(cluster: RunningCluster) -> None:
    cluster.retry_soon()
    cluster.put("orders", numbered(6), 0)
    tries: list[list[bytes]] = []

    def listener(messages: list[MessageView]) -> ConsumeResult | None:
        tries.append([each.body for each in messages])
        return ConsumeResult.RETRY_LATER if messages[0].reconsume_times == 0 else None

    with consumer(cluster, listener, consume_batch_max=10, consume_threads=1):
        wait_until(lambda: sum(map(len, tries)) == 12, what="all of them again")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 6, what="commit")
    assert tries[0] == numbered(6)
    assert sorted(body for part in tries[1:] for body in part) == numbered(6)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_may_empty_its_list(cluster: RunningCluster, orderly: bool) -> None:
    cluster.retry_soon("g")
    cluster.put("orders", numbered(8), 0)
    done: list[bytes] = []
    failing = {numbered(8)[3], numbered(8)[7]}

    def listener(messages: list[MessageView]) -> None:
        while messages:
            body = messages.pop(0).body
            if body in failing:
                failing.discard(body)
                raise ValueError("failed once")
            done.append(body)

    with consumer(cluster, listener, consume_batch_max=4, consume_threads=1, orderly=orderly):
        wait_until(lambda: set(done) == set(numbered(8)), what="all messages")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 8, what="the commit")


def test_a_reset_past_a_message_that_waits_for_its_next_try_frees_what_it_held(cluster: RunningCluster) -> None:
    """It is what an administrator does about a message that always fails."""
    seen: list[int] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.queue_offset)
        return ConsumeResult.RETRY_LATER if message.queue_offset % 100 == 50 else ConsumeResult.SUCCESS

    config = ConsumerConfig(queue_messages=200)
    with Admin(cluster.namesrv) as admin, consumer(cluster, listener, orderly=True, config=config) as made:
        for end in range(100, 401, 100):
            cluster.put("orders", numbered(100), 0)
            wait_until(lambda failing=end - 50: failing in seen, what="the message that fails")  # type: ignore[misc]
            admin.reset_offset("g", "orders", offset=end, queues=[("broker-a", 0)])
        cluster.put("orders", [b"last"], 0)
        wait_until(lambda: 400 in seen, what="the message behind them")
        wait_until(lambda: made.statistics().buffered_bytes == 0, what="nothing held")


def test_one_slow_message_does_not_stop_the_others_and_holds_the_commit(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(300), 0)
    release = threading.Event()

    def slow(message: MessageView) -> None:
        if message.body == b"150":
            assert release.wait(20)

    seen = Seen(slow)
    with consumer(cluster, seen, consume_threads=3):
        wait_until(lambda: len(seen) == 300, what="everything else")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 150, what="the commit below the slow one")
        release.set()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 300, what="the commit of all")


def test_listeners_run_at_the_same_time_also_within_one_queue(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(4), 0)
    together = threading.Barrier(4)

    def meet(_: MessageView) -> None:
        together.wait(timeout=10)

    seen = Seen(meet)
    with consumer(cluster, seen, consume_threads=4):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="commit")


def test_orderly_keeps_each_queues_order_through_failures(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(40), 0)
    cluster.put("orders", numbered(40, 100), 1)
    running: dict[int, int] = {0: 0, 1: 0}
    overlaps: list[int] = []
    failures = {b"5": 2, b"117": 1}
    reconsumed: list[tuple[bytes, int]] = []

    def listener(message: MessageView) -> ConsumeResult:
        running[message.queue_id] += 1
        if running[message.queue_id] > 1:
            overlaps.append(message.queue_id)
        try:
            if failures.get(message.body, 0):
                failures[message.body] -= 1
                raise ValueError("again")
            if message.reconsume_times:
                reconsumed.append((message.body, message.reconsume_times))
            return ConsumeResult.SUCCESS
        finally:
            running[message.queue_id] -= 1

    seen = Seen(listener)
    with consumer(cluster, seen, orderly=True, consume_threads=4):
        wait_until(lambda: len(seen) == 83, what="all messages and three repetitions")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 40, what="commit")
    assert not overlaps
    assert seen.bodies(0) == [*numbered(6), b"5", *numbered(35, 5)]
    assert seen.bodies(1) == [*numbered(18, 100), *numbered(23, 117)]
    assert sorted(reconsumed) == [(b"117", 1), (b"5", 2)]


def test_orderly_commits_stop_at_the_failing_message(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(6), 0)
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if message.body == b"2" else None)
    with consumer(cluster, seen, orderly=True):
        wait_until(lambda: seen.bodies().count(b"2") > 3, what="several tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 2, what="commit")
    assert set(seen.bodies()) == set(numbered(3))
    assert cluster.committed("g", "orders", 0) == 2


def test_tags_are_compared_by_text(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(4), 0, tags=["Aa", "BB", "Aa", "C"])  # "Aa" and "BB" have one hash
    seen = Seen()
    made = consumer(cluster, seen)
    made.subscribe("orders", "Aa")
    with made:
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="commit")
    assert sorted(seen.bodies()) == [b"0", b"2"]


def test_fetching_stops_at_the_limits_and_goes_on_behind_them(cluster: RunningCluster) -> None:
    for _ in range(8):
        cluster.put("orders", [bytes(1000)] * 100, 0)
    gate = threading.Event()
    seen = Seen(lambda message: gate.wait(20) and None)
    limits = ConsumerConfig(commit_interval_ms=30, fetch_bytes=50_000, fetch_queue_bytes=50_000, queue_bytes=100_000)
    made = consumer(cluster, seen, config=limits, consume_threads=1)
    with made:
        local = wait_until(lambda: made._core.buffers.queues.get(MessageQueue("orders", "broker-a", 0)))
        assert local is not None
        wait_until(lambda: local.held_bytes >= 100_000, what="a full buffer")
        wait_until(lambda: local.is_left_out, what="the fetcher to leave it out")
        assert local.held_bytes < 200_000
        gate.set()
        wait_until(lambda: len(seen) == 800, what="everything")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 800, what="commit")
        assert local.held_bytes == 0
        assert made._core.buffers.held_bytes == 0


def test_failed_messages_count_against_the_limits(cluster: RunningCluster) -> None:
    for _ in range(8):
        cluster.put("orders", [bytes(1000)] * 100, 0)
    failing = threading.Event()
    failing.set()
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if failing.is_set() else None)
    limits = ConsumerConfig(commit_interval_ms=30, fetch_bytes=50_000, queue_bytes=100_000, retry_delays_ms=(300,))
    held = contextlib.ExitStack()  # the failed ones stay here: nobody takes them back
    held.enter_context(cluster.brokers["broker-a"].faults.holding("SendBack"))
    with consumer(cluster, seen, config=limits) as made, held:
        local = wait_until(lambda: made._core.buffers.queues.get(MessageQueue("orders", "broker-a", 0)))
        assert local is not None
        wait_until(lambda: local.is_left_out, what="fetching to stop")
        assert len({each.queue_offset for each in seen.messages}) < 300
        failing.clear()
        held.close()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 800, what="everything at last")
        assert made._core.buffers.held_bytes == 0


def test_topics_can_be_added_and_dropped_while_running(cluster: RunningCluster) -> None:
    cluster.create_topic("extra", 1)
    cluster.put("extra", [b"x"], 0)
    seen = Seen()
    with consumer(cluster, seen) as made:
        wait_until(lambda: len(made.assignment()) == 2, what="orders")
        made.subscribe("extra")
        wait_until(lambda: seen.bodies() == [b"x"], what="the other topic")
        made.unsubscribe("extra")
        wait_until(lambda: len(made.assignment()) == 2, what="only orders again")
        wait_until(lambda: cluster.committed("g", "extra", 0) == 1, what="commit at the end")


async def _coroutine(message: MessageView) -> None: ...


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"listener": None}, "callable"),
        ({"listener": _coroutine}, "AsyncPushConsumer"),
        ({"consume_threads": 0}, "consume_threads"),
        ({"consume_batch_max": 0}, "consume_batch_max"),
        ({"model": "shouting"}, "model"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        PushConsumer("127.0.0.1:1", **({"group": "g", "listener": print} | options))


def test_a_consumer_without_a_topic_does_not_start(cluster: RunningCluster) -> None:
    made = PushConsumer(cluster.namesrv, group="g", listener=print)
    with pytest.raises(InvalidArgument, match="no topic"):
        made.start()
    made.close()


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_that_ends_the_thread_fails_its_message_and_nothing_else(
    cluster: RunningCluster, orderly: bool
) -> None:
    cluster.put("orders", numbered(5), 0)
    tries: list[bytes] = []

    def leave_twice(message: MessageView) -> None:
        tries.append(message.body)
        if message.body == b"2" and tries.count(b"2") < 3:
            sys.exit(1)

    cluster.retry_soon()
    with consumer(cluster, leave_twice, consume_threads=1, orderly=orderly):
        wait_until(lambda: tries.count(b"2") == 3, what="three tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="all of it")
