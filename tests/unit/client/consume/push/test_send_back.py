"""Messages that their listener could not take go back to their broker; the consumer and its queues go on."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from penstock.client import ConsumeResult, MessageView, PullConsumer, PushConsumer
from penstock.client.consume.consumer_config import ConsumerConfig
from penstock.client.message import MessageQueue
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.proto.errors import ConfigError, Forbidden, LaneForgotten, MessageNotFound, NotEnoughReplicas
from penstock.proto.wire.retry_pb2 import SendBackRequest
from tests.support.client.push_consumers import QUICK, Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

RETRY, DEAD = "%RETRY%g", "%DLQ%g"


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def failing(*bodies: bytes, always: bool = True) -> Seen:
    """A listener that cannot take these; unless ``always``, the first time only."""

    def then(message: MessageView) -> ConsumeResult | None:
        fails = message.body in bodies and (always or message.reconsume_times == 0)
        return ConsumeResult.RETRY_LATER if fails else None

    return Seen(then)


def stored(cluster: RunningCluster, topic: str) -> list[bytes]:
    """The bodies in a topic's only queue."""
    broker = cluster.brokers["broker-a"]
    if topic not in broker.topics():
        return []
    return [decode_record(record).body for record in broker.records(topic).values()]


def test_a_poison_message_costs_itself_alone_and_a_restart_delivers_nothing_again(cluster: RunningCluster) -> None:
    cluster.retry_soon(times=2)
    cluster.put("orders", numbered(3000), 0)
    seen = failing(b"5")
    limits = ConsumerConfig(commit_interval_ms=30, settle_ms=100, queue_span=100)
    with consumer(cluster, seen, config=limits):
        wait_until(lambda: set(seen.bodies()) == set(numbered(3000)), what="everything behind it")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3000, what="the commit behind it")
        wait_until(lambda: stored(cluster, DEAD) == [b"5"], what="a dead letter")
        wait_until(lambda: cluster.committed("g", RETRY, 0) == 2, what="the commit of the tries")
    tried = [(message.topic, message.reconsume_times, message.message_queue.topic) for message in seen.messages]
    assert [each for each in tried if each[2] != "orders"] == [("orders", 1, RETRY), ("orders", 2, RETRY)]
    assert Counter(seen.bodies()).most_common(2) == [(b"5", 3), (b"0", 1)]
    again = Seen()
    with consumer(cluster, again):
        cluster.put("orders", [b"last"], 0)
        wait_until(lambda: len(again) > 0, what="the new message")
    assert again.bodies() == [b"last"]
    (dead,) = cluster.brokers["broker-a"].records(DEAD).values()
    assert decode_record(dead).reconsume_times == 3
    assert decode_properties(decode_record(dead).properties)["DLQ_ORIGIN_TOPIC"] == "orders"


def test_another_group_that_consumes_dead_letters_gets_them_again_as_those(cluster: RunningCluster) -> None:
    cluster.retry_soon(times=0)
    cluster.retry_soon("readers", times=2)
    cluster.put("orders", [b"bad"], 0)
    with consumer(cluster, failing(b"bad")):
        wait_until(lambda: stored(cluster, DEAD) == [b"bad"], what="a dead letter")
    seen = failing(b"bad")
    reader = PushConsumer(cluster.namesrv, listener=seen, group="readers", consume_from="first", config=QUICK)
    reader.subscribe(DEAD)
    with reader:
        wait_until(lambda: stored(cluster, "%DLQ%readers") == [b"bad"], what="their own dead letter")
    assert [(each.topic, each.message_queue.topic, each.reconsume_times) for each in seen.messages] == [
        (DEAD, DEAD, 0),
        (DEAD, "%RETRY%readers", 1),
        (DEAD, "%RETRY%readers", 2),
    ]


def test_many_that_fail_make_few_calls(cluster: RunningCluster) -> None:
    for queue_id in (0, 1):
        for start in range(0, 5000, 1000):
            cluster.put("orders", numbered(1000, start), queue_id)
    with consumer(cluster, lambda _: ConsumeResult.RETRY_LATER):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 5000, what="the commit")
        wait_until(lambda: cluster.committed("g", "orders", 1) == 5000, what="the other commit")
    assert cluster.brokers["broker-a"].faults.calls["SendBack"] < 1000


@pytest.mark.parametrize("lost", [1, 3])
def test_a_call_whose_answer_is_lost_stores_once(cluster: RunningCluster, lost: int) -> None:
    cluster.retry_soon()
    cluster.brokers["broker-a"].faults.drop_answers("SendBack", times=lost)
    cluster.put("orders", numbered(200), 0)
    seen = failing(*numbered(200), always=False)
    with consumer(cluster, seen):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 200, what="the commit")
        wait_until(lambda: len(seen) == 400, what="all of them again")
    assert set(Counter(seen.bodies()).values()) == {2}
    assert cluster.brokers["broker-a"].faults.calls["SendBack"] > lost


def test_a_call_of_which_the_broker_forgot_whether_it_was_done_is_not_made_again_for_ever(
    cluster: RunningCluster,
) -> None:
    """Its messages are tried here, and go back by another call if they fail again."""
    faults = cluster.brokers["broker-a"].faults
    asked: list[tuple[int, bool]] = []

    def forgets(request: SendBackRequest, _: object) -> LaneForgotten | None:
        asked.append((request.sequence, request.again))
        return LaneForgotten("nobody knows") if request.again else None

    faults.refuse("SendBack", forgets)
    faults.drop_answers("SendBack", times=1)
    cluster.put("orders", numbered(10), 0)
    seen = failing(b"3")
    with consumer(cluster, seen):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="the commit")
    assert asked == [(1, False), (1, True), (2, False)]
    assert seen.bodies().count(b"3") == 2


def test_without_a_master_failed_messages_wait_and_the_commit_with_them(
    cluster: RunningCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.retry_soon()
    cluster.add_slave()
    cluster.put("orders", numbered(50), 0)
    cluster.wait_level()
    cluster.kill("broker-a")
    seen = failing(b"7", always=False)
    with consumer(cluster, seen) as made:
        wait_until(lambda: set(seen.bodies()) == set(numbered(50)), what="all of them, from the slave")
        wait_until(lambda: "messages wait to be sent back" in caplog.text, what="a try without a master")
        local = made._core.buffers.queues[MessageQueue("orders", "broker-a", 0)]
        wait_until(lambda: local.committed == 7, what="the commit below it")
        cluster.revive("broker-a")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 50, what="the commit of all")
        wait_until(lambda: len(seen) == 51, what="it again")
    assert seen.messages[-1].reconsume_times == 1


def test_what_the_broker_refuses_is_tried_again_here_until_it_is_taken(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults

    def not_3(request: SendBackRequest, _: object) -> Forbidden | None:
        return Forbidden("not 3") if 3 in request.offsets else None

    faults.refuse("SendBack", not_3, times=9)
    cluster.put("orders", numbered(10), 0)
    seen = failing(b"3", b"4")
    with consumer(cluster, seen):
        wait_until(lambda: seen.bodies().count(b"3") >= 3, what="tries here")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 10, what="the commit")
    assert [message.reconsume_times for message in seen.messages if message.body == b"3"][:3] == [0, 1, 2]
    assert seen.bodies().count(b"4") == 1


def test_a_listener_that_hangs_keeps_its_thread_alone(cluster: RunningCluster) -> None:
    cluster.retry_soon()
    cluster.put("orders", numbered(300), 0)
    release = threading.Event()
    hung: list[bytes] = []

    def listener(message: MessageView) -> None:
        if message.body in (b"150", b"299") and message.reconsume_times == 0:
            hung.append(message.body)
            assert release.wait(30)
            raise ValueError("nobody listens any more")

    seen = Seen(listener)
    made = consumer(cluster, seen, consume_threads=1, consume_timeout_s=0.4)
    with made:
        wait_until(lambda: hung == [b"150", b"299"], what="both")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 300, what="the commit behind them")
        wait_until(lambda: len(seen) == 302, what="them again")
        release.set()
        wait_until(
            lambda: not any(thread.is_alive() for thread in made._workers._threads._late), what="the late threads' end"
        )
        cluster.put("orders", [b"more"], 0)
        wait_until(lambda: cluster.committed("g", "orders", 0) == 301, what="a consumer that works")
    assert set(Counter(seen.bodies()).items()) >= {(b"150", 2), (b"299", 2), (b"more", 1), (b"0", 1)}
    assert len(seen) == 303


def test_slow_listeners_are_not_late_and_none_is_called_twice_at_the_edge(cluster: RunningCluster) -> None:
    """Listeners that take about as long as they may: whoever was late comes again, everything else comes once."""
    cluster.retry_soon()
    cluster.put("orders", numbered(40), 0)
    seen = Seen(lambda message: time.sleep(0.05 if message.reconsume_times == 0 else 0))
    with consumer(cluster, seen, consume_threads=4, consume_timeout_s=0.04):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 40, what="the commit")
    counts = Counter((message.body, message.reconsume_times) for message in seen.messages)
    assert {body for body, times in counts if times == 0} == set(numbered(40))
    assert max(counts.values()) == 1


def test_orderly_tries_in_place_and_makes_a_dead_letter_at_last(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(6), 0)
    cluster.brokers["broker-a"].faults.drop_answers("SendBack", times=1)
    seen = failing(b"2")
    with consumer(cluster, seen, orderly=True, max_reconsume_times=3):
        wait_until(lambda: cluster.committed("g", "orders", 0) == 6, what="the commit")
    assert seen.bodies() == [b"0", b"1", *[b"2"] * 4, b"3", b"4", b"5"]
    assert stored(cluster, DEAD) == [b"2"]
    (dead,) = cluster.brokers["broker-a"].records(DEAD).values()
    assert decode_record(dead).reconsume_times == 4


@pytest.mark.parametrize("orderly", [False, True])
def test_broadcasting_drops_what_fails_too_often_and_says_so(
    cluster: RunningCluster, orderly: bool, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    cluster.put("orders", numbered(5), 0)
    seen = failing(b"2")
    limits = ConsumerConfig(
        commit_interval_ms=30,
        retry_delays_ms=(10,),
        suspend_ms=10,
        offsets_directory=tmp_path,  # type: ignore[arg-type]
    )
    made = consumer(
        cluster, seen, model="broadcasting", client_id="me", orderly=orderly, max_reconsume_times=2, config=limits
    )
    with made:
        wait_until(lambda: "dropped=1" in caplog.text, what="the drop")
        wait_until(lambda: set(seen.bodies()) == set(numbered(5)), what="the others")
        assert made.statistics().dropped == 1
    assert seen.bodies().count(b"2") == 3
    assert cluster.brokers["broker-a"].faults.calls["SendBack"] == 0


def test_what_a_closed_consumer_has_not_sent_back_comes_again(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(10), 0)
    cluster.brokers["broker-a"].faults.refuse("SendBack", NotEnoughReplicas("not now"))
    seen = failing(b"3")
    with consumer(cluster, seen):
        wait_until(lambda: set(seen.bodies()) == set(numbered(10)), what="all")
        wait_until(lambda: cluster.committed("g", "orders", 0) == 3, what="the commit below it")
    assert cluster.committed("g", "orders", 0) == 3


def _poll(puller: PullConsumer, got: list[MessageView], count: int) -> None:
    def has_all() -> bool:
        got.extend(puller.poll(0.1))
        return len(got) >= count

    wait_until(has_all, what=f"{count} messages")


def test_a_pull_consumer_sends_back_by_hand_and_gets_it_again(cluster: RunningCluster) -> None:
    cluster.retry_soon()
    cluster.put("orders", numbered(5), 0)
    with PullConsumer(cluster.namesrv, group="g", consume_from="first", config=QUICK) as puller:
        puller.subscribe("orders")
        got: list[MessageView] = []
        _poll(puller, got, 5)
        puller.send_back(got[1])
        puller.send_back(got[2:4], delay_level=-1)
        _poll(puller, got, 6)
        assert (got[5].body, got[5].topic, got[5].reconsume_times) == (got[1].body, "orders", 1)
        assert got[5].properties == got[1].properties
        assert got[5].message_queue == MessageQueue(RETRY, "broker-a", 0)
        puller.send_back(got[0])
        (again,) = wait_until(lambda: puller.poll_batch(0.1), what="a batch with what comes again").messages()
        assert (again.body, again.topic, again.reconsume_times) == (got[0].body, "orders", 1)
        assert again.message_queue == got[5].message_queue
    assert stored(cluster, DEAD) == [b"2", b"3"]


def test_a_pull_consumer_is_told_what_is_gone(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(5), 0)
    with PullConsumer(cluster.namesrv, group="g", consume_from="first", config=QUICK) as puller:
        puller.subscribe("orders")
        (got, *_) = wait_until(lambda: puller.poll(0.1), what="messages")
        other = RunningCluster(topics={"orders": 2}, beside=cluster)
        with other, PullConsumer(other.namesrv, group="g", consume_from="first", config=QUICK) as elsewhere:
            elsewhere.subscribe("orders")
            with pytest.raises(MessageNotFound, match="no record any more"):
                elsewhere.send_back(got)


@pytest.mark.parametrize("options", [{"max_reconsume_times": -1}, {"consume_timeout_s": 0}, {"consume_timeout_s": 1e9}])
def test_settings_out_of_range_are_refused(cluster: RunningCluster, options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        consumer(cluster, Seen(), **options)
