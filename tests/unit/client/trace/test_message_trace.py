"""Whole stories at real brokers: producers and consumers tell, administrators read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.cli.main import main
from penstock.client import (
    Admin,
    BrokerUnavailable,
    ConsumeResult,
    MessageNotFound,
    MessageTrace,
    MessageView,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    TransactionProducer,
    TransactionState,
)
from penstock.client.aio import AsyncAdmin
from penstock.client.trace.sampling import Sample
from penstock.client.trace.sending import SendTrace
from penstock.formats.record.layout import decode_record
from penstock.formats.record.properties import decode_properties
from penstock.formats.trace import TRACE_TOPIC, Context, Pub, ReturnCode, SubAfter, decode
from tests.support.client.push_consumers import QUICK, Seen, consumer, numbered
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 1}) as made:
        made.retry_soon()
        yield made


def story(cluster: RunningCluster, message_id: str, until: Callable[[MessageTrace], bool]) -> MessageTrace:
    """The message's, as soon as it is so."""
    with Admin(cluster.namesrv) as admin:

        def found() -> MessageTrace | None:
            try:
                told = admin.trace(message_id, "orders")
            except MessageNotFound:
                return None
            return told if until(told) else None

        told = wait_until(found, what="the story")
        assert told is not None
        return told


def told(cluster: RunningCluster) -> list[Context]:
    """Everything in the trace topic, at all brokers."""
    return [
        context
        for broker in cluster.brokers.values()
        if TRACE_TOPIC in broker.topics()
        for record in broker.records(TRACE_TOPIC).values()
        for context in decode(decode_record(record).body)
    ]


def attempts(found: MessageTrace) -> list[tuple[int, str | None]]:
    return [(each.retry_times, each.code) for told in found.consumptions for each in told.attempts]


def test_the_story_of_a_message_that_failed_once(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen(lambda message: None if message.reconsume_times else ConsumeResult.RETRY_LATER)
    made = consumer(cluster, seen, trace=True)
    with Producer(cluster.namesrv, group="makers", trace=True) as producer, made:
        receipt = producer.send("orders", b"body", tag="paid", keys=["k1", "k2"])
        wait_until(lambda: seen.messages and seen.messages[-1].reconsume_times, what="the second attempt")
    found = story(cluster, receipt.message_id, lambda found: bool(found.sends) and (1, "SUCCESS") in attempts(found))

    assert (found.message_id, found.topic, found.tag, found.keys) == (
        *(receipt.message_id, "orders", "paid", ["k1", "k2"]),
    )
    (sent,) = found.sends
    assert (sent.group, sent.client_host, sent.success, sent.message_type) == ("makers", "127.0.0.1", True, "NORMAL")
    assert (sent.body_bytes, sent.offset_message_id) == (4, receipt.offset_message_id)
    assert sent.store_host == cluster.brokers["broker-a"].address
    stored = found.stored
    assert stored is not None
    assert (stored.topic, stored.broker_name, stored.queue_id, stored.queue_offset) == ("orders", "broker-a", 0, 0)
    assert stored.store_timestamp_ms == receipt.store_timestamp_ms
    (by_g,) = found.consumptions
    assert (by_g.group, by_g.success, attempts(found)) == ("g", True, [(0, "FAILED"), (1, "SUCCESS")])
    assert by_g.attempts[0].timestamp_ms <= by_g.attempts[1].timestamp_ms

    async def by_place() -> MessageTrace:
        async with AsyncAdmin(cluster.namesrv) as admin:
            return await admin.trace(receipt.offset_message_id)

    assert asyncio.run(by_place()) == found
    capsys.readouterr()
    assert main(["trace", receipt.message_id, "--namesrv", cluster.namesrv, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sends"][0]["cost_ms"] == sent.cost_ms
    assert [each["code"] for each in document["consumptions"][0]["attempts"]] == ["FAILED", "SUCCESS"]
    assert main(["trace", receipt.message_id, "--namesrv", cluster.namesrv]) == 0
    lines = capsys.readouterr().out.splitlines()
    events = [word for line in lines for word in ("sent", "stored", "attempt 1", "attempt 2") if f" {word} " in line]
    assert events == ["sent", "stored", "attempt 1", "attempt 2"]


def test_what_was_produced_is_told_batch_by_batch_under_the_ids_that_consumers_see(cluster: RunningCluster) -> None:
    seen = Seen(lambda message: None if message.reconsume_times else ConsumeResult.RETRY_LATER)
    with Producer(cluster.namesrv, trace=True) as producer:
        producer.produce("orders", b"one", tag="a", keys="k")
        producer.produce("orders", b"three")
        producer.produce_many("orders", numbered(20), keys=[f"key-{number}" for number in range(20)])
        producer.flush()
    with consumer(cluster, seen, trace=True):
        wait_until(lambda: sum(bool(each.reconsume_times) for each in seen.messages) >= 22, what="two attempts at each")
        wait_until(lambda: len({(each.message_id, each.code) for each in _ends(cluster)}) == 44, what="their traces")
    first = {each.message_id: each for each in seen.messages if not each.reconsume_times}
    pubs = {each.message_id: each for each in told(cluster) if isinstance(each, Pub)}
    assert pubs.keys() == first.keys()
    assert {(pub.tags, pub.keys, pub.body_bytes) for pub in pubs.values()} >= {("a", "k", 3), ("", "", 5)}
    assert all((pub.keys, pub.offset_message_id) == (" ".join(first[at].keys), at) for at, pub in pubs.items())
    # What came again is told of under its first id.
    codes = {(each.message_id, each.code) for each in _ends(cluster)}
    assert codes == {(each, code) for each in first for code in (ReturnCode.SUCCESS, ReturnCode.FAILED)}


def test_the_end_of_a_batch_is_told_before_a_close_may_count_it_as_done(
    cluster: RunningCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[bool] = []
    on_stored = SendTrace.on_stored

    def told(trace: SendTrace, *stored: Any) -> None:
        settled.append(producer._buffer.wait_settled(0))
        on_stored(trace, *stored)

    monkeypatch.setattr(SendTrace, "on_stored", told)
    with Producer(cluster.namesrv, trace=True) as producer:
        producer.produce_many("orders", numbered(20))
        producer.flush()
    assert settled[0] is False


def test_of_a_share_producers_and_consumers_tell_of_the_same_messages(cluster: RunningCluster) -> None:
    seen = Seen()
    with Producer(cluster.namesrv, trace=0.3) as producer:
        producer.produce_many("orders", numbered(200))
        receipts = producer.send_batch([_message(number) for number in range(40)])
        producer.flush()
    with consumer(cluster, seen, trace=0.3):
        wait_until(lambda: len(seen) >= 240, what="all messages")
    expected = {each.message_id for each in seen.messages if Sample(0.3).has(each.message_id)}
    assert 0 < len(expected) < 240
    assert not expected.isdisjoint(receipt.message_id for receipt in receipts)

    def of(kind: type[Context]) -> set[str]:
        return {each.message_id for each in told(cluster) if isinstance(each, kind)}

    wait_until(lambda: of(SubAfter) == expected, what="their traces")
    assert of(Pub) == expected


def _message(number: int) -> Any:
    from penstock.client import Message

    return Message("orders", b"%d" % number)


def test_a_pulled_message_is_done_with_when_it_counts_as_processed(cluster: RunningCluster) -> None:
    cluster.put("orders", numbered(3), 0)
    with PullConsumer(cluster.namesrv, group="g", consume_from="first", config=QUICK, trace=True) as puller:
        puller.subscribe("orders")
        (first,) = wait_until(lambda: puller.poll(0.1, max_messages=1), what="a message")
        found = story(cluster, first.message_id, lambda found: len(attempts(found)) == 1)
        assert attempts(found) == [(0, None)]
        second = puller.poll_batch(5, max_messages=1).messages()[0]
        assert attempts(story(cluster, first.message_id, lambda found: bool(attempts(found)[0][1]))) == [(0, "SUCCESS")]
        puller.commit()
        assert attempts(story(cluster, second.message_id, lambda found: bool(attempts(found)[0][1])))[0][1] == "SUCCESS"
        (third,) = puller.poll(5)
        puller.__exit__(KeyError, KeyError(), None)  # the caller's code failed
    assert attempts(story(cluster, third.message_id, lambda found: bool(attempts(found)[0][1]))) == [(0, "FAILED")]


def test_errors_of_listeners_and_late_ends_have_a_code_of_their_own(cluster: RunningCluster) -> None:
    leave = threading.Event()

    def then(message: MessageView) -> Any:
        if message.body == b"1":
            raise ValueError("poison")
        if message.body == b"2":
            assert leave.wait(30)
        return "nonsense" if message.body == b"3" else None

    cluster.retry_soon(delays_ms=(60_000,))
    cluster.put("orders", numbered(4), 0)
    made = consumer(cluster, Seen(then), trace=True, consume_timeout_s=0.2)
    with made:
        wait_until(lambda: made.statistics().failed >= 3, what="three failures")
        leave.set()
        wait_until(lambda: {each.code for each in _ends(cluster)} == {0, 1, 2, 3}, what="an end of each kind")


def _ends(cluster: RunningCluster) -> list[SubAfter]:
    return [each for each in told(cluster) if isinstance(each, SubAfter)]


def test_ends_of_transactions_are_told_also_those_that_a_check_decides() -> None:
    with RunningCluster(topics={"orders": 1}, transactionTimeOut=50, transactionCheckInterval=50) as cluster:
        made = TransactionProducer(
            cluster.namesrv, group="payments", check=lambda message: TransactionState.COMMIT, trace=True
        )
        with made as producer:
            with producer.transaction() as transaction:
                receipt = transaction.send("orders", b"1")
            found = story(cluster, receipt.message_id, lambda found: bool(found.ends and found.stored))
            (end,) = found.ends
            assert (end.group, end.transaction_id, end.state, end.from_check) == (
                *("payments", transaction.id, "COMMIT_MESSAGE", False),
            )
            assert [each.message_type for each in found.sends] == ["HALF"]
            left = producer.transaction()
            asked = left.send("orders", b"2")
            left.leave()
            checked = story(cluster, asked.message_id, lambda found: bool(found.ends)).ends[0]
            assert (checked.transaction_id, checked.from_check) == (left.id, True)
            undone = producer.transaction()
            gone = undone.send("orders", b"3")
            undone.rollback()
            found = story(cluster, gone.message_id, lambda found: bool(found.ends))
            assert (found.ends[0].state, found.stored) == ("ROLLBACK_MESSAGE", None)


def test_a_recall_is_told_with_its_success(cluster: RunningCluster) -> None:
    with Producer(cluster.namesrv, trace=True) as producer:
        receipt = producer.send("orders", b"later", delay_s=600)
        assert producer.recall("orders", receipt.recall_handle)
    found = story(cluster, receipt.message_id, lambda found: bool(found.recalls and found.sends))
    assert (found.recalls[0].success, found.sends[0].message_type) == (True, "DELAY")


def test_a_send_that_failed_is_told_where_traces_still_go() -> None:
    with RunningCluster(shards=2) as cluster:
        cluster.create_topic("orders", 1, brokers=["broker-b"])
        cluster.create_topic(TRACE_TOPIC, 1, brokers=["broker-a"])
        with Producer(cluster.namesrv, trace=True) as producer:
            producer.prepare("orders")
            cluster.kill("broker-b")
            with pytest.raises((BrokerUnavailable, OutcomeUnknown)):
                producer.send("orders", b"x", keys=["lost"], timeout_s=0.3)
        pub = wait_until(lambda: [each for each in told_by(cluster, "broker-a") if isinstance(each, Pub)], what="it")[0]
        assert (pub.success, pub.keys, pub.offset_message_id) == (False, "lost", "")
        with Admin(cluster.namesrv) as admin:
            found = admin.trace(pub.message_id)
        assert (found.sends[0].success, found.stored) == (False, None)


def told_by(cluster: RunningCluster, name: str) -> list[Context]:
    records = cluster.brokers[name].records(TRACE_TOPIC).values()
    return [context for record in records for context in decode(decode_record(record).body)]


def test_a_broker_of_traces_that_is_away_holds_nothing_up_and_they_come_when_it_is_back() -> None:
    with RunningCluster(shards=2) as cluster:
        cluster.create_topic("orders", 1, brokers=["broker-b"])
        cluster.create_topic(TRACE_TOPIC, 1, brokers=["broker-a"])
        cluster.kill("broker-a")
        with Producer(cluster.namesrv, trace=True) as producer:
            ids = [producer.send("orders", b"%d" % number).message_id for number in range(3)]
            cluster.revive("broker-a")
            wait_until(
                lambda: {each.message_id for each in told_by(cluster, "broker-a")} == set(ids), what="their traces"
            )
            assert producer.statistics().traces_dropped == 0
        cluster.kill("broker-a")
        with Producer(cluster.namesrv, trace=True) as producer:
            producer.send("orders", b"x")
        assert producer.statistics().traces_dropped == 1


def test_traces_that_find_no_topic_are_counted_where_none_may_be_made() -> None:
    with RunningCluster(topics={"orders": 1}, autoCreateTopicEnable="false") as cluster:
        with Producer(cluster.namesrv, trace=True) as producer:
            producer.send("orders", b"x")
        assert producer.statistics().traces_dropped == 1


def test_without_a_trace_nothing_is_made_for_it(cluster: RunningCluster) -> None:
    seen = Seen()
    made = consumer(cluster, seen)
    with Producer(cluster.namesrv) as producer, made:
        producer.produce("orders", b"1")
        producer.produce_many("orders", [b"2", b"3"])
        producer.flush()
        wait_until(lambda: len(seen) == 3, what="the messages")
        assert producer._shipping.trace is None
        assert producer._maker._telemetry is None
        assert made._trace is None
        assert made._workers._listener is seen
        assert not [thread for thread in threading.enumerate() if thread.name == "penstock-trace"]
    records = cluster.brokers["broker-a"].records("orders").values()
    properties = {name for record in records for name in decode_properties(decode_record(record).properties)}
    assert properties <= {"__PSEQ"}
    assert TRACE_TOPIC not in cluster.brokers["broker-a"].topics()


def test_a_missing_trace_says_what_to_do(cluster: RunningCluster, capsys: pytest.CaptureFixture[str]) -> None:
    with Producer(cluster.namesrv) as producer:
        receipt = producer.send("orders", b"x")
    for wanted in ("0" * 32, "no id at all"):
        assert main(["trace", wanted, "--namesrv", cluster.namesrv]) == 1
        error = capsys.readouterr().err
        assert f"topic {TRACE_TOPIC} has no trace of it: producers and consumers trace with trace=True" in error
        assert "name its topic" in error
    assert main(["trace", receipt.message_id, "--topic", "orders", "--namesrv", cluster.namesrv, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["stored"]["offset_message_id"] == receipt.offset_message_id
    assert "no client has traced it" in printed.err
