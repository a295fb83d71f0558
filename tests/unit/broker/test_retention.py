"""Retention in a broker: what is seen to before files go, who keeps them, who is warned."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.service.dispatch import Dispatcher, apply
from penstock.broker.service.metrics import Families
from penstock.broker.service.producers import ProducerTable
from penstock.broker.service.retention import Retention, RetentionTimes
from penstock.broker.service.snapshots import Snapshots
from penstock.broker.service.stalls import PAUSE_S, AppendStalls
from penstock.broker.service.state import Group, State, Topic
from penstock.broker.service.state_log import StateLog
from penstock.broker.service.topics import topic_to_create
from penstock.broker.store import RealDisk, Store
from penstock.broker.store.cleaning import HOUR_MS, CleaningRules
from penstock.proto.errors import DiskFull, FlowControl, InvalidArgument
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker_parts import BORN
from tests.support.clock import ManualClock
from tests.support.stores import batch, bodies, store_config
from tests.support.waiting import eventually

SEGMENT = 16384
KEEPS = Topic("keeps", 1, 1)


def in_own_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test, with its fixtures, in an event loop of its own."""

    @functools.wraps(test)
    def call(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return call


class MeasuredDisk(RealDisk):
    """A disk whose use a test sets, in per cent; deleted log files give back ``per_file``. All files are of noon."""

    percent = 20
    per_file = 0
    noon_ms = 0

    def modified_ms(self, path: str) -> int:
        return self.noon_ms

    def used_bytes(self, path: str) -> int:
        return self.percent << 30

    def free_bytes(self, path: str) -> int:
        return (100 - self.percent) << 30

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if "/commitlog/" in path:
            self.percent -= self.per_file


class Slaves:
    def __init__(self) -> None:
        self.needed: int | None = None

    def needed_from(self, patience_s: float) -> int | None:
        return self.needed


class Node:
    """A store with its tables and its retention; the clock stands at noon."""

    def __init__(self, root: Path, *, master: bool = True, protect: bool = False, **rules: Any) -> None:
        self.root = root
        noon = datetime.now().astimezone().replace(hour=12, minute=0, second=0, microsecond=0)
        self.clock = ManualClock(int(noon.timestamp() * 1000))
        self.disk = MeasuredDisk()
        self.disk.noon_ms = self.clock.wall_ms()
        self.store = Store.open(store_config(root), disk=self.disk, clock=self.clock)
        self.state, self.producers, self.slaves = State(), ProducerTable(), Slaves()
        self.snapshots = Snapshots(root / "config", self.state, self.producers)
        found = self.snapshots.load(self.store.min_offset, self.store.end_offset, log_has_all=True)
        for result in self.store.replay(found.replay_from):
            apply(result, self.state, self.producers)
        self.dispatcher = Dispatcher(self.store, self.state, self.producers, lambda arrivals: None)
        self.log = StateLog(self.state, self.store, BORN, lambda end: self.dispatch())
        self.retention = Retention(
            self.store,
            self.state,
            self.snapshots,
            self.slaves,
            self.log if master else None,
            CleaningRules(**rules),
            RetentionTimes(interval_s=0.01, pause_s=0, grace_s=120),
            protect_unread=protect,
            wait_dispatched=self.dispatcher.wait_dispatched,
            clock=self.clock,
        )

    def dispatch(self) -> None:
        self.store.set_confirm(self.store.end_offset)
        while self.dispatcher.dispatch_slice():
            pass

    def fill(self, files: int = 4, topic: str = "keeps", **how: Any) -> None:
        """Messages of 1 KiB until the log has so many files."""
        end = self.store.end_offset + (files - 1) * SEGMENT
        while self.store.end_offset < end:
            self.store.append(topic, batch(topic, [bytes(1000)]), queues=1)
        self.dispatch()

    def at_four(self, days: float = 10) -> None:
        """Some days later, four in the morning."""
        self.clock.advance(int(days) * 86400 + 16.5 * 3600)

    def log_begin(self) -> int:
        return min(int(path.name) for path in (self.root / "commitlog").iterdir())

    def metrics(self) -> dict[tuple[str, str], float]:
        families = Families({})
        self.retention.describe(families)
        return {
            (sample.name, ",".join(sample.labels.values())): sample.value
            for family in families.made
            for sample in family.samples
        }


@contextlib.asynccontextmanager
async def node(root: Path, **how: Any) -> AsyncIterator[Node]:
    found = Node(root, **how)
    try:
        yield found
    finally:
        found.store.close()


@in_own_loop
async def test_expired_files_go_at_four_and_not_before(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.fill()
        it.clock.advance(10 * 86400)
        await it.retention.clean()
        assert it.log_begin() == 0
        it.clock.advance(16.5 * 3600)
        await it.retention.clean()
        assert it.log_begin() == it.store.min_offset == 3 * SEGMENT
        low, high = it.store.queue_range("keeps", 0)
        assert it.store.removal.physical_at("keeps", 0, low) == 3 * SEGMENT
        assert len(bodies(it.store, "keeps")) == high - low
        assert it.metrics()["penstock_log_files_deleted_total", ""] == 3


@in_own_loop
async def test_a_master_that_is_deposed_while_it_repeats_the_state_writes_no_more(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        for number in range(200):
            it.log.put_group(Group(f"group{number}"))
        it.fill()
        it.clock.advance(73 * 3600)
        it.disk.percent = 76
        cleaning = asyncio.create_task(it.retention.clean())
        before = it.store.end_offset
        for _ in range(10_000):
            if it.store.end_offset != before:
                break
            await asyncio.sleep(0)
        assert not cleaning.done()
        it.retention.on_role(None)
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
        it.clock.advance(73 * 3600)
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
        it.log.put_topic(KEEPS)
        it.log.put_topic(Topic("gone", 1, 1))
        it.log.put_group(Group("billing"))
        it.log.commit("billing", {"keeps": {0: 0}})
        it.log.delete_topic("gone")
        it.fill()
        it.at_four()
        await it.retention.clean()
        begin = it.store.min_offset
        assert begin >= 3 * SEGMENT
        state = State()
        for result in it.store.replay(begin):  # as a slave that starts empty
            apply(result, state, ProducerTable())
        assert (state.topic("keeps"), state.topic("gone")) == (KEEPS, None)
        assert state.group("billing") is not None
        assert state.committed("billing", "keeps", 0) == 0
        assert it.snapshots.covered() >= begin
    async with node(tmp_path) as again:
        assert (again.state.topic("keeps"), again.state.topic("gone")) == (KEEPS, None)
        assert again.state.committed("billing", "keeps", 0) == 0


@in_own_loop
async def test_a_master_that_does_not_know_where_its_state_is_recorded_records_it_again(tmp_path: Path) -> None:
    async with node(tmp_path, master=False) as slave:
        slave.log.put_topic(KEEPS)
        slave.fill()
        slave.at_four()
        await slave.retention.clean()
        assert slave.store.min_offset > 0
        slave.snapshots.write_all(slave.store.dispatched_offset)
    async with node(tmp_path) as master:
        end = master.store.end_offset
        await master.retention.clean()
        state = State()
        for result in master.store.replay(end):
            apply(result, state, ProducerTable())
        assert state.topic("keeps") == KEEPS
        end = master.store.end_offset
        await master.retention.clean()
        assert master.store.end_offset == end, "once is enough"


@in_own_loop
async def test_a_snapshot_that_cannot_be_written_keeps_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with node(tmp_path) as it:
        it.log.put_topic(KEEPS)
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
        it.slaves.needed = SEGMENT + 100
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
        it.log.put_topic(KEEPS)
        it.fill()
        at = it.store.removal.first_from("keeps", 0, 3 * SEGMENT)
        it.log.commit("slow", {"keeps": {0: at - 7}})
        it.log.commit("done", {"keeps": {0: at}})
        it.clock.advance(84 * 3600)  # midnight: at four they go
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
        it.clock.advance(4.5 * 3600)
        await it.retention.clean()
        assert it.log_begin() == 3 * SEGMENT
        assert it.metrics()["penstock_unread_deleted_messages_total", "keeps,slow"] == 7
        await asyncio.sleep(0)
        it.clock.advance(61)
        await it.retention.clean()
        assert not it.retention._forewarning.expiring


@in_own_loop
async def test_unread_messages_can_be_kept_until_the_disk_forces(tmp_path: Path) -> None:
    async with node(tmp_path, protect=True) as it:
        it.log.put_topic(KEEPS)
        it.fill()
        it.log.commit("slow", {"keeps": {0: it.store.removal.first_from("keeps", 0, SEGMENT) + 1}})
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
        it.log.put_topic(Topic("short", 1, 1, attributes={"retention.ms": str(HOUR_MS)}))
        it.log.put_topic(KEEPS)
        for topic in ("short", "keeps"):
            it.store.append(topic, batch(topic, [b"old", b"older"]), queues=1)
        it.clock.advance(3500)
        it.store.append("short", batch("short", [b"young"]), queues=1)
        it.dispatch()
        it.log.commit("slow", {"short": {0: 1}})
        await it.retention.clean()
        assert it.store.queue_range("short", 0) == (0, 3)
        assert it.metrics()["penstock_group_unread_expiring_messages", "short,slow"] == 1
        it.clock.advance(200)
        await it.retention.clean()
        assert it.store.queue_range("short", 0) == (2, 3)
        assert bodies(it.store, "short") == [b"young"]
        assert bodies(it.store, "keeps") == [b"old", b"older"]
        assert it.metrics()["penstock_unread_deleted_messages_total", "short,slow"] == 1
        it.snapshots.write_all(it.store.dispatched_offset)
    async with node(tmp_path) as again:
        again.clock.advance(3700)
        again.retention.start()
        assert again.store.queue_range("short", 0) == (2, 3), "a start brings nothing back"


@in_own_loop
async def test_protection_holds_for_short_lived_topics_too(tmp_path: Path) -> None:
    async with node(tmp_path, protect=True) as it:
        it.log.put_topic(Topic("short", 1, 1, attributes={"retention.ms": "1000"}))
        it.store.append("short", batch("short", [b"a", b"b", b"c"]), queues=1)
        it.dispatch()
        it.log.commit("slow", {"short": {0: 1}})
        it.clock.advance(3600)
        await it.retention.clean()
        assert it.store.queue_range("short", 0) == (1, 3)


@pytest.mark.parametrize("value", ["", "0", "-1", "1h", "٣"])
def test_a_retention_that_is_no_number_of_milliseconds_is_refused(value: str) -> None:
    config = common_pb2.TopicConfig(topic="t", attributes={"retention.ms": value})
    with pytest.raises(InvalidArgument, match=r"retention\.ms"):
        topic_to_create(broker_pb2.CreateTopicRequest(config=config), None, auto_create=True, default_queues=1)


@in_own_loop
async def test_a_full_disk_refuses_messages_until_there_is_space_and_takes_commits(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.log.put_topic(KEEPS)
        it.fill(2)
        it.disk.percent = 91
        it.retention.watch()
        with pytest.raises(DiskFull, match="91 % full"):
            it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        it.log.commit("billing", {"keeps": {0: 3}})
        assert it.state.committed("billing", "keeps", 0) == 3
        assert bodies(it.store, "keeps")
        assert it.metrics()["penstock_disk_full", ""] == 1
        it.disk.percent = 86
        it.retention.watch()
        with pytest.raises(DiskFull):
            it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        it.disk.percent = 85
        it.retention.watch()
        it.store.append("keeps", batch("keeps", [b"x"]), queues=1)
        assert it.metrics()["penstock_disk_full", ""] == 0


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
        assert "cleaning failed" in caplog.text


@in_own_loop
async def test_a_stalled_append_refuses_what_piled_up_behind_it() -> None:
    clock = ManualClock()
    stalls = AppendStalls(1.0, clock)
    stalls.on_append(0.9)
    stalls.check()
    stalls.on_append(1.1)
    with pytest.raises(FlowControl, match="osPageCacheBusyTimeOutMills=1000"):
        stalls.check()
    clock.advance(PAUSE_S)
    stalls.check()
    assert (stalls.stalls, stalls.refused) == (1, 1)


@in_own_loop
async def test_what_an_archive_has_not_got_is_kept_until_the_disk_forces_it(tmp_path: Path) -> None:
    async with node(tmp_path) as it:
        it.log.put("ARCHIVED", {"name": "lake", "offset": SEGMENT + 5, "updatedMs": 1})
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
        it.log.put("ARCHIVED", {"name": "lake", "offset": 5, "updatedMs": 1})
        it.log.put("ARCHIVED", {"name": "lake", "offset": -1, "updatedMs": 2})
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
        it.log.put("STAGED", {"writer": "w", "batch": 0, "key": "k", "chunk": 0, **chunk})
        it.fill(4)
        it.at_four()
        await it.retention.clean()
        assert it.log_begin() == position - position % SEGMENT
        it.log.put("STAGED_GONE", {"writer": "w", "batch": 0, "keys": ["k"]})
        await it.retention.clean()
        assert it.log_begin() > position
