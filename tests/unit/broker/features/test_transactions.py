"""Transactions on a real store: what is decided once is decided, whoever is interrupted and whoever goes on."""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.broker.core import dispatch
from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.transactions import loading
from penstock.broker.features.transactions.ops import read_op
from penstock.broker.features.transactions.table import TransactionTable
from penstock.formats.epochs import Epoch
from penstock.formats.record.layout import Record, SysFlag
from penstock.formats.record.properties import decode_properties
from penstock.formats.record.reading import RecordBatch
from penstock.proto import names
from penstock.proto.errors import (
    CorruptBatch,
    DiskFull,
    Forbidden,
    InvalidArgument,
    MessageNotFound,
    NotMaster,
    PenstockError,
    TopicNotFound,
    TransactionEnded,
)
from penstock.proto.wire.transactions_pb2 import (
    COMMIT,
    COMMITTED,
    OPEN,
    ROLLBACK,
    ROLLED_BACK,
)
from penstock.replication import EpochHistory
from tests.support import golden
from tests.support.broker.kit import in_loop
from tests.support.broker.transacting import GOLD_AT, GOLD_SIZES, Node, half_batch, opened
from tests.support.clock import ManualClock
from tests.support.waiting import eventually


@in_loop
async def test_a_half_is_seen_when_it_is_committed_and_never_when_it_is_rolled_back() -> None:
    node = opened()
    await node.halves([b"a", b"b", b"c"])
    assert node.bodies() == []
    assert await node.end(COMMIT, (0, 1), (2, 1)) == [(OPEN, 2)]
    assert await node.end(ROLLBACK, (1, 1)) == [(OPEN, 1)]
    assert node.bodies() == [b"a", b"c"]
    assert [record.queue_id for record in node.records("orders", 1)] == [1, 1]


@in_loop
async def test_an_end_waits_until_what_lies_before_its_half_is_dispatched() -> None:
    node = opened()
    await node.halves([b"a"])
    await node.end(COMMIT, (0, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "SLICE_BYTES", 1000)
        for _ in range(3):
            await node.append([bytes(900)])
        await node.append_bytes(half_batch([b"b"]))
        node.core.dispatcher.catch_up()  # as before each end
        assert node.transactions.decisions.resolve_at_once(node.journal, "payments", np.array([1]), COMMIT) is None
        assert await node.end(COMMIT, (1, 1)) == [(OPEN, 1)]
    assert [record.body for record in node.records("orders", 1)] == [b"a", b"b"]


@in_loop
async def test_a_half_that_a_failover_has_cut_off_is_not_mistaken_for_the_one_that_has_its_offset_now() -> None:
    node = opened()
    await node.halves([b"kept"])
    node.role.history = EpochHistory([Epoch(1, 0), Epoch(2, node.store.end_offset)])
    await node.halves([b"another's"])
    for resolution in (COMMIT, ROLLBACK):
        with pytest.raises(MessageNotFound, match="the half at 1 is gone, a failover has cut the log of epoch 1"):
            await node.end(resolution, (0, 2), epoch=1)
    assert await node.states((0, 2)) == [(OPEN, 2)]
    assert await node.end(COMMIT, (0, 1), epoch=1) == [(OPEN, 1)]
    assert await node.end(COMMIT, (1, 1), epoch=2) == [(OPEN, 1)]
    assert node.bodies() == [b"kept", b"another's"]


@in_loop
async def test_committed_messages_and_ops_have_rocketmqs_form() -> None:
    node = opened()
    await node.halves([b"a", b"b"], properties={"TAGS": "paid", "UNIQ_KEY": "k"})
    await node.end(COMMIT, (0, 2))
    halves, messages = node.records(names.HALF_TOPIC), node.records("orders", 1)
    assert [message.sys_flag & SysFlag.TRANSACTION_MASK for message in messages] == [SysFlag.TRANSACTION_COMMIT] * 2
    assert [message.prepared_transaction_offset for message in messages] == [half.physical_offset for half in halves]
    assert all(half.sys_flag & SysFlag.TRANSACTION_MASK == 0 for half in halves)
    told = decode_properties(messages[1].properties)
    assert told == {
        "TAGS": "paid",
        "UNIQ_KEY": "k",
        "TRAN_MSG": "true",
        "PGROUP": "payments",
        "REAL_TOPIC": "orders",
        "REAL_QID": "1",
    }
    (op,) = node.records(names.OP_TOPIC)
    assert (op.body, decode_properties(op.properties)["TAGS"]) == (b"0,1,", "d")


@in_loop
async def test_an_end_that_is_repeated_decides_nothing_again() -> None:
    node = opened()
    await node.halves([b"a", b"b"])
    await node.end(COMMIT, (0, 1))
    before = node.store.end_offset
    assert await node.end(COMMIT, (0, 1)) == [(COMMITTED, 1)]
    await node.end(ROLLBACK, (1, 1))
    end = node.store.end_offset
    assert end > before
    assert await node.end(ROLLBACK, (1, 1)) == [(ROLLED_BACK, 1)]
    assert await node.states((0, 2)) == [(COMMITTED, 1), (ROLLED_BACK, 1)]
    assert node.store.end_offset == end
    assert node.bodies() == [b"a"]


@in_loop
async def test_an_end_that_contradicts_an_earlier_one_is_refused_whole() -> None:
    node = opened()
    await node.halves([b"a", b"b", b"c"])
    await node.end(ROLLBACK, (1, 1))
    with pytest.raises(TransactionEnded, match="half at 1 is rolled back; nothing was decided") as refused:
        await node.end(COMMIT, (0, 3))
    assert refused.value.details["state"] == "ROLLED_BACK"
    assert await node.states((0, 3)) == [(OPEN, 1), (ROLLED_BACK, 1), (OPEN, 1)]
    await node.end(COMMIT, (0, 1))
    with pytest.raises(TransactionEnded, match="half at 0 is committed"):
        await node.end(ROLLBACK, (0, 1))
    assert node.bodies() == [b"a"]


@in_loop
async def test_what_is_no_half_of_the_group_is_refused_by_name() -> None:
    node = opened()
    await node.halves([b"a"])
    with pytest.raises(MessageNotFound, match="no half at 5, the last one is at 0"):
        await node.end(COMMIT, (5, 1))
    with pytest.raises(MessageNotFound, match="half at 0 is of another producer group"):
        await node.end(COMMIT, (0, 1), group="others")
    for ranges in ([], [(0, 0)], [(3, 2), (4, 1)], [(-1, 1)], [(0, 1 << 20)]):
        with pytest.raises(InvalidArgument):
            await node.end(COMMIT, *ranges)
    assert await node.states((0, 1)) == [(OPEN, 1)]


@pytest.mark.parametrize(
    ("settings", "error", "match"),
    [
        ({"queue_id": 4}, Forbidden, "bad queue"),
        ({"properties": {"TRAN_PREPARED_QUEUE_OFFSET": "3"}}, CorruptBatch, "not prepared"),
    ],
)
@in_loop
async def test_records_that_are_no_halves_are_refused(
    settings: dict[str, Any], error: type[PenstockError], match: str
) -> None:
    node = opened()
    with pytest.raises(error, match=match):
        await node.halves([b"a"], **settings)
    assert node.records(names.HALF_TOPIC) == []


@in_loop
async def test_halves_are_refused_where_the_configuration_says_so() -> None:
    node = opened(rejectTransactionMessage="true")
    with pytest.raises(Forbidden, match="rejectTransactionMessage"):
        await node.halves()


@in_loop
async def test_a_refused_end_does_not_hold_the_log_file_of_its_halves() -> None:
    node = opened()
    await node.halves([b"a"])
    data = node.store._log.files[0].bytes
    gc.collect()
    before = sys.getrefcount(data)
    with pytest.raises(MessageNotFound, match="half at 0 is of another producer group"):
        await node.end(COMMIT, (0, 1), group="others")
    gc.collect()
    await eventually(lambda: sys.getrefcount(data) <= before, what="that nobody holds it any more")


@in_loop
async def test_one_end_commits_messages_of_many_topics_and_queues() -> None:
    node = opened()
    node.put_topic(Topic("bills", 2, 2, 6))
    await node.halves([b"o%d" % number for number in range(3)])
    await node.halves([b"b%d" % number for number in range(2)], topic="bills", queue_id=0)
    await node.halves([b"p"], queue_id=3)
    await node.end(COMMIT, (0, 6))
    assert node.bodies() == [b"o0", b"o1", b"o2", b"p"]
    assert node.bodies("bills", 2) == [b"b0", b"b1"]
    assert len(node.records(names.OP_TOPIC)) == 1


@in_loop
async def test_a_message_whose_topic_is_gone_cannot_be_committed_and_can_be_rolled_back() -> None:
    node = opened()
    node.put_topic(Topic("bills", 2, 2, 6))
    await node.halves([b"b"], topic="bills", queue_id=0)
    node.delete_topic("bills")
    node.settle()
    with pytest.raises(TopicNotFound, match="bills, which is not there any more"):
        await node.end(COMMIT, (0, 1))
    await node.end(ROLLBACK, (0, 1))


@in_loop
async def test_states_are_known_to_a_broker_that_begins_with_the_log_alone() -> None:
    node = opened()
    await node.halves([b"%d" % number for number in range(6)])
    await node.end(COMMIT, (1, 2))
    await node.end(ROLLBACK, (4, 1))
    again = Node.after(node)
    assert await again.states((0, 6)) == [(OPEN, 1), (COMMITTED, 2), (OPEN, 1), (ROLLED_BACK, 1), (OPEN, 1)]
    assert await again.end(COMMIT, (1, 2)) == [(COMMITTED, 2)]
    await again.end(COMMIT, (0, 1), (3, 1))
    assert sorted(again.bodies()) == [b"0", b"1", b"2", b"3"]


@in_loop
async def test_what_an_op_decided_is_posted_by_whoever_goes_on() -> None:
    """The op is in the log and what follows from it is not, as after a crash between the two."""
    node = opened()
    node.put_topic(Topic("bills", 2, 2, 6))
    await node.halves([b"a", b"b"])
    await node.halves([b"c"], topic="bills", queue_id=0)
    left = node.fail_appends(to="bills")
    with pytest.raises(DiskFull):
        await node.end(COMMIT, (0, 3))
    left[0] = 100
    node.settle()
    assert (node.bodies(), node.bodies("bills", 2)) == ([b"a", b"b"], [])
    for _ in range(2):
        node = Node.after(node)
        assert await node.end(COMMIT, (0, 3)) == [(COMMITTED, 3)]
        assert (node.bodies(), node.bodies("bills", 2)) == ([b"a", b"b"], [b"c"])


@in_loop
async def test_so_it_is_where_a_snapshot_knew_later_ops_that_a_power_cut_took() -> None:
    """Those that came in their place are no more done with than any others."""
    node = opened()
    await node.halves([b"a", b"b"])
    await node.end(COMMIT, (0, 1))
    node.tables[TransactionTable].load({"ops": 9}, 0)
    node.change_role(master=False)
    node.change_role(master=True)
    await node.pass_s(6)
    left = node.fail_appends(to="orders")
    with pytest.raises(DiskFull):
        await node.end(COMMIT, (1, 1))
    left[0] = 100
    node.settle()
    assert node.bodies() == [b"a"]
    node.change_role(master=False)
    node.change_role(master=True)
    assert await node.end(COMMIT, (1, 1)) == [(COMMITTED, 1)]
    assert node.bodies() == [b"a", b"b"]


@in_loop
async def test_a_full_disk_between_op_and_message_is_made_good_by_the_same_master() -> None:
    node = opened()
    await node.halves([b"a"])
    left = node.fail_appends(to="orders")
    with pytest.raises(DiskFull):
        await node.end(COMMIT, (0, 1))
    left[0] = 100
    assert await node.end(COMMIT, (0, 1)) == [(COMMITTED, 1)] or node.bodies() == [b"a"]
    await node.pass_s(0)
    assert node.bodies() == [b"a"]


@in_loop
async def test_how_far_halves_are_done_with_is_recorded_for_rocketmq_and_for_slaves() -> None:
    node = opened()
    await node.halves([b"a", b"b", b"c"])
    await node.end(COMMIT, (0, 2))
    await node.pass_s(6)
    committed = node.tables.offsets.get
    assert committed(names.TRANSACTIONS_GROUP, names.HALF_TOPIC, 0) == 2
    assert committed(names.TRANSACTIONS_GROUP, names.OP_TOPIC, 0) == 1
    slave = Node.after(node, master=False)
    (hold,) = slave.transactions.holds()
    assert hold.offset == node.records(names.HALF_TOPIC)[2].physical_offset


@in_loop
async def test_an_op_that_is_settled_is_not_carried_out_again_though_its_marks_are_forgotten() -> None:
    node = opened()
    await node.halves([b"a"])
    await node.end(COMMIT, (0, 1))
    await node.pass_s(6)
    again = Node.after(node)
    again.tables.producers._lanes.clear()
    assert await again.end(COMMIT, (0, 1)) == [(COMMITTED, 1)]
    assert again.bodies() == [b"a"]


@in_loop
async def test_halves_are_committed_though_messages_may_not_be_so_large_any_more(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.add_topic()
    await node.halves([b"x" * 5000, b"small"])
    node.close()
    again = Node(tmp_path, manual=node.manual, maxMessageSize=4096)
    again.dispatch()
    assert await again.end(COMMIT, (0, 2)) == [(OPEN, 2)]
    assert again.bodies() == [b"x" * 5000, b"small"]


@in_loop
async def test_a_broker_that_is_no_master_decides_nothing() -> None:
    node = opened()
    await node.halves([b"a"])
    node.change_role(master=False)
    with pytest.raises(NotMaster):
        await node.end(COMMIT, (0, 1))
    node.change_role(master=True)
    await node.end(COMMIT, (0, 1))
    assert node.bodies() == [b"a"]


@in_loop
async def test_ends_at_the_same_time_decide_once() -> None:
    node = opened()
    await node.halves([b"%d" % number for number in range(50)])
    found = await asyncio.gather(
        *(node.end(COMMIT, (0, 50)) for _ in range(4)), node.end(ROLLBACK, (10, 5)), return_exceptions=True
    )
    assert sum(isinstance(each, PenstockError) for each in found) <= 4
    bodies = node.bodies()
    assert len(bodies) == len(set(bodies))
    assert len(bodies) in (50, 0) or await node.states((10, 5)) == [(ROLLED_BACK, 5)]


@in_loop
async def test_what_is_open_is_read_once_however_many_ends_wait_for_it() -> None:
    node = opened()
    await node.halves([b"%d" % number for number in range(20)])
    for number in range(10):
        await node.end(COMMIT, (number, 1))
    again = Node.after(node)
    read: list[Record] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "read_op", lambda record: (read.append(record), read_op(record))[1])
        await asyncio.gather(*(again.end(COMMIT, (number, 1)) for number in range(10, 20)))
    assert len(read) == 10
    assert sorted(again.bodies()) == sorted(b"%d" % number for number in range(20))


@in_loop
async def test_a_large_transaction_is_decided_in_several_ops() -> None:
    node = opened()
    for _ in range(8):
        await node.halves([b"x"] * 600)
    await node.end(COMMIT, (0, 4800))
    assert len(node.bodies()) == 4800
    ops = [read_op(record) for record in node.records(names.OP_TOPIC)]
    decided = [(each.letter, each.offsets) for op in ops for each in op]
    assert {letter for letter, _ in decided} == {"C"}
    assert np.concatenate([offsets for _, offsets in decided]).tolist() == list(range(4800))
    assert max(len(offsets) for _, offsets in decided) <= (1 << 20) // 512, "what follows must fit a log file"


@in_loop
async def test_metrics_count_what_was_decided() -> None:
    node = opened()
    node.join()
    await node.halves([b"a", b"b", b"c"])
    await node.end(COMMIT, (0, 1))
    await node.end(ROLLBACK, (1, 1))
    await node.pass_s(7)
    metrics = node.metrics()
    assert metrics["penstock_transactions_open", ""] == 1
    assert metrics["penstock_transactions_ended_total", "committed"] == 1
    assert metrics["penstock_transactions_ended_total", "rolled_back"] == 1
    assert metrics["penstock_transaction_checks_total", ""] == 1
    assert metrics["penstock_producers", ""] == 1


@in_loop
async def test_open_halves_of_a_store_of_rocketmq_are_asked_about_and_decided() -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = golden.unpack("normal", Path(directory) / "store")
        node = Node(root, manual=ManualClock(GOLD_AT), sizes=GOLD_SIZES, maxMessageSize=32 << 10)
        before = len(node.records("GoldTx", 0))
        node.join("GoldTxProducer")
        await node.pass_s(0)
        (check,) = node.asked
        keys = [decode_properties(each.properties)["KEYS"] for each in RecordBatch(check.records)]
        assert sorted(keys) == ["tx-left-1", "tx-left-2"]
        assert list(check.times) == [15, 15]
        first, second = check.offsets
        await node.end(COMMIT, (first, 1), group="GoldTxProducer")
        await node.end(ROLLBACK, (second, 1), group="GoldTxProducer")
        (message,) = node.records("GoldTx", 0)[before:]
        assert decode_properties(message.properties)["KEYS"] == keys[0]
        with pytest.raises(TransactionEnded, match="so long ago"):
            await node.end(COMMIT, (0, 1), group="GoldTxProducer")
        await node.pass_s(1000)
        assert len(node.asked) == 1
        node.close()


@in_loop
async def test_how_a_half_that_was_stored_anew_has_ended_is_known_though_nothing_tells_of_its_first_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "OPS_REMEMBERED", 0)
    node = opened()
    await node.halves([b"a", b"b"])
    await node.pass_s(2)
    node.transactions.checks.make_way(node.store.end_offset)
    await node.pass_s(2)
    await node.pass_s(6)
    node = Node.after(node)
    await node.pass_s(0)
    assert await node.end(COMMIT, (0, 2)) == [(OPEN, 2)]
    await node.pass_s(1)
    assert await node.end(COMMIT, (0, 2)) == [(COMMITTED, 2)]
