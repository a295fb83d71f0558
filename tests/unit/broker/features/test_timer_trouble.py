"""Messages for later when something is not as it was when they were taken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.features.later import timers as timers_module
from penstock.broker.features.later.later import Later
from penstock.formats.record.properties import encode_properties
from penstock.proto import names
from penstock.proto.errors import CorruptBatch, DiskFull
from penstock.proto.wire.later_pb2 import RecallRequest
from tests.support.broker.kit import in_loop
from tests.support.broker.stores import batch
from tests.support.broker.timing import START, Node, later_properties


@in_loop
async def test_what_was_taken_once_is_delivered_though_messages_may_not_be_so_large_any_more(node: Node) -> None:
    large = b"x" * 5000
    node.later([large, b"small"], [1, 2])
    node.later([large], [10])
    node.close()
    again = Node(node.root, node.manual, maxMessageSize=4096)
    await again.turn(5)
    assert again.delivered() == [large, b"small"]
    again.timers.make_way(again.store.end_offset)
    await again.turn()
    assert again.timers.rolled == 1
    await again.turn(10)
    assert again.delivered() == [large, b"small", large]


@pytest.mark.parametrize("full_at", [None, 0, 1])
@in_loop
async def test_one_message_that_cannot_be_stored_costs_itself_alone(
    node: Node, caplog: pytest.LogCaptureFixture, full_at: int | None
) -> None:
    node.later([b"a", b"bad", b"c"], [1, 2, 3])
    append, left = node.store.append, [full_at]

    def refusing(topic: str, records: Any, **settings: Any) -> Any:
        if topic == "orders" and b"bad" in bytes(records):
            raise CorruptBatch("damaged")
        if topic == "orders" and left[0] is not None:
            left[0] -= 1
            if left[0] < 0:
                raise DiskFull("no space")
        return append(topic, records, **settings)

    node.store.append = refusing  # type: ignore[method-assign]
    if full_at is not None:
        with pytest.raises(DiskFull):
            await node.turn(5)
        left[0] = None
    await node.turn(5)
    assert (node.delivered(), node.timers.dropped) == ([b"a", b"c"], 1 + (full_at == 1))
    assert "message for later cannot be delivered topic=orders error=damaged" in caplog.text


@in_loop
async def test_messages_that_were_stored_one_by_one_are_not_stored_together_later(node: Node) -> None:
    node.later([b"a", b"bad", b"c"], [1, 2, 3])
    append = node.store.append

    def refusing(topic: str, records: Any, **settings: Any) -> Any:
        if topic == "orders" and b"bad" in bytes(records):
            raise CorruptBatch("damaged")
        if topic == "orders" and b"c" in bytes(records):
            raise DiskFull("no space")
        return append(topic, records, **settings)

    node.store.append = refusing  # type: ignore[method-assign]
    with pytest.raises(DiskFull):
        await node.turn(5)
    again = node.reopened(unclean=True)
    await again.turn()
    assert again.delivered() == [b"a", b"bad", b"c"]  # which the next master can store


@in_loop
async def test_what_a_former_mastership_took_from_its_wheel_is_not_delivered_by_the_next_one_too(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.later([b"a"], [1])

    async def meanwhile(make: Any, *arguments: Any, **more: Any) -> Any:
        if make == timers_module._Backlog.of:
            monkeypatch.undo()
            node.change_role(master=False)
            node.change_role(master=True)
        return make(*arguments, **more)

    monkeypatch.setattr("asyncio.to_thread", meanwhile)
    for _ in range(3):
        await node.turn(5)
    assert node.delivered() == [b"a"]


@in_loop
async def test_a_broker_that_was_down_for_long_delivers_its_last_run_once(node: Node) -> None:
    node.later([b"a"], [1])
    await node.turn(2)
    node.manual.advance(8 * 86_400)
    again = node.reopened(unclean=True)
    again.tables.expire(again.clock.wall_ms())  # before there is a master
    await again.turn()
    assert again.delivered() == [b"a"]


@pytest.mark.parametrize("is_back", [True, False], ids=["the same master goes on", "another begins"])
@pytest.mark.parametrize("nth", range(1, 5))
def test_replicas_that_go_while_a_turn_waits_take_no_message_along_and_bring_none_back(
    node: Node, monkeypatch: pytest.MonkeyPatch, nth: int, is_back: bool
) -> None:
    """``nth``: the wait of the turn in which they go."""
    waits, to_thread = 0, asyncio.to_thread

    async def leaving(call: Any, *arguments: Any, **settings: Any) -> Any:
        nonlocal waits
        found = await to_thread(call, *arguments, **settings)
        waits += 1
        node.role.enough = waits != nth
        return found

    @in_loop
    async def run() -> None:
        nonlocal node
        node.later([b"first"], [1])
        await node.turn(2)
        node.later([b"second"], [10])
        taken = later_properties("orders", 0, START + 12_000) + encode_properties({"UNIQ_KEY": "K"})
        records = batch(names.TIMER_TOPIC, [b"taken back"], properties=[taken], mark=(7, 0, 0, 9))
        node.store.append(names.TIMER_TOPIC, records, queues=1)
        node.dispatch()
        await node.turn(1)
        assert (await node[Later].recall(RecallRequest(topic="orders", unique_key="K", due_ms=START + 12_000))).in_time
        node.dispatch()
        await node.turn(1)
        monkeypatch.setattr(asyncio, "to_thread", leaving)
        await node.turn(60)
        monkeypatch.undo()
        if not is_back:
            node.flush()
            node = node.reopened(unclean=True)
        node.role.enough = True
        for _ in range(3):
            await node.turn(60)
        assert node.delivered() == [b"first", b"second"]
        assert node.timers.waiting == 0

    run()


@in_loop
async def test_what_was_due_in_a_turn_that_failed_is_delivered_in_a_next_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.later([b"a", b"b"], [1, 2])
    await node.turn()

    async def no_thread(*_: Any, **__: Any) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "to_thread", no_thread)
        with pytest.raises(RuntimeError, match="thread"):
            await node.turn(5)
    await node.turn()
    assert node.delivered() == [b"a", b"b"]
