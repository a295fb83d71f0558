"""Retention in a broker: what is seen to before files go, who keeps them, who is warned."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from penstock.broker.admin.topics import topic_to_create
from penstock.broker.config import TopicsConfig
from penstock.broker.core.tables.groups import Group
from penstock.broker.core.tables.topics import Topic
from penstock.broker.store.recovery.cleaning import HOUR_MS
from penstock.proto.errors import InvalidArgument, StorageError
from penstock.proto.wire.broker_pb2 import CreateTopicRequest
from penstock.proto.wire.common_pb2 import TopicConfig
from tests.support.broker.retaining import KEEPS, SEGMENT, node
from tests.support.broker.stores import batch, bodies
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually


@in_own_loop
async def test_expired_files_go_at_four_and_not_before(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        it.manual.advance(10 * 86400)
        await it.retention.clean()
        assert it.log_begin() == 0
        it.manual.advance(16.5 * 3600)
        await it.retention.clean()
        assert it.log_begin() == it.store.min_offset == 3 * SEGMENT
        low, high = it.store.reader.queue_range("keeps", 0)
        assert it.store.removal.physical_at("keeps", 0, low) == 3 * SEGMENT
        assert len(bodies(it.store, "keeps")) == high - low
        assert it.metrics()["penstock_log_files_deleted_total", ""] == 3


@in_own_loop
async def test_a_master_that_is_deposed_while_it_repeats_the_state_writes_no_more(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        for number in range(200):
            it.put_group(Group(f"group{number}"))
        it.fill()
        it.manual.advance(73 * 3600)
        it.disk.percent = 76
        cleaning = asyncio.create_task(it.retention.clean())
        before = it.store.end_offset
        for _ in range(10_000):
            if it.store.end_offset != before:
                break
            await asyncio.sleep(0)
        assert not cleaning.done()
        it.change_role(master=False)
        before = it.store.end_offset
        for _ in range(20):
            await asyncio.sleep(0)
        assert it.store.end_offset == before
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)


@in_own_loop
async def test_above_seventy_five_per_cent_expired_files_go_at_any_hour(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        it.manual.advance(73 * 3600)
        await it.retention.clean()
        assert it.log_begin() == 0
        it.disk.percent = 76
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_above_eighty_five_per_cent_young_files_go_until_there_is_space(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        it.disk.percent, it.disk.per_file = 87, 1
        await it.retention.clean()
        assert (it.log_begin(), it.disk.percent) == (2 * SEGMENT, 85)


@in_own_loop
async def test_state_is_recorded_again_before_its_records_go(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.put_topic(KEEPS)
        it.put_topic(Topic("gone", 1, 1))
        it.put_group(Group("billing"))
        it.commit("billing", {"keeps": {0: 0}})
        it.delete_topic("gone")
        it.fill()
        it.at_four()
        await it.retention.clean()
        begin = it.store.min_offset
        assert begin >= 3 * SEGMENT
        tables = it.tables.fresh()
        for result in it.store.replay(begin):  # as a slave that starts empty
            tables.take(result)
        assert (tables.topics.get("keeps"), tables.topics.get("gone")) == (KEEPS, None)
        assert tables.groups.get("billing") is not None
        assert tables.offsets.get("billing", "keeps", 0) == 0
        assert it.snapshots.covered() >= begin
    async with node(tmp_path) as again:
        assert (again.tables.topics.get("keeps"), again.tables.topics.get("gone")) == (KEEPS, None)
        assert again.tables.offsets.get("billing", "keeps", 0) == 0


@in_own_loop
async def test_a_slave_that_starts_behind_the_deleted_files_knows_what_producers_have_sent(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.put_topic(KEEPS)
        for lane in range(3):
            for sequence in (4, 9):
                it.store.append("keeps", batch("keeps", [b"once"], mark=(7, 2, lane, sequence)), queues=1)
        it.confirm()
        first = it.tables.producers.find_duplicate(7, 2, "keeps", 1, 9)
        it.fill()
        it.at_four()
        await it.retention.clean()
        tables = it.tables.fresh()
        for result in it.store.replay(it.store.min_offset):
            tables.take(result)
        producers = tables.producers
        assert first is not None
        assert it.store.min_offset > first.start
        assert len(producers) == 3
        assert producers.find_duplicate(7, 2, "keeps", 1, 9) == first
        with pytest.raises(InvalidArgument, match="sequence 4 is below the last one"):
            producers.find_duplicate(7, 2, "keeps", 1, 4)
        end = it.store.end_offset
        assert list(it.tables.producers.repeated(it.store.min_offset)) == []
        await it.retention.clean()
        assert it.store.end_offset == end, "once is enough"


@in_own_loop
async def test_a_master_that_does_not_know_where_its_state_is_recorded_records_it_again(tmp_path: Path) -> None:
    async with node(tmp_path, master=False) as slave:
        slave.put_topic(KEEPS)
        slave.fill()
        slave.at_four()
        await slave.retention.clean()
        assert slave.store.min_offset > 0
        slave.snapshots.write_all(slave.store.dispatched_offset)
    async with node(tmp_path) as master:
        end = master.store.end_offset
        await master.retention.clean()
        tables = master.tables.fresh()
        for result in master.store.replay(end):
            tables.take(result)
        assert tables.topics.get("keeps") == KEEPS
        end = master.store.end_offset
        await master.retention.clean()
        assert master.store.end_offset == end, "once is enough"


@in_own_loop
async def test_who_becomes_master_records_at_once_what_went_with_its_own_files(tmp_path: Path) -> None:
    async with node(tmp_path, master=False) as it:
        it.put_topic(KEEPS)
        it.fill()
        it.at_four()
        await it.retention.clean()
        assert it.store.min_offset > 0
        it.change_role(master=True)
        running = asyncio.create_task(it.retention.run())  # by a clock that stands still: no round is due

        def known_by_an_empty_slave() -> Topic | None:
            it.confirm()
            tables = it.tables.fresh()
            for result in it.store.replay(it.store.min_offset):
                tables.take(result)
            return tables.topics.get("keeps")

        try:
            assert await eventually(known_by_an_empty_slave, what="the state in what is left of the log") == KEEPS
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@in_own_loop
async def test_a_state_that_could_not_be_recorded_anew_is_recorded_in_a_later_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, master=False) as it:
        it.put_topic(KEEPS)
        it.fill()
        it.at_four()
        await it.retention.clean()
        it.change_role(master=True)
        with monkeypatch.context() as busy:
            busy.setattr(it.store, "append", Mock(side_effect=StorageError("no file was made: input/output error")))
            with pytest.raises(StorageError):
                await it.retention.clean()
        await it.retention.clean()
        it.confirm()
        tables = it.tables.fresh()
        for result in it.store.replay(it.store.min_offset):
            tables.take(result)
        assert tables.topics.get("keeps") == KEEPS


@in_own_loop
async def test_a_snapshot_that_cannot_be_written_keeps_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as it:
        it.put_topic(KEEPS)
        it.fill()
        it.at_four()
        with monkeypatch.context() as patch:
            patch.setattr(it.snapshots, "_replace", lambda name, text: (_ for _ in ()).throw(OSError(28, "full")))
            await it.retention.clean()
        assert it.log_begin() == 0
        assert "kept although" in caplog.text
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_no_file_goes_while_the_tables_do_not_follow_a_cut_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made from the log: what they need of it is no more what it was when the files were chosen."""
    async with node(tmp_path) as it:
        it.fill()
        it.at_four()

        async def cut(end: int) -> None:
            assert it.snapshots.writing.locked(), "no cut begins here"
            it.snapshots.is_current = False  # one does when the first file is out, and its tables fail

        with monkeypatch.context() as patch:
            patch.setattr(it.retention._forewarning, "on_delete", cut)
            await it.retention.clean()
            assert it.log_begin() == SEGMENT
            await it.retention.clean()
            assert it.log_begin() == SEGMENT
        it.snapshots.is_current = True
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_what_a_slave_still_needs_stays_unless_the_disk_forces(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        it.at_four()
        it.role.needed = SEGMENT + 100
        await it.retention.clean()
        assert it.log_begin() == SEGMENT
        it.disk.percent = 90
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_unread_messages_are_told_before_they_go_and_counted_when_they_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as it:
        it.put_topic(KEEPS)
        it.fill()
        at = it.store.removal.first_from("keeps", 0, 3 * SEGMENT)
        it.commit("slow", {"keeps": {0: at - 7}})
        it.commit("done", {"keeps": {0: at}})
        it.manual.advance(84 * 3600)  # midnight: at four they go
        with caplog.at_level(logging.WARNING):
            await it.retention.clean()
            await it.retention.clean()
        assert it.log_begin() == 0
        warnings = [record.getMessage() for record in caplog.records if "about to be deleted" in record.getMessage()]
        assert [text for text in warnings if "group=slow topic=keeps messages=7" in text] == warnings[1:]
        assert "topic=keeps messages=7 groups=1" in warnings[0]
        assert not any("done" in text for text in warnings)
        assert it.metrics()["penstock_topic_unread_expiring_messages", "keeps"] == 7
        assert it.metrics()["penstock_group_unread_expiring_messages", "keeps,slow"] == 7
        it.manual.advance(4.5 * 3600)
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT
        assert it.metrics()["penstock_unread_deleted_messages_total", "keeps,slow"] == 7
        await asyncio.sleep(0)
        it.manual.advance(61)
        await it.retention.clean()
        assert not it.retention._forewarning.expiring


@in_own_loop
async def test_unread_messages_can_be_kept_until_the_disk_forces(tmp_path: Path) -> None:
    async with node(tmp_path, protect=True) as it:
        it.put_topic(KEEPS)
        it.fill()
        it.commit("slow", {"keeps": {0: it.store.removal.first_from("keeps", 0, SEGMENT) + 1}})
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == SEGMENT
        it.disk.percent = 80
        await it.retention.clean()
        assert it.log_begin() == SEGMENT
        it.disk.percent = 86
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT


@in_own_loop
async def test_a_topic_can_keep_its_messages_for_a_shorter_time_than_the_files(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.put_topic(Topic("short", 1, 1, attributes={"retention.ms": str(HOUR_MS)}))
        it.put_topic(KEEPS)
        for topic in ("short", "keeps"):
            it.store.append(topic, batch(topic, [b"old", b"older"]), queues=1)
        it.manual.advance(3500)
        it.store.append("short", batch("short", [b"young"]), queues=1)
        it.confirm()
        it.commit("slow", {"short": {0: 1}})
        await it.retention.clean()
        assert it.store.reader.queue_range("short", 0) == (0, 3)
        assert it.metrics()["penstock_group_unread_expiring_messages", "short,slow"] == 1
        it.manual.advance(200)
        await it.retention.clean()
        assert it.store.reader.queue_range("short", 0) == (2, 3)
        assert bodies(it.store, "short") == [b"young"]
        assert bodies(it.store, "keeps") == [b"old", b"older"]
        assert it.metrics()["penstock_unread_deleted_messages_total", "short,slow"] == 1
        it.snapshots.write_all(it.store.dispatched_offset)
    async with node(tmp_path) as again:
        again.manual.advance(3700)
        again.retention.start()
        assert again.store.reader.queue_range("short", 0) == (2, 3), "a start brings nothing back"


@in_own_loop
async def test_protection_holds_for_short_lived_topics_too(tmp_path: Path) -> None:
    async with node(tmp_path, protect=True) as it:
        it.put_topic(Topic("short", 1, 1, attributes={"retention.ms": "1000"}))
        it.store.append("short", batch("short", [b"a", b"b", b"c"]), queues=1)
        it.confirm()
        it.commit("slow", {"short": {0: 1}})
        it.manual.advance(3600)
        await it.retention.clean()
        assert it.store.reader.queue_range("short", 0) == (1, 3)


@pytest.mark.parametrize("value", ["0", "-1", "1h", "٣"])
def test_a_retention_that_is_no_number_of_milliseconds_is_refused(value: str) -> None:
    asked = CreateTopicRequest(config=TopicConfig(topic="t", attributes={"retention.ms": value}))
    with pytest.raises(InvalidArgument, match=r"retention\.ms"):
        topic_to_create(asked, None, TopicsConfig())


@in_own_loop
async def test_a_reader_keeps_its_file_and_ends_the_round(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        held = it.store.read_bytes(0, 100)
        it.at_four()
        await it.retention.clean()
        assert (it.log_begin(), it.store.min_offset) == (0, 3 * SEGMENT)
        before = bytes(held)
        del held
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT
        assert len(before) == 100


@in_own_loop
async def test_cleaning_goes_on_after_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with node(tmp_path) as it:
        calls: list[float] = []

        def fail() -> None:
            calls.append(time.monotonic())
            raise OSError(5, "input/output error")

        it.retention.watch = fail  # type: ignore[method-assign]
        task = asyncio.create_task(it.retention.run())
        await eventually(lambda: len(calls) >= 3, what="three rounds")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        (line,) = [each for each in caplog.messages if each.startswith("cleaning failed")]  # of three and more rounds
        assert line.endswith("failures=1 error=OSError: [Errno 5] input/output error")


@in_own_loop
async def test_a_failure_of_every_round_is_told_once_a_minute_with_their_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path) as it:
        now_s = 1000.0
        monkeypatch.setattr(it.retention._clock, "monotonic_s", lambda: now_s, raising=False)
        for _ in range(130):
            it.retention._tell("OSError: no such directory")
            now_s += 1.0
        it.retention._tell("OSError: input/output error")
    told = [each.partition("failures=")[2] for each in caplog.messages if each.startswith("cleaning failed")]
    assert told == [
        "1 error=OSError: no such directory",
        "60 error=OSError: no such directory",
        "60 error=OSError: no such directory",
        "10 error=OSError: input/output error",
    ]
