"""Messages for later that are taken back before their time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.broker.core.tables.topics import Topic
from penstock.broker.features.later import recalls
from penstock.broker.features.later import timers as timers_module
from penstock.broker.features.later.later import Later
from penstock.formats.record.properties import decode_properties, encode_properties
from penstock.proto import names
from penstock.proto.errors import (
    BrokerUnavailable,
    CorruptBatch,
    DiskFull,
    Forbidden,
    InvalidArgument,
    NotEnoughReplicas,
    NotMaster,
    OutcomeUnknown,
    TopicNotFound,
)
from penstock.proto.wire.later_pb2 import RecallRequest
from tests.support.broker.kit import SYNC, in_loop
from tests.support.broker.stores import batch, read
from tests.support.broker.timing import START, Timed


class Node(Timed):
    """A broker with its timers, whose messages' bodies are their keys."""

    def later(self, keys: Sequence[str], due_s: float = 10, *, topic: str = "orders") -> None:
        due = str(START + int(1000 * due_s))
        properties = [
            encode_properties({"TIMER_OUT_MS": due, "REAL_TOPIC": topic, "REAL_QID": "0", "UNIQ_KEY": key})
            for key in keys
        ]
        records = batch(names.TIMER_TOPIC, [key.encode() for key in keys], properties=properties)
        self.store.append(names.TIMER_TOPIC, records, queues=1)
        self.dispatch()

    async def recall(self, key: str, due_s: float = 10, *, topic: str = "orders", **changes: Any) -> bool:
        request = RecallRequest(topic=topic, unique_key=key, due_ms=START + int(1000 * due_s))
        request.MergeFrom(RecallRequest(**changes))
        reply = await self[Later].recall(request)
        return reply.in_time


@in_loop
async def test_what_is_recalled_in_time_never_comes_and_all_else_does(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a", "b", "c"])
    await node.turn()
    assert await node.recall("b")
    assert await node.recall("b")  # again: nothing more is stored
    assert node.store.reader.queue_range(names.TIMER_TOPIC, 0) == (0, 3)
    node.dispatch()
    assert node.store.reader.queue_range(names.TIMER_TOPIC, 0) == (0, 4)
    await node.turn(10)
    assert node.delivered() == [b"a", b"c"]
    assert (node.timers.delivered, node.timers.recalled, node.timers.dropped) == (2, 1, 0)
    assert not await node.recall("c")
    assert not await node.recall("b")


@in_loop
async def test_a_recall_counts_from_its_answer_on_though_dispatch_lags(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a", "b"])
    await node.turn()
    node.role.holds = True  # what is appended from here on is not dispatched
    assert await node.recall("a")
    node.manual.advance(10)
    await node.timers.turn()
    node.role.holds = False
    assert node.delivered() == [b"b"]


@in_loop
async def test_the_record_that_says_so_is_rocketmqs(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.turn()
    assert await node.recall("KEY")
    node.dispatch()
    (record,) = read(node.store, names.TIMER_TOPIC)
    due = str(START + 10_000)
    assert decode_properties(record.properties) == {
        "TIMER_DELIVER_MS": due,
        "TIMER_OUT_MS": due,
        "TIMER_DEL_UNIQKEY": "KEY",
        "REAL_TOPIC": "orders",
        "REAL_QID": "0",
    }


@in_loop
async def test_another_topics_message_with_the_same_key_is_not_meant(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.put_topic(Topic("other", 1, 1))
    node.later(["a"])
    node.later(["a"], topic="other")
    await node.turn()
    assert await node.recall("a", topic="other")
    await node.turn(10)
    assert (node.delivered(), node.delivered("other")) == ([b"a"], [])


@in_loop
async def test_a_message_of_the_same_key_that_is_due_at_another_time_is_not_meant(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a"], 8)
    node.later(["a"], 10)
    await node.turn()
    assert await node.recall("a", 10)
    await node.turn(9)
    assert node.delivered() == [b"a"]
    await node.turn(2)
    assert node.delivered() == [b"a"]
    assert node.timers.recalled == 1


@in_loop
async def test_a_new_master_knows_what_is_recalled(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a", "b"])
    await node.turn()
    assert await node.recall("a")
    node = node.reopened(unclean=True)
    with pytest.raises(BrokerUnavailable, match="try again"):
        await node.recall("a")
    await node.turn(9)
    assert await node.recall("a")
    assert node.store.end_offset == node.store.dispatched_offset
    await node.turn(1)
    assert node.delivered() == [b"b"]
    node = node.reopened(unclean=True)
    await node.turn()
    assert node.delivered() == [b"b"]
    assert not await node.recall("b")


@pytest.mark.parametrize("failing_at", range(4))
def test_a_delivery_that_is_cut_short_brings_nothing_recalled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_at: int
) -> None:
    monkeypatch.setattr(timers_module, "RUN_COUNT", 2)

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        node.later([f"{number}" for number in range(6)])
        await node.turn()
        for number in (1, 4):
            assert await node.recall(f"{number}")
        node.dispatch()
        node.fail_appends(failing_at)
        with pytest.raises(DiskFull):
            await node.turn(10)
        node = node.reopened(unclean=True)
        await node.turn()
        assert node.delivered() == [b"0", b"2", b"3", b"5"]

    run()


@in_loop
async def test_a_recall_while_messages_are_stored_anew_one_by_one_doubles_no_other(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a", "bad", "c"])
    await node.turn()
    append, full = node.store.append, True

    def refusing(topic: str, records: Any, **settings: Any) -> Any:
        if topic == names.TIMER_TOPIC and b"bad" in bytes(records):
            raise CorruptBatch("damaged")
        if topic == names.TIMER_TOPIC and full and b"UNIQ_KEY\x01c" in bytes(records):
            raise DiskFull("no space")
        return append(topic, records, **settings)

    node.store.append = refusing  # type: ignore[method-assign]
    node.timers.make_way(node.store.end_offset)
    with pytest.raises(DiskFull):
        await node.turn()
    full = False
    assert await node.recall("c")
    await node.turn()
    assert node.timers.rolled == 1
    await node.turn(10)
    assert node.delivered() == [b"a"]


@in_loop
async def test_what_is_recalled_stays_so_when_its_record_is_rolled_or_that_of_the_message_is(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.later(["a", "b"])
    await node.turn()
    assert await node.recall("a")
    node.dispatch()
    second = int(node.store.picker.locate(names.TIMER_TOPIC, 0, np.arange(1, 2)).positions[0])
    node.timers.make_way(second)  # the message alone is in the way
    await node.turn()
    assert await node.recall("b")
    node.dispatch()
    node.timers.make_way(node.store.end_offset)  # and now everything
    await node.turn()
    node = node.reopened(unclean=True)
    node.later(["c"])
    await node.turn(10)
    assert node.delivered() == [b"c"]


@in_loop
async def test_a_role_that_ends_forgets_what_only_it_knew(tmp_path: Path) -> None:
    node = Node(tmp_path, **SYNC, flushes=False)
    node.later(["a"])
    await node.turn()
    end = node.store.end_offset
    with pytest.raises(OutcomeUnknown, match="recall of message a from topic orders"):
        await node.recall("a")
    node.change_role(master=False)
    node.store.truncate_to(end)  # nobody else has it
    node.change_role(master=True)
    await node.turn(10)
    assert node.delivered() == [b"a"]


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"topic": "absent"}, TopicNotFound, "absent"),
        ({"topic": names.STATE_TOPIC}, Forbidden, "internal"),
        ({"unique_key": "a\x01b"}, InvalidArgument, "no message id"),
        ({"unique_key": "x" * 256}, InvalidArgument, "no message id"),
        ({"due_ms": -1}, InvalidArgument, "due at -1"),
        ({"due_ms": 1 << 60}, InvalidArgument, "no message can be due"),
    ],
)
@in_loop
async def test_what_makes_no_sense_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    node = Node(tmp_path)
    await node.turn()
    with pytest.raises(error, match=says):
        await node.recall("a", **changes)
    assert node.store.reader.queue_range(names.TIMER_TOPIC, 0) == (0, 0)


@in_loop
async def test_a_slave_and_a_master_without_its_replicas_take_nothing_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    await node.turn()
    node.role.enough = False
    with pytest.raises(NotEnoughReplicas):
        await node.recall("a")
    node.role.enough = True
    node.change_role(master=False)
    with pytest.raises(NotMaster):
        await node.recall("a")


def test_a_key_with_the_same_hash_is_not_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def unique_keys(data: Any, positions: Any, sizes: Any, hashes: Any) -> None:
        asked.append(len(sizes))
        hashes.fill(7)

    monkeypatch.setattr(recalls, "text_hash", lambda text: 7)
    monkeypatch.setattr(recalls, "unique_keys", unique_keys)

    @in_loop
    async def run() -> None:
        node = Node(tmp_path)
        node.later(["a", "b"])
        await node.turn()
        assert await node.recall("a")
        await node.turn(10)
        assert node.delivered() == [b"b"]
        assert asked == [2], "both were looked at by their hashes"

    run()
