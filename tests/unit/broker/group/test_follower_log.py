"""A log that is cut takes everything derived from it along: tables, their files, queues, index."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.core.events import LogEvents
from penstock.broker.core.tables.producers import SEQUENCES, Receipt
from penstock.broker.core.tables.snapshots import Snapshots
from penstock.broker.core.tables.topics import Topic
from penstock.broker.group.making import RoleMaker
from penstock.broker.store.log.flush import Flusher
from penstock.broker.store.recovery.checkpoint_writer import CheckpointWriter
from penstock.proto.errors import StorageError
from penstock.replication import ReplicationConfig
from penstock.runtime.clock import SystemClock
from tests.support.broker.stores import bodies
from tests.support.replication.replica_nodes import Node, joined
from tests.support.waiting import eventually

ALONE = ReplicationConfig(sync=False)


def played(tmp_path: Path, script: Callable[[Node], None]) -> Node:
    """A node that was master of one epoch, during which ``script`` happened."""
    node = Node(tmp_path, 1, ALONE)
    node.lead(2)
    script(node)
    node.leave()
    return node


def before_the_cut(node: Node) -> None:
    node.put_topic(Topic("orders", 4, 4))
    node.put_topic(Topic("old", 1, 1))
    node.append("orders", [b"one", b"two"], sequence=1)
    node.append("old", [b"kept"], queue=0)
    node.commit("billing", {"orders": {0: 1}})


def after_the_cut(node: Node) -> None:
    node.put_topic(Topic("orders", 8, 8))
    node.put_topic(Topic("new", 1, 1))
    node.append("orders", [b"three"], sequence=2)
    node.append("new", [b"gone"])
    node.commit("billing", {"orders": {0: 3}, "new": {0: 1}})


def deleting(node: Node) -> None:
    node.delete_topic("old")
    node.put_topic(Topic("old", 2, 2))
    node.append("old", [b"made anew"], queue=1)


@pytest.mark.parametrize("later", [after_the_cut, deleting], ids=["written", "deleted"])
@pytest.mark.parametrize("snapshots", ["none", "before", "behind", "both"])
def test_the_tables_after_a_cut_are_what_they_were_before_the_log_had_more(
    tmp_path: Path, later: Callable[[Node], None], snapshots: str
) -> None:
    async def scenario() -> None:
        told: list[tuple[set[str], set[str]]] = []

        def whole(node: Node) -> None:
            before_the_cut(node)
            if snapshots in ("before", "both"):
                node.snapshots.write_all(node.store.dispatched_offset)
            nonlocal end, expected
            end, expected = node.store.end_offset, node.content_of_tables()
            later(node)
            if snapshots in ("behind", "both"):
                node.snapshots.write_all(node.store.dispatched_offset)

        end = 0
        expected: dict[str, object] = {}
        node = played(tmp_path, whole)
        node.tables.topics.on_changed.append(
            lambda updated, removed: told.append(({t.name for t in updated}, set(removed)))
        )
        await node.log.truncate_to(end)
        assert node.content_of_tables() == expected
        assert bodies(node.store, "old") == [b"kept"]
        assert node.tables.producers.find_duplicate(7, 1, "orders", 0, 1) is not None
        assert node.tables.producers.find_duplicate(7, 1, "orders", 0, 2) is None
        assert told == [({"orders"}, {"new"})] if later is after_the_cut else [({"old"}, set())]
        node.kill()
        node.open()
        assert node.content_of_tables() == expected, "the same after a crash"
        node.close()

    asyncio.run(scenario())


def test_what_a_record_tells_of_producers_is_known_after_a_cut_and_after_a_crash(tmp_path: Path) -> None:
    """Their batches were in files that are deleted."""

    async def scenario() -> None:
        def repeated(node: Node) -> None:
            before_the_cut(node)
            row = [f"{9:016x}", "orders", 3, 1, [[5, 10, 20, 1, [0], [7]]]]
            node.journal.put(SEQUENCES, {"rows": [row]})
            nonlocal end
            end = node.store.end_offset
            after_the_cut(node)

        end = 0
        node = played(tmp_path, repeated)
        for _ in range(2):
            assert node.tables.producers.find_duplicate(9, 1, "orders", 3, 5) == Receipt(5, 10, 20, 1, [0], [7])
            await node.log.truncate_to(end)
        node.kill()
        node.open()
        assert node.tables.producers.find_duplicate(9, 1, "orders", 3, 5) is not None
        node.close()

    asyncio.run(scenario())


def test_a_snapshot_with_what_was_never_confirmed_goes_with_it(tmp_path: Path) -> None:
    """A master's tables have its own records at once; its snapshots, and a clean stop, write them so."""

    async def scenario() -> None:
        node = Node(tmp_path, 1, ReplicationConfig(sync=True))
        node.lead(2)
        before_the_cut(node)
        end = node.store.end_offset
        node.store.set_confirm(end)
        node.catch_up()
        expected = node.content_of_tables()
        node.put_topic(Topic("phantom", 1, 1))
        node.commit("billing", {"orders": {0: 2}})
        start = node.append("orders", [b"never confirmed"], sequence=2)
        node.tables.producers.remember(7, 1, "orders", 0, Receipt(2, start - 100, start, 1, [0], [2]))
        node.close()
        node.open()
        assert node.tables.topics.get("phantom") is not None, "nothing is cut yet"
        await node.log.truncate_to(end)
        assert node.content_of_tables() == expected
        node.append("orders", [b"another master's" * 30])
        node.kill()
        node.open()
        assert node.tables.producers.find_duplicate(7, 1, "orders", 0, 2) is None
        assert node.tables.topics.get("phantom") is None
        node.close()

    asyncio.run(scenario())


def test_a_cut_in_front_of_all_that_was_written_of_a_table_is_known_to_leave_nothing_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = played(tmp_path, before_the_cut)
        end = node.store.end_offset
        assert not node.log.keeps_state(end), "nothing is written yet"
        node.snapshots.write_all(node.store.dispatched_offset)
        for number, expected in enumerate([True, True, False]):  # the newest file, the one before it, none
            assert node.log.keeps_state(end) is expected
            node.put_topic(Topic("later", 1 + number, 1))
            node.catch_up()
            node.snapshots.write_all(node.store.dispatched_offset)
        node.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("files", [1, 4])
@pytest.mark.parametrize("stop", ["kill", "close"])
def test_a_slave_that_starts_over_has_nothing_of_before(tmp_path: Path, stop: str, files: int) -> None:
    async def scenario() -> None:
        node = played(tmp_path, before_the_cut)
        node.snapshots.write_all(node.store.dispatched_offset)
        start = files * node.store.segment_bytes
        ends: list[int] = []
        node.on_cut = lambda: ends.append(node.store.end_offset)
        end = node.store.end_offset
        await node.log.start_over(start)
        assert ends == [end], "who sends views of the log is told before"
        assert (node.store.min_offset, node.store.end_offset, node.store.confirm_offset) == (start, start, start)
        tables = node.content_of_tables()
        assert not any(tables[name] for name in ("topics", "groups", "offsets", "producers", "queues"))
        getattr(node, stop)()
        node.open()
        assert (node.store.min_offset, node.store.end_offset) == (start, start)
        assert node.content_of_tables() == tables
        node.close()

    asyncio.run(scenario())


def begun_behind_its_state(tmp_path: Path) -> Node:
    """A node whose snapshots alone tell of its topics: the log file with their records is gone."""

    def script(node: Node) -> None:
        before_the_cut(node)
        while node.store.end_offset < node.store.segment_bytes:
            node.append("orders", [b"." * 1000])
        node.catch_up()
        node.snapshots.write_all(node.store.dispatched_offset)
        node.store.checkpoint()
        node.store.removal.take_out(node.store.segment_bytes)
        node.store.removal.delete_taken(0)

    return played(tmp_path, script)


async def start_over_that_ends_behind_the_cut(node: Node, start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log is empty, its snapshots are there, and it has begun anew."""
    with monkeypatch.context() as broken:
        broken.setattr(Snapshots, "delete_behind", failing)
        with pytest.raises(StorageError, match="does not work"):
            await node.log.start_over(start)
    node.kill()
    node.open()


@pytest.mark.parametrize("then", ["go on", "kill"])
def test_a_slave_that_could_not_start_over_has_all_that_its_snapshots_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    async def scenario() -> None:
        node = begun_behind_its_state(tmp_path)
        tables = {name: node.content_of_tables()[name] for name in ("topics", "groups", "offsets")}
        assert tables["topics"]
        with monkeypatch.context() as broken:
            broken.setattr(CheckpointWriter, "fence", lambda *_: StorageError("does not work"))
            broken.setattr(Flusher, "flush", failing)
            with pytest.raises(StorageError, match="does not work"):
                await node.log.start_over(8 * node.store.segment_bytes)
        if then == "kill":
            node.kill()
            node.open()
        assert node.content_of_tables().items() >= tables.items()
        node.close()

    asyncio.run(scenario())


def test_a_start_over_that_ends_behind_the_cut_of_the_log_begins_again_with_nothing_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        node = begun_behind_its_state(tmp_path)
        start = 8 * node.store.segment_bytes
        await start_over_that_ends_behind_the_cut(node, start, monkeypatch)
        assert node.store.min_offset == node.store.end_offset < start
        await node.log.start_over(start)
        tables = node.content_of_tables()
        assert not any(tables[name] for name in ("topics", "groups", "offsets", "producers", "queues"))
        assert (node.store.min_offset, node.store.end_offset) == (start, start)
        node.close()

    asyncio.run(scenario())


def test_an_empty_log_that_begins_where_its_masters_does_has_nothing_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start over ended behind the cut of the log: what the snapshots tell no master has said."""

    async def scenario() -> None:
        node, master = begun_behind_its_state(tmp_path / "slave"), Node(tmp_path / "master", 2, ALONE)
        start = node.store.min_offset
        await start_over_that_ends_behind_the_cut(node, start, monkeypatch)
        assert node.content_of_tables()["topics"]
        master.store.start_at(start)
        master.lead(9)
        assert master.primary is not None
        following = asyncio.create_task(joined(node.follow(), master.primary, lambda _, data: [data]))
        await eventually(
            lambda: master.primary.replicas() and master.primary.replicas()[0].has_acked, what="it follows"
        )
        assert not any(node.content_of_tables()[name] for name in ("topics", "groups", "offsets", "producers"))
        master.close()
        await asyncio.gather(following, return_exceptions=True)
        node.close()

    asyncio.run(scenario())


def test_a_cut_outside_the_log_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = played(tmp_path, before_the_cut)
        tables, end = node.content_of_tables(), node.store.end_offset
        for offset in (-1, end + 1):
            with pytest.raises(StorageError, match=f"cannot be cut at {offset}"):
                node.store.truncate_to(offset)
        await node.log.truncate_to(end)
        assert node.content_of_tables() == tables
        node.close()

    asyncio.run(scenario())


def failing(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "does not work")


def with_a_snapshot_and_more(tmp_path: Path) -> tuple[Node, int, Any]:
    """A master that has gone on behind its snapshot; where the snapshot was written, and the tables in it."""
    node = Node(tmp_path, 1, ALONE)
    node.lead(2)
    before_the_cut(node)
    end, tables = node.store.end_offset, node.content_of_tables()
    node.snapshots.write_all(node.store.dispatched_offset)
    after_the_cut(node)
    return node, end, tables


def test_a_snapshot_that_cannot_be_deleted_ends_an_attempt_to_cut_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a StorageError, with which a slave tries again; an OSError would end the broker."""

    async def scenario() -> None:
        node, end, expected = with_a_snapshot_and_more(tmp_path)
        node.snapshots.write_all(node.store.dispatched_offset)  # the first ones are .bak now
        node.leave()
        tables, whole = node.content_of_tables(), node.store.end_offset
        unlink, deleted = Path.unlink, []

        def second_fails(path: Path, missing_ok: bool = False) -> None:
            if deleted:
                failing()
            deleted.append(path.name)
            unlink(path, missing_ok)

        with monkeypatch.context() as broken:
            broken.setattr(Path, "unlink", second_fails)
            with pytest.raises(StorageError, match="does not work"):
                await node.log.truncate_to(end)
        assert (node.content_of_tables(), node.store.end_offset) == (tables, whole)
        assert node.snapshots.covered() == 0, "one file is gone"
        await node.snapshots.write_changed(lambda: whole, at_once=True)
        assert (node.snapshots.directory / deleted[0]).exists()
        await node.log.recover()
        await node.log.truncate_to(end)
        assert node.content_of_tables() == expected
        node.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("then", ["recover", "close", "kill"])
def test_tables_that_cannot_follow_a_cut_at_once_follow_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    async def scenario() -> None:
        node, end, expected = with_a_snapshot_and_more(tmp_path)
        node.leave()
        snapshots = node.snapshots
        files = {path: path.read_bytes() for path in snapshots.directory.iterdir()}
        with monkeypatch.context() as broken:
            broken.setattr(Snapshots, "load", failing)
            with pytest.raises(StorageError, match="does not work"):
                await node.log.truncate_to(end)
            with pytest.raises(StorageError, match="does not work"):
                await node.log.recover()
        assert node.store.end_offset == end
        assert node.tables.topics.get("new") is not None, "they are those of before"
        assert snapshots.covered() == 0
        await snapshots.write_changed(lambda: node.store.dispatched_offset, at_once=True)
        assert {path: path.read_bytes() for path in snapshots.directory.iterdir()} == files
        with pytest.raises(StorageError, match="no master can begin"):
            role_maker(node).make_master()
        if then == "recover":
            await node.log.recover()
        else:
            getattr(node, then)()
            node.open()
        assert node.content_of_tables() == expected
        role_maker(node).make_master()
        node.close()

    asyncio.run(scenario())


def role_maker(node: Node) -> RoleMaker:
    return RoleMaker(node.broker_config, node.opened, LogEvents(node.store, node.dispatcher), SystemClock())


def test_a_part_of_a_batch_that_is_confirmed_does_not_count_as_acknowledged(tmp_path: Path) -> None:
    """A new master cuts off the part of a batch that it has; the old one, with all of it, must be able to follow."""

    async def scenario() -> None:
        node = Node(tmp_path, 1, ReplicationConfig(sync=True))
        node.lead(2)
        whole = node.append("orders", [b"one"], sequence=1)
        end = node.append("orders", [b"two", b"three"], sequence=2)
        node.store.set_confirm(end - 1)
        assert (node.store.confirm_offset, node.log.confirm_offset) == (end - 1, whole)
        node.store.set_confirm(end)
        assert node.log.confirm_offset == end
        node.close()

    asyncio.run(scenario())


def test_a_crashed_replica_shows_only_what_was_confirmed(tmp_path: Path) -> None:
    """What lies behind may be another master's to replace, so nobody may have seen it."""

    async def scenario() -> None:
        sync = ReplicationConfig(sync=True)
        node = Node(tmp_path, 1, sync)
        node.lead(2)
        node.append("orders", [b"unconfirmed"])
        node.kill()
        node.open()
        assert node.store.dispatched_offset == node.store.confirm_offset == 0
        assert node.store.end_offset > 0
        node.lead(3)
        end = node.append("orders", [b"behind it"])
        node.store.set_confirm(end)
        node.catch_up()
        assert bodies(node.store, "orders") == [b"unconfirmed", b"behind it"]
        node.close()

    asyncio.run(scenario())
