"""Queues of which the log has no record any more: whoever takes over goes on where they ended."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.core.tables.queue_ends import QUEUE_ENDS, QueueEnd, QueueEnds, end_records
from penstock.broker.core.tables.topics import TOPIC_DELETED, Topic
from tests.support.broker.kit import Kit
from tests.support.broker.retaining import KEEPS, SEGMENT, Node, follow, node
from tests.support.broker.stores import batch, bodies
from tests.support.loops import in_own_loop

QUIET = Topic("quiet", 4, 4)
SIZES = {"segment_bytes": SEGMENT, "consume_queue_bytes": 400}


def write(it: Kit, body: bytes) -> list[int]:
    """One message of queue 2; its offset."""
    placed = it.store.append(QUIET.name, batch(QUIET.name, [body], 2), queues=4)
    it.confirm()
    it.dispatch()
    return placed.queue_offsets


async def outlive(it: Node) -> None:
    """Nothing but later messages of another topic is left in the log."""
    it.fill()
    it.at_four()
    await it.retention.clean()
    assert it.log_begin() == it.store.min_offset > 0


@contextlib.contextmanager
def slave_of(master: Kit, root: Path) -> Iterator[Kit]:
    """A slave that began with an empty store and has the master's log."""
    slave = Kit(root, master=False, sizes=SIZES)
    follow(slave, master)
    yield slave
    slave.close()


@in_own_loop
async def test_a_slave_that_began_behind_a_quiet_queue_goes_on_where_that_ended(tmp_path: Path) -> None:
    async with node(tmp_path / "master") as master:
        master.put_topic(KEEPS)
        master.put_topic(QUIET)
        for body in (b"one", b"two", b"three"):
            write(master, body)
        master.commit("billing", {"quiet": {2: 3}})
        await outlive(master)
        with slave_of(master, tmp_path / "slave") as slave:
            assert slave.tables.offsets.get("billing", "quiet", 2) == 3
            assert slave.store.reader.queue_range("quiet", 2) == (3, 3)
            slave.change_role(master=True)
            assert write(slave, b"four") == [3]
            assert slave.store.reader.queue_range("quiet", 2) == (3, 4)
            assert bodies(slave.store, "quiet", 2) == [b"four"]
            master.change_role(master=False)
            follow(master, slave)
            assert bodies(master.store, "quiet", 2) == [b"four"], "what had the rest agrees"


@pytest.mark.parametrize("unclean", [False, True], ids=["stopped", "killed"])
@in_own_loop
async def test_it_does_so_after_a_restart_and_hands_that_on(tmp_path: Path, unclean: bool) -> None:
    async with node(tmp_path / "master") as master:
        master.put_topic(KEEPS)
        master.put_topic(QUIET)
        write(master, b"one")
        await outlive(master)
        with slave_of(master, tmp_path / "slave") as slave:
            slave.snapshots.write_all(slave.store.dispatched_offset)
        again = Node(tmp_path / "slave")
        if unclean:
            again.close(unclean=True)
            again = Node(tmp_path / "slave")
        await outlive(again)
        with slave_of(again, tmp_path / "third") as third:
            third.change_role(master=True)
            assert write(third, b"two") == [1]
        end = again.store.end_offset
        await again.retention.clean()
        assert again.store.end_offset == end, "once is enough"
        again.close()


@in_own_loop
async def test_a_topic_that_was_deleted_since_begins_at_0(tmp_path: Path) -> None:
    async with node(tmp_path / "master") as master:
        master.put_topic(KEEPS)
        master.put_topic(QUIET)
        write(master, b"one")
        await outlive(master)
        master.delete_topic("quiet")
        master.put_topic(QUIET)
        with slave_of(master, tmp_path / "slave") as slave:
            slave.change_role(master=True)
            assert slave.store.reader.queue_range("quiet", 2) == (0, 0)
            assert write(slave, b"new") == [0]


def test_the_table_follows_the_log_and_its_snapshot() -> None:
    table = QueueEnds()
    ends = [QueueEnd("a", 0, 5), QueueEnd("a", 1, 7), QueueEnd("b", 0, 9)]
    ((kind, document),) = table.missing(ends)
    table.apply(100, kind, json.loads(json.dumps(document)))
    assert list(table.missing(ends)) == []
    assert list(table.missing([QueueEnd("b", 0, 10)])) == [(QUEUE_ENDS, {"ends": {"b": {0: 10}}})]
    assert list(table.repeated(100)) == []
    assert list(table.repeated(101)) == list(end_records(ends))
    table.apply(50, QUEUE_ENDS, {"ends": {"a": {"0": 4}}})
    assert table.of("a") == {0: 5, 1: 7}, "an older record changes nothing"
    table.apply(200, QUEUE_ENDS, {"ends": {"a": {"1": 8}}})
    table.apply(150, TOPIC_DELETED, {"topicName": "a"})
    assert table.of("a") == {1: 8}, "what came behind the deletion stays"
    table.apply(140, QUEUE_ENDS, {"ends": {"a": {"0": 5}}})
    assert table.of("a") == {1: 8}
    loaded = QueueEnds()
    loaded.load(json.loads("{" + "".join(table.pieces()) + "}"), 300)
    assert (loaded.of("a"), loaded.of("b"), loaded.of("c")) == ({1: 8}, {0: 9}, {})


@pytest.mark.parametrize("dispatched", [True, False])
@in_own_loop
async def test_ends_of_a_topic_that_is_deleted_while_they_are_recorded_are_not_those_of_the_next(
    tmp_path: Path, dispatched: bool
) -> None:
    async with node(tmp_path) as it:
        it.put_topic(QUIET)
        write(it, b"one")
        position = it.store.end_offset
        ((_, before),) = it.retention._ended(position)
        assert before["ends"]["quiet"] == {2: 1}
        told = it.retention._ended(position)
        it.delete_topic(QUIET.name)
        it.put_topic(QUIET)
        if dispatched:
            it.confirm()
        assert not any("quiet" in document["ends"] for _, document in told)
