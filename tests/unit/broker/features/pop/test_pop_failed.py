"""What becomes of messages that nobody acknowledged, where it is not the same for all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from penstock.broker.core.journal import Journal
from penstock.broker.core.tables.groups import Group
from penstock.broker.features.pop import ops
from penstock.broker.features.pop.queue import PopQueue
from penstock.proto.errors import DiskFull
from tests.support.broker.kit import in_loop
from tests.support.broker.popping import DEAD, GROUP, RETRY, Node, opened
from tests.support.broker.stores import batch


@in_loop
async def test_of_those_that_are_due_together_some_come_again_and_others_are_dead_letters() -> None:
    node = Node()
    node.put_group(Group(GROUP, retry_max_times=2, retry_queues=1))
    for topic, tries in (("orders", 2), ("others", 1)):
        node.fill(1, topic)
        (message,) = await node.receive(1, topic)
        for _ in range(tries):
            await node.change(message, 0)
            await node.pass_s(0)
            (message,) = await node.receive(1, topic)
        await node.change(message, 60_000)
    await node.pass_s(60)
    assert [record.reconsume_times for record in node.records(DEAD)] == [3]
    assert [record.reconsume_times for record in node.records()] == [1, 2, 1, 2]


@pytest.mark.parametrize("tries", [0, 16])
@in_loop
async def test_a_damaged_message_costs_itself_alone(
    tmp_path: Path, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path)
    node.put_group(Group(GROUP, retry_max_times=tries))
    node.fill(3)
    await node.receive()
    place = node.store.picker.locate("orders", 0, np.array([1]))
    end = int(place.positions[0] + place.sizes[0])
    log_file = min((tmp_path / "commitlog").iterdir())
    body = log_file.read_bytes().rindex(b"1", 0, log_file.read_bytes().rindex(b"orders", 0, end))
    with log_file.open("r+b") as file:
        file.seek(body)
        file.write(b"!")  # which its checksum tells, when the record is copied
    await node.pass_s(60)
    assert [record.body for record in node.records(RETRY if tries else DEAD)] == [b"0", b"2"]
    assert "message cannot come again" in caplog.text


@in_loop
async def test_copies_that_would_fill_more_than_a_log_file_come_again_in_parts() -> None:
    node = Node(sizes={"segment_bytes": 1 << 17})
    node.put_group(Group(GROUP, retry_max_times=16))
    node.add_topic()
    for _ in range(2):
        node.store.append("orders", batch("orders", [b"." * 200] * 300), queues=4)
        node.settle()
    while await node.receive():
        pass
    await node.pass_s(60)
    while (count := len(node.records())) < 600:
        await node.pass_s(1)
        assert len(node.records()) > count


@in_loop
async def test_messages_at_which_a_turn_breaks_keep_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for topic in ("orders", "others"):
        node.fill(1, topic)
        await node.receive(1, topic)
    revive = node.pop._finisher.revive

    async def broken(journal: Journal, queue: PopQueue) -> None:
        if queue.topic == "orders":
            raise IndexError("index 1 is out of bounds")
        await revive(journal, queue)

    monkeypatch.setattr(node.pop._finisher, "revive", broken)
    with pytest.raises(IndexError):
        await node.pass_s(60)
    assert len(node.records()) == 1
    monkeypatch.undo()
    await node.pass_s(1)
    assert len(node.records()) == 2


@in_loop
async def test_a_topic_of_dead_letters_that_was_deleted_does_not_come_back_with_the_next_master() -> None:
    node = opened()
    node.put_group(Group(GROUP, retry_max_times=0))
    await node.receive(2)
    await node.receive(2, invisible_ms=600_000)
    await node.pass_s(31)
    assert len(node.records(DEAD)) == 2
    node.delete_topic(DEAD)
    node.settle()
    again = Node.after(node)
    await again.pass_s(1)
    assert again.tables.topics.get(DEAD) is None
    await again.pass_s(600)
    assert [record.body for record in again.records(DEAD)] == [b"2", b"3"]


@in_loop
async def test_the_next_master_posts_all_that_one_op_decides_however_far_apart_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ops, "_GAP_MAX", 4)
    node = opened()
    messages = await node.receive()
    await node.acknowledge(*messages[1:9])
    left = node.fail_appends(to=RETRY)
    with pytest.raises(DiskFull):
        await node.pass_s(31)
    left[0] = 1 << 30
    again = Node.after(node)
    await again.pass_s(1)
    assert [record.body for record in again.records()] == [b"0", b"9"]
