"""Files that retention keeps for archives, for messages that wait, and for chunks that are not published yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.broker.features.archive.archive import Archive
from penstock.broker.features.later.later import Later
from penstock.proto import names
from penstock.proto.errors import OutcomeUnknown
from tests.support.broker.retaining import SEGMENT, Node, node
from tests.support.loops import in_own_loop


@in_own_loop
async def test_what_an_archive_has_not_got_is_kept_until_the_disk_forces_it(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.journal.put("ARCHIVED", {"name": "lake", "offset": SEGMENT + 5, "updatedMs": 1})
        it.fill()
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == SEGMENT
        assert it.metrics()["penstock_archive_watermark", "lake"] == SEGMENT + 5
        it.disk.percent, it.disk.per_file = 87, 2
        await it.retention.clean()
        assert it.log_begin() > SEGMENT
        assert it.metrics()["penstock_log_files_deleted_unarchived_total", ""] >= 1


@in_own_loop
async def test_a_watermark_that_is_removed_keeps_nothing(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.journal.put("ARCHIVED", {"name": "lake", "offset": 5, "updatedMs": 1})
        it.journal.put("ARCHIVED", {"name": "lake", "offset": -1, "updatedMs": 2})
        it.fill()
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_what_is_staged_and_not_published_is_kept(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill(2)
        position = it.store.end_offset
        chunk = {"topic": "keeps", "coordinator": "b", "expiresMs": 1, "position": position, "count": 1}
        it.journal.put("STAGED", {"writer": "w", "batch": 0, "key": "k", "chunk": 0, **chunk})
        it.fill(4)
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == position - position % SEGMENT
        it.journal.put("STAGED_GONE", {"writer": "w", "batch": 0, "keys": ["k"]})
        while it.log_begin() <= position:  # a thread that warms pages may hold the file still
            await it.retention.clean()
            await asyncio.sleep(0.01)


@in_own_loop
async def test_a_watermark_that_is_set_again_is_answered_when_it_is_confirmed(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill(2)
        it.role.waits_for_replicas, it.role.confirms = True, False
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                await it[Archive].set_watermark("lake", 5, force=False)
        it.role.confirms = True
        held = await it[Archive].set_watermark("lake", 5, force=False)
        assert held is not None
        assert held.offset == 5


def wait_for_long(it: Node) -> None:
    """Some messages that are due in a month."""
    from tests.support.broker.timing import later_batch

    due = it.manual.wall_ms() + 30 * 86_400_000
    it.store.append(names.TIMER_TOPIC, later_batch([b"a", b"b"], [due, due], topic="keeps"), queues=1)


@in_own_loop
async def test_messages_that_wait_do_not_hold_old_files_but_move_on(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        wait_for_long(it)
        it.fill()
        timers = it[Later].timers
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == 0, "they are in the way"
        await timers.turn()
        it.confirm()
        it.flush()
        await it.retention.clean()
        assert it.log_begin() > 0
        assert (timers.rolled, timers.waiting, timers.dropped) == (2, 0, 0)
        await timers.turn()
        assert timers.waiting == 2


@pytest.mark.parametrize("works", [True, False])
@in_own_loop
async def test_a_forced_deletion_waits_until_they_have_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    monkeypatch.setattr("penstock.broker.retention.retention.MAKE_WAY_STEP_S", 0.001)
    async with node(tmp_path) as it:
        wait_for_long(it)
        it.fill()
        timers = it[Later].timers
        await timers.turn()
        it.disk.percent, it.disk.per_file = 87, 2
        cleaning = asyncio.ensure_future(it.retention.clean())
        while works and not timers.rolled:
            await asyncio.sleep(0)
            await timers.turn()
        it.confirm()
        it.flush()
        await cleaning
        assert it.log_begin() == SEGMENT
        await timers.turn()
        assert (timers.waiting, timers.dropped) == ((2, 0) if works else (0, 2))
        assert ("are deleted before their time count=2" in caplog.text) != works
