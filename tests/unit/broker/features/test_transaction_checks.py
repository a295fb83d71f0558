"""Who is asked about halves that nobody has decided, when, and how often."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from penstock.formats.record.properties import decode_properties
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    LimitReached,
    TransactionEnded,
)
from penstock.proto.wire.transactions_pb2 import (
    COMMIT,
    COMMITTED,
    OPEN,
    PARKED,
    ROLLBACK,
    ROLLED_BACK,
)
from tests.support.broker.kit import in_loop
from tests.support.broker.transacting import Node, ended, opened


@in_loop
async def test_an_undecided_half_is_asked_about_after_its_time_and_again_after_the_interval() -> None:
    node = opened()
    task = await node.join()
    await node.halves([b"a"], properties={"UNIQ_KEY": "k"})
    await node.pass_s(5.9)
    assert node.asked == []
    await node.pass_s(0.2)
    (check,) = node.asked
    assert (list(check.offsets), list(check.times)) == ([0], [1])
    await node.pass_s(29)
    assert len(node.asked) == 1
    await node.pass_s(1.1)
    assert [(list(check.offsets), list(check.times)) for check in node.asked] == [([0], [1]), ([0], [2])]
    newest = decode_properties(node.records(names.HALF_TOPIC)[-1].properties)
    assert (newest["TRANSACTION_CHECK_TIMES"], newest["TRAN_PREPARED_QUEUE_OFFSET"]) == ("2", "0")
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]
    await node.pass_s(100)
    assert len(node.asked) == 2
    await ended(task)


@in_loop
async def test_a_half_that_was_stored_anew_just_now_is_known_by_its_first_offset() -> None:
    node = opened()
    task = await node.join()
    await node.halves([b"a"])
    for _ in range(2):
        await node.pass_s(31)
    node.manual.advance(31)
    await node.transactions.turn()
    assert await node.states((0, 1)) == [(OPEN, 1)]
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]
    await ended(task)


@in_loop
async def test_halves_that_were_stored_anew_end_at_once_together_with_younger_ones() -> None:
    node = opened()
    task = await node.join()
    await node.halves([b"a"])
    await node.pass_s(5)
    await node.halves([b"b"])
    await node.pass_s(2)
    assert [list(check.offsets) for check in node.asked] == [[0]]
    states = node.transactions.decisions.resolve_at_once(node.journal, "payments", np.array([0, 1]), COMMIT)
    assert states is not None, "nothing is to be waited for"
    assert states.tolist() == [OPEN, OPEN]
    assert node.bodies() == [b"b", b"a"]
    assert await node.states((0, 2)) == [(COMMITTED, 2)]
    await ended(task)


@in_loop
async def test_a_half_keeps_its_count_and_its_offset_through_failovers() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    for turn in range(3):
        task = await node.join()
        await node.pass_s(31)
        (check,) = node.asked
        assert (list(check.offsets), list(check.times)) == ([0, 1], [turn + 1] * 2)
        await ended(task)
        node = Node.after(node)
    await node.end(ROLLBACK, (1, 1))
    await node.end(COMMIT, (0, 1))
    node = Node.after(node)
    assert await node.states((0, 2)) == [(COMMITTED, 1), (ROLLED_BACK, 1)]
    assert node.bodies() == [b"a"]


@in_loop
async def test_the_immunity_of_a_half_replaces_the_brokers_time() -> None:
    node = opened()
    task = await node.join()
    await node.halves([b"a"], properties={"CHECK_IMMUNITY_TIME_IN_SECONDS": "60"})
    await node.pass_s(59)
    assert node.asked == []
    await node.pass_s(1.1)
    assert len(node.asked) == 1
    await ended(task)


@in_loop
async def test_nobody_is_asked_and_nothing_counted_while_no_producer_of_the_group_can_answer() -> None:
    node = opened(transactionCheckMax=1)
    others = [await node.join("others"), await node.join(client_id="mute", answers=False)]
    await node.halves([b"a"])
    await node.pass_s(1000)
    assert (node.asked, len(node.records(names.HALF_TOPIC))) == ([], 1)
    task = await node.join()
    await node.pass_s(0)
    assert len(node.asked) == 1
    for each in (task, *others):
        await ended(each)


@in_loop
async def test_halves_that_cannot_be_parked_keep_no_others_from_being_asked_about() -> None:
    node = opened(transactionCheckMax=1, maxTopicNum=1)
    task = await node.join()
    await node.halves([b"a"])
    await node.pass_s(31)
    await node.halves([b"b"])
    for _ in range(2):  # it is looked at for the first time, and then asked about
        with pytest.raises(LimitReached, match="maxTopicNum"):
            await node.pass_s(31)
    await asyncio.sleep(0)
    assert [list(check.offsets) for check in node.asked] == [[0], [2]]
    await ended(task)


@in_loop
async def test_a_half_that_was_asked_about_too_often_is_parked() -> None:
    node = opened(transactionCheckMax=2)
    task = await node.join()
    await node.halves([b"a", b"b"])
    for _ in range(4):
        await node.pass_s(31)
    assert [list(check.times) for check in node.asked] == [[1, 1], [2, 2]]
    parked = node.records(names.PARKED_TOPIC)
    assert [record.body for record in parked] == [b"a", b"b"]
    assert decode_properties(parked[1].properties)["REAL_TOPIC"] == "orders"
    assert await node.states((0, 2)) == [(PARKED, 2)]
    with pytest.raises(TransactionEnded, match="asked about too often: it lies in topic TRANS_CHECK_MAX_TIME_TOPIC"):
        await node.end(COMMIT, (0, 2))
    assert await Node.after(node).states((0, 2)) == [(PARKED, 2)]
    await ended(task)


@in_loop
async def test_members_of_a_group_are_asked_in_turn_and_one_that_joins_again_replaces_itself() -> None:
    node = opened()
    tasks = [await node.join(client_id=name) for name in ("one", "two")]
    again = await node.join(client_id="two")
    await asyncio.gather(tasks[1], return_exceptions=True)
    assert isinstance(tasks[1].exception(), BrokerUnavailable)
    assert [each.client_id for each in node.transactions.producers.members("payments")] == ["one", "two"]
    await node.halves([b"a"])
    await node.pass_s(7)
    await node.pass_s(31)
    assert len(node.asked) == 2
    await ended(tasks[0])
    await ended(again)
    assert node.transactions.producers.members("payments") == []


@in_loop
async def test_retention_keeps_the_log_from_the_first_open_half_on() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    (hold,) = node.transactions.holds()
    assert hold.offset == node.records(names.HALF_TOPIC)[0].physical_offset
    await node.end(COMMIT, (0, 1))
    (hold,) = node.transactions.holds()
    assert hold.offset == node.records(names.HALF_TOPIC)[1].physical_offset
    await node.end(COMMIT, (1, 1))
    assert list(node.transactions.holds()) == []


@in_loop
async def test_halves_in_the_way_of_a_deletion_are_stored_anew_and_stay_known() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    await node.end(ROLLBACK, (1, 1))
    await node.pass_s(1)
    node.transactions.checks.make_way(node.store.end_offset)
    await node.pass_s(1)
    first, _, newest = node.records(names.HALF_TOPIC)
    assert decode_properties(newest.properties)["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
    assert "TRANSACTION_CHECK_TIMES" not in decode_properties(newest.properties)
    (hold,) = node.transactions.holds()
    assert hold.offset == newest.physical_offset > first.physical_offset
    node = Node.after(node)
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]
