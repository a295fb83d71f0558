"""PushConsumer against a fake cluster: listeners, failures, order, commits, sharing, closing."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.client.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue, MessageView
from penstock.client.push_consumer import ConsumeResult, PushConsumer
from penstock.proto.errors import ConfigError, GroupNotFound, InvalidArgument
from tests.support.fake_sessions import GroupCluster
from tests.support.waiting import wait_until

QUICK = ConsumerConfig(commit_interval_ms=30, settle_ms=100, retry_delays_ms=(20, 40), suspend_ms=20)


@pytest.fixture
def cluster() -> Iterator[GroupCluster]:
    with GroupCluster(topics={"orders": 2}) as made:
        yield made


class Seen:
    """A listener that writes down what it got, and does what it is told."""

    def __init__(self, then: Callable[[MessageView], Any] | None = None) -> None:
        self.lock = threading.Lock()
        self.messages: list[MessageView] = []
        self.then = then

    def __call__(self, message: MessageView) -> Any:
        with self.lock:
            self.messages.append(message)
        return self.then(message) if self.then else None

    def bodies(self, queue_id: int | None = None) -> list[bytes]:
        with self.lock:
            return [each.body for each in self.messages if queue_id in (None, each.queue_id)]

    def __len__(self) -> int:
        return len(self.messages)

    def __bool__(self) -> bool:
        return True


def consumer(cluster: GroupCluster, listener: Callable[[Any], Any], **options: Any) -> PushConsumer:
    defaults: dict[str, Any] = {"group": "g", "consume_from": "first", "config": QUICK}
    made = PushConsumer(cluster.namesrv, listener=listener, **(defaults | options))
    made.subscribe("orders")
    return made


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def test_every_message_reaches_the_listener_once_and_is_committed(cluster: GroupCluster) -> None:
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


def test_commits_happen_while_consuming(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    with consumer(cluster, Seen(), consume_threads=1):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="commit")


def test_a_list_listener_gets_lists_of_one_queue(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(25), 0)
    cluster.put("orders", numbered(25), 1)
    lists: list[list[MessageView]] = []
    with consumer(cluster, lists.append, consume_batch_max=10):
        wait_until(lambda: sum(map(len, lists)) == 50, what="all messages")
    assert all(1 <= len(each) <= 10 for each in lists)
    assert all(len({message.queue_id for message in each}) == 1 for each in lists)
    assert cluster.committed("g", "orders", 0) == 25


@pytest.mark.parametrize("outcome", ["raise", "retry"])
def test_a_failed_message_comes_again_and_says_how_often(cluster: GroupCluster, outcome: str) -> None:
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

    seen = Seen(fail_twice)
    with consumer(cluster, seen):
        wait_until(lambda: len(tries) == 3, what="three tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="the commit behind it")
    assert tries == [0, 1, 2]
    assert sorted(seen.bodies()) == sorted([*numbered(5), b"2", b"2"])


def test_a_failed_message_holds_its_queues_commit_and_no_other(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(8), 0)
    cluster.put("orders", numbered(8, 100), 1)
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if message.body == b"3" else None)
    with consumer(cluster, seen):
        wait_until(lambda: set(seen.bodies(0)) == set(numbered(8)), what="those behind it")
        wait_until(lambda: cluster.committed("g", "orders", 1) == 8, what="the other queue's commit")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="the commit below it")
        wait_until(lambda: seen.bodies(0).count(b"3") >= 4, what="further tries")
    assert cluster.committed("g", "orders", 0) == 3
    again = Seen()
    with consumer(cluster, again):
        wait_until(lambda: len(again) == 5, what="everything from the failed one on")
    assert again.bodies() == numbered(5, 3)


def test_a_failed_list_comes_again_as_a_whole(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(6), 0)
    tries: list[list[bytes]] = []

    def listener(messages: list[MessageView]) -> ConsumeResult | None:
        tries.append([each.body for each in messages])
        return ConsumeResult.RETRY_LATER if messages[0].reconsume_times == 0 else None

    with consumer(cluster, listener, consume_batch_max=10, consume_threads=1):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 6, what="commit")
    assert tries == [numbered(6), numbered(6)]


def test_one_slow_message_does_not_stop_the_others_and_holds_the_commit(cluster: GroupCluster) -> None:
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


def test_listeners_run_at_the_same_time_also_within_one_queue(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(4), 0)
    together = threading.Barrier(4)
    seen = Seen(lambda message: together.wait(timeout=10))
    with consumer(cluster, seen, consume_threads=4):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="commit")


def test_orderly_keeps_each_queues_order_through_failures(cluster: GroupCluster) -> None:
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


def test_orderly_commits_stop_at_the_failing_message(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(6), 0)
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if message.body == b"2" else None)
    with consumer(cluster, seen, orderly=True):
        wait_until(lambda: seen.bodies().count(b"2") > 3, what="several tries")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 2, what="commit")
    assert set(seen.bodies()) == set(numbered(3))
    assert cluster.committed("g", "orders", 0) == 2


def test_tags_are_compared_by_text(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(4), 0, tags=["Aa", "BB", "Aa", "C"])  # "Aa" and "BB" have one hash
    seen = Seen()
    made = consumer(cluster, seen)
    made.subscribe("orders", "Aa")
    with made:
        wait_until(lambda: cluster.committed("g", "orders", 0) == 4, what="commit")
    assert seen.bodies() == [b"0", b"2"]


def test_fetching_stops_at_the_limits_and_goes_on_behind_them(cluster: GroupCluster) -> None:
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


def test_failed_messages_count_against_the_limits(cluster: GroupCluster) -> None:
    for _ in range(8):
        cluster.put("orders", [bytes(1000)] * 100, 0)
    failing = threading.Event()
    failing.set()
    seen = Seen(lambda message: ConsumeResult.RETRY_LATER if failing.is_set() else None)
    limits = ConsumerConfig(commit_interval_ms=30, fetch_bytes=50_000, queue_bytes=100_000, retry_delays_ms=(300,))
    made = consumer(cluster, seen, config=limits)
    with made:
        local = wait_until(lambda: made._core.buffers.queues.get(MessageQueue("orders", "broker-a", 0)))
        assert local is not None
        wait_until(lambda: local.is_left_out, what="fetching to stop")
        assert len({each.queue_offset for each in seen.messages}) < 300
        failing.clear()
        wait_until(lambda: cluster.committed("g", "orders", 0) == 800, what="everything at last")
        assert made._core.buffers.held_bytes == 0


def test_two_members_never_get_one_message_both_while_sharing_changes(cluster: GroupCluster) -> None:
    first_seen, second_seen = Seen(), Seen()
    with consumer(cluster, first_seen) as first:
        wait_until(lambda: len(first.assignment()) == 2, what="both queues")
        stop = threading.Event()

        def produce() -> None:
            number = 0
            while not stop.is_set():
                cluster.put("orders", [b"%d" % number], number % 2)
                number += 1
                time.sleep(0.001)

        producer = threading.Thread(target=produce)
        producer.start()
        wait_until(lambda: len(first_seen) > 50, what="work")
        with consumer(cluster, second_seen) as second:
            wait_until(lambda: len(second.assignment()) == 1, what="the second one's share")
            assert len(first.assignment()) == 1
            wait_until(lambda: len(second_seen) > 50, what="work of the second one")
        wait_until(lambda: len(first.assignment()) == 2, what="both queues again")
        after = len(first_seen)
        wait_until(lambda: len(first_seen) > after + 50, what="work after it left")
        stop.set()
        producer.join()
        total = len(cluster.brokers["broker-a"].bodies("orders"))
        wait_until(lambda: len(first_seen) + len(second_seen) >= total, what="everything")
    everything = first_seen.bodies() + second_seen.bodies()
    assert sorted(everything) == sorted(numbered(total))


def test_when_a_member_dies_the_other_begins_at_its_commits(cluster: GroupCluster) -> None:
    victim_seen, survivor_seen = Seen(), Seen()
    victim = consumer(cluster, victim_seen, client_id="a")
    with consumer(cluster, survivor_seen, client_id="b") as survivor, victim:
        wait_until(lambda: len(survivor.assignment()) == len(victim.assignment()) == 1, what="sharing")
        cluster.put("orders", numbered(20), 0)
        cluster.put("orders", numbered(20, 100), 1)
        wait_until(lambda: len(victim_seen) + len(survivor_seen) == 40, what="the first messages")
        wait_until(lambda: cluster.committed("g", "orders", victim.assignment()[0].queue_id) == 20, what="commit")
        # Killed: nothing is said, the connections just end.
        victim._core.routes.close()
        victim._core.connections.close()
        started = time.monotonic()
        wait_until(lambda: len(survivor.assignment()) == 2, what="take-over")
        assert time.monotonic() - started < 1.5
        cluster.put("orders", numbered(5, 20), 0)
        cluster.put("orders", numbered(5, 120), 1)
        wait_until(lambda: len(survivor_seen) == 30, what="the rest")
    assert sorted(victim_seen.bodies() + survivor_seen.bodies()) == sorted([*numbered(25), *numbered(25, 100)])


def test_a_revoked_queue_is_released_when_its_running_work_has_ended(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    cluster.put("orders", numbered(3, 100), 1)
    gate = threading.Event()
    first_seen, second_seen = Seen(lambda message: gate.wait(20) and None), Seen()
    with consumer(cluster, first_seen, client_id="b") as first:
        wait_until(lambda: len(first_seen) == 4, what="four listeners at work")
        with consumer(cluster, second_seen, client_id="a") as second:
            wait_until(lambda: len(first.assignment()) == 1, what="revocation")
            time.sleep(0.2)
            assert len(second_seen) == 0, "the work on the queue has not ended"
            gate.set()
            wait_until(lambda: cluster.groups["broker-a"].claimed("g") == {"a": [0], "b": [1]}, what="the grant")
            wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="everything of queue 0")
            assert len(second.assignment()) == 1
    everything = first_seen.bodies() + second_seen.bodies()
    assert sorted(everything) == sorted([*numbered(3), *numbered(3, 100)])


def test_work_that_does_not_end_holds_a_revoked_queue_only_so_long(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(1), 0)
    gate = threading.Event()
    impatient = ConsumerConfig(commit_interval_ms=30, revoke_timeout_ms=300)
    second_seen = Seen()
    with consumer(cluster, lambda message: gate.wait(20), client_id="b", config=impatient) as first:
        wait_until(lambda: len(first.assignment()) == 2, what="both queues")
        with consumer(cluster, second_seen, client_id="a"):
            wait_until(lambda: len(second_seen) == 1, what="the message at the other member")
        gate.set()


def test_a_masters_death_repeats_and_loses_nothing(cluster: GroupCluster) -> None:
    cluster.add_slave()
    lazy = ConsumerConfig(commit_interval_ms=60_000, settle_ms=200)  # no commit in time: only own positions help
    seen = Seen()
    with consumer(cluster, seen, config=lazy) as made:
        cluster.put("orders", numbered(100), 0)
        wait_until(lambda: len(seen) == 100, what="the first messages")
        cluster.kill("broker-a")
        cluster.brokers["broker-a-1"].store("orders", _records(b"from the slave"))
        wait_until(lambda: len(seen) == 101, what="messages by the slave")
        wait_until(lambda: cluster.groups["broker-a-1"].members("g") == [made.client_id], what="the slave's session")
        cluster.groups["broker-a"].restart()
        cluster.revive("broker-a")
        wait_until(lambda: cluster.groups["broker-a"].members("g") == [made.client_id], what="the master's session")
        cluster.put("orders", [b"from the master"], 0)
        wait_until(lambda: len(seen) == 102, what="messages by the master")
        wait_until(lambda: cluster.groups["broker-a"].claimed("g") == {made.client_id: [0, 1]}, what="claims")
    assert seen.bodies() == [*numbered(100), b"from the slave", b"from the master"]
    assert cluster.committed("g", "orders", 0) == 102


def test_members_keep_their_queues_when_all_of_them_move(cluster: GroupCluster) -> None:
    cluster.add_slave()
    lazy = ConsumerConfig(commit_interval_ms=60_000, settle_ms=500)
    first_seen, second_seen = Seen(), Seen()
    with (
        consumer(cluster, first_seen, config=lazy, client_id="a") as first,
        consumer(cluster, second_seen, config=lazy, client_id="b") as second,
    ):
        wait_until(lambda: len(first.assignment()) == len(second.assignment()) == 1, what="sharing")
        cluster.put("orders", numbered(50), 0)
        cluster.put("orders", numbered(50, 100), 1)
        wait_until(lambda: len(first_seen) == len(second_seen) == 50, what="the first messages")
        cluster.kill("broker-a")
        wait_until(lambda: cluster.groups["broker-a-1"].members("g") == ["a", "b"], what="sessions at the slave")
        wait_until(lambda: cluster.groups["broker-a-1"].claimed("g") == {"a": [0], "b": [1]}, what="the same shares")
        for queue_id in (0, 1):
            cluster.brokers["broker-a-1"].store("orders", _records(b"more", queue_id))
        wait_until(lambda: len(first_seen) == len(second_seen) == 51, what="work at the slave")
    assert first_seen.bodies() == [*numbered(50), b"more"]
    assert second_seen.bodies() == [*numbered(50, 100), b"more"]


def _records(body: bytes, queue_id: int = 0) -> bytes:
    from penstock.proto.record.batch import encode_messages
    from tests.support.fake_sessions import BORN_HOST

    return encode_messages("orders", [body], None, queue_id, born_host=BORN_HOST)


def test_topics_can_be_added_and_dropped_while_running(cluster: GroupCluster) -> None:
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


def test_close_waits_for_running_listeners_and_commits_them(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    began, gate = threading.Event(), threading.Event()

    def listener(message: MessageView) -> None:
        began.set()
        gate.wait(20)

    made = consumer(cluster, listener, consume_threads=1)
    with made:
        assert began.wait(10)
        threading.Timer(0.2, gate.set).start()
    assert cluster.committed("g", "orders", 0) == 1, "the one at work was finished, the others not begun"
    assert cluster.groups["broker-a"].members("g") == []


def test_close_does_not_wait_longer_than_it_was_told(cluster: GroupCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    gate = threading.Event()
    seen = Seen(lambda message: gate.wait(30) and None)
    made = consumer(cluster, seen)
    made.start()
    wait_until(lambda: len(seen) == 3, what="listeners at work")
    started = time.monotonic()
    made.close(timeout_s=1.5)
    assert time.monotonic() - started < 2.5
    gate.set()
    assert cluster.committed("g", "orders", 0) == 0


def test_wait_ends_at_a_signal_and_leaves_the_former_handlers(cluster: GroupCluster) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with consumer(cluster, Seen()) as made:
        assert made.wait(0.05) is False
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        assert made.wait(10) is True
    assert signal.getsignal(signal.SIGTERM) == before


def test_wait_ends_when_closed_and_raises_what_broke_the_consumer(cluster: GroupCluster) -> None:
    made = consumer(cluster, Seen())
    made.start()
    threading.Timer(0.2, made.close).start()
    assert made.wait(10) is True
    cluster.groups["broker-a"].refused_groups["bad"] = GroupNotFound("group 'bad' does not exist")
    with consumer(cluster, Seen(), group="bad") as refused, pytest.raises(GroupNotFound):
        refused.wait(10)


def test_broadcasting_reads_every_queue_and_goes_on_from_its_file(cluster: GroupCluster, tmp_path: Path) -> None:
    config = ConsumerConfig(commit_interval_ms=30, offsets_directory=tmp_path)
    cluster.put("orders", numbered(10), 0)
    cluster.put("orders", numbered(10, 100), 1)
    seen = {name: Seen() for name in ("x", "y")}
    made = {name: consumer(cluster, seen[name], model="broadcasting", client_id=name, config=config) for name in seen}
    with made["x"], made["y"]:
        wait_until(lambda: len(seen["x"]) == len(seen["y"]) == 20, what="everything at both")
    document = json.loads((tmp_path / "x" / "g.json").read_text())
    assert document["offsets"] == [["orders", "broker-a", 0, 10], ["orders", "broker-a", 1, 10]]
    assert cluster.committed("g", "orders", 0) == -1
    assert cluster.groups["broker-a"].members("g") == []
    cluster.put("orders", [b"later"], 0)
    again = Seen()
    with consumer(cluster, again, model="broadcasting", client_id="x", config=config):
        wait_until(lambda: again.bodies() == [b"later"], what="only what is new")


def test_broadcasting_offsets_belong_to_one_consumer_and_must_be_whole(cluster: GroupCluster, tmp_path: Path) -> None:
    config = ConsumerConfig(offsets_directory=tmp_path)
    first = consumer(cluster, Seen(), model="broadcasting", config=config)
    second = consumer(cluster, Seen(), model="broadcasting", config=config)
    with first:
        with pytest.raises(ConfigError, match="give this one a client_id"):
            second.start()
        second.close()
    path = tmp_path / first.client_id / "g.json"
    path.write_text("{")
    third = consumer(cluster, Seen(), model="broadcasting", config=config)
    with pytest.raises(ConfigError, match="damaged"):
        third.start()
    third.close()


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


def test_a_consumer_without_a_topic_does_not_start(cluster: GroupCluster) -> None:
    made = PushConsumer(cluster.namesrv, group="g", listener=print)
    with pytest.raises(InvalidArgument, match="no topic"):
        made.start()
    made.close()


@pytest.mark.parametrize("orderly", [False, True])
def test_a_listener_that_ends_the_thread_fails_its_message_and_nothing_else(
    cluster: GroupCluster, orderly: bool
) -> None:
    cluster.put("orders", numbered(5), 0)
    tries: list[bytes] = []

    def leave_twice(message: MessageView) -> None:
        tries.append(message.body)
        if message.body == b"2" and tries.count(b"2") < 3:
            sys.exit(1)

    with consumer(cluster, leave_twice, consume_threads=1, orderly=orderly):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5, what="all of it")
    assert tries.count(b"2") == 3
