"""Transactions of a producer at real brokers: seen when it says so, answered after its death, decided once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.client import (
    InvalidArgument,
    Message,
    MessageNotFound,
    MessageView,
    OutcomeUnknown,
    Producer,
    PullConsumer,
    TransactionEnded,
    TransactionProducer,
    TransactionState,
)
from penstock.client.aio import AsyncTransactionProducer
from penstock.formats.record.layout import decode_record
from penstock.proto.errors import Forbidden, NotEnoughReplicas
from penstock.proto.wire.common_pb2 import Empty
from penstock.proto.wire.transactions_pb2 import ProducerGroupName
from penstock.proto.wire.transactions_pb2_grpc import TransactionsStub
from penstock.runtime.channel import open_channel
from tests.support.client.running_cluster import RunningCluster
from tests.support.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
SOON = {"transactionTimeOut": 50, "transactionCheckInterval": 50}


@pytest.fixture
def cluster() -> Iterator[RunningCluster]:
    with RunningCluster(topics={"orders": 2}) as made:
        yield made


def producer(cluster: RunningCluster, check: Any = None, **settings: Any) -> TransactionProducer:
    return TransactionProducer(cluster.namesrv, group="payments", check=check, **settings)


def bodies(cluster: RunningCluster, topic: str = "orders") -> list[bytes]:
    """What consumers can see, at all brokers."""
    return sorted(
        decode_record(record).body for broker in cluster.brokers.values() for record in broker.records(topic).values()
    )


def members(cluster: RunningCluster, name: str = "broker-a") -> list[str]:
    with open_channel(cluster.brokers[name].address) as channel:
        stub = TransactionsStub(channel)  # type: ignore[no-untyped-call]
        return [each.client_id for each in stub.ListProducers(ProducerGroupName(group="payments"), timeout=10).members]


def test_who_commits_what_a_failover_has_cut_off_decides_nothing_about_what_is_in_its_place(
    cluster: RunningCluster,
) -> None:
    end = cluster.brokers["broker-a"].call("Status", Empty()).max_offset
    with producer(cluster) as made:
        lost = made.transaction()
        lost.send("orders", b"lost")
        cluster.cut_off("broker-a", end)
        other = made.transaction()
        other.send("orders", b"other")
        assert lost.halves == other.halves
        with pytest.raises(MessageNotFound, match="the half at 0 is gone, a failover has cut the log"):
            lost.commit()
        other.rollback()
    assert bodies(cluster) == []


def test_leaving_a_transaction_commits_and_an_exception_rolls_back_and_goes_on(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        with made.transaction() as tx:
            receipt = tx.send("orders", b"one", tag="paid", keys=["k"], properties={"a": "b"}, sharding_key="c")
            assert (receipt.topic, receipt.queue_offset, receipt.transaction_id) == ("orders", -1, tx.id)
            assert bodies(cluster) == []
        assert tx.state is COMMIT
        with pytest.raises(ValueError, match="mine"), made.transaction() as tx:  # noqa: PT012  the block is what is tested
            tx.send("orders", b"two")
            raise ValueError("mine")
        assert tx.state is ROLLBACK
        made.send("orders", b"plain")
    assert bodies(cluster) == [b"one", b"plain"]


def test_two_transactions_of_one_id_are_refused(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        with made.transaction(transaction_id="t-1") as tx:
            tx.send("orders", b"one")
        with pytest.raises(InvalidArgument, match="transaction t-1: this producer has had one with that id"):
            made.transaction(transaction_id="t-1")
        assert made._known("t-1") is COMMIT


def test_consumers_get_a_committed_message_as_it_was_sent(cluster: RunningCluster) -> None:
    with PullConsumer(cluster.namesrv, group="g", consume_from="first") as puller:
        puller.subscribe("orders")
        with producer(cluster) as made, made.transaction() as tx:
            receipt = tx.send("orders", b"one", tag="paid", keys=["k"], properties={"a": "b"}, sharding_key="c")
        (message,) = wait_until(lambda: puller.poll(timeout_s=1), what="the message")
    assert (message.body, message.tag, message.keys, message.sharding_key) == (b"one", "paid", ["k"], "c")
    assert message.properties == {"a": "b", "__transactionId__": tx.id}
    assert (message.message_id, message.queue_id) == (receipt.message_id, receipt.queue_id)


def test_many_messages_of_one_transaction_are_seen_together_at_every_broker() -> None:
    with RunningCluster(shards=2, topics={"orders": 2, "bills": 2}) as cluster, producer(cluster) as made:
        with made.transaction() as tx:
            for number in range(3000):
                tx.produce("orders", b"%04d" % number, tag="t" if number % 2 else None)
            tx.produce_many("bills", [b"%04d" % number for number in range(3000)], keys=["k"] * 3000)
            tx.produce("orders", b"keyed", sharding_key="k", keys="a", properties={"x": "y"})
            assert bodies(cluster) == bodies(cluster, "bills") == []
        assert bodies(cluster) == [*(b"%04d" % number for number in range(3000)), b"keyed"]
        assert bodies(cluster, "bills") == [b"%04d" % number for number in range(3000)]
        with pytest.raises(KeyError), made.transaction() as tx:  # noqa: PT012  as above
            tx.produce_many("bills", [b"never"] * 3000)
            tx.produce("bills", b"never")
            raise KeyError
        assert b"never" not in bodies(cluster, "bills")


def test_what_is_committed_together_may_be_larger_than_a_log_file(cluster: RunningCluster) -> None:
    expected = [b"%06d" % number * 30 for number in range(9000)]
    with producer(cluster) as made, made.transaction() as tx:
        tx.produce_many("orders", expected)
    assert bodies(cluster) == expected


def test_execute_decides_and_what_it_cannot_decide_is_asked_again() -> None:
    asked: list[tuple[bytes, str]] = []

    def check(message: MessageView) -> TransactionState:
        asked.append((message.body, message.topic))
        return COMMIT if message.body == b"unknown" else UNKNOWN

    with RunningCluster(topics={"orders": 2}, **SOON) as cluster, producer(cluster, check) as made:
        seen: list[Message] = []

        def execute(state: Any) -> Any:
            def then(message: Message) -> Any:
                seen.append(message)
                if isinstance(state, Exception):
                    raise state
                return state

            return then

        receipt = made.send_in_transaction("orders", b"commit", keys=["k"], execute=execute(COMMIT))
        made.send_in_transaction("orders", b"rollback", execute=execute(ROLLBACK))
        made.send_in_transaction("orders", b"unknown", execute=execute(UNKNOWN))
        with pytest.raises(InvalidArgument, match="execute returned 7, not a TransactionState"):
            made.send_in_transaction("orders", b"nonsense", execute=execute(7))
        with pytest.raises(ValueError, match="mine"):
            made.send_in_transaction("orders", b"raised", execute=execute(ValueError("mine")))
        assert seen[0].properties == {"__transactionId__": receipt.transaction_id}
        wait_until(lambda: bodies(cluster) == [b"commit", b"unknown"], what="the answer's commit")
        wait_until(
            lambda: {(b"nonsense", "orders"), (b"raised", "orders")} <= set(asked), what="questions about the others"
        )
    assert not {body for body, _ in asked} & {b"commit", b"rollback"}


def test_another_member_of_the_group_answers_for_one_that_died() -> None:
    with RunningCluster(topics={"orders": 2}, **SOON) as cluster:
        with producer(cluster) as first:
            decided, undecided, given = first.transaction(), first.transaction(), first.transaction()
            for tx, body in ((decided, b"decided"), (undecided, b"undecided"), (given, b"given up")):
                tx.send("orders", body)
            decided.commit()
        answers = {b"undecided": COMMIT, b"given up": ROLLBACK}
        asked: list[MessageView] = []

        def check(message: MessageView) -> TransactionState:
            asked.append(message)
            return answers[message.body]

        with producer(cluster, check):
            wait_until(lambda: {message.body for message in asked} == set(answers), what="both questions")
            wait_until(lambda: bodies(cluster) == [b"decided", b"undecided"], what="its answer")
        (message,) = [each for each in asked if each.body == b"undecided"][:1]
        assert getattr(message, "transaction_id") == undecided.id  # noqa: B009  MessageView does not declare it


def test_what_check_raises_or_returns_decides_nothing_and_stops_nothing() -> None:
    turns = iter([ValueError("mine"), SystemExit(), asyncio.CancelledError(), "nonsense", COMMIT])
    seen: list[Any] = []

    def check(message: MessageView) -> Any:
        seen.append(next(turns))
        if isinstance(seen[-1], BaseException):
            raise seen[-1]
        return seen[-1]

    with RunningCluster(topics={"orders": 2}, **SOON) as cluster, producer(cluster, check) as made:
        tx = made.transaction()
        tx.send("orders", b"one")
        tx.leave()
        wait_until(lambda: bodies(cluster) == [b"one"], what="the fifth answer")
    assert len(seen) == 5


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "__STARTDELIVERTIME"])
def test_a_time_cannot_be_part_of_a_transaction(cluster: RunningCluster, name: str) -> None:
    with producer(cluster) as made:
        with made.transaction() as tx, pytest.raises(InvalidArgument, match="cannot have a time or a delay level"):
            tx.send("orders", b"later", properties={name: "2"})
        with pytest.raises(InvalidArgument, match="cannot have a time"):
            made.send_in_transaction("orders", b"later", properties={name: "2"}, execute=lambda _: COMMIT)
    assert bodies(cluster) == []


def test_an_async_check_is_refused(cluster: RunningCluster) -> None:
    async def check(_: MessageView) -> TransactionState:
        return COMMIT

    with pytest.raises(InvalidArgument, match="check must be an ordinary function"):
        producer(cluster, check)


def test_a_transaction_under_way_is_not_asked_of_its_user() -> None:
    asked: list[MessageView] = []

    def check(message: MessageView) -> TransactionState:
        asked.append(message)
        return ROLLBACK

    with RunningCluster(topics={"orders": 2}, **SOON) as cluster, producer(cluster, check) as made:
        questions: list[str] = []

        def known(transaction_id: str) -> TransactionState | None:
            questions.append(transaction_id)
            return made._known(transaction_id)

        made._checks._known = known
        with made.transaction() as tx:
            tx.send("orders", b"one")
            wait_until(lambda: len(questions) >= 2, what="two questions")
        assert bodies(cluster) == [b"one"]
    assert asked == []


def test_an_end_whose_answer_is_lost_is_made_again_and_decides_once(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults
    with producer(cluster) as made:
        faults.drop_answers("End", times=1)
        with made.transaction() as tx:
            tx.send("orders", b"one")
        assert bodies(cluster) == [b"one"]
        faults.drop_answers("End", times=2)
        tx = made.transaction()
        tx.send("orders", b"two")
        with pytest.raises(OutcomeUnknown, match="not known to be decided: commit it again"):
            tx.commit(timeout_s=0)
        with pytest.raises(TransactionEnded, match="was ended by a commit"):
            tx.rollback()
        tx.commit()
        tx.commit()
    assert bodies(cluster) == [b"one", b"two"]


def test_a_commit_after_a_rollback_is_refused_by_name(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        tx = made.transaction()
        tx.send("orders", b"one")
        tx.rollback()
        tx.rollback()
        with pytest.raises(TransactionEnded, match=f"transaction {tx.id} was ended by a rollback"):
            tx.commit()
        for send in (tx.send, tx.produce):
            with pytest.raises(TransactionEnded, match="ended by a rollback: begin another"):
                send("orders", b"two")
    assert bodies(cluster) == []


def test_a_message_that_cannot_be_stored_rolls_everything_back(cluster: RunningCluster) -> None:
    cluster.create_topic("small", 1)
    with producer(cluster) as made:
        cluster.brokers["broker-a"].faults.refuse(
            "Append", lambda header, _: Forbidden("not you") if header.topic == "small" else None
        )
        tx = made.transaction()
        tx.produce("orders", b"one")
        tx.produce("small", b"two")
        with pytest.raises(Forbidden, match="not you"):
            tx.commit()
        assert tx.state is ROLLBACK
        with pytest.raises(TransactionEnded):
            tx.commit()
    assert bodies(cluster) == []


def test_a_master_that_dies_between_half_and_commit_loses_nothing(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        tx = made.transaction()
        tx.send("orders", b"one")
        cluster.kill("broker-a")
        committing = threading.Thread(target=tx.commit)
        committing.start()
        cluster.revive("broker-a")
        committing.join(30)
        assert tx.state is COMMIT
        assert bodies(cluster) == [b"one"]
        wait_until(lambda: members(cluster) == [made.client_id], what="the session at the broker that came back")


def test_what_execute_decided_is_not_waited_for_but_by_flush_and_close(cluster: RunningCluster) -> None:
    faults = cluster.brokers["broker-a"].faults
    made = producer(cluster, lambda _: UNKNOWN)
    with faults.holding("End"):
        for number in range(3):
            made.send_in_transaction("orders", b"%d" % number, execute=lambda _: COMMIT)
        made.send_in_transaction("orders", b"never", execute=lambda _: ROLLBACK)
        assert bodies(cluster) == []
    made.flush()
    assert bodies(cluster) == [b"0", b"1", b"2"]
    made.send_in_transaction("orders", b"3", execute=lambda _: COMMIT)
    made.close()
    assert bodies(cluster) == [b"0", b"1", b"2", b"3"]
    assert made.statistics().ends_lost == 0


def test_without_a_check_what_execute_decided_is_waited_for(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        cluster.brokers["broker-a"].faults.refuse("End", NotEnoughReplicas("not now"), times=2)
        made.send_in_transaction("orders", b"one", execute=lambda _: COMMIT)
        assert bodies(cluster) == [b"one"]


def test_an_end_that_nobody_waited_for_and_that_is_lost_is_mended_by_the_brokers_question() -> None:
    asked: list[MessageView] = []
    with RunningCluster(topics={"orders": 2}, **SOON) as cluster, producer(cluster, asked.append) as made:
        cluster.brokers["broker-a"].faults.refuse(
            "End", lambda end, _: None if end.is_answer else NotEnoughReplicas("not now")
        )
        made.send_in_transaction("orders", b"one", execute=lambda _: COMMIT)
        made.send_in_transaction("orders", b"never", execute=lambda _: ROLLBACK)
        wait_until(lambda: bodies(cluster) == [b"one"], what="the commit")
        made.flush()
        assert made.statistics().ends_lost == 2
    assert asked == [], "what was decided is known here"


def test_the_asyncio_twin_hands_its_ends_over_and_counts_lost_ones(cluster: RunningCluster) -> None:
    async def send() -> None:
        faults = cluster.brokers["broker-a"].faults
        made = AsyncTransactionProducer(cluster.namesrv, group="payments", check=lambda _: UNKNOWN)
        async with made:
            with faults.holding("End"):
                await made.send_in_transaction("orders", b"one", execute=lambda _: COMMIT)
            await made.flush()
            assert bodies(cluster) == [b"one"]
            faults.refuse("End", NotEnoughReplicas("not now"), times=1)
            await made.send_in_transaction("orders", b"two", execute=lambda _: COMMIT)
            await made.flush()
            assert made.statistics().ends_lost == 1

    asyncio.run(send())


def test_refusals_for_the_moment_are_ridden_through(cluster: RunningCluster) -> None:
    cluster.brokers["broker-a"].faults.refuse("End", NotEnoughReplicas("not now"), times=3)
    with producer(cluster) as made, made.transaction() as tx:
        tx.send("orders", b"one")
    assert bodies(cluster) == [b"one"]


def test_brokers_know_the_producers_of_a_group_while_they_are_there() -> None:
    with RunningCluster(shards=2) as cluster:
        with producer(cluster) as one, producer(cluster) as two:
            for name in cluster.brokers:
                expected = sorted([one.client_id, two.client_id])
                wait_until(
                    lambda name=name, expected=expected: members(cluster, name) == expected, what="both producers"
                )
        wait_until(lambda: members(cluster) == [], what="nobody")


def test_the_mark_of_a_half_is_refused_with_what_to_do_whoever_sends_it(cluster: RunningCluster) -> None:
    told = r"'TRAN_MSG' is the system's .*: leave it out, and send by TransactionProducer\.transaction\(\)"
    with Producer(cluster.namesrv) as plain, pytest.raises(InvalidArgument, match=told):
        plain.send("orders", b"one", properties={"TRAN_MSG": "true"})
    with producer(cluster) as made, made.transaction() as tx:
        with pytest.raises(InvalidArgument, match=told):
            tx.send("orders", b"one", properties={"TRAN_MSG": "true"})
        tx.send("orders", b"one")
    assert bodies(cluster) == [b"one"]


def test_threads_share_a_producer_and_a_transaction(cluster: RunningCluster) -> None:
    with producer(cluster) as made:
        shared = made.transaction()

        def work(name: int) -> None:
            for number in range(20):
                with made.transaction() as own:
                    own.send("orders", b"own %d %d" % (name, number))
                shared.produce("orders", b"shared %d %d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(bodies(cluster)) == 80
        shared.commit()
    found = bodies(cluster)
    assert len(found) == len(set(found)) == 160


def test_the_asyncio_twin_commits_rolls_back_and_executes(cluster: RunningCluster) -> None:
    async def use() -> None:
        async with AsyncTransactionProducer(cluster.namesrv, group="payments") as made:
            async with made.transaction() as tx:
                await tx.send("orders", b"one")
                await tx.produce("orders", b"two")
            with pytest.raises(ValueError, match="mine"):  # noqa: PT012  as above
                async with made.transaction() as tx:
                    await tx.send("orders", b"never")
                    raise ValueError("mine")

            async def execute(message: Message) -> TransactionState:
                return COMMIT

            await made.send_in_transaction("orders", b"three", execute=execute)
            await made.send_in_transaction("orders", b"never", execute=lambda message: ROLLBACK)

    asyncio.run(use())
    assert bodies(cluster) == [b"one", b"three", b"two"]
