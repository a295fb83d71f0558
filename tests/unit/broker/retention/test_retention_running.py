"""Retention in running brokers: files age by their time stamps, and an empty slave finds the state in what is left."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.broker.core.metrics import Families
from penstock.broker.retention.retention import Retention
from penstock.broker.store import Disk
from penstock.proto.errors import DiskFull
from penstock.proto.wire import broker_pb2, common_pb2
from tests.support.broker.running_broker import Caller, running
from tests.support.loops import in_own_loop
from tests.support.waiting import eventually

MIB = 1 << 20
ALWAYS: dict[str, object] = {
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "fileReservedTime": 1,
    "cleanResourceInterval": 100,
    "deleteCommitLogFilesInterval": 0,
}


async def fill(caller: Caller, size: int) -> None:
    for _ in range(size // 200_000):
        await caller.append([bytes(200_000)])


def age(root: Path, end: int) -> None:
    """Let the files below ``end`` be two hours old."""
    then = time.time() - 7200
    for path in (root / "store/commitlog").iterdir():
        if int(path.name) < end:
            os.utime(path, (then, then))


@in_own_loop
async def test_old_files_go_and_an_empty_slave_finds_topics_groups_and_offsets_in_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path / "master", **ALWAYS) as (master, caller):
        await caller.create_topic(queues=1)
        await fill(caller, 5 * MIB)
        offsets = [common_pb2.TopicOffsets(topic="orders", queue_ids=[0], offsets=[3])]
        await caller.call("CommitOffsets", broker_pb2.CommitOffsetsRequest(group="billing", offsets=offsets))
        assert master.core.store.min_offset == 0
        age(tmp_path / "master", 4 * MIB)
        await eventually(lambda: master.core.store.min_offset == 4 * MIB, what="the deletion")
        begin = await eventually(
            lambda: master.core.store.reader.queue_range("orders", 0)[0], what="the queue to begin behind it"
        )
        reply, data = await caller.fetch((0, begin))
        assert data[28:36] == (4 * MIB).to_bytes(8, "big")
        assert reply.results[0].min_offset == begin
        slave_settings = ALWAYS | {
            "brokerId": 1,
            "brokerRole": "SLAVE",
            "haMasterAddress": caller.address,
            "protectUnreadMessages": "true",
        }
        async with running(tmp_path / "slave", **slave_settings) as (slave, slave_caller):
            end = master.core.store.end_offset
            await eventually(lambda: slave.core.store.dispatched_offset >= end, what="the slave to catch up")
            assert slave.core.store.min_offset == 4 * MIB
            assert slave.core.tables.topics.get("orders") is not None
            assert slave.core.tables.offsets.get("billing", "orders", 0) == 3
            assert (await slave_caller.status()).min_offset == 4 * MIB


@in_own_loop
async def test_a_master_keeps_what_its_slave_has_not_got(tmp_path: Path) -> None:
    async with running(tmp_path / "master", **ALWAYS) as (master, caller):
        await caller.create_topic(queues=1)
        await fill(caller, 3 * MIB)
        needed = 2 * MIB + 5
        master.core.role.needed_from = lambda patience_s: needed  # type: ignore[method-assign]
        age(tmp_path / "master", 3 * MIB)
        await eventually(lambda: master.core.store.min_offset == 2 * MIB, what="the deletion")
        await eventually(lambda: master.features[Retention].files_deleted == 2, what="the count of deleted files")


@in_own_loop
async def test_a_restart_after_a_deletion_is_clean_and_reads_the_rest(tmp_path: Path) -> None:
    async with running(tmp_path / "b", **ALWAYS) as (broker, caller):
        await caller.create_topic(queues=1)
        await fill(caller, 3 * MIB)
        age(tmp_path / "b", 2 * MIB)
        await eventually(lambda: broker.core.store.min_offset == 2 * MIB, what="the deletion")
        await eventually(lambda: broker.core.store.reader.queue_range("orders", 0)[0] > 0, what="the queue to follow")
        expected = broker.core.store.reader.queue_range("orders", 0)
    async with running(tmp_path / "b", **ALWAYS) as (broker, caller):
        assert broker.core.store.recovery.clean
        assert broker.core.store.reader.queue_range("orders", 0) == expected
        assert broker.core.tables.topics.get("orders") is not None
        _, data = await caller.fetch((0, expected[0]))
        assert len(data) > 200_000


@in_own_loop
async def test_files_go_by_force_where_the_next_one_does_not_fit_however_low_the_ratio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"diskSpaceWarningLevelRatio": 100, "diskSpaceCleanForciblyRatio": 99, "cleanResourceInterval": 100}
    async with running(tmp_path, **settings) as (broker, caller):
        await caller.create_topic(queues=1)
        await fill(caller, 3 * MIB)
        store = broker.core.store
        monkeypatch.setattr(Disk, "free_bytes", lambda _disk, _path: 1 << 40 if store.min_offset else 0)
        with pytest.raises(DiskFull):
            await fill(caller, 5 * MIB)
        end = store.end_offset
        await eventually(lambda: store.min_offset > 0, what="a deletion")
        await fill(caller, MIB)
        assert store.end_offset > end


@in_own_loop
async def test_the_metric_of_a_full_disk_says_so_as_well_where_only_the_next_log_file_finds_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, diskSpaceWarningLevelRatio=100, cleanFileForciblyEnable="false") as (broker, caller):

        def shown() -> float:
            families = Families({})
            Retention(broker.core).describe(families)
            (found,) = [each for each in families.made if each.name == "penstock_disk_full"]
            return float(found.samples[0].value)

        await caller.create_topic(queues=1)
        assert shown() == 0
        with monkeypatch.context() as small:
            small.setattr(Disk, "free_bytes", lambda _disk, _path: 0)
            with pytest.raises(DiskFull):
                await fill(caller, 5 * MIB)
            assert shown() == 1
        assert shown() == 0  # there is space again, and messages are welcome
        await fill(caller, MIB)
        assert shown() == 0
